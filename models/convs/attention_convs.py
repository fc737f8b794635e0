"""GATConv, GATv2Conv and TransformerConv with the arguments and state_dict of PyG's, on the fused attention."""

from typing import Any, Optional

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.typing import OptPairTensor, OptTensor, PairTensor, SparseTensor  # noqa: F401 (PyG looks for them here)
from torch_geometric.utils import scatter

from parallel_epochs.models.convs.edge_dropout import drop_edges
from parallel_epochs.models.convs.fused_conv import FusedConv, read_nodes
from parallel_epochs.models.convs.sum_convs import REDUCTIONS
from parallel_epochs.models.edge_index import for_pyg, plain_edges
from parallel_epochs.models.messages import update_all
from parallel_epochs.models.messages.attention import attention
from parallel_epochs.models.plain import is_plain
from parallel_epochs.models.structure import append_loops, find_structure_with_loops

__all__ = ["GATConv", "GATv2Conv", "Optional", "TransformerConv"]


class AttentionConv(MessagePassing):
    """The common part of the attention layers.

    Attributes:
        edge_dropout: probability, in training, that an edge or a self-loop is removed before the softmax. PyG's own
            code keeps all self-loops that it adds.
    """

    edge_dropout = 0.0

    def _why_attention(self, edge_attr) -> str:
        """Return the reason that attention layers have why PyG's own code has to run, or an empty text."""
        if self.aggr not in ("add", "sum"):
            return f"aggr={self.aggr}"
        if edge_attr is not None and self.lin_edge is not None:
            if hasattr(
                self.lin_edge, "_hook"
            ):  # PyG's, of a layer that waits for its number of inputs
                self.lin_edge.initialize_parameters(self.lin_edge, (_as_columns(edge_attr),))
            if not is_plain(self.lin_edge, pyg.Linear):
                return "lin_edge was replaced or has hooks"
        return ""

    def _edges_for_pyg(self, edge_index, edge_attr):
        """Return the edges, and their features, that PyG's own code reads."""
        return drop_edges(
            for_pyg(edge_index), edge_attr, dropout=self.edge_dropout, training=self.training
        )

    def _adds_loops(self) -> bool:
        return getattr(self, "add_self_loops", False)

    def _attend(
        self,
        nodes: tuple,
        edges: tuple,
        residual: Tensor | None,
        *,
        num_loops: int | None,
        returns: bool,
        **options: Any,
    ):
        """Return the output of all heads, joined or averaged, and with `returns` the edges with their weights.

        Args:
            nodes: messages, keys and queries, and the number of destinations.
            edges: the edges, their features, the encoder of these, and `att`.
            residual: what is added.
            num_loops: new self-loops, if the layer adds some.
            options: for :func:`attention`.
        """
        *nodes, num_dst = nodes
        edge_index, edge_attr, weight, att = edges
        if self._adds_loops():
            options["num_loops"] = num_loops
            if edge_attr is not None and weight is not None:
                sizes = dict(num_src=nodes[0].size(0), num_dst=num_dst)
                options["loop_attr"] = fill_loops(
                    edge_index, edge_attr, num_loops, self.fill_value, **sizes
                )
        drops = (self.dropout, self.edge_dropout) if self.training else (0.0, 0.0)
        options |= dict(zip(("dropout", "edge_dropout"), drops, strict=True))
        options |= dict(num_dst=num_dst, kernel=self.kernel, return_weights=returns)
        message, source, target = nodes
        result: Any = attention(
            message, source, target, edge_index, edge_attr, weight, att, **options
        )
        out, weights = result if returns else (result, None)
        out = self._finish(out.flatten(1) if self.concat else out.mean(1), residual)
        if not returns:
            return out
        return out, list_edges(edge_index, num_dst, options.get("num_loops"), weights)

    def _finish(self, out: Tensor, residual: Tensor | None) -> Tensor:
        if residual is not None:
            out = out + residual
        return out if self.bias is None else out + self.bias


class GATConv(AttentionConv, FusedConv, pyg.GATConv):
    """Graph attention, with the arguments of :class:`torch_geometric.nn.GATConv` and `kernel`.

    PyG's own code runs where :class:`models.convs.fused_conv.FusedConv` says so, for other aggregations than a sum,
    and for the attention weights of sparse tensors.
    Mathematics: "Graph Attention Networks" (https://arxiv.org/abs/1710.10903).
    """

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor | None],
        edge_index: Tensor | SparseTensor,
        edge_attr: Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ):
        """Convolve once; the arguments and results are PyG's."""
        special = self._why_attention(edge_attr)
        if self._runs_pygs_own(x, edge_index, special):
            # PyG writes its code from these lines: edge_updater_type: (alpha: OptPairTensor, edge_attr: OptTensor)
            # propagate_type: (x: OptPairTensor, alpha: Tensor)
            return super().forward(
                x, *self._edges_for_pyg(edge_index, edge_attr), size, return_attention_weights
            )
        edge_attr = _as_columns(edge_attr)
        x_src, x_dst, num_dst = read_nodes(x, edge_index, size)
        residual = None if self.res is None or x_dst is None else self.res(x_dst)
        shape = -1, self.heads, self.out_channels
        message = (self.lin_src if self.lin is None else self.lin)(x_src).view(shape)
        source = (message * self.att_src).sum(2)
        if self.lin is not None and x_dst is x_src:
            target = (message * self.att_dst).sum(2)
        else:
            to_dst = self.lin_dst if self.lin is None else self.lin
            target = None if x_dst is None else (to_dst(x_dst).view(shape) * self.att_dst).sum(2)
        weight = None
        if edge_attr is not None and self.lin_edge is not None:
            weight = (
                self.lin_edge.weight.view(*shape[1:], -1) * self.att_edge[0].unsqueeze(2)
            ).sum(1)
        return self._attend(
            (message, source, target, num_dst),
            (edge_index, edge_attr, weight, None),
            residual,
            num_loops=min(size or (x_src.size(0), num_dst)),
            returns=bool(return_attention_weights),
            score="gat",
            negative_slope=self.negative_slope,
        )


class GATv2Conv(AttentionConv, FusedConv, pyg.GATv2Conv):
    """Graph attention whose ranking of neighbours depends on the node, as :class:`torch_geometric.nn.GATv2Conv`.

    PyG's own code runs where it does for :class:`GATConv`.
    Mathematics: "How Attentive are Graph Attention Networks?" (https://arxiv.org/abs/2105.14491).
    """

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Tensor | SparseTensor,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ):
        """Convolve once; the arguments and results are PyG's."""
        special = self._why_attention(edge_attr)
        if self._runs_pygs_own(x, edge_index, special):
            # PyG writes its code from these lines: edge_updater_type: (x: PairTensor, edge_attr: OptTensor)
            # propagate_type: (x: PairTensor, alpha: Tensor)
            return super().forward(
                x, *self._edges_for_pyg(edge_index, edge_attr), return_attention_weights
            )
        edge_attr = _as_columns(edge_attr)
        x_src, x_dst, num_dst = read_nodes(x, edge_index)
        if x_dst is None:
            raise ValueError(
                "GATv2Conv needs the features of the destination nodes, too: pass x=(x_src, x_dst)"
            )
        if edge_attr is not None and self.lin_edge is None:
            raise ValueError(
                "edge_attr is given, but the layer was built without edge_dim: build it with "
                f"edge_dim={edge_attr.size(1)}"
            )
        residual = None if self.res is None else self.res(x_dst)
        shape = -1, self.heads, self.out_channels
        message = self.lin_l(x_src).view(shape)
        shares = self.share_weights and isinstance(x, Tensor)
        target = message if shares else self.lin_r(x_dst).view(shape)
        weight = None if edge_attr is None else self.lin_edge.weight
        return self._attend(
            (message, None, target, num_dst),
            (edge_index, edge_attr, weight, self.att[0]),
            residual,
            num_loops=min(x_src.size(0), num_dst),
            returns=bool(return_attention_weights),
            score="gatv2",
            negative_slope=self.negative_slope,
        )


class TransformerConv(AttentionConv, FusedConv, pyg.TransformerConv):
    """Attention by dot products, as :class:`torch_geometric.nn.TransformerConv`.

    PyG's own code runs where it does for :class:`GATConv`, and for edge features without `edge_dim`.
    Mathematics: "Masked Label Prediction" (https://arxiv.org/abs/2009.03509).
    """

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Tensor | SparseTensor,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ):
        """Convolve once; the arguments and results are PyG's."""
        special = self._why_attention(edge_attr)
        if edge_attr is not None and self.lin_edge is None:
            special = special or "edge_attr without edge_dim"
        if self._runs_pygs_own(x, edge_index, special):
            # PyG writes its code from this line:
            # propagate_type: (query: Tensor, key: Tensor, value: Tensor, edge_attr: OptTensor)
            return super().forward(
                x, *self._edges_for_pyg(edge_index, edge_attr), return_attention_weights
            )
        if self.lin_edge is not None and edge_attr is None:
            raise ValueError(
                f"edge_attr is missing, but the layer was built with edge_dim={self.edge_dim}: pass "
                "edge_attr, or build the layer without edge_dim"
            )
        x_src, x_dst, num_dst = read_nodes(x, edge_index)
        shape = -1, self.heads, self.out_channels
        target = self.lin_query(x_dst).view(shape)
        source, message = self.lin_key(x_src).view(shape), self.lin_value(x_src).view(shape)
        return self._attend(
            (message, source, target, num_dst),
            (edge_index, edge_attr, None if edge_attr is None else self.lin_edge.weight, None),
            self.lin_skip(x_dst) if self.root_weight else None,
            num_loops=None,
            returns=isinstance(return_attention_weights, bool),
            score="dot",
        )

    def _finish(self, out: Tensor, residual: Tensor | None) -> Tensor:
        if residual is None or self.lin_beta is None:
            return out if residual is None else out + residual
        share = self.lin_beta(torch.cat([out, residual, out - residual], dim=1)).sigmoid()
        return share * residual + (1 - share) * out


def _as_columns(edge_attr: Tensor | None) -> Tensor | None:
    return edge_attr.unsqueeze(1) if edge_attr is not None and edge_attr.dim() == 1 else edge_attr


def fill_loops(
    edge_index: Tensor,
    edge_attr: Float[Tensor, "num_edges edge_dim"],
    num_loops: int,
    fill_value: float | Tensor | str,
    *,
    num_src: int,
    num_dst: int,
) -> Float[Tensor, "num_loops edge_dim"]:
    """Compute the features of new self-loops.

    Args:
        edge_index: [2, num_edges]; its self-loops do not count.
        fill_value: a number, the features of all or of each [num_loops, edge_dim], or how the features of a node's
            incoming edges are reduced: add, sum, mean, min, max or mul.
    """
    shape = num_loops, edge_attr.size(1)
    if isinstance(fill_value, Tensor):
        return fill_value.to(edge_attr).expand(shape)
    if not isinstance(fill_value, str):
        return edge_attr.new_full(shape, fill_value)
    if (
        fill_value in REDUCTIONS
        and edge_attr.device.type == "cpu"
        and not torch.compiler.is_compiling()
    ):
        structure = find_structure_with_loops(edge_index, num_src, num_dst, num_loops)
        if int(structure.indptr[-1]) == edge_index.size(1) + num_loops:  # there were no self-loops
            return update_all(
                edge_index,
                "copy_e",
                REDUCTIONS[fill_value],
                e=edge_attr,
                num_src=num_src,
                num_dst=num_dst,
            )[:num_loops]
    if fill_value in ("add", "sum", "mean") and edge_attr.is_cuda:
        return _sum_in_order(edge_index, edge_attr, num_loops, fill_value, num_src, num_dst)
    index = append_loops(edge_index, num_dst, 0)[1].long()
    return scatter(edge_attr, index, 0, num_dst + 1, fill_value)[:num_loops]


def _sum_in_order(
    edge_index: Tensor,
    edge_attr: Tensor,
    num_loops: int,
    fill_value: str,
    num_src: int,
    num_dst: int,
) -> Tensor:
    """Reduce the features of incoming edges as :func:`fill_loops` does, in one order, where a scatter has any order."""
    src, dst = plain_edges(edge_index)
    count = find_structure_with_loops(edge_index, num_src, num_dst, num_loops).indptr.diff().float()
    count[:num_loops] -= 1
    share = count.clamp(min=1).reciprocal() if fill_value == "mean" else torch.ones_like(count)
    return update_all(
        edge_index,
        "e_mul_v",
        "sum",
        e=edge_attr * (src != dst).unsqueeze(1),
        v=share.unsqueeze(1),
        num_src=num_src,
        num_dst=num_dst,
    )[:num_loops]


def list_edges(
    edge_index: Tensor, num_dst: int, num_loops: int | None, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the edges and their weights as PyG does: those that are no self-loops, then the new ones."""
    if num_loops is None:
        return edge_index, weights
    listed = append_loops(edge_index, num_dst, num_loops)
    kept = listed[1] != num_dst
    return (listed, weights) if bool(kept.all()) else (listed[:, kept], weights[kept])

"""GENConv with the arguments and state_dict of PyG's, plus all aggregations of DeepGCN and an external edge encoder."""

from typing import Optional

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.typing import OptPairTensor, OptTensor, SparseTensor  # noqa: F401 (PyG looks for them here)

from parallel_epochs.models.aggregate import AGGREGATIONS, aggregate, check_rows
from parallel_epochs.models.aggregate.reduce import root
from parallel_epochs.models.aggregate.relation_table import encode_edges, look_up
from parallel_epochs.models.convs.activation import norm_relu_dropout
from parallel_epochs.models.convs.fused_conv import FusedConv, read_nodes
from parallel_epochs.models.edge_index import for_pyg
from parallel_epochs.models.plain import has_hooks, is_plain

# The entries of PyG's `aggr_kwargs` that are read here.
_AGGR_KWARGS = {"t", "p", "learn"}


class GENConv(FusedConv, pyg.GENConv):
    """Generalized graph convolution, ``MLP(x_i + aggregate_j(relu(x_j + e_ij) + eps))``.

    It takes the arguments of :class:`torch_geometric.nn.GENConv` and has more aggregations, see
    :func:`models.aggregate.aggregate`. PyG's own code runs, and one warning says so, where only that can do what is
    asked: other aggregations and `aggr_kwargs`, ``flow="target_to_source"``, `x` of three dimensions,
    `decomposed_layers`, sparse tensors of edges, an explainer's mask, hooks on the steps of message passing, subclasses
    that override a step.
    Mathematics: "DeeperGCN: All You Need to Train Deeper GCNs" (https://arxiv.org/abs/2006.07739).

    Args:
        kernel: "auto", "fused" or "reference", see :func:`models.aggregate.aggregate`, or "pyg" for PyG's own code.

    Raises:
        ValueError: unknown `kernel`.
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        aggr="softmax",
        *args,
        kernel: str = "auto",
        **kwargs,
    ):
        aggr = "powermean" if aggr == "power" else aggr  # PyG has both names
        # PyG lacks softmax_sum, and creates t for softmax.
        of_pyg = "softmax" if aggr == "softmax_sum" else aggr
        super().__init__(in_channels, out_channels, of_pyg, *args, kernel=kernel, **kwargs)
        self.aggr_name = aggr if isinstance(aggr, str) else self.aggr
        self._pygs_kwargs = sorted(set(kwargs.get("aggr_kwargs") or ()) - _AGGR_KWARGS)

    def forward(
        self,
        x: (
            Float[Tensor, "*batch num_src in_channels"]
            | tuple[
                Float[Tensor, "*batch num_src in_channels"],
                Float[Tensor, "*batch num_dst in_channels_dst"] | None,
            ]
        ),
        edge_index: Int[Tensor, "2 num_edges"]
        | SparseTensor
        | Float[Tensor, "num_dst num_src *value"],
        edge_attr: Float[Tensor, "..."] | None = None,
        size: tuple[int, int] | None = None,
        *,
        edge_encoder: (
            tuple[Float[Tensor, "out_channels edge_dim"], Float[Tensor, " out_channels"] | None]
            | None
        ) = None,
        edge_table: Float[Tensor, "num_relations out_channels"] | None = None,
    ) -> Float[Tensor, "*batch num_out out_channels"]:
        """Convolve once.

        Args:
            x: [num_nodes, in_channels], or a pair (source, destination) for a bipartite graph.
            edge_index: [2, num_edges], an ``EdgeIndex``, or a SparseTensor or torch.sparse tensor [num_dst, num_src].
            edge_attr: [num_edges, edge_dim] or none, which for a sparse tensor means its values.
            size: (num_src, num_dst) of a bipartite graph.
            edge_encoder: weight [out_channels, edge_dim] and bias [out_channels] or none to use in place of
                ``lin_edge``.
            edge_table: a row for each relation [num_relations, out_channels], which is added to the encoded features of
                its edges. Then column 0 of `edge_attr` is the number of the edge's relation, and the encoder reads the
                other columns.

        Returns:
            [num_dst, out_channels]

        Raises:
            ValueError: sizes that do not match, or ``kernel="fused"`` where PyG's own code has to run.
            IndexError: an edge has an end that is not in the graph, or a relation that is not in `edge_table`.
        """
        if self._runs_pygs_own(x, edge_index, self._why_special()):
            return self._run_pygs_own(x, edge_index, edge_attr, size, edge_encoder, edge_table)

        x_src, x_dst, num_dst = read_nodes(x, edge_index, size)
        if hasattr(self, "lin_src"):
            x_src = self.lin_src(x_src)
        edge_attr, weight, bias, table = self._choose_encoder(edge_attr, edge_encoder, edge_table)
        out = aggregate(
            x_src,
            edge_index,
            edge_attr,
            weight,
            bias,
            aggr=self.aggr_name,
            eps=self.eps,
            num_dst=num_dst,
            t=getattr(self.aggr_module, "t", 1.0),
            p=getattr(self.aggr_module, "p", 1.0),
            table=table,
            kernel=self.kernel,
        )
        if hasattr(self, "msg_norm"):
            out = self.msg_norm(x_src if x_dst is None else x_dst, out)
        if x_dst is not None:
            out = out + (self.lin_dst(x_dst) if hasattr(self, "lin_dst") else x_dst)
        return self._apply_mlp(out)

    def aggregate(
        self,
        inputs: Tensor,
        index: Tensor,
        ptr: OptTensor = None,
        dim_size: Optional[int] = None,  # noqa: UP045 (PyG reads it)
    ) -> Tensor:
        """Aggregate messages where PyG's own code runs; see :class:`torch_geometric.nn.conv.MessagePassing`."""
        out = super().aggregate(inputs, index, ptr, dim_size)
        if self.aggr_name != "softmax_sum":
            return out
        degree = torch.bincount(index, minlength=out.size(self.node_dim)).clamp(min=1).to(out.dtype)
        return out * root(degree).unsqueeze(1)

    def _why_special(self) -> str:
        """Return the reason that only this layer has why PyG's own code has to run, or an empty text."""
        if not isinstance(self.aggr_name, str) or self.aggr_name not in AGGREGATIONS:
            return f"aggr={self.aggr_name}"
        if self._pygs_kwargs:
            return f"aggr_kwargs with {', '.join(self._pygs_kwargs)}"
        return ""

    def _run_pygs_own(self, x, edge_index, edge_attr, size, edge_encoder, edge_table):
        if (
            edge_attr is not None
            and isinstance(edge_index, Tensor)
            and edge_index.layout == torch.strided
        ):
            check_rows(edge_index, edge_attr)  # PyG repeats a single row
        if edge_encoder is not None and edge_attr is not None:
            if hasattr(self, "lin_edge"):
                raise ValueError(
                    "edge_encoder is given, but the layer has its own lin_edge: build the layer without "
                    "edge_dim"
                )
            if edge_table is None:
                edge_attr = torch.nn.functional.linear(edge_attr, *edge_encoder)
        if edge_table is not None:
            if hasattr(self, "lin_edge"):
                raise ValueError(
                    "edge_table works without PyG's own code only, which has to run here, in a layer with "
                    "its own lin_edge: build the layer without edge_dim"
                )
            edge_attr = encode_edges(edge_attr, *(edge_encoder or (None, None)), edge_table)
        # PyG writes the code of propagate from this line: propagate_type: (x: OptPairTensor, edge_attr: OptTensor)
        return super().forward(x, for_pyg(edge_index), edge_attr, size)

    def _choose_encoder(self, edge_attr, edge_encoder, table):
        """Return edge features, and the weight, bias and table that encode them: None if nothing is left to encode."""
        if edge_attr is None:
            return None, None, None, table
        if edge_encoder is not None:
            return edge_attr, *edge_encoder, table
        if not hasattr(self, "lin_edge"):
            return edge_attr, None, None, table
        if is_plain(self.lin_edge, pyg.Linear):
            return edge_attr, self.lin_edge.weight, self.lin_edge.bias, table
        if table is not None:
            return self.lin_edge(edge_attr[:, 1:]) + look_up(edge_attr, table), None, None, None
        return self.lin_edge(edge_attr), None, None, None

    def _apply_mlp(self, out: Tensor) -> Tensor:
        # PyG's MLP is Linear, norm, ReLU, Dropout, Linear, ...
        if has_hooks(self.mlp):
            return self.mlp(out)
        modules = list(self.mlp)
        while modules:
            module = modules.pop(0)
            if (
                len(modules) > 1
                and is_plain(module, torch.nn.LayerNorm)
                and is_plain(modules[0], torch.nn.ReLU)
                and is_plain(modules[1], torch.nn.Dropout)
            ):
                dropout = modules[1]
                out = norm_relu_dropout(
                    out, module, dropout=dropout.p, training=dropout.training, kernel=self.kernel
                )
                del modules[:2]
            else:
                out = module(out)
        return out

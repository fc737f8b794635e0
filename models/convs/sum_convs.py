"""PyG's layers that sum, average or compare what the neighbours send, without a tensor of edges x channels."""

import torch
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.typing import (  # noqa: F401 (PyG looks for them here)
    Adj,
    OptPairTensor,
    OptTensor,
    Size,
    SparseTensor,
)

from parallel_epochs.models.aggregate import aggregate, check_rows
from parallel_epochs.models.convs.fused_conv import FusedConv, read_nodes
from parallel_epochs.models.edge_index import for_pyg
from parallel_epochs.models.messages import update_all
from parallel_epochs.models.plain import is_plain
from parallel_epochs.models.structure import Degrees, find_degrees

# The reductions of PyG's aggregations.
REDUCTIONS = {"add": "sum", "sum": "sum", "mean": "mean", "max": "max", "min": "min"}


class GCNConv(FusedConv, pyg.GCNConv):
    """Graph convolution, ``D^-1/2 (A + I) D^-1/2 x W``, with the arguments of :class:`torch_geometric.nn.GCNConv`.

    The self-loops are a term of the nodes, and the degrees scale the nodes before and after the sum, so that no list
    of edges is built. With ``cached=True`` PyG's own code runs.
    """

    def forward(self, x: Tensor, edge_index: Adj, edge_weight: OptTensor = None) -> Tensor:
        """Convolve once.

        Args:
            x: [num_nodes, in_channels]
            edge_index: [2, num_edges], an ``EdgeIndex``, or a sparse tensor, whose values are the weights.
            edge_weight: [num_edges] or none.

        Returns:
            [num_nodes, out_channels]
        """
        special = "cached=True" if self.cached else why_aggr(self)
        if isinstance(x, (tuple, list)) or self._runs_pygs_own(x, edge_index, special):
            # PyG writes the code of propagate from this: propagate_type: (x: Tensor, edge_weight: OptTensor)
            return super().forward(x, for_pyg(edge_index), edge_weight)
        h = self.lin(x)
        num_nodes = read_nodes(h, edge_index)[2]
        if self.normalize:
            out = self._sum_normalized(h, edge_index, edge_weight, x.dtype)
        else:
            out = _reduce(self, h, edge_index, edge_weight, num_nodes)
        return out if self.bias is None else out + self.bias

    def _sum_normalized(
        self, h: Tensor, edges: Tensor, weight: OptTensor, dtype: torch.dtype
    ) -> Tensor:
        num_nodes = h.size(0)
        graph = find_degrees(edges, num_nodes)
        if weight is None:
            degree = graph.in_degree.to(torch.promote_types(dtype, torch.float32))
        else:
            weight = (
                weight.reshape(-1) if graph.position is None else weight.reshape(-1)[graph.position]
            )
            degree = update_all(
                graph.edge_index,
                "copy_e",
                "sum",
                e=weight,
                num_src=num_nodes,
                num_dst=num_nodes,
                kernel=self.kernel,
            )
        loops = self._weigh_loops(graph, weight, num_nodes)
        degree = degree + loops
        scale = degree.masked_fill(degree == 0, torch.inf).pow(-0.5).to(dtype).unsqueeze(1)
        h = (h * scale).to(h.dtype)
        out = _reduce(self, h, graph.edge_index, weight, num_nodes)
        if isinstance(loops, Tensor):
            loops = loops.to(dtype).unsqueeze(1)
        return (out + loops * h) * scale

    def _weigh_loops(self, graph: Degrees, weight: OptTensor, num_nodes: int) -> Tensor | float:
        """Return the weight of each node's self-loop [num_nodes] beyond that of its loops among the edges.

        As in PyG, weighted edges keep the weight of a loop that they have.
        """
        if not self.add_self_loops:
            return 0.0
        # PyG reads `improved` only where there are weights.
        fill = 2.0 if self.improved and weight is not None else 1.0
        if not torch.compiler.is_exporting() and not graph.loops.numel():
            return fill
        node = torch.as_tensor(graph.edge_index[0]).index_select(0, graph.loops)
        own = (
            torch.ones_like(node, dtype=torch.float32)
            if weight is None
            else weight.index_select(0, graph.loops)
        )
        kept = own.new_full((num_nodes,), fill)
        if weight is not None:
            kept = kept.index_put((node.long(),), own)
        return kept.index_add(0, node, -own)


class SAGEConv(FusedConv, pyg.SAGEConv):
    """GraphSAGE, ``W1 x_i + W2 mean_j x_j``, with the arguments of :class:`torch_geometric.nn.SAGEConv`.

    PyG's own code runs for other aggregations than mean, sum, max and min.
    """

    def forward(self, x: Tensor | OptPairTensor, edge_index: Adj, size: Size = None) -> Tensor:
        """Convolve once; arguments and result are those of PyG's layer."""
        if self._runs_pygs_own(x, edge_index, why_aggr(self)):
            # PyG writes the code of propagate from this: propagate_type: (x: OptPairTensor)
            return super().forward(x, for_pyg(edge_index), size)
        x_src, x_dst, num_dst = read_nodes(x, edge_index, size)
        if self.project:
            x_src = self.lin(x_src).relu()
        out = self.lin_l(_reduce(self, x_src, edge_index, None, num_dst))
        if self.root_weight and x_dst is not None:
            out = out + self.lin_r(x_dst)
        return torch.nn.functional.normalize(out, p=2.0, dim=-1) if self.normalize else out


class GraphConv(FusedConv, pyg.GraphConv):
    """Graph convolution with weighted edges, ``W1 x_i + W2 sum_j e_ij x_j``.

    Its arguments are those of :class:`torch_geometric.nn.GraphConv`.
    """

    def forward(
        self,
        x: Tensor | OptPairTensor,
        edge_index: Adj,
        edge_weight: OptTensor = None,
        size: Size = None,
    ) -> Tensor:
        """Convolve once; arguments and result are those of PyG's layer."""
        if self._runs_pygs_own(x, edge_index, why_aggr(self)):
            # PyG writes the code of propagate from this: propagate_type: (x: OptPairTensor, edge_weight: OptTensor)
            return super().forward(x, for_pyg(edge_index), edge_weight, size)
        x_src, x_dst, num_dst = read_nodes(x, edge_index, size)
        out = self.lin_rel(_reduce(self, x_src, edge_index, edge_weight, num_dst))
        return out if x_dst is None else out + self.lin_root(x_dst)


class GINConv(FusedConv, pyg.GINConv):
    """Graph isomorphism network, ``nn((1 + eps) x_i + sum_j x_j)``.

    Its arguments are those of :class:`torch_geometric.nn.GINConv`.
    """

    def forward(self, x: Tensor | OptPairTensor, edge_index: Adj, size: Size = None) -> Tensor:
        """Convolve once; arguments and result are those of PyG's layer."""
        if self._runs_pygs_own(x, edge_index, why_aggr(self)):
            # PyG writes the code of propagate from this: propagate_type: (x: OptPairTensor)
            return super().forward(x, for_pyg(edge_index), size)
        x_src, x_dst, num_dst = read_nodes(x, edge_index, size)
        out = _reduce(self, x_src, edge_index, None, num_dst)
        return self.nn(out if x_dst is None else out + (1 + self.eps) * x_dst)


class GINEConv(FusedConv, pyg.GINEConv):
    """Graph isomorphism network with edge features, ``nn((1 + eps) x_i + sum_j relu(x_j + e_ij))``.

    Its arguments are those of :class:`torch_geometric.nn.GINEConv`. The kernel encodes the edge features.
    """

    def forward(
        self,
        x: Tensor | OptPairTensor,
        edge_index: Adj,
        edge_attr: OptTensor = None,
        size: Size = None,
    ) -> Tensor:
        """Convolve once; arguments and result are those of PyG's layer."""
        features, own = edge_attr, x if isinstance(x, Tensor) else x[0]
        if self._runs_pygs_own(x, edge_index, self._why_special(own, features)):
            # PyG writes the code of propagate from this: propagate_type: (x: OptPairTensor, edge_attr: OptTensor)
            return super().forward(x, for_pyg(edge_index), edge_attr, size)
        check_rows(edge_index, features)  # PyG repeats a single row
        x_src, x_dst, num_dst = read_nodes(x, edge_index, size)
        weight = bias = None
        if self.lin is not None and is_plain(self.lin, pyg.Linear):
            weight, bias = self.lin.weight, self.lin.bias
        elif self.lin is not None:
            features = self.lin(features)
        out = aggregate(
            x_src,
            edge_index,
            features,
            weight,
            bias,
            aggr="add" if self.aggr == "sum" else self.aggr,
            eps=0.0,
            num_dst=num_dst,
            kernel=self.kernel,
        )
        return self.nn(out if x_dst is None else out + (1 + self.eps) * x_dst)

    def _why_special(self, x: Tensor, edge_attr: OptTensor) -> str:
        if edge_attr is None:
            return "no edge features"
        if self.lin is None and x.size(-1) != edge_attr.size(-1):
            return (
                f"x has {x.size(-1)} columns and edge_attr {edge_attr.size(-1)}, without edge_dim"
            )
        return "" if self.aggr in ("add", "sum", "mean", "max") else f"aggr={self.aggr}"


def why_aggr(conv: pyg.MessagePassing) -> str:
    """Return the reason why PyG's own code has to reduce the messages, or an empty text."""
    return "" if isinstance(conv.aggr, str) and conv.aggr in REDUCTIONS else f"aggr={conv.aggr}"


def _reduce(
    conv: pyg.MessagePassing, x: Tensor, edges: Tensor, weight: OptTensor, num_dst: int
) -> Tensor:
    """Reduce the features of the sources, multiplied by the weights of the edges if there are any."""
    message, e = (
        ("copy_u", None) if weight is None else ("u_mul_e", weight.reshape(-1, 1).to(x.dtype))
    )
    return update_all(
        edges,
        message,
        REDUCTIONS[conv.aggr],
        u=x,
        e=e,
        num_src=x.size(0),
        num_dst=num_dst,
        kernel=conv.kernel,
    )

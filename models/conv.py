"""GENConv with PyG's arguments and state_dict, all of DeepGCN's aggregations, and an edge encoder that may be folded."""

import functools
import logging

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric import EdgeIndex
from torch_geometric import nn as pyg
from torch_geometric.typing import Adj, OptPairTensor, OptTensor, Size, SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor

from models.activation import norm_relu_dropout
from models.aggregate import AGGREGATIONS, aggregate

# What PyG's class is told, so that it creates the parameter t or p under its own name.
_PYG_AGGR = {"softmax_sum": "softmax", "power_sum": "powermean"}
# Of PyG's `aggr_kwargs`, those that are read here.
_AGGR_KWARGS = {"t", "p", "learn"}
# The edges of each SparseTensor, kept as long as its storage lives.
_edges = WeakIdKeyDictionary()
log = logging.getLogger(__name__)


class GENConv(pyg.GENConv):
    """Generalized graph convolution, ``MLP(x_i + aggregate_j(relu(x_j + e_ij) + eps))``.

    Takes the arguments of :class:`torch_geometric.nn.GENConv`, and more aggregations: see
    :func:`models.aggregate.aggregate`. What only PyG knows (other aggregations and `aggr_kwargs`, torch.sparse tensors,
    ``flow="target_to_source"``) runs PyG's own code, and a line of the log says so. PyG takes "power" for another name
    of "powermean"; here it is DeepGCN's, with other clamps.
    Mathematics: "DeeperGCN: All You Need to Train Deeper GCNs" (https://arxiv.org/abs/2006.07739).

    Args:
        y: initial logit of the degree's exponent in ``softmax_sum`` and ``power_sum``.
        learn_y: whether `y` is learned.
        kernel: "auto", "fused" or "reference", see :func:`models.aggregate.aggregate`.
    """

    def __init__(self, in_channels, out_channels, aggr="softmax", *args, y: float = 0.0, learn_y: bool = False,
                 kernel: str = "auto", **kwargs):
        super().__init__(in_channels, out_channels, _PYG_AGGR.get(aggr, aggr) if isinstance(aggr, str) else aggr,
                         *args, **kwargs)
        self.aggr_name = aggr
        self._pygs_kwargs = sorted(set(kwargs.get("aggr_kwargs") or ()) - _AGGR_KWARGS)
        self.kernel = kernel
        if isinstance(aggr, str) and aggr.endswith("_sum"):
            self.y = torch.nn.Parameter(torch.tensor([y])) if learn_y else y

    def forward(
        self,
        x: Tensor | OptPairTensor,
        edge_index: Adj,
        edge_attr: OptTensor = None,
        size: Size = None,
        *,
        edge_encoder: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Convolve once.

        Args:
            x: [num_nodes, in_channels], or a pair (source, destination) for a bipartite graph.
            edge_index: [2, num_edges], an ``EdgeIndex``, or a SparseTensor [num_dst, num_src].
            edge_attr: [num_edges, edge_dim] or none, which for a SparseTensor means its values.
            size: (num_src, num_dst) of a bipartite graph.
            edge_encoder: weight [out_channels, edge_dim] and bias [out_channels] to use in place of ``lin_edge``.

        Returns:
            [num_dst, out_channels]
        """
        if obstacle := self._obstacle(edge_index):
            if not torch.compiler.is_compiling():
                _announce(obstacle)
            if edge_encoder is not None:
                edge_attr = torch.nn.functional.linear(edge_attr, *edge_encoder)
            # PyG writes the code of propagate from this line: propagate_type: (x: OptPairTensor, edge_attr: OptTensor)
            return super().forward(x, edge_index, edge_attr, size)

        if isinstance(edge_index, SparseTensor):
            size = edge_index.size(1), edge_index.size(0)
            edge_attr = edge_index.storage.value() if edge_attr is None else edge_attr
            edge_index = _edges_of(edge_index)
        x_src, x_dst = (x, x) if isinstance(x, Tensor) else x
        if x_dst is not None:
            num_dst = x_dst.size(0)
        else:
            num_dst = size[1] if size is not None else x_src.size(0)
        if hasattr(self, "lin_src"):
            x_src = self.lin_src(x_src)
        weight = bias = None
        if edge_attr is not None:
            if edge_encoder is not None:
                weight, bias = edge_encoder
            elif hasattr(self, "lin_edge"):
                weight, bias = self.lin_edge.weight, self.lin_edge.bias
        out = aggregate(
            x_src, edge_index, edge_attr, weight, bias, aggr=self.aggr_name, eps=self.eps, num_dst=num_dst, kernel=self.kernel,
            t=getattr(self.aggr_module, "t", 1.0), p=getattr(self.aggr_module, "p", 1.0), y=getattr(self, "y", 0.0),
        )
        if hasattr(self, "msg_norm"):
            out = self.msg_norm(x_src if x_dst is None else x_dst, out)
        if x_dst is not None:
            out = out + (self.lin_dst(x_dst) if hasattr(self, "lin_dst") else x_dst)
        return self._mlp(out)

    def _obstacle(self, edge_index: Adj) -> str:
        """Why PyG's own code has to run, empty if it has not."""
        if not isinstance(self.aggr_name, str) or self.aggr_name not in AGGREGATIONS:
            return f"aggr={self.aggr_name}"
        if self._pygs_kwargs:
            return f"aggr_kwargs with {', '.join(self._pygs_kwargs)}"
        if self.flow != "source_to_target":
            return f"flow={self.flow}"
        return "edges are a torch.sparse tensor" if is_torch_sparse_tensor(edge_index) else ""

    def _mlp(self, out: Tensor) -> Tensor:
        modules, at = list(self.mlp), 0
        while at < len(modules):
            # PyG's MLP is Linear, norm, ReLU, Dropout, Linear, ...
            if isinstance(modules[at], torch.nn.LayerNorm):
                norm, _, dropout = modules[at:at + 3]
                out = norm_relu_dropout(out, norm, dropout=dropout.p, training=self.training, kernel=self.kernel)
                at += 3
            else:
                out = modules[at](out)
                at += 1
        return out


@torch.inference_mode(False)  # kept for steps that have gradients too
def _edges_of(adj_t: SparseTensor) -> EdgeIndex:
    """The edges in the order of the SparseTensor, which is by destination; what it has sorted is not sorted again."""
    storage = adj_t.storage
    if storage not in _edges:
        src, dst, perm = storage.col(), storage.row(), storage.csr2csc()
        edges = EdgeIndex(torch.stack([src, dst]), sparse_size=(adj_t.size(1), adj_t.size(0)), sort_order="col")
        edges._indptr = storage.rowptr()
        edges._T_perm, edges._T_index, edges._T_indptr = perm, (src[perm], dst[perm]), storage.colptr()
        _edges[storage] = edges
    return _edges[storage]


@functools.cache
def _announce(obstacle: str) -> None:
    log.info("aggregation: PyG's own (%s)", obstacle)

"""GENConv with PyG's arguments and state_dict, all of DeepGCN's aggregations, and an edge encoder from outside."""
# ruff: noqa: F722 (shapes are strings)

import functools
import logging

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.typing import OptPairTensor, OptTensor, SparseTensor  # noqa: F401 (PyG looks for them here)
from torch_geometric.utils import is_torch_sparse_tensor

from .activation import norm_relu_dropout
from .aggregate import AGGREGATIONS, aggregate
from .edges import from_sparse_tensor

# What PyG's class is told, so that it creates the parameter t or p under its own name.
_PYG_AGGR = {"softmax_sum": "softmax", "power_sum": "powermean"}
# Of PyG's `aggr_kwargs`, those that are read here.
_AGGR_KWARGS = {"t", "p", "learn"}
log = logging.getLogger(__name__)


class GENConv(pyg.GENConv):
    """Generalized graph convolution, ``MLP(x_i + aggregate_j(relu(x_j + e_ij) + eps))``.

    Takes the arguments of :class:`torch_geometric.nn.GENConv`, and more aggregations: see
    :func:`models.aggregate.aggregate`. For what only PyG implements (other aggregations and `aggr_kwargs`, torch.sparse
    tensors, ``flow="target_to_source"``) PyG's own code runs, and one line of the log says so. In PyG "power" is
    another name of "powermean"; here it is DeepGCN's power mean, which clamps to other bounds.
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
        x: (Float[Tensor, "num_src in_channels"]
            | tuple[Float[Tensor, "num_src in_channels"], Float[Tensor, "num_dst in_channels_dst"] | None]),
        edge_index: Int[Tensor, "2 num_edges"] | SparseTensor | Float[Tensor, "num_dst num_src"],
        edge_attr: Float[Tensor, "num_edges edge_dim"] | None = None,
        size: tuple[int, int] | None = None,
        *,
        edge_encoder: tuple[Float[Tensor, "out_channels edge_dim"], Float[Tensor, " out_channels"]] | None = None,
    ) -> Float[Tensor, "num_out out_channels"]:
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
        if reason := self._why_pygs_own(edge_index):
            if not torch.compiler.is_compiling():
                _announce(reason)
            if edge_encoder is not None:
                edge_attr = torch.nn.functional.linear(edge_attr, *edge_encoder)
            # PyG writes the code of propagate from this line: propagate_type: (x: OptPairTensor, edge_attr: OptTensor)
            return super().forward(x, edge_index, edge_attr, size)

        if isinstance(edge_index, SparseTensor):
            size = edge_index.size(1), edge_index.size(0)
            edge_attr = edge_index.storage.value() if edge_attr is None else edge_attr
            edge_index = from_sparse_tensor(edge_index)
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
            x_src, edge_index, edge_attr, weight, bias, aggr=self.aggr_name, eps=self.eps, num_dst=num_dst,
            t=getattr(self.aggr_module, "t", 1.0), p=getattr(self.aggr_module, "p", 1.0), y=getattr(self, "y", 0.0),
            kernel=self.kernel)
        if hasattr(self, "msg_norm"):
            out = self.msg_norm(x_src if x_dst is None else x_dst, out)
        if x_dst is not None:
            out = out + (self.lin_dst(x_dst) if hasattr(self, "lin_dst") else x_dst)
        return self._apply_mlp(out)

    def _why_pygs_own(self, edge_index: Tensor | SparseTensor) -> str:
        """Say why PyG's own code has to run; empty if it has not."""
        if not isinstance(self.aggr_name, str) or self.aggr_name not in AGGREGATIONS:
            return f"aggr={self.aggr_name}"
        if self._pygs_kwargs:
            return f"aggr_kwargs with {', '.join(self._pygs_kwargs)}"
        if self.flow != "source_to_target":
            return f"flow={self.flow}"
        return "edges are a torch.sparse tensor" if is_torch_sparse_tensor(edge_index) else ""

    def _apply_mlp(self, out: Tensor) -> Tensor:
        # PyG's MLP is Linear, norm, ReLU, Dropout, Linear, ...
        modules = iter(self.mlp)
        for module in modules:
            if isinstance(module, torch.nn.LayerNorm):
                _, dropout = next(modules), next(modules)
                out = norm_relu_dropout(out, module, dropout=dropout.p, training=self.training, kernel=self.kernel)
            else:
                out = module(out)
        return out


@functools.cache
def _announce(reason: str) -> None:
    log.info("aggregation: PyG's own (%s)", reason)

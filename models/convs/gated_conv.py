"""ResGatedGraphConv, whose messages have a gate for each channel, without a tensor of edges x channels."""

import torch
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.typing import (  # noqa: F401 (PyG looks for them here)
    Adj,
    OptTensor,
    PairTensor,
)

from parallel_epochs.models.aggregate import check_rows
from parallel_epochs.models.convs.fused_conv import FusedConv, read_nodes
from parallel_epochs.models.edge_index import for_pyg
from parallel_epochs.models.kernels.choose import Fused
from parallel_epochs.models.messages import gated
from parallel_epochs.models.plain import is_plain
from parallel_epochs.models.structure import find_structure

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_KERNEL = Fused("gated sums", gated)


class ResGatedGraphConv(FusedConv, pyg.ResGatedGraphConv):
    """Gated graph convolution, ``W1 x_i + sum_j act(W3 [x_i, e_ij] + W4 [x_j, e_ij]) * W2 [x_j, e_ij]``.

    Its arguments are those of :class:`torch_geometric.nn.ResGatedGraphConv`. The products with `x` are made for the
    nodes. The kernel makes gates and messages, and again in backward. PyG's own code runs where it cannot.
    """

    def forward(
        self, x: Tensor | PairTensor, edge_index: Adj, edge_attr: OptTensor = None
    ) -> Tensor:
        """Convolve once; arguments and result are those of PyG's layer."""
        if self._runs_pygs_own(x, edge_index, self._why_special(x, edge_attr)):
            # PyG writes the code of propagate from this: propagate_type: (k: Tensor, q: Tensor, v: Tensor, edge_attr: OptTensor)  # noqa: E501
            return super().forward(x, for_pyg(edge_index), edge_attr)
        x_src, x_dst, num_dst = read_nodes(x, edge_index)
        (key, *of_key), (query, *of_query), (value, *of_value) = (
            self._project(lin, nodes)
            for lin, nodes in (
                (self.lin_key, x_dst),
                (self.lin_query, x_src),
                (self.lin_value, x_src),
            )
        )
        weights = None, None
        if edge_attr is not None:
            check_rows(edge_index, edge_attr)
            weights = of_key[0] + of_query[0], of_value[0]
        structure = find_structure(
            edge_index, query.size(0), num_dst, by_source=torch.is_grad_enabled()
        )
        out = gated.sum_gated(key, query, value, edge_attr, *weights, structure)
        if self.root_weight:
            out = out + self.lin_skip(x_dst)
        return out if self.bias is None else out + self.bias

    def _project(self, lin: pyg.Linear, x: Tensor) -> list[Tensor]:
        """Return the product of a linear layer with the nodes, then the part of its weight that edge features meet."""
        if self.edge_dim is None:
            return [lin(x)]
        width = x.size(1)
        return [
            torch.nn.functional.linear(x, lin.weight[:, :width], lin.bias),
            lin.weight[:, width:],
        ]

    def _why_special(self, x: Tensor | PairTensor, edge_attr: OptTensor) -> str:
        if (edge_attr is None) != (self.edge_dim is None):
            return f"edge_dim={self.edge_dim}, {'without' if edge_attr is None else 'with'} edge features"
        layers = (self.lin_key, self.lin_query, self.lin_value)
        if self.edge_dim is not None and not all(is_plain(lin, pyg.Linear) for lin in layers):
            return "lin_key, lin_query or lin_value was replaced or has hooks"
        is_sigmoid = is_plain(self.act, torch.nn.Sigmoid) or self.act is torch.sigmoid
        if not is_sigmoid or self.aggr not in ("add", "sum"):
            return f"the kernel has no act={self.act} with aggr={self.aggr}"
        own = x if isinstance(x, Tensor) else x[0]
        if own.dtype not in _DTYPES:
            return f"there is no kernel for {own.dtype}"
        if self.edge_dim is not None and self.edge_dim > gated.MAX_EDGE_DIM:
            return f"there are {self.edge_dim} edge features, and the kernel takes {gated.MAX_EDGE_DIM}"
        if self.kernel == "reference":
            return "kernel=reference"
        return _KERNEL.why_not(own.device.type, str)

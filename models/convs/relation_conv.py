"""RGCNConv, which sums over the relations of a graph, without a tensor of edges x channels."""

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric import nn as pyg
from torch_geometric.typing import Adj, OptTensor  # noqa: F401 (PyG looks for them here)

from parallel_epochs.models.convs.expanded_edges import Relations, convolve
from parallel_epochs.models.convs.fused_conv import FusedConv
from parallel_epochs.models.edge_index import for_pyg, plain_edges
from parallel_epochs.models.kernels import sorting
from parallel_epochs.models.kernels.operator import is_transformed

# The edges of each relation, for each tensor of relations. They are kept until that is freed.
_known = WeakIdKeyDictionary()


class RGCNConv(FusedConv, pyg.RGCNConv):
    """Relational graph convolution, ``W x_i + sum_r mean_j W_r x_j``, with the arguments of PyG's ``RGCNConv``.

    They are computed as :func:`models.convs.expanded_edges.convolve` says; the edges are expanded by relation on their
    first use. PyG's own code runs for other reductions than the mean, for `num_blocks`, and without features of nodes.
    """

    def forward(
        self, x: OptTensor | tuple[OptTensor, Tensor], edge_index: Adj, edge_type: OptTensor = None
    ) -> Tensor:
        """Convolve once; arguments and result are those of PyG's layer."""
        x_src, x_dst = x if isinstance(x, tuple) else (x, x)
        nodes = self.weight.new_empty(1, 1) if x_src is None else x_src
        if self._runs_pygs_own(nodes, edge_index, self._why_special(x_src, edge_type)):
            # PyG writes the code of propagate from this: propagate_type: (x: Tensor, edge_type_ptr: OptTensor)
            return super().forward(x, for_pyg(edge_index), edge_type)
        weight = self.weight
        if self.num_bases is not None:
            weight = torch.einsum("rb,bio->rio", self.comp, weight)
        relations = expand_relations(
            edge_index, edge_type, self.num_relations, x_src.size(0), x_dst.size(0)
        )
        out = convolve(x_src, weight, relations, kernel=self.kernel)
        if self.root is not None:
            out = out + x_dst @ self.root
        return out if self.bias is None else out + self.bias

    def _why_special(self, x: OptTensor, edge_type: OptTensor) -> str:
        if edge_type is None:
            return "no edge_type"
        if x is None or not x.is_floating_point():
            return "no features of nodes"
        if self.num_blocks is not None:
            return "num_blocks"
        if is_transformed():
            return "torch.compile, torch.func, torch.jit.trace or forward-mode derivatives"
        return "" if self.aggr == "mean" else f"aggr={self.aggr}"


def expand_relations(
    edge_index: Tensor, edge_type: Tensor, num_relations: int, num_src: int, num_dst: int
) -> Relations:
    """Expand edges by relation. Other relations are left out.

    The result is kept until `edge_type` is freed, on a CPU with a compiler. Checksums tell whether it changed.
    """

    def expand(edges: Tensor) -> Relations:
        known = (edge_type >= 0) & (edge_type < num_relations)
        every = bool(known.all())
        # A copy: what is kept until `edge_type` is freed must not hold it.
        return Relations(
            edges if every else edges[:, known],
            edge_type.clone() if every else edge_type[known],
            num_relations,
            num_src,
            num_dst,
        )

    edges = plain_edges(edge_index)
    if edges.device.type != "cpu" or sorting.LIBRARY.get() is None:
        return expand(edges)
    sizes = num_relations, num_src, num_dst
    key = (sorting.hash_tensor(edges), sorting.hash_tensor(edge_type), edges.shape, *sizes)
    if (known := _known.get(edge_type)) is not None and known[0] == key:
        return known[1]
    made = expand(edges)
    if not edge_type.is_inference():
        _known[edge_type] = key, made
    return made

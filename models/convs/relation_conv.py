"""RGCNConv, which sums over the relations of a graph, without a tensor of edges x channels."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric import nn as pyg
from torch_geometric.typing import Adj, OptTensor  # noqa: F401 (PyG looks for them here)

from parallel_epochs.models.convs.expanded_edges import Relations, convolve
from parallel_epochs.models.convs.fused_conv import FusedConv
from parallel_epochs.models.convs.sum_convs import REDUCTIONS, why_aggr
from parallel_epochs.models.edge_index import for_pyg, plain_edges
from parallel_epochs.models.kernels import sorting
from parallel_epochs.models.kernels.operator import is_transformed
from parallel_epochs.models.messages import update_all

# The edges of each relation, for each tensor of relations. They are kept until that is freed.
_known = WeakIdKeyDictionary()


class RGCNConv(FusedConv, pyg.RGCNConv):
    """Relational graph convolution, ``W x_i + sum_r mean_j W_r x_j``, with the arguments of PyG's ``RGCNConv``.

    Means without blocks are computed as :func:`models.convs.expanded_edges.convolve` says. Otherwise the neighbours of
    each relation are reduced before the product with its weights. The edges are expanded by relation, or divided among
    the relations, on their first use.
    """

    def forward(
        self, x: OptTensor | tuple[OptTensor, Tensor], edge_index: Adj, edge_type: OptTensor = None
    ) -> Tensor:
        """Convolve once; arguments and result are those of PyG's layer."""
        x_src, x_dst = x if isinstance(x, tuple) else (x, x)
        if x_src is None:
            x_src = torch.arange(self.in_channels_l, device=self.weight.device)
        x_dst = x_src if x_dst is None else x_dst
        nodes = x_src if x_src.dim() == 2 else x_src.unsqueeze(1)
        if self._runs_pygs_own(nodes, edge_index, self._why_special(x_dst, edge_type)):
            # PyG writes the code of propagate from this: propagate_type: (x: Tensor, edge_type_ptr: OptTensor)
            return super().forward(x, for_pyg(edge_index), edge_type)
        weight = self.weight
        if self.num_bases is not None:
            weight = torch.einsum("rb,bio->rio", self.comp, weight)
        if (
            self.aggr == "mean"
            and self.num_blocks is None
            and x_src.is_floating_point()
            and not is_transformed()
        ):
            relations = expand_relations(
                edge_index, edge_type, self.num_relations, x_src.size(0), x_dst.size(0)
            )
            out = convolve(x_src, weight, relations, kernel=self.kernel)
        else:
            out = torch.zeros((), dtype=weight.dtype, device=weight.device)
            for of_relation, part in zip(
                weight, split_relations(edge_index, edge_type, self.num_relations), strict=True
            ):
                out = out + self._convolve(x_src, part, of_relation, x_dst.size(0))
        if self.root is not None:
            out = out + (x_dst @ self.root if x_dst.is_floating_point() else self.root[x_dst])
        return out if self.bias is None else out + self.bias

    def _convolve(self, x: Tensor, edges: Tensor, weight: Tensor, num_dst: int) -> Tensor:
        """Reduce the neighbours of one relation, and multiply them by its weight [in, out] or [blocks, in, out]."""
        is_index = not x.is_floating_point()
        h = update_all(
            edges,
            "copy_u",
            REDUCTIONS[self.aggr],
            u=weight[x] if is_index else x,
            num_src=x.size(0),
            num_dst=num_dst,
            kernel=self.kernel,
        )
        if is_index:
            return h
        if self.num_blocks is None:
            return h @ weight
        return torch.einsum("nbi,bio->nbo", h.view(num_dst, weight.size(0), -1), weight).reshape(
            num_dst, -1
        )

    def _why_special(self, x_dst: Tensor, edge_type: OptTensor) -> str:
        if edge_type is None:
            return "no edge_type"
        if self.num_blocks is not None and not x_dst.is_floating_point():
            return "num_blocks with an x of integers"
        return why_aggr(self)


def split_relations(edge_index: Tensor, edge_type: Tensor, num_relations: int) -> list[Tensor]:
    """Divide edges [2, num_edges] among the relations [num_edges], in their order; other relations are left out.

    The parts are kept until `edge_type` is freed, on a CPU with a compiler. Checksums tell whether one changed.
    """
    return _remember(
        edge_index,
        edge_type,
        ("split", num_relations),
        lambda edges: [edges[:, edge_type == relation] for relation in range(num_relations)],
    )


def expand_relations(
    edge_index: Tensor, edge_type: Tensor, num_relations: int, num_src: int, num_dst: int
) -> Relations:
    """Expand edges by relation, and keep the result as :func:`split_relations` does. Other relations are left out."""

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

    return _remember(edge_index, edge_type, ("expanded", num_relations, num_src, num_dst), expand)


def _remember(
    edge_index: Tensor, edge_type: Tensor, kind: tuple, make: Callable[[Tensor], Any]
) -> Any:
    edges = plain_edges(edge_index)
    if torch.compiler.is_compiling() or edges.device.type != "cpu" or sorting.LIBRARY.get() is None:
        return make(edges)
    key = (sorting.hash_tensor(edges), sorting.hash_tensor(edge_type), edges.shape, *kind)
    if (known := _known.get(edge_type)) is not None and known[0] == key:
        return known[1]
    made = make(edges)
    if not edge_type.is_inference():
        _known[edge_type] = key, made
    return made

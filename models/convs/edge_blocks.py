"""Formulas of edges in blocks of destinations, so that tensors of edges x channels hold only one block."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parallel_epochs.models.aggregate.reference_in_blocks import cut_into_blocks, sort_by_destination
from parallel_epochs.models.kernels.operator import is_transformed

# Largest number of elements of a tensor of edges x channels.
MAX_ELEMENTS = 1 << 21


class Rows(NamedTuple):
    """What a formula reads, each a list of tensors.

    Attributes:
        sources: rows of the edges' sources [num_edges, ...].
        destinations: rows of the destinations [num_dst, ...].
        edges: rows of the edges [num_edges, ...].
        shared: whole tensors.
    """

    sources: list[Any]
    destinations: list[Any]
    edges: list[Any]
    shared: list[Any]


# From rows and the destination of each edge [num_edges] to the result [num_dst, ...].
Formula = Callable[[Rows, Tensor, int], Tensor]


def compute_in_blocks(formula: Formula, edge_index: Tensor, rows: Rows, *, num_dst: int,
                      max_block_edges: int | None = None) -> Tensor:
    """Compute a formula of edges and destinations, one block of destinations after the other.

    Backward computes each block again.

    Args:
        formula: a function of the rows of some edges, the number of each edge's destination among some destinations,
            and how many these are. It must not draw random numbers.
        edge_index: [2, num_edges], a tensor or an ``EdgeIndex``.
        rows: the tensors of all source nodes, destination nodes and edges, and the shared ones.
        num_dst: number of destination nodes.
        max_block_edges: largest number of edges in a block. A node with more edges is a block of its own. None: as many
            as keep the largest operand within `MAX_ELEMENTS`.

    Returns:
        [num_dst, ...]
    """
    indptr, src, dst, position = sort_by_destination(edge_index, num_dst)
    if is_transformed():
        chosen = [tensor if position is None else tensor[position] for tensor in rows.edges]
        return formula(Rows([tensor.index_select(0, src) for tensor in rows.sources], rows.destinations, chosen,
                            rows.shared), dst, num_dst)
    if max_block_edges is None:
        width = max(tensor[:1].numel() for tensor in (*rows.sources, *rows.destinations, *rows.edges))
        max_block_edges = max(MAX_ELEMENTS // max(width, 1), 1)
    blocks = cut_into_blocks(indptr, max_block_edges)
    return _InBlocks.apply(formula, (indptr, src, dst, position), blocks, [len(part) for part in rows],
                           *(tensor for part in rows for tensor in part))


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, formula, structure, blocks, counts, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.formula, ctx.structure, ctx.blocks, ctx.counts = formula, structure, blocks, counts
        return torch.cat([formula(*_choose(block, structure, counts, tensors)) for block in blocks])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        tensors, (indptr, src, _, position) = ctx.saved_tensors, ctx.structure
        needed = [i for i in range(len(tensors)) if ctx.needs_input_grad[4 + i]]
        # Sums over many blocks would lose too much in 16 bits.
        totals = {i: torch.zeros_like(tensors[i], dtype=torch.promote_types(tensors[i].dtype, torch.float32))
                  for i in needed}
        for first, last in ctx.blocks:
            chosen = slice(int(indptr[first]), int(indptr[last]))
            rows, dst, num_dst = _choose((first, last), ctx.structure, ctx.counts, tensors)
            leaves = [leaf.detach().requires_grad_(i in totals) for i, leaf in enumerate(sum(rows, []))]
            with torch.enable_grad():
                out = ctx.formula(_group(leaves, ctx.counts), dst, num_dst)
            parts = torch.autograd.grad(out, [leaves[i] for i in needed], grad[first:last], allow_unused=True)
            where = [src[chosen], slice(first, last), chosen if position is None else position[chosen], ...]
            kinds = [kind for kind, count in enumerate(ctx.counts) for _ in range(count)]
            for i, part in zip(needed, parts, strict=True):
                if part is None:
                    continue
                if kinds[i] == 0:
                    totals[i].index_add_(0, where[0], part.to(totals[i].dtype))
                else:
                    totals[i][where[kinds[i]]] += part
        return None, None, None, None, *(
            totals[i].to(tensor.dtype) if i in totals else None for i, tensor in enumerate(tensors))


def _choose(block: tuple[int, int], structure, counts: Sequence[int], tensors: Sequence[Tensor]):
    """Return what the formula gets for a block of destinations."""
    (first, last), (indptr, src, dst, position) = block, structure
    chosen = slice(int(indptr[first]), int(indptr[last]))
    rows = _group(list(tensors), counts)
    edges = chosen if position is None else position[chosen]
    return Rows([tensor.index_select(0, src[chosen]) for tensor in rows.sources],
                [tensor[first:last] for tensor in rows.destinations],
                [tensor[edges] for tensor in rows.edges], rows.shared), dst[chosen] - first, last - first


def _group(tensors: list[Tensor], counts: Sequence[int]) -> Rows:
    ends = [sum(counts[:i + 1]) for i in range(len(counts))]
    return Rows(*(tensors[end - count:end] for end, count in zip(ends, counts, strict=True)))

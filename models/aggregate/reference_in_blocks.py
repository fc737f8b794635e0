"""Formulas of edges in blocks of destinations, so that tensors of edges x channels hold only one block."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.models import edge_index as edges
from parallel_epochs.models.kernels.operator import is_transformed

# Largest number of elements of a tensor of edges x channels.
MAX_ELEMENTS = 1 << 21


class Rows(NamedTuple):
    """The inputs of a formula, each a list of tensors.

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


def compute_in_blocks(
    formula: Formula,
    edge_index: Tensor,
    rows: Rows,
    *,
    num_dst: int,
    max_block_edges: int | None = None,
) -> Tensor:
    """Compute a formula of edges and destinations, one block of destinations after the other.

    Backward computes each block again. A gradient that needs a gradient itself is computed for all edges at once.

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

    Raises:
        ShapeVaries: the edges are followed by padding. The blocks of one batch are not those of the next one.
    """
    edges.refuse_held(edge_index, "the reference in blocks")
    if torch.compiler.is_exporting():  # nothing needs an order then
        src, dst = edge_index
        return formula(
            rows._replace(sources=[tensor.index_select(0, src) for tensor in rows.sources]),
            dst,
            num_dst,
        )
    indptr, src, dst, position = sort_by_destination(edge_index, num_dst)
    structure = indptr, src, dst, position
    counts, tensors = [len(part) for part in rows], [tensor for part in rows for tensor in part]
    if is_transformed():
        return formula(*_choose((0, num_dst), structure, counts, tensors))
    if max_block_edges is None:
        width = max(
            tensor[:1].numel() for tensor in (*rows.sources, *rows.destinations, *rows.edges)
        )
        max_block_edges = max(MAX_ELEMENTS // max(width, 1), 1)
    blocks = cut_into_blocks(indptr, max_block_edges)
    return _InBlocks.apply(formula, structure, blocks, counts, *tensors)


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, formula, structure, blocks, counts, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.formula, ctx.structure, ctx.blocks, ctx.counts = formula, structure, blocks, counts
        return torch.cat([formula(*_choose(block, structure, counts, tensors)) for block in blocks])

    @staticmethod
    def backward(ctx, grad):
        tensors = ctx.saved_tensors
        needed = [i for i in range(len(tensors)) if ctx.needs_input_grad[4 + i]]
        differentiate = _differentiate_whole if torch.is_grad_enabled() else _differentiate_blocks
        grads = dict(zip(needed, differentiate(ctx, grad, tensors, needed), strict=True))
        return None, None, None, None, *(grads.get(i) for i in range(len(tensors)))


def _differentiate_whole(ctx, grad, tensors, needed):
    structure = ctx.structure
    out = ctx.formula(*_choose((0, structure[0].numel() - 1), structure, ctx.counts, tensors))
    return torch.autograd.grad(
        out, [tensors[i] for i in needed], grad, create_graph=True, allow_unused=True
    )


def _differentiate_blocks(ctx, grad, tensors, needed):
    indptr, src, _, position = ctx.structure
    # Sums over many blocks would lose too much in 16 bits.
    totals = {
        i: torch.zeros_like(tensors[i], dtype=torch.promote_types(tensors[i].dtype, torch.float32))
        for i in needed
    }
    for first, last in ctx.blocks:
        chosen = slice(int(indptr[first]), int(indptr[last]))
        rows, dst, num_dst = _choose((first, last), ctx.structure, ctx.counts, tensors)
        leaves = [leaf.detach().requires_grad_(i in totals) for i, leaf in enumerate(sum(rows, []))]
        with torch.enable_grad():
            out = ctx.formula(_group(leaves, ctx.counts), dst, num_dst)
        parts = torch.autograd.grad(
            out, [leaves[i] for i in needed], grad[first:last], allow_unused=True
        )
        where = [
            src[chosen],
            slice(first, last),
            chosen if position is None else position[chosen],
            ...,
        ]
        kinds = [kind for kind, count in enumerate(ctx.counts) for _ in range(count)]
        for i, part in zip(needed, parts, strict=True):
            if part is None:
                continue
            if kinds[i] == 0:
                totals[i].index_add_(0, where[0], part.to(totals[i].dtype))
            elif kinds[i] == 2:
                totals[i][where[2]] = part.to(totals[i].dtype)
            else:
                totals[i][where[kinds[i]]] += part
    return [totals[i].to(tensors[i].dtype) for i in needed]


def _choose(block: tuple[int, int], structure, counts: Sequence[int], tensors: Sequence[Tensor]):
    """Return what the formula gets for a block of destinations."""
    (first, last), (indptr, src, dst, position) = block, structure
    chosen = slice(int(indptr[first]), int(indptr[last]))
    rows = _group(list(tensors), counts)
    edges = chosen if position is None else position[chosen]
    return (
        Rows(
            [tensor.index_select(0, src[chosen]) for tensor in rows.sources],
            [tensor[first:last] for tensor in rows.destinations],
            [tensor[edges] for tensor in rows.edges],
            rows.shared,
        ),
        dst[chosen] - first,
        last - first,
    )


def _group(tensors: list[Tensor], counts: Sequence[int]) -> Rows:
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return Rows(*(tensors[end - count : end] for end, count in zip(ends, counts, strict=True)))


def sort_by_destination(
    edge_index: Tensor, num_dst: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Sort edges by destination: pointers, sources, destinations, and positions unless they were in this order."""
    if isinstance(edge_index, EdgeIndex) and edge_index.sort_order is not None:
        (indptr, src), position = edges.compress(edge_index, by="col")
        dst = edge_index.as_tensor()[1]
        indptr = edges.pad(indptr, num_dst, "destination")
        return indptr, src, dst if position is None else dst.index_select(0, position), position
    src, dst = edges.plain_edges(edge_index)
    dst, position = dst.sort(stable=True)
    if dst.numel():
        edges.check_range(1, int(dst[0]), int(dst[-1]), num_dst)
    indptr = torch.searchsorted(dst, torch.arange(num_dst + 1, dtype=dst.dtype, device=dst.device))
    return indptr, src.index_select(0, position), dst, position


def cut_into_blocks(
    indptr: Tensor, max_edges: int, max_rows: int | None = None
) -> list[tuple[int, int]]:
    """Cut the rows into ranges of at most `max_rows` rows and `max_edges` edges; a larger row is a range of its own."""
    indptr = indptr.cpu()
    blocks, first, num_rows = [], 0, indptr.numel() - 1
    while first < num_rows:
        limit = min(
            int(indptr[first]) + max_edges, int(indptr[-1])
        )  # fits into the pointers' dtype
        last = int(torch.searchsorted(indptr, indptr.new_tensor(limit), right=True)) - 1
        last = min(max(last, first + 1), num_rows, first + (max_rows or num_rows))
        blocks.append((first, last))
        first = last
    return blocks

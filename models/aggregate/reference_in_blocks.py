"""The reference aggregation in blocks of destinations, so that tensors of edges x channels hold only one block."""

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.models import edge_index as edges
from parallel_epochs.models.aggregate.reduce import aggregate_edges


def aggregate(x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, weight: Tensor | None, bias: Tensor | None,
              table: Tensor | None, t: float | Tensor, p: float | Tensor, y: float | Tensor, *, aggr: str, eps: float,
              num_dst: int, max_block_edges: int) -> Tensor:
    """Compute :func:`models.aggregate.reference.aggregate`, one block of destinations after the other.

    Backward computes each block again. A gradient that needs a gradient itself is computed for all edges at once.
    """
    indptr, *structure = sort_by_destination(edge_index, num_dst)
    options = dict(aggr=aggr, eps=eps)
    return _AggregateInBlocks.apply(x, edge_attr, weight, bias, table, t, p, y, *structure, indptr,
                         cut_into_blocks(indptr, max_block_edges), options)


def sort_by_destination(edge_index: Tensor, num_dst: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Sort edges by destination: pointers, sources, destinations, and positions unless they were in this order."""
    if isinstance(edge_index, EdgeIndex) and edge_index.sort_order is not None:
        (indptr, src), position = edges.compress(edge_index, by="col")
        dst = edge_index.as_tensor()[1]
        indptr = edges.pad(indptr, num_dst, "destination")
        return indptr, src, dst if position is None else dst.index_select(0, position), position
    src, dst = edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index
    dst, position = dst.sort(stable=True)
    if dst.numel() and (int(dst[0]) < 0 or int(dst[-1]) >= num_dst):
        raise IndexError(f"edge_index[1] has values from {int(dst[0])} to {int(dst[-1])}, but there are {num_dst} such "
                         "nodes")
    indptr = torch.searchsorted(dst, torch.arange(num_dst + 1, dtype=dst.dtype, device=dst.device))
    return indptr, src.index_select(0, position), dst, position


def cut_into_blocks(indptr: Tensor, max_edges: int, max_rows: int | None = None) -> list[tuple[int, int]]:
    """Cut the rows into ranges of at most `max_rows` rows and `max_edges` edges; a larger row is a range of its own."""
    indptr = indptr.cpu()
    blocks, first, num_rows = [], 0, indptr.numel() - 1
    while first < num_rows:
        limit = min(int(indptr[first]) + max_edges, int(indptr[-1]))  # fits into the pointers' dtype
        last = int(torch.searchsorted(indptr, indptr.new_tensor(limit), right=True)) - 1
        last = min(max(last, first + 1), num_rows, first + (max_rows or num_rows))
        blocks.append((first, last))
        first = last
    return blocks


class _AggregateInBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, edge_attr, weight, bias, table, t, p, y, src, dst, position, indptr, blocks, options):
        inputs = x, edge_attr, weight, bias, table, t, p, y
        ctx.save_for_backward(*(value if isinstance(value, Tensor) else None for value in inputs),
                              src, dst, position, indptr)
        ctx.numbers = [None if isinstance(value, Tensor) else value for value in inputs]
        ctx.blocks, ctx.options = blocks, options
        out = None
        for first, last in blocks:
            chosen = slice(int(indptr[first]), int(indptr[last]))
            x_j, attr, _ = _gather(x, edge_attr, src, position, chosen)
            part = aggregate_edges(x_j, dst[chosen] - first, attr, weight, bias, table, t, p, y, num_dst=last - first,
                                   **options)
            if out is None:
                out = part.new_empty(indptr.numel() - 1, part.size(1))
            out[first:last] = part
        return out

    @staticmethod
    def backward(ctx, grad):
        *tensors, src, dst, position, indptr = ctx.saved_tensors
        inputs = [number if tensor is None else tensor for number, tensor in zip(ctx.numbers, tensors, strict=True)]
        needed = [i for i in range(len(inputs)) if ctx.needs_input_grad[i]]
        differentiate = _differentiate_whole if torch.is_grad_enabled() else _differentiate_blocks
        grads = [None] * 14
        for i, value in zip(needed, differentiate(ctx, grad, inputs, needed, src, dst, position, indptr), strict=True):
            grads[i] = value
        return tuple(grads)


def _gather(x, edge_attr, src, position, chosen):
    """Return source features and edge features of some of the sorted edges, and the rows of the edge features."""
    rows = chosen if position is None else position[chosen]
    return x.index_select(0, src[chosen]), None if edge_attr is None else edge_attr[rows], rows


def _differentiate_whole(ctx, grad, inputs, needed, src, dst, position, indptr):
    x, edge_attr, *others = inputs
    x_j, attr, _ = _gather(x, edge_attr, src, position, slice(None))
    out = aggregate_edges(x_j, dst, attr, *others, num_dst=indptr.numel() - 1, **ctx.options)
    return torch.autograd.grad(out, [inputs[i] for i in needed], grad, create_graph=True, allow_unused=True)


def _differentiate_blocks(ctx, grad, inputs, needed, src, dst, position, indptr):
    x, edge_attr, *others = inputs
    # Sums over many blocks would lose too much in 16 bits.
    totals = [torch.zeros_like(inputs[i], dtype=torch.promote_types(inputs[i].dtype, torch.float32)) for i in needed]
    for first, last in ctx.blocks:
        chosen = slice(int(indptr[first]), int(indptr[last]))
        x_j, attr, rows = _gather(x, edge_attr, src, position, chosen)
        leaves = [x_j, attr, *others]
        for i in needed:
            leaves[i] = leaves[i].detach().requires_grad_()
        with torch.enable_grad():
            out = aggregate_edges(leaves[0], dst[chosen] - first, *leaves[1:], num_dst=last - first,
                                            **ctx.options)
        parts = torch.autograd.grad(out, [leaves[i] for i in needed], grad[first:last], allow_unused=True)
        for i, total, part in zip(needed, totals, parts, strict=True):
            if part is None:
                continue
            if i == 0:
                total.index_add_(0, src[chosen], part.to(total.dtype))
            elif i == 1:
                total[rows] = part.to(total.dtype)
            else:
                total += part
    return [total.to(inputs[i].dtype) for i, total in zip(needed, totals, strict=True)]

"""The gradient of the table of relations in Triton: a walk over edges by relation, in chunks as in gpu_forward.py.

A relation may have any number of edges, and a table any number of rows. Sums over edges sorted by relation need neither
atomics nor one table for each chunk, and have the same bits in every run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from parallel_epochs.models.aggregate.gpu_encode import (
    add_encoded,
    find_span,
    load_encoder,
    load_features,
    select_channels,
)
from parallel_epochs.models.aggregate.gpu_kinds import differentiate, make_message


def sort_by_relation(attr: Tensor, rowptr: Tensor, dst: Tensor, position: Tensor | None,
                     num_relations: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sort edges by relation, without waiting for the device.

    Args:
        attr: edge features [num_positions, columns], whose column 0 is the relation.
        rowptr: first edge of each source [num_src + 1].
        dst: destinations of the edges sorted by source [num_edges].
        position: rows in `attr` of the edges sorted by source [num_edges]. None: in order.
        num_relations: number of relations.

    Returns:
        Sources, destinations and rows in `attr` of the edges sorted by relation [num_edges], and the first edge of each
        relation [num_relations + 1].
    """
    edge = torch.arange(dst.numel(), dtype=rowptr.dtype, device=dst.device)
    position = edge if position is None else position
    relation = attr[:, 0].index_select(0, position).to(rowptr.dtype)
    # Edges that no pointer counts come last, behind all relations.
    relation = torch.where(edge < rowptr[-1], relation, num_relations)
    relation, order = relation.sort(stable=True)
    src = torch.searchsorted(rowptr[1:], edge, right=True).clamp(max=rowptr.numel() - 2).to(rowptr.dtype)
    ptr = torch.searchsorted(relation, torch.arange(num_relations + 1, dtype=relation.dtype, device=dst.device))
    return src[order], dst[order], position[order], ptr.to(rowptr.dtype)


@triton.jit
def backward(pairs, x, ptr, cuts, rows, src, dst, position, attr, weight, bias, table, param, grad_table, partial, eps,
             low, high, KIND: tl.constexpr, FEATURES: tl.constexpr, DOT: tl.constexpr, WIDE: tl.constexpr,
             FIRST: tl.constexpr, D: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr,
             BLOCK_D: tl.constexpr):
    """Sum up the gradients of one chunk's messages by relation.

    The grid is [num_chunks, number of blocks of channels]; a row is a relation. Arguments that are not listed are those
    of :func:`gpu_backward.backward`.

    Args:
        ptr: where each relation's edges begin [num_relations + 1], int32 or int64.
        src: source of each edge, edges sorted by relation [num_edges], int32 or int64.
        dst: destination of each edge in this order [num_edges], int32 or int64.
        position: row in `attr` of each edge in this order [num_edges], int32 or int64.
        grad_table: gradient for `table` [num_relations, D], float32; written for relations that lie in one chunk.
        partial: sums of the relations that several chunks share [2 * num_chunks, D], float32; written.
    """
    chunk = tl.program_id(0)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    channel, in_d = select_channels(tl.program_id(1), D, BLOCK_D)
    columns, b = load_encoder(weight, bias, channel, in_d, FEATURES, DOT, K, BLOCK_K, BLOCK_D)
    parameter = tl.load(param).to(tl.float32)
    stride: tl.constexpr = D if KIND == "add" else 2 * D

    for row in range(tl.load(rows + chunk), tl.load(rows + tl.num_programs(0) + chunk) + 1):
        first, last, degree, begins, ends = find_span(ptr, row, begin, end, WIDE)
        row_offset = tl.cast(row, tl.int64) * D + channel
        relation = tl.load(table + row_offset, mask=in_d, other=0.0)
        row_sum = tl.zeros((BLOCK_D,), tl.float32)
        for block in range(first, last, BLOCK_E):
            edge = block + tl.arange(0, BLOCK_E)
            valid = edge < last
            there = valid[:, None] & in_d[None, :]
            node = tl.load(src + edge, mask=valid, other=0).to(tl.int64)
            other = tl.load(dst + edge, mask=valid, other=0).to(tl.int64)
            attr_row = tl.load(position + edge, mask=valid, other=0).to(tl.int64)
            features = load_features(attr, attr_row, valid, channel, in_d, FEATURES, DOT, FIRST, K, BLOCK_K, D)
            first_of = tl.load(pairs + other[:, None] * stride + channel[None, :], mask=there, other=0.0)
            second_of = first_of
            if KIND != "add":
                second_of = tl.load(pairs + other[:, None] * stride + D + channel[None, :], mask=there, other=0.0)
            # In the order of the other passes, so that max finds its winners again.
            z = tl.load(x + node[:, None] * D + channel[None, :], mask=there, other=0.0).to(tl.float32) + b[None, :]
            z = add_encoded(z + relation[None, :], features, columns, FEATURES, DOT, K)
            q, _ = differentiate(make_message(z, eps), first_of, second_of, parameter, low, high, KIND)
            row_sum += tl.sum(tl.where(there & (z > 0.0), q, 0.0), 0)
        if begins & ends:
            tl.store(grad_table + row_offset, row_sum, mask=in_d)
        else:
            tl.store(partial + (2 * chunk + begins.to(tl.int32)).to(tl.int64) * D + channel, row_sum, mask=in_d)

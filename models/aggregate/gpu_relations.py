"""The gradient of the table of relations in Triton: a walk over edges by relation, see models/kernels/walk.py.

A relation may have any number of edges, and a table any number of rows. Sums over edges sorted by relation need neither
atomics nor one table for each chunk, and have the same bits in every run.
"""

from collections import namedtuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from parallel_epochs.models.aggregate.gpu_backward import Messages, load_pairs, store_sum
from parallel_epochs.models.aggregate.gpu_encode import (
    add_encoded,
    load_encoder,
    load_features,
    select_channels,
)
from parallel_epochs.models.aggregate.gpu_kinds import differentiate, make_message
from parallel_epochs.models.kernels.walk import Edges, walk

Relations = namedtuple("Relations", (*Messages._fields, "src"))


def sort_by_relation(
    attr: Tensor, rowptr: Tensor, dst: Tensor, position: Tensor | None, num_relations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
    src = (
        torch.searchsorted(rowptr[1:], edge, right=True)
        .clamp(max=rowptr.numel() - 2)
        .to(rowptr.dtype)
    )
    ptr = torch.searchsorted(
        relation, torch.arange(num_relations + 1, dtype=relation.dtype, device=dst.device)
    )
    return src[order], dst[order], position[order], ptr.to(rowptr.dtype)


@triton.jit
def backward(
    pairs,
    x,
    ptr,
    cuts,
    rows,
    src,
    dst,
    position,
    attr,
    weight,
    bias,
    table,
    param,
    grad_table,
    partial,
    eps,
    low,
    high,
    KIND: tl.constexpr,
    FEATURES: tl.constexpr,
    DOT: tl.constexpr,
    WIDE: tl.constexpr,
    FIRST: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
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
    channel, in_d = select_channels(tl.program_id(1), D, BLOCK_D)
    columns, b = load_encoder(weight, bias, channel, in_d, FEATURES, DOT, K, BLOCK_K, BLOCK_D)
    walk(
        Edges(ptr, cuts, rows, dst, position, WIDE, BLOCK_E),
        Relations(
            channel,
            in_d,
            grad_table,
            partial,
            D,
            BLOCK_D,
            columns,
            b,
            tl.load(param).to(tl.float32),
            pairs,
            x,
            attr,
            table,
            eps,
            low,
            high,
            KIND,
            FEATURES,
            DOT,
            FIRST,
            K,
            BLOCK_K,
            src,
        ),
        (),
        start_row,
        add_edges,
        store_sum,
    )


@triton.jit
def start_row(p, row):
    """Return the table's row of a relation, and an empty sum."""
    relation = tl.load(p.table + tl.cast(row, tl.int64) * p.D + p.channel, mask=p.in_d, other=0.0)
    return (relation,), (tl.zeros((p.BLOCK_D,), tl.float32),)


@triton.jit
def add_edges(p, own, state, sums, edge, other, attr_row, valid):
    """Add the gradients of a block of edges to the sum of the relation."""
    there = valid[:, None] & p.in_d[None, :]
    node = tl.load(p.src + edge, mask=valid, other=0).to(tl.int64)
    features = load_features(p, attr_row, valid)
    first, second = load_pairs(p, other, there)
    # In the order of the other passes, so that max finds its winners again.
    z = (
        tl.load(p.x + node[:, None] * p.D + p.channel[None, :], mask=there, other=0.0).to(
            tl.float32
        )
        + p.bias[None, :]
    )
    z = add_encoded(p, z + own[0][None, :], features, p.columns)
    q, _ = differentiate(make_message(z, p.eps), first, second, p.param, p.low, p.high, p.KIND)
    return (state[0] + tl.sum(tl.where(there & (z > 0.0), q, 0.0), 0),), sums

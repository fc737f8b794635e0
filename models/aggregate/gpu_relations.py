"""The gradient of the table of relations in Triton: a walk over edges by relation, see models/kernels/walk.py.

A relation may have any number of edges, and a table any number of rows. Sums over edges sorted by relation need neither
atomics nor one table for each chunk, and have the same bits in every run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from parallel_epochs.models.aggregate.gpu_backward import GRADIENTS, load_pairs, store_sum
from parallel_epochs.models.aggregate.gpu_encode import (
    add_encoded,
    extend,
    load_bias,
    load_encoder,
    load_features,
    select_channels,
)
from parallel_epochs.models.aggregate.gpu_kinds import differentiate, make_message
from parallel_epochs.models.kernels.walk import walk

# src: source of each edge, edges sorted by relation [num_edges].
Relations, RelationsProgram = extend("Relations", (*GRADIENTS, "src"))


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
def backward(edges, p):
    """Sum up the gradients of one chunk's messages by relation.

    The grid is [num_chunks, number of blocks of channels]; a row is a relation.
    """
    channel, in_d = select_channels(tl.program_id(1), p.D, p.BLOCK_D)
    walk(
        edges,
        RelationsProgram(
            *p,
            channel,
            in_d,
            load_encoder(p, channel, in_d),
            load_bias(p, channel, in_d),
            tl.load(p.parameter).to(tl.float32),
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
        + p.shift[None, :]
    )
    z = add_encoded(p, z + own[0][None, :], features, p.columns)
    q, _ = differentiate(make_message(z, p.eps), first, second, p.param, p.low, p.high, p.KIND)
    return (state[0] + tl.sum(tl.where(there & (z > 0.0), q, 0.0), 0),), sums

"""Forward by destination in Triton. Each edge is visited once, in the walk of models/kernels/walk.py.

A program takes one chunk and BLOCK_D channels.
"""

import triton
import triton.language as tl

from parallel_epochs.models.aggregate.gpu_encode import (
    MESSAGES,
    add_encoded,
    extend,
    load_bias,
    load_encoder,
    load_features,
    select_channels,
)
from parallel_epochs.models.aggregate.gpu_kinds import (
    finish_state,
    make_message,
    make_states,
    merge_states,
    start_state,
)
from parallel_epochs.models.kernels.walk import merge, walk

# out: the result [num_dst, D], float32; written.
# stat: the second result of :func:`ops.forward` [num_dst, D], float32; written if SAVE and KIND has it.
# partial: states of the rows that several chunks share [2 * num_chunks, 3, D], float32; written: the state of the row
# that a chunk begins inside of at 2 * chunk, that of the row it ends inside of at 2 * chunk + 1.
# SAVE: whether backward will follow.
Forward, ForwardProgram = extend("Forward", (*MESSAGES, "out", "stat", "partial", "SAVE"))


@triton.jit
def forward(edges, p):
    """Aggregate the rows that lie in one chunk, and write partial states of rows that are shared with other chunks.

    The grid is [num_chunks, number of blocks of channels]. All tensors are contiguous; a row is a destination.
    """
    channel, in_d = select_channels(tl.program_id(1), p.D, p.BLOCK_D)
    walk(
        edges,
        ForwardProgram(
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
        store_row,
    )


@triton.jit
def start_row(p, row):
    """Return nothing of the row itself, and its state without edges."""
    return (), start_state(p.KIND, p.BLOCK_D)


@triton.jit
def add_edges(p, own, state, sums, edge, node, attr_row, valid):
    """Merge the state of a row with the messages of a block of its edges."""
    features = load_features(p, attr_row, valid)
    z = tl.load(
        p.x + node[:, None] * p.D + p.channel[None, :],
        mask=valid[:, None] & p.in_d[None, :],
        other=0.0,
    )
    z = add_encoded(p, z.to(tl.float32) + p.shift[None, :], features, p.columns)
    states = make_states(make_message(z, p.eps), valid[:, None], p.param, p.KIND)
    return merge_states(state, states, p.param, p.KIND), sums


@triton.jit
def store_row(p, at, state, degree, WHOLE: tl.constexpr):
    """Write a row's result, and what backward needs of it, or its unfinished state."""
    if WHOLE:
        result, stat = finish_state(state, degree, p.param, p.KIND)
        offset = at * p.D + p.channel
        tl.store(p.out + offset, result, mask=p.in_d)
        if p.SAVE and p.KIND != "add":
            tl.store(p.stat + offset, stat, mask=p.in_d)
    else:
        base, total, weighted = state
        to = p.partial + at * 3 * p.D + p.channel
        tl.store(to + p.D, total, mask=p.in_d)
        if p.KIND != "add":
            tl.store(to, base.to(tl.float32, bitcast=True), mask=p.in_d)
        if p.KIND != "add" and p.KIND != "max":
            tl.store(to + 2 * p.D, weighted, mask=p.in_d)


@triton.jit
def merge_forward(edges, p):
    """Finish the row that begins in this program's chunk, see :func:`walk.merge`. The grid is that of the walk."""
    channel, in_d = select_channels(tl.program_id(1), p.D, p.BLOCK_D)
    merge(
        edges,
        ForwardProgram(*p, channel, in_d, (), None, tl.load(p.parameter).to(tl.float32)),
        start_row,
        add_states,
        store_row,
    )


@triton.jit
def add_states(p, state, slot, is_part):
    """Merge the state of a row with those that some chunks kept."""
    there = is_part[:, None] & p.in_d[None, :]
    at = p.partial + slot[:, None] * 3 * p.D + p.channel[None, :]
    totals = tl.load(at + p.D, mask=there, other=0.0)
    bases, weighteds = totals, totals
    if p.KIND == "max":
        bases = tl.load(at, mask=there, other=0.0).to(tl.int32, bitcast=True)
        bases = tl.where(there, bases, -1)
    elif p.KIND != "add":
        bases = tl.load(at, mask=there, other=-float("inf"))
        weighteds = tl.load(at + 2 * p.D, mask=there, other=0.0)
    return merge_states(state, (bases, totals, weighteds), p.param, p.KIND)

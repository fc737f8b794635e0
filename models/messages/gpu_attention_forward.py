"""Forward of attention by destination in Triton, in the walk of models/kernels/walk.py."""

import triton
import triton.language as tl

from parallel_epochs.models.aggregate.gpu_encode import select_channels
from parallel_epochs.models.kernels.walk import merge, walk
from parallel_epochs.models.messages.gpu_attention_edges import (
    LOWEST,
    draw_factors,
    encode,
    extend,
    keep_edges,
    load_ends,
    load_features,
    load_numbers,
    load_parameters,
    load_sources,
)
from parallel_epochs.models.messages.scores.gpu import score_edges

# out: the result [num_dst, H, C], float32; written. lse: log2 of the sum of exponentials [num_dst, H], float32;
# written. partial: states of the rows that several chunks share [2 * num_chunks, H, C + 3], float32; written. A state is
# the weighted sum, the largest score, the sum of exponentials relative to it, and the number of edges.
Forward, ForwardProgram = extend("Forward", "out", "lse", "partial")
# weights: those of the edges [num_positions, H]; written.
Weights, WeightsProgram = extend("Weights", "lse", "weights")


@triton.jit
def forward(edges, p):
    """Attend over the rows that lie in one chunk, and write partial states of rows that are shared with other chunks.

    The grid is [num_chunks, heads]. All tensors are contiguous; a row is a destination.
    """
    head = tl.program_id(1)
    channel, in_c, columns, vector = load_parameters(p, head)
    walk(
        edges,
        ForwardProgram(*p, head, channel, in_c, columns, vector),
        (),
        start_row,
        add_edges,
        store_row,
    )


@triton.jit
def start_row(p, row):
    """Return the queries of a row, and its state without edges."""
    own = tl.zeros((1,), tl.int64) + row
    return (load_ends(p, p.target, own, own >= 0),), start_state(p.BLOCK_C)


@triton.jit
def start_state(BLOCK_C: tl.constexpr):
    """Return the state of a row without edges."""
    zero = tl.full((), 0.0, tl.float32)
    return tl.zeros((BLOCK_C,), tl.float32), tl.full((), LOWEST, tl.float32), zero, zero


@triton.jit
def add_edges(p, own, state, sums, edge, node, number, valid):
    """Merge the state of a row with a block of its edges."""
    total, top, powers, count = state
    valid = keep_edges(p, number, valid)
    z = encode(p, load_features(p, number, valid), edge.shape[0])
    values, keys = load_sources(p, node, valid)
    _, scores = score_edges(p, keys, own[0], z)
    scores = tl.where(valid, scores, LOWEST)
    largest = tl.maximum(top, tl.max(scores, 0))
    shrink = tl.exp2(top - largest)
    shares = tl.where(valid, tl.exp2(scores - largest), 0.0)
    powers = powers * shrink + tl.sum(shares, 0)
    count += tl.sum(tl.where(valid, 1.0, 0.0), 0)
    shares = shares * draw_factors(p, number)
    if p.ENCODES:
        values = values + z
    return (total * shrink + tl.sum(shares[:, None] * values, 0), largest, powers, count), sums


@triton.jit
def store_row(p, at, state, degree, WHOLE: tl.constexpr):
    """Write a row's result and its log-sum-exp, which are 0 without edges, or its unfinished state."""
    total, top, powers, count = state
    at = at * p.H + p.head
    if WHOLE:
        empty = count == 0.0
        tl.store(
            p.out + at * p.C + p.channel,
            tl.where(empty, 0.0, total / tl.where(empty, 1.0, powers)),
            mask=p.in_c,
        )
        tl.store(p.lse + at, tl.where(empty, 0.0, top + tl.log2(powers)))
    else:
        to = p.partial + at * (p.C + 3)
        tl.store(to + p.channel, total, mask=p.in_c)
        for k in tl.static_range(3):
            tl.store(to + p.C + k, state[1 + k])


@triton.jit
def merge_forward(edges, p):
    """Finish the row that begins in this program's chunk, see :func:`walk.merge`. The grid is that of the walk."""
    channel, in_c = select_channels(0, p.C, p.BLOCK_C)
    merge(
        edges,
        ForwardProgram(*p, tl.program_id(1), channel, in_c, (), None),
        start_row,
        add_states,
        store_row,
    )


@triton.jit
def add_states(p, state, slot, is_part):
    """Merge the state of a row with those that some chunks kept."""
    total, top, powers, count = state
    at = p.partial + (slot * p.H + p.head) * (p.C + 3)
    tops = tl.load(at + p.C, mask=is_part, other=LOWEST)
    totals = tl.load(
        at[:, None] + p.channel[None, :], mask=is_part[:, None] & p.in_c[None, :], other=0.0
    )
    largest = tl.maximum(top, tl.max(tops, 0))
    shrink, shrinks = tl.exp2(top - largest), tl.exp2(tops - largest)
    powers = powers * shrink + tl.sum(tl.load(at + p.C + 1, mask=is_part, other=0.0) * shrinks, 0)
    count += tl.sum(tl.load(at + p.C + 2, mask=is_part, other=0.0), 0)
    return total * shrink + tl.sum(totals * shrinks[:, None], 0), largest, powers, count


@triton.jit
def write_weights(edges, p):
    """Compute the weights of a chunk's edges again, now that the sums of their rows are known. The grid is as above."""
    head = tl.program_id(1)
    channel, in_c, columns, vector = load_parameters(p, head)
    walk(
        edges,
        WeightsProgram(*p, head, channel, in_c, columns, vector),
        (),
        start_weights,
        write_edges,
        store_nothing,
    )


@triton.jit
def start_weights(p, row):
    """Return the queries of a row, and its sum."""
    own = tl.zeros((1,), tl.int64) + row
    return (load_ends(p, p.target, own, own >= 0), load_numbers(p, p.lse, own, own >= 0)), ()


@triton.jit
def write_edges(p, own, state, sums, edge, node, number, valid):
    """Write the weights of a block of edges."""
    queries, row_lse = own
    valid = keep_edges(p, number, valid)
    z = encode(p, load_features(p, number, valid), edge.shape[0])
    _, keys = load_sources(p, node, valid)
    _, scores = score_edges(p, keys, queries, z)
    share = tl.exp2(scores - row_lse)
    if not p.ENCODES:
        share = share * draw_factors(p, number)
    tl.store(p.weights + number * p.H + p.head, share, mask=valid)
    return state, sums


@triton.jit
def store_nothing(p, at, state, degree, WHOLE: tl.constexpr):
    """Write nothing of a row, as the weights of its edges are written."""

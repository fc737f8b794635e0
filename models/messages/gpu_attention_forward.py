"""Forward of attention by destination in Triton, in the walk of models/kernels/walk.py."""

from collections import namedtuple

import triton
import triton.language as tl

from parallel_epochs.models.aggregate.gpu_encode import select_channels
from parallel_epochs.models.kernels.walk import Edges, merge, walk
from parallel_epochs.models.messages.gpu_attention_edges import (
    LOWEST,
    Attention,
    draw_factors,
    encode,
    keep_edges,
    load_ends,
    load_features,
    load_numbers,
    load_parameters,
    load_sources,
)
from parallel_epochs.models.messages.scores.gpu import score_edges

Forward = namedtuple("Forward", (*Attention._fields, "out", "lse", "partial"))
Result = namedtuple("Result", "head channel in_c out lse partial H C BLOCK_C")
Weights = namedtuple("Weights", (*Attention._fields, "lse", "weights"))


@triton.jit(do_not_specialize=["num_listed", "threshold", "edge_threshold"])
def forward(
    message,
    source,
    target,
    ptr,
    cuts,
    rows,
    src,
    position,
    attr,
    loop_attr,
    weight,
    att,
    seed,
    out,
    lse,
    partial,
    num_listed,
    slope,
    scale,
    threshold,
    rescale,
    edge_threshold,
    SCORE: tl.constexpr,
    BY_HEAD: tl.constexpr,
    ENCODES: tl.constexpr,
    DOT: tl.constexpr,
    WIDE: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Attend over the rows that lie in one chunk, and write partial states of rows that are shared with other chunks.

    The grid is [num_chunks, heads]. All tensors are contiguous; a row is a destination. The tensors of
    :func:`attention_ops.forward` are not explained again.

    Args:
        cuts: first item of each chunk, and the number of items [num_chunks + 1], int64; see :class:`gpu.ChunkPlan`.
        rows: first and last row of each chunk [2, num_chunks], int32.
        out: the result [num_dst, H, C], float32; written.
        lse: log2 of the sum of exponentials [num_dst, H], float32; written.
        partial: states of the rows that several chunks share [2 * num_chunks, H, C + 3], float32; written. A state is
            the weighted sum, the largest score, the sum of exponentials relative to it, and the number of edges.
        num_listed: number of rows of `attr`.
        slope: negative slope of the leaky ReLU.
        scale: log2(e) divided by the root of C, for "dot".
        threshold: a hash below it drops the weight of an edge; or none.
        rescale: what multiplies the others.
        edge_threshold: a hash below it removes an edge; or none.
        SCORE: one of `SCORES`.
        BY_HEAD, ENCODES: its `by_head` and `encodes_messages`.
        DOT: whether edge features are multiplied by tl.dot, not one by one.
        WIDE: tl.int32 or tl.int64, what holds numbers of items.
        H: number of heads.
        C: channels of a head.
        K: number of edge features.
        BLOCK_K: K rounded up to a power of two.
        BLOCK_E: edges of a row that are read at a time.
        BLOCK_C: C rounded up to a power of two.
    """
    head = tl.program_id(1)
    channel, in_c, columns, a = load_parameters(
        weight, att, head, BY_HEAD, DOT, C, K, BLOCK_K, BLOCK_C
    )
    walk(
        Edges(ptr, cuts, rows, src, position, WIDE, BLOCK_E),
        Forward(
            head,
            channel,
            in_c,
            columns,
            a,
            message,
            source,
            target,
            attr,
            loop_attr,
            seed,
            num_listed,
            slope,
            scale,
            threshold,
            rescale,
            edge_threshold,
            SCORE,
            BY_HEAD,
            ENCODES,
            DOT,
            H,
            C,
            K,
            BLOCK_K,
            BLOCK_C,
            "raw",
            out,
            lse,
            partial,
        ),
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


@triton.jit(do_not_specialize=["chunk_items"])
def merge_forward(
    ptr,
    cuts,
    rows,
    out,
    lse,
    partial,
    chunk_items,
    WIDE: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Finish the row that begins in this program's chunk, see :func:`walk.merge`. The grid is that of the walk."""
    channel, in_c = select_channels(0, C, BLOCK_C)
    merge(
        ptr,
        cuts,
        rows,
        chunk_items,
        Result(tl.program_id(1), channel, in_c, out, lse, partial, H, C, BLOCK_C),
        start_nothing,
        add_states,
        store_row,
        WIDE,
        BLOCK_P,
    )


@triton.jit
def start_nothing(p, row):
    """Return nothing of the row itself, and its state without edges."""
    return (), start_state(p.BLOCK_C)


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


@triton.jit(do_not_specialize=["num_listed", "threshold", "edge_threshold"])
def write_weights(
    message,
    source,
    target,
    ptr,
    cuts,
    rows,
    src,
    position,
    attr,
    loop_attr,
    weight,
    att,
    seed,
    lse,
    weights,
    num_listed,
    slope,
    scale,
    threshold,
    rescale,
    edge_threshold,
    SCORE: tl.constexpr,
    BY_HEAD: tl.constexpr,
    ENCODES: tl.constexpr,
    DOT: tl.constexpr,
    WIDE: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the weights of a chunk's edges again, now that the sums of their rows are known.

    The grid and the arguments are those of :func:`forward`, but for `weights` [num_positions, H], which are written.
    """
    head = tl.program_id(1)
    channel, in_c, columns, a = load_parameters(
        weight, att, head, BY_HEAD, DOT, C, K, BLOCK_K, BLOCK_C
    )
    walk(
        Edges(ptr, cuts, rows, src, position, WIDE, BLOCK_E),
        Weights(
            head,
            channel,
            in_c,
            columns,
            a,
            message,
            source,
            target,
            attr,
            loop_attr,
            seed,
            num_listed,
            slope,
            scale,
            threshold,
            rescale,
            edge_threshold,
            SCORE,
            BY_HEAD,
            ENCODES,
            DOT,
            H,
            C,
            K,
            BLOCK_K,
            BLOCK_C,
            "raw",
            lse,
            weights,
        ),
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

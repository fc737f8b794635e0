"""Forward of attention by destination in Triton. Chunks and shared rows are as in models/aggregate/gpu_forward.py."""

import triton
import triton.language as tl

from parallel_epochs.models.aggregate.gpu_encode import find_span, select_channels
from parallel_epochs.models.messages.gpu_attention_edges import (
    LOWEST,
    draw_factors,
    encode,
    load_edges,
    load_features,
    load_numbers,
    load_parameters,
    load_sources,
    load_targets,
    score_edges,
)


@triton.jit(do_not_specialize=["num_listed", "threshold", "edge_threshold"])
def forward(message, source, target, ptr, cuts, rows, src, position, attr, loop_attr, weight, att, seed, out, lse,
            partial, num_listed, slope, scale, threshold, rescale, edge_threshold, SCORE: tl.constexpr,
            DOT: tl.constexpr, WIDE: tl.constexpr, H: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
            BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_C: tl.constexpr):
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
        SCORE: "gatv2", "gat" or "dot".
        DOT: whether edge features are multiplied by tl.dot, not one by one.
        WIDE: tl.int32 or tl.int64, what holds numbers of items.
        H: number of heads.
        C: channels of a head.
        K: number of edge features.
        BLOCK_K: K rounded up to a power of two.
        BLOCK_E: edges of a row that are read at a time.
        BLOCK_C: C rounded up to a power of two.
    """
    chunk, head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    channel, in_c, columns, a = load_parameters(weight, att, head, SCORE, DOT, C, K, BLOCK_K, BLOCK_C)

    for row in range(tl.load(rows + chunk), tl.load(rows + tl.num_programs(0) + chunk) + 1):
        first, last, degree, begins, ends = find_span(ptr, row, begin, end, WIDE)
        own = tl.zeros((1,), tl.int64) + row
        queries = load_targets(target, own, own >= 0, head, channel, in_c, SCORE, H, C)
        total, top, powers, count = start_state(BLOCK_C)
        for block in range(first, last, BLOCK_E):
            node, number, valid = load_edges(src, position, block, last, seed, edge_threshold, BLOCK_E)
            features = load_features(attr, loop_attr, number, num_listed, valid, DOT or SCORE == "gat", K, BLOCK_K)
            z = encode(features, columns, SCORE, DOT, K, BLOCK_E, BLOCK_C)
            values, keys = load_sources(message, source, node, valid, head, channel, in_c, SCORE, H, C)
            _, scores = score_edges(keys, queries, z, a, slope, scale, SCORE)
            scores = tl.where(valid, scores, LOWEST)
            largest = tl.maximum(top, tl.max(scores, 0))
            shrink = tl.exp2(top - largest)
            shares = tl.where(valid, tl.exp2(scores - largest), 0.0)
            powers = powers * shrink + tl.sum(shares, 0)
            count += tl.sum(tl.where(valid, 1.0, 0.0), 0)
            top = largest
            shares = shares * draw_factors(seed, number, head, threshold, rescale)
            if SCORE == "dot":
                values = values + z
            total = total * shrink + tl.sum(shares[:, None] * values, 0)
        if begins & ends:
            store_row(out, lse, row, head, channel, in_c, total, top, powers, count, H, C)
        else:
            to = partial + ((2 * chunk + begins.to(tl.int32)).to(tl.int64) * H + head) * (C + 3)
            tl.store(to + channel, total, mask=in_c)
            tl.store(to + C, top)
            tl.store(to + C + 1, powers)
            tl.store(to + C + 2, count)


@triton.jit
def start_state(BLOCK_C: tl.constexpr):
    """Return the state of a row without edges."""
    zero = tl.full((), 0.0, tl.float32)
    return tl.zeros((BLOCK_C,), tl.float32), tl.full((), LOWEST, tl.float32), zero, zero


@triton.jit
def store_row(out, lse, row, head, channel, in_c, total, top, powers, count, H: tl.constexpr, C: tl.constexpr):
    """Write a row's result and its log-sum-exp from its whole state; both are 0 without edges."""
    at = tl.cast(row, tl.int64) * H + head
    empty = count == 0.0
    tl.store(out + at * C + channel, tl.where(empty, 0.0, total / tl.where(empty, 1.0, powers)), mask=in_c)
    tl.store(lse + at, tl.where(empty, 0.0, top + tl.log2(powers)))


@triton.jit(do_not_specialize=["chunk_items"])
def merge_forward(ptr, cuts, rows, out, lse, partial, chunk_items, WIDE: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
                  BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Finish the row that begins in this program's chunk and ends in a later one, if there is one.

    The grid and the arguments are those of :func:`forward`, but for two.

    Args:
        chunk_items: number of items between two cuts inside of a long row.
        BLOCK_P: chunks whose states are read at a time.
    """
    chunk, head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    row = tl.load(rows + tl.num_programs(0) + chunk)
    first, last, degree, begins, ends = find_span(ptr, row, begin, end, WIDE)
    if begins & (ends == 0):
        channel, in_c = select_channels(0, C, BLOCK_C)
        last_chunk = (first + degree + row) // chunk_items
        total, top, powers, count = start_state(BLOCK_C)
        # The parts lie in slots 2 * chunk + 1, 2 * (chunk + 1), 2 * (chunk + 2) and so on.
        for block in range(chunk, last_chunk + 1, BLOCK_P):
            part = block + tl.arange(0, BLOCK_P)
            there = part <= last_chunk
            slot = 2 * part.to(tl.int64) + (part == chunk).to(tl.int64)
            state = partial + (slot * H + head) * (C + 3)
            tops = tl.load(state + C, mask=there, other=LOWEST)
            totals = tl.load(state[:, None] + channel[None, :], mask=there[:, None] & in_c[None, :], other=0.0)
            largest = tl.maximum(top, tl.max(tops, 0))
            shrink, shrinks = tl.exp2(top - largest), tl.exp2(tops - largest)
            powers = powers * shrink + tl.sum(tl.load(state + C + 1, mask=there, other=0.0) * shrinks, 0)
            count += tl.sum(tl.load(state + C + 2, mask=there, other=0.0), 0)
            total = total * shrink + tl.sum(totals * shrinks[:, None], 0)
            top = largest
        store_row(out, lse, row, head, channel, in_c, total, top, powers, count, H, C)


@triton.jit(do_not_specialize=["num_listed", "threshold", "edge_threshold"])
def write_weights(message, source, target, ptr, cuts, rows, src, position, attr, loop_attr, weight, att, seed, lse,
                  weights, num_listed, slope, scale, threshold, rescale, edge_threshold, SCORE: tl.constexpr,
                  DOT: tl.constexpr, WIDE: tl.constexpr, H: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
                  BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_C: tl.constexpr):
    """Compute the weights of a chunk's edges again, now that the sums of their rows are known.

    The grid and the arguments are those of :func:`forward`, but for `weights` [num_positions, H], which are written.
    """
    chunk, head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    channel, in_c, columns, a = load_parameters(weight, att, head, SCORE, DOT, C, K, BLOCK_K, BLOCK_C)

    for row in range(tl.load(rows + chunk), tl.load(rows + tl.num_programs(0) + chunk) + 1):
        first, last, degree, begins, ends = find_span(ptr, row, begin, end, WIDE)
        own = tl.zeros((1,), tl.int64) + row
        queries = load_targets(target, own, own >= 0, head, channel, in_c, SCORE, H, C)
        row_lse = load_numbers(lse, own, own >= 0, head, H)
        for block in range(first, last, BLOCK_E):
            node, number, valid = load_edges(src, position, block, last, seed, edge_threshold, BLOCK_E)
            features = load_features(attr, loop_attr, number, num_listed, valid, DOT or SCORE == "gat", K, BLOCK_K)
            z = encode(features, columns, SCORE, DOT, K, BLOCK_E, BLOCK_C)
            _, keys = load_sources(message, source, node, valid, head, channel, in_c, SCORE, H, C)
            _, scores = score_edges(keys, queries, z, a, slope, scale, SCORE)
            share = tl.exp2(scores - row_lse)
            if SCORE != "dot":
                share = share * draw_factors(seed, number, head, threshold, rescale)
            tl.store(weights + number * H + head, share, mask=valid)

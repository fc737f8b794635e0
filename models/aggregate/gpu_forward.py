"""Forward by destination in Triton. Each edge is visited once.

Rows and edges are cut together into chunks of equal length: row r is its edges and one closing item, so that the work
of a chunk is bounded whatever the degrees are. A program takes one chunk and BLOCK_D channels. It finishes the rows
that lie in its chunk. For a row that begins before or ends after the chunk, it leaves a partial state, and a second
kernel merges these states in their order.
"""

import triton
import triton.language as tl

from parallel_epochs.models.aggregate.gpu_encode import (
    add_encoded,
    add_relations,
    find_span,
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


@triton.jit
def forward(x, ptr, cuts, rows, src, position, attr, weight, bias, table, param, out, stat, stat2, partial, eps, low,
            high, KIND: tl.constexpr, FEATURES: tl.constexpr, DOT: tl.constexpr, SAVE: tl.constexpr,
            WIDE: tl.constexpr, FIRST: tl.constexpr, D: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr,
            BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr):
    """Aggregate the rows that lie in one chunk, and write partial states of rows that are shared with other chunks.

    The grid is [num_chunks, number of blocks of channels]. All tensors are contiguous; a row is a destination.

    Args:
        x: features of the source nodes [num_src, D], float32, bfloat16 or float16.
        ptr: where each row's edges begin [num_dst + 1], int32 or int64.
        cuts: first item of each chunk, and the number of items [num_chunks + 1], int64; see :class:`gpu.ChunkPlan`.
        rows: first and last row of each chunk [2, num_chunks], int32.
        src: source of each edge, edges sorted by destination [num_edges], int32 or int64.
        position: row in `attr` of each edge [num_edges], int32 or int64; none: in order.
        attr: edge features [num_positions, FIRST + K], encoded ones [num_positions, D]; float32, bfloat16 or float16;
            or none.
        weight: the edge encoder's weight [D, K], float32; or none.
        bias: the edge encoder's bias [D], float32; or none.
        table: a row for each relation [num_relations, D], float32; or none.
        param: t or p, one element, any floating point.
        out: the result [num_dst, D], float32; written.
        stat: the second result of :func:`ops.forward` [num_dst, D], float32; written if SAVE and KIND has it.
        stat2: the third result of :func:`ops.forward` [num_dst, D], float32; written if SAVE and KIND has it.
        partial: states of the rows that several chunks share [2 * num_chunks, 3, D], float32; written: the state of the
            row that a chunk begins inside of at 2 * chunk, that of the row it ends inside of at 2 * chunk + 1.
        eps: added to every message.
        low: power clamps messages from below to this.
        high: power clamps messages from above to this.
        KIND: the aggregation, one of `ops.KINDS`.
        FEATURES: "none", "raw" (multiplied with `weight`) or "encoded" (added as they are).
        DOT: whether raw features are multiplied by tl.dot, not one by one.
        SAVE: whether backward will follow.
        WIDE: tl.int32 or tl.int64, what holds numbers of items.
        FIRST: 1 with a table, where column 0 of `attr` is the relation, else 0.
        D: number of channels.
        K: number of raw edge features.
        BLOCK_K: K rounded up to a power of two.
        BLOCK_E: edges of a row that are read at a time.
        BLOCK_D: channels of a program.
    """
    chunk = tl.program_id(0)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    channel, in_d = select_channels(tl.program_id(1), D, BLOCK_D)
    columns, b = load_encoder(weight, bias, channel, in_d, FEATURES, DOT, K, BLOCK_K, BLOCK_D)
    parameter = tl.load(param).to(tl.float32)

    for row in range(tl.load(rows + chunk), tl.load(rows + tl.num_programs(0) + chunk) + 1):
        first, last, degree, begins, ends = find_span(ptr, row, begin, end, WIDE)
        base, total, weighted = start_state(KIND, BLOCK_D)
        for block in range(first, last, BLOCK_E):
            edge = block + tl.arange(0, BLOCK_E)
            valid = edge < last
            node = tl.load(src + edge, mask=valid, other=0).to(tl.int64)
            attr_row = edge.to(tl.int64)
            if position is not None:
                attr_row = tl.load(position + edge, mask=valid, other=0).to(tl.int64)
            features = load_features(attr, attr_row, valid, channel, in_d, FEATURES, DOT, FIRST, K, BLOCK_K, D)
            z = tl.load(x + node[:, None] * D + channel[None, :], mask=valid[:, None] & in_d[None, :], other=0.0)
            z = add_relations(z.to(tl.float32) + b[None, :], attr, attr_row, valid, table, channel, in_d, FIRST, K, D)
            z = add_encoded(z, features, columns, FEATURES, DOT, K)
            bases, totals, weighteds = make_states(make_message(z, eps), valid[:, None], parameter, low, high, KIND)
            base, total, weighted = merge_states(base, total, weighted, bases, totals, weighteds, parameter, KIND)
        if begins & ends:
            store_row(out, stat, stat2, row, channel, in_d, base, total, weighted, degree, parameter, KIND, SAVE, D)
        else:
            store_state(partial, 2 * chunk + begins.to(tl.int32), channel, in_d, base, total, weighted, KIND, D)


@triton.jit
def store_row(out, stat, stat2, row, channel, in_d, base, total, weighted, degree, parameter, KIND: tl.constexpr,
              SAVE: tl.constexpr, D: tl.constexpr):
    """Write a row's result, and what backward needs of it, from its whole state."""
    result, first, second = finish_state(base, total, weighted, degree, parameter, KIND)
    offset = tl.cast(row, tl.int64) * D + channel
    tl.store(out + offset, result, mask=in_d)
    if SAVE and KIND != "add":
        tl.store(stat + offset, first, mask=in_d)
    if SAVE and KIND == "power":
        tl.store(stat2 + offset, second, mask=in_d)


@triton.jit
def store_state(partial, slot, channel, in_d, base, total, weighted, KIND: tl.constexpr, D: tl.constexpr):
    """Write a row's unfinished state into a slot of `partial`."""
    to = partial + slot.to(tl.int64) * 3 * D + channel
    tl.store(to + D, total, mask=in_d)
    if KIND != "add":
        tl.store(to, base.to(tl.float32, bitcast=True), mask=in_d)
    if KIND != "add" and KIND != "max":
        tl.store(to + 2 * D, weighted, mask=in_d)


@triton.jit(do_not_specialize=["chunk_items"])
def merge_forward(ptr, cuts, rows, param, out, stat, stat2, partial, chunk_items, KIND: tl.constexpr,
                  SAVE: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, BLOCK_C: tl.constexpr,
                  BLOCK_D: tl.constexpr):
    """Finish the row that begins in this program's chunk and ends in a later one, if there is one.

    The grid and the arguments are those of :func:`forward`, but for two.

    Args:
        chunk_items: number of items between two cuts inside of a long row.
        BLOCK_C: chunks whose states are read at a time.
    """
    chunk = tl.program_id(0)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    row = tl.load(rows + tl.num_programs(0) + chunk)
    first, last, degree, begins, ends = find_span(ptr, row, begin, end, WIDE)
    if begins & (ends == 0):
        channel, in_d = select_channels(tl.program_id(1), D, BLOCK_D)
        parameter = tl.load(param).to(tl.float32)
        last_chunk = (first + degree + row) // chunk_items
        base, total, weighted = start_state(KIND, BLOCK_D)
        # The parts lie in slots 2 * chunk + 1, 2 * (chunk + 1), 2 * (chunk + 2) and so on.
        for block in range(chunk, last_chunk + 1, BLOCK_C):
            part = block + tl.arange(0, BLOCK_C)
            there = (part <= last_chunk)[:, None] & in_d[None, :]
            slot = 2 * part.to(tl.int64) + (part == chunk).to(tl.int64)
            state = partial + slot[:, None] * 3 * D + channel[None, :]
            totals = tl.load(state + D, mask=there, other=0.0)
            bases, weighteds = totals, totals
            if KIND == "max":
                bases = tl.load(state, mask=there, other=0.0).to(tl.int32, bitcast=True)
                bases = tl.where(there, bases, -1)
            elif KIND != "add":
                bases = tl.load(state, mask=there, other=-float("inf"))
                weighteds = tl.load(state + 2 * D, mask=there, other=0.0)
            base, total, weighted = merge_states(base, total, weighted, bases, totals, weighteds, parameter, KIND)
        store_row(out, stat, stat2, row, channel, in_d, base, total, weighted, degree, parameter, KIND, SAVE, D)

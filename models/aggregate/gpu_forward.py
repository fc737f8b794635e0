"""Forward by destination in Triton, each edge visited once.

Rows and edges are cut together into chunks of equal length: row r is its edges and one closing item, so that a chunk
has bounded work whatever the degrees are. A program takes one chunk and BLOCK_D channels. It finishes the rows that lie
in its chunk; of a row that begins before or goes on after, it leaves a partial state, and a second kernel merges these
in their order.
"""

import triton
import triton.language as tl

from .gpu_encode import channels_of, encoded, encoder_of, features_of, span
from .gpu_kinds import finished, merged, message, no_messages, parts_of


@triton.jit
def forward(x, ptr, cuts, rows, src, position, attr, weight, bias, param, out, stat, stat2, partial, eps, low, high,
            KIND: tl.constexpr, FEATURES: tl.constexpr, DOT: tl.constexpr, SAVE: tl.constexpr, WIDE: tl.constexpr,
            D: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr):
    chunk = tl.program_id(0)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    channel, in_d = channels_of(tl.program_id(1), D, BLOCK_D)
    columns, b = encoder_of(weight, bias, channel, in_d, FEATURES, DOT, K, BLOCK_K, BLOCK_D)
    parameter = tl.load(param).to(tl.float32)

    for row in range(tl.load(rows + chunk), tl.load(rows + tl.num_programs(0) + chunk) + 1):
        first, last, degree, begins, ends = span(ptr, row, begin, end, WIDE)
        base, total, weighted = no_messages(KIND, BLOCK_D)
        for block in range(first, last, BLOCK_E):
            edge = block + tl.arange(0, BLOCK_E)
            valid = edge < last
            node = tl.load(src + edge, mask=valid, other=0).to(tl.int64)
            at = edge.to(tl.int64)
            if position is not None:
                at = tl.load(position + edge, mask=valid, other=0).to(tl.int64)
            features = features_of(attr, at, valid, channel, in_d, FEATURES, DOT, K, BLOCK_K, D)
            z = tl.load(x + node[:, None] * D + channel[None, :], mask=valid[:, None] & in_d[None, :], other=0.0)
            z = encoded(z.to(tl.float32) + b[None, :], features, columns, FEATURES, DOT, K)
            bases, totals, weighteds = parts_of(message(z, eps), valid[:, None], parameter, low, high, KIND)
            base, total, weighted = merged(base, total, weighted, bases, totals, weighteds, KIND)
        if begins & ends:
            store_row(out, stat, stat2, row, channel, in_d, base, total, weighted, degree, parameter, KIND, SAVE, D)
        else:
            store_state(partial, 2 * chunk + begins.to(tl.int32), channel, in_d, base, total, weighted, KIND, D)


@triton.jit
def store_row(out, stat, stat2, row, channel, in_d, base, total, weighted, degree, parameter, KIND: tl.constexpr,
              SAVE: tl.constexpr, D: tl.constexpr):
    result, first, second = finished(base, total, weighted, degree, parameter, KIND)
    at = tl.cast(row, tl.int64) * D + channel
    tl.store(out + at, result, mask=in_d)
    if SAVE and KIND != "add":
        tl.store(stat + at, first, mask=in_d)
    if SAVE and KIND == "power":
        tl.store(stat2 + at, second, mask=in_d)


@triton.jit
def store_state(partial, slot, channel, in_d, base, total, weighted, KIND: tl.constexpr, D: tl.constexpr):
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
    """Finishes the row that begins in this program's chunk and ends in a later one, if there is one."""
    chunk = tl.program_id(0)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    row = tl.load(rows + tl.num_programs(0) + chunk)
    first, last, degree, begins, ends = span(ptr, row, begin, end, WIDE)
    if begins & (ends == 0):
        channel, in_d = channels_of(tl.program_id(1), D, BLOCK_D)
        parameter = tl.load(param).to(tl.float32)
        last_chunk = (first + degree + row) // chunk_items
        base, total, weighted = no_messages(KIND, BLOCK_D)
        # The parts lie in slots 2 * chunk + 1, 2 * (chunk + 1), 2 * (chunk + 2) and so on.
        for block in range(chunk, last_chunk + 1, BLOCK_C):
            part = block + tl.arange(0, BLOCK_C)
            there = (part <= last_chunk)[:, None] & in_d[None, :]
            slot = 2 * part.to(tl.int64) + (part == chunk).to(tl.int64)
            at = partial + slot[:, None] * 3 * D + channel[None, :]
            totals = tl.load(at + D, mask=there, other=0.0)
            bases, weighteds = totals, totals
            if KIND == "max":
                bases = tl.load(at, mask=there, other=0.0).to(tl.int32, bitcast=True)
                bases = tl.where(there, bases, -1)
            elif KIND != "add":
                bases = tl.load(at, mask=there, other=-float("inf"))
                weighteds = tl.load(at + 2 * D, mask=there, other=0.0)
            base, total, weighted = merged(base, total, weighted, bases, totals, weighteds, KIND)
        store_row(out, stat, stat2, row, channel, in_d, base, total, weighted, degree, parameter, KIND, SAVE, D)

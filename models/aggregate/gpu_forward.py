"""Forward by destination in Triton. Each edge is visited once, in the walk of models/kernels/walk.py.

A program takes one chunk and BLOCK_D channels.
"""

from collections import namedtuple

import triton
import triton.language as tl

from parallel_epochs.models.aggregate.gpu_encode import (
    add_encoded,
    add_relations,
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
from parallel_epochs.models.kernels.walk import Edges, merge, walk

# The functions of both passes read and write this; see the arguments of :func:`forward`.
Result = namedtuple(
    "Result", "channel in_d param low high out stat stat2 partial KIND FILLS SAVE D BLOCK_D"
)
Forward = namedtuple(
    "Forward",
    (
        *Result._fields,
        "columns",
        "bias",
        "x",
        "attr",
        "table",
        "eps",
        "FEATURES",
        "DOT",
        "FIRST",
        "K",
        "BLOCK_K",
    ),
)


@triton.jit
def forward(
    x,
    ptr,
    cuts,
    rows,
    src,
    position,
    attr,
    weight,
    bias,
    table,
    param,
    out,
    stat,
    stat2,
    partial,
    eps,
    low,
    high,
    KIND: tl.constexpr,
    FILLS: tl.constexpr,
    FEATURES: tl.constexpr,
    DOT: tl.constexpr,
    SAVE: tl.constexpr,
    WIDE: tl.constexpr,
    FIRST: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
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
        low: power clamps messages, and the mean of their powers, from below to this.
        high: power clamps these from above to this.
        KIND: the aggregation, one of `ops.KINDS`; of powermean it is "power" with FILLS.
        FILLS: whether a row without edges gets the lower bound of the mean, and not 0.
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
    channel, in_d = select_channels(tl.program_id(1), D, BLOCK_D)
    columns, b = load_encoder(weight, bias, channel, in_d, FEATURES, DOT, K, BLOCK_K, BLOCK_D)
    walk(
        Edges(ptr, cuts, rows, src, position, WIDE, BLOCK_E),
        Forward(
            channel,
            in_d,
            tl.load(param).to(tl.float32),
            low,
            high,
            out,
            stat,
            stat2,
            partial,
            KIND,
            FILLS,
            SAVE,
            D,
            BLOCK_D,
            columns,
            b,
            x,
            attr,
            table,
            eps,
            FEATURES,
            DOT,
            FIRST,
            K,
            BLOCK_K,
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
    z = add_relations(p, z.to(tl.float32) + p.bias[None, :], attr_row, valid)
    z = add_encoded(p, z, features, p.columns)
    states = make_states(make_message(z, p.eps), valid[:, None], p.param, p.low, p.high, p.KIND)
    return merge_states(state, states, p.param, p.KIND), sums


@triton.jit
def store_row(p, at, state, degree, WHOLE: tl.constexpr):
    """Write a row's result, and what backward needs of it, or its unfinished state."""
    if WHOLE:
        result, first, second = finish_state(state, degree, p.param, p.low, p.high, p.KIND, p.FILLS)
        offset = at * p.D + p.channel
        tl.store(p.out + offset, result, mask=p.in_d)
        if p.SAVE and p.KIND != "add":
            tl.store(p.stat + offset, first, mask=p.in_d)
        if p.SAVE and p.KIND == "power":
            tl.store(p.stat2 + offset, second, mask=p.in_d)
    else:
        base, total, weighted = state
        to = p.partial + at * 3 * p.D + p.channel
        tl.store(to + p.D, total, mask=p.in_d)
        if p.KIND != "add":
            tl.store(to, base.to(tl.float32, bitcast=True), mask=p.in_d)
        if p.KIND != "add" and p.KIND != "max":
            tl.store(to + 2 * p.D, weighted, mask=p.in_d)


@triton.jit(do_not_specialize=["chunk_items"])
def merge_forward(
    ptr,
    cuts,
    rows,
    param,
    low,
    high,
    out,
    stat,
    stat2,
    partial,
    chunk_items,
    KIND: tl.constexpr,
    FILLS: tl.constexpr,
    SAVE: tl.constexpr,
    WIDE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Finish the row that begins in this program's chunk, see :func:`walk.merge`. The grid is that of the walk."""
    channel, in_d = select_channels(tl.program_id(1), D, BLOCK_D)
    merge(
        ptr,
        cuts,
        rows,
        chunk_items,
        Result(
            channel,
            in_d,
            tl.load(param).to(tl.float32),
            low,
            high,
            out,
            stat,
            stat2,
            partial,
            KIND,
            FILLS,
            SAVE,
            D,
            BLOCK_D,
        ),
        start_row,
        add_states,
        store_row,
        WIDE,
        BLOCK_C,
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

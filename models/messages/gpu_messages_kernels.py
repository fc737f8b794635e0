"""Messages in Triton: reduced by destination in forward, recomputed by destination or by source in backward.

The walk is that of models/kernels/walk.py. A program has one chunk and a group of channels.
"""

from collections import namedtuple

import triton
import triton.language as tl

from parallel_epochs.models.aggregate.gpu_backward import Sum, store_sum
from parallel_epochs.models.kernels.walk import Edges, merge, walk

INF = tl.constexpr(float("inf"))
SIDES = (
    "left",
    "left_columns",
    "right",
    "right_columns",
    "LEFT",
    "RIGHT",
    "LEFT_WIDTH",
    "RIGHT_WIDTH",
    "OPERATION",
)
# The functions of the passes read and write this; see the arguments of :func:`forward` and :func:`backward`.
Result = namedtuple(
    "Result", "channel in_d total square high low high_ties low_ties partial SUMS STATES D BLOCK_D"
)
Forward = namedtuple("Forward", (*Result._fields, *SIDES))
Backward = namedtuple(
    "Backward",
    (
        *Sum._fields,
        *SIDES,
        "total",
        "square",
        "of_high",
        "of_low",
        "high",
        "low",
        "grad_edge",
        "BY_SOURCE",
        "ROW_SIDE",
        "EDGE_SIDE",
        "EDGE_WIDTH",
    ),
)


@triton.jit
def select_group(D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the channels of this program's group, and a mask of those that exist."""
    lane = tl.arange(0, BLOCK_D)
    channel = tl.program_id(1) * GROUP + lane
    return channel, (lane < GROUP) & (channel < D)


@triton.jit
def load_operand(
    p, x, columns, u_row, v_row, e_row, there, PLACE: tl.constexpr, WIDTH: tl.constexpr
):
    """Read the values of a block of edges of the operand "u", "v" or "e" [BLOCK_E, BLOCK_D]."""
    row = e_row
    if PLACE == "u":
        row = u_row
    elif PLACE == "v":
        row = v_row
    column = p.channel
    if columns is not None:
        column = tl.load(columns + p.channel, mask=p.in_d, other=0)
    return tl.load(x + row[:, None] * WIDTH + column[None, :], mask=there, other=0.0).to(tl.float32)


@triton.jit
def load_sides(p, u_row, v_row, e_row, there):
    """Read both operands; the right one of a copy is its left one."""
    a = load_operand(p, p.left, p.left_columns, u_row, v_row, e_row, there, p.LEFT, p.LEFT_WIDTH)
    b = a
    if p.RIGHT != "":
        b = load_operand(
            p, p.right, p.right_columns, u_row, v_row, e_row, there, p.RIGHT, p.RIGHT_WIDTH
        )
    return a, b


@triton.jit
def combine(a, b, OPERATION: tl.constexpr):
    """Combine two operands into messages. Forward and backward must round alike, as max compares their messages."""
    if OPERATION == "add":
        return a + b
    elif OPERATION == "sub":
        return a - b
    elif OPERATION == "mul":
        return a * b
    elif OPERATION == "div":
        return tl.div_rn(a, b)
    else:
        return a


@triton.jit
def differentiate(q, a, b, OPERATION: tl.constexpr, SIDE: tl.constexpr):
    """Compute the gradient of the left (1) or right (2) operand from that of the message."""
    if OPERATION == "sub" and SIDE == 2:
        return -q
    elif OPERATION == "mul":
        if SIDE == 1:
            return q * b
        else:
            return q * a
    elif OPERATION == "div":
        if SIDE == 1:
            return q / b
        else:
            return -q * (a / b) / b
    else:
        return q


@triton.jit
def merge_states(p, state, states):
    """Merge the state of a row with a block of others, along their first axis. A state is the sum and the sum of
    squares, and for each extreme the largest message, negated for min, and the numbers of ties and NaNs.
    """
    merged = ()
    for k in tl.static_range(p.SUMS):
        merged = merged + (state[k] + tl.sum(states[k], 0),)
    for k in tl.static_range(p.SUMS, p.STATES, 3):
        top = tl.maximum(state[k], tl.max(states[k], 0))
        ties = tl.sum(tl.where(states[k] == top[None, :], states[k + 1], 0.0), 0)
        ties += tl.where(state[k] == top, state[k + 1], 0.0)
        merged = merged + (top, ties, state[k + 2] + tl.sum(states[k + 2], 0))
    return merged


@triton.jit
def forward(
    left,
    left_columns,
    right,
    right_columns,
    ptr,
    cuts,
    rows,
    src,
    position,
    total,
    square,
    high,
    low,
    high_ties,
    low_ties,
    partial,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    LEFT_WIDTH: tl.constexpr,
    RIGHT_WIDTH: tl.constexpr,
    OPERATION: tl.constexpr,
    SUMS: tl.constexpr,
    STATES: tl.constexpr,
    WIDE: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Reduce the rows that lie in one chunk, and write partial states of rows that are shared with other chunks.

    The grid is [num_chunks, number of groups of channels]. All tensors are contiguous; a row is a destination. The
    tensors of :func:`ops.update_all` are not explained again.

    Args:
        left: values of the left operand [num_rows, LEFT_WIDTH].
        left_columns: its column for each channel [D], int32; none: in order.
        right: the same of the right operand; none for a copy.
        cuts: first item of each chunk, and the number of items [num_chunks + 1], int64; see :class:`gpu.ChunkPlan`.
        rows: first and last row of each chunk [2, num_chunks], int32.
        total, square, high, low: sums of the messages and of their squares, maxima and minima [num_dst, D], float32;
            written; or none.
        high_ties, low_ties: numbers of ties of the maxima and minima [num_dst, D], float32; written; or none.
        partial: states of the rows that several chunks share [2 * num_chunks, STATES, D], float32; written.
        LEFT, RIGHT: "u", "v", "e", or "" for the right one of a copy.
        SUMS: how many of the results are sums.
        STATES: number of vectors of a state, which are those sums and three for each extreme.
        GROUP: channels of a program.
    """
    channel, in_d = select_group(D, GROUP, BLOCK_D)
    walk(
        Edges(ptr, cuts, rows, src, position, WIDE, BLOCK_E),
        Forward(
            channel,
            in_d,
            total,
            square,
            high,
            low,
            high_ties,
            low_ties,
            partial,
            SUMS,
            STATES,
            D,
            BLOCK_D,
            left,
            left_columns,
            right,
            right_columns,
            LEFT,
            RIGHT,
            LEFT_WIDTH,
            RIGHT_WIDTH,
            OPERATION,
        ),
        (),
        start_row,
        add_edges,
        store_row,
    )


@triton.jit
def start_row(p, row):
    """Return the row, and its state without edges."""
    zero, state = tl.zeros((p.BLOCK_D,), tl.float32), ()
    for _ in tl.static_range(p.SUMS):
        state = state + (zero,)
    for _ in tl.static_range(p.SUMS, p.STATES, 3):
        state = state + (tl.full((p.BLOCK_D,), -INF, tl.float32), zero, zero)
    return (row,), state


@triton.jit
def add_edges(p, own, state, sums, edge, node, e_row, valid):
    """Merge the state of a row with the messages of a block of its edges."""
    a, b = load_sides(
        p, node, tl.zeros_like(node) + own[0], e_row, valid[:, None] & p.in_d[None, :]
    )
    m = combine(a, b, p.OPERATION)
    states = ()
    if p.total is not None:
        states = states + (tl.where(valid[:, None], m, 0.0),)
    if p.square is not None:
        states = states + (tl.where(valid[:, None], m * m, 0.0),)
    if p.high is not None:
        states = states + find_states(m, valid)
    if p.low is not None:
        states = states + find_states(-m, valid)
    return merge_states(p, state, states), sums


@triton.jit
def find_states(m, valid):
    """Turn messages into the three vectors of an extreme."""
    counts = tl.where(valid[:, None] & (m == m), 1.0, 0.0)
    return tl.where(counts > 0.0, m, -INF), counts, tl.where(valid[:, None] & (m != m), 1.0, 0.0)


@triton.jit
def store_row(p, at, state, degree, WHOLE: tl.constexpr):
    """Write a row's results and the numbers of ties, or its unfinished state."""
    if WHOLE:
        offset = at * p.D + p.channel
        if p.total is not None:
            tl.store(p.total + offset, state[0], mask=p.in_d)
        if p.square is not None:
            tl.store(p.square + offset, state[p.SUMS - 1], mask=p.in_d)
        if p.high is not None:
            store_extreme(
                p,
                p.high,
                p.high_ties,
                offset,
                state[p.SUMS],
                state[p.SUMS + 1],
                state[p.SUMS + 2],
                degree,
            )
        if p.low is not None:
            store_extreme(
                p,
                p.low,
                p.low_ties,
                offset,
                -state[p.STATES - 3],
                state[p.STATES - 2],
                state[p.STATES - 1],
                degree,
            )
    else:
        for k in tl.static_range(p.STATES):
            tl.store(p.partial + (at * p.STATES + k) * p.D + p.channel, state[k], mask=p.in_d)


@triton.jit
def store_extreme(p, to, to_ties, offset, best, ties, nans, degree):
    """Write the maximum or minimum of a row and the number of ties, which are 0 and 1 without edges."""
    best = tl.where(nans > 0.0, float("nan"), tl.where(degree == 0, 0.0, best))
    tl.store(to + offset, best, mask=p.in_d)
    if to_ties is not None:
        tl.store(to_ties + offset, tl.where(degree == 0, 1.0, ties), mask=p.in_d)


@triton.jit(do_not_specialize=["chunk_items"])
def merge_forward(
    ptr,
    cuts,
    rows,
    total,
    square,
    high,
    low,
    high_ties,
    low_ties,
    partial,
    chunk_items,
    SUMS: tl.constexpr,
    STATES: tl.constexpr,
    WIDE: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Finish the row that begins in this program's chunk, see :func:`walk.merge`. The grid is that of the walk."""
    channel, in_d = select_group(D, GROUP, BLOCK_D)
    merge(
        ptr,
        cuts,
        rows,
        chunk_items,
        Result(
            channel,
            in_d,
            total,
            square,
            high,
            low,
            high_ties,
            low_ties,
            partial,
            SUMS,
            STATES,
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
    there, states = is_part[:, None] & p.in_d[None, :], ()
    at = p.partial + slot[:, None] * p.STATES * p.D + p.channel[None, :]
    for k in tl.static_range(p.SUMS):
        states = states + (tl.load(at + k * p.D, mask=there, other=0.0),)
    for k in tl.static_range(p.SUMS, p.STATES, 3):
        states = states + (
            tl.load(at + k * p.D, mask=there, other=-INF),
            tl.load(at + (k + 1) * p.D, mask=there, other=0.0),
            tl.load(at + (k + 2) * p.D, mask=there, other=0.0),
        )
    return merge_states(p, state, states)


@triton.jit
def backward(
    left,
    left_columns,
    right,
    right_columns,
    ptr,
    cuts,
    rows,
    other,
    position,
    total,
    square,
    of_high,
    of_low,
    high,
    low,
    grad_row,
    partial,
    grad_edge,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    LEFT_WIDTH: tl.constexpr,
    RIGHT_WIDTH: tl.constexpr,
    OPERATION: tl.constexpr,
    BY_SOURCE: tl.constexpr,
    ROW_SIDE: tl.constexpr,
    EDGE_SIDE: tl.constexpr,
    EDGE_WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute the gradients of one chunk's messages, summed by row for the operand of the rows.

    The grid and the arguments are those of :func:`forward`, but for these. A row is a source if BY_SOURCE.

    Args:
        other: the node at the other end of each edge [num_edges].
        total, square: gradients of the sums and of the sums of squares [num_dst, D], float32; or none.
        of_high, of_low: gradients of the maxima and minima, divided by the ties [num_dst, D], float32; or none.
        high, low: the maxima and minima [num_dst, D], float32; or none.
        grad_row: gradient of the operand of the rows [num_rows, D], float32; written for rows that lie in one chunk.
        partial: its sums for the rows that several chunks share [2 * num_chunks, D], float32; written.
        grad_edge: gradient of `e` [num_edges, EDGE_WIDTH], its dtype; written if EDGE_SIDE. It has D columns, or one
            for each group of channels.
        ROW_SIDE, EDGE_SIDE: whether the operand is the left (1) or the right one (2), or has no gradient (0).
    """
    channel, in_d = select_group(D, GROUP, BLOCK_D)
    walk(
        Edges(ptr, cuts, rows, other, position, WIDE, BLOCK_E),
        Backward(
            channel,
            in_d,
            grad_row,
            partial,
            D,
            BLOCK_D,
            left,
            left_columns,
            right,
            right_columns,
            LEFT,
            RIGHT,
            LEFT_WIDTH,
            RIGHT_WIDTH,
            OPERATION,
            total,
            square,
            of_high,
            of_low,
            high,
            low,
            grad_edge,
            BY_SOURCE,
            ROW_SIDE,
            EDGE_SIDE,
            EDGE_WIDTH,
        ),
        (),
        start_gradient,
        add_gradients,
        store_gradient,
    )


@triton.jit
def start_gradient(p, row):
    """Return the row, and an empty sum."""
    return (row,), (tl.zeros((p.BLOCK_D,), tl.float32),)


@triton.jit
def add_gradients(p, own, state, sums, edge, node, e_row, valid):
    """Add the gradients of a block of edges to the sum of their row, and write those of `e`."""
    u_row, v_row = node, tl.zeros_like(node) + own[0]
    if p.BY_SOURCE:
        u_row, v_row = v_row, u_row
    there = valid[:, None] & p.in_d[None, :]
    a, b = load_sides(p, u_row, v_row, e_row, there)
    at = v_row[:, None] * p.D + p.channel[None, :]
    m, q = combine(a, b, p.OPERATION), tl.zeros(at.shape, tl.float32)
    if p.total is not None:
        q += tl.load(p.total + at, mask=there, other=0.0)
    if p.square is not None:
        q += tl.load(p.square + at, mask=there, other=0.0) * (m + m)
    if p.high is not None:
        wins = m == tl.load(p.high + at, mask=there, other=0.0)
        q += tl.where(wins, tl.load(p.of_high + at, mask=there, other=0.0), 0.0)
    if p.low is not None:
        wins = m == tl.load(p.low + at, mask=there, other=0.0)
        q += tl.where(wins, tl.load(p.of_low + at, mask=there, other=0.0), 0.0)
    row_sum = state[0]
    if p.ROW_SIDE != 0:
        row_sum += tl.sum(tl.where(there, differentiate(q, a, b, p.OPERATION, p.ROW_SIDE), 0.0), 0)
    if p.EDGE_SIDE != 0:
        grad = tl.where(there, differentiate(q, a, b, p.OPERATION, p.EDGE_SIDE), 0.0)
        if p.EDGE_WIDTH == p.D:
            tl.store(p.grad_edge + e_row[:, None] * p.D + p.channel[None, :], grad, mask=there)
        else:
            tl.store(
                p.grad_edge + e_row * p.EDGE_WIDTH + tl.program_id(1), tl.sum(grad, 1), mask=valid
            )
    return (row_sum,), sums


@triton.jit
def store_gradient(p, at, state, degree, WHOLE: tl.constexpr):
    """Write the sum of a row, or a part of it, if its operand has a gradient."""
    if p.ROW_SIDE != 0:
        store_sum(p, at, state, degree, WHOLE)

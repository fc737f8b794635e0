"""Messages in Triton: reduced by destination in forward, recomputed by destination or by source in backward.

The walk is that of models/kernels/walk.py. A program has one chunk and a group of channels.
"""

from collections import namedtuple

import triton
import triton.language as tl

from parallel_epochs.models.aggregate.gpu_backward import store_sum
from parallel_epochs.models.kernels.walk import merge, walk

INF = tl.constexpr(float("inf"))
# left, right: values of the operands [num_rows, LEFT_WIDTH] and [num_rows, RIGHT_WIDTH]; the right one of a copy is
# none. left_columns, right_columns: their column for each channel [D], int32; none: in order.
# LEFT, RIGHT: "u", "v", "e", or "" for the right one of a copy. REDUCE: "sum", "max" or "min".
# D: number of channels. GROUP: channels of a program. BLOCK_D: GROUP up to a power of two.
MESSAGES = (
    *("left", "left_columns", "right", "right_columns", "LEFT", "RIGHT", "LEFT_WIDTH"),
    *("RIGHT_WIDTH", "OPERATION", "REDUCE", "D", "GROUP", "BLOCK_D"),
)
# out: the results [num_dst, D], float32; written. ties: how many messages are equal to a maximum [num_dst, D], float32;
# written; or none. partial: states of the rows that several chunks share [2 * num_chunks, STATES, D], float32; written.
# A state is the sum; or the largest message, negated for min, and the numbers of ties and NaNs.
Forward = namedtuple("Forward", (*MESSAGES, "out", "ties", "partial", "STATES"))
ForwardProgram = namedtuple("ForwardProgram", (*Forward._fields, "channel", "in_d"))
# factor: gradient of each message that counts [num_dst, D], float32. best: the maxima or minima [num_dst, D], float32;
# or none. grad: gradient of the operand of the rows [num_rows, D], float32; written for rows that lie in one chunk.
# partial: its sums for the rows that several chunks share [2 * num_chunks, D], float32; written. grad_edge: gradient of
# `e` [num_edges, EDGE_WIDTH], its dtype; written if EDGE_SIDE. It has D columns, or one for each group of channels.
# BY_SOURCE: whether a row is a source. ROW_SIDE, EDGE_SIDE: whether the operand is the left (1) or the right one (2), or
# has no gradient (0).
Backward = namedtuple(
    "Backward",
    (
        *(*MESSAGES, "factor", "best", "grad", "partial", "grad_edge"),
        *("BY_SOURCE", "ROW_SIDE", "EDGE_SIDE", "EDGE_WIDTH"),
    ),
)
BackwardProgram = namedtuple("BackwardProgram", (*Backward._fields, "channel", "in_d"))


@triton.jit
def select_group(p):
    """Return the channels of this program's group, and a mask of those that exist."""
    lane = tl.arange(0, p.BLOCK_D)
    channel = tl.program_id(1) * p.GROUP + lane
    return channel, (lane < p.GROUP) & (channel < p.D)


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
    """Merge the state of a row with a block of others, along their first axis."""
    if p.REDUCE == "sum":
        return (state[0] + tl.sum(states[0], 0),)
    else:
        top = tl.maximum(state[0], tl.max(states[0], 0))
        ties = tl.sum(tl.where(states[0] == top[None, :], states[1], 0.0), 0)
        ties += tl.where(state[0] == top, state[1], 0.0)
        return top, ties, state[2] + tl.sum(states[2], 0)


@triton.jit
def forward(edges, p):
    """Reduce the rows that lie in one chunk, and write partial states of rows that are shared with other chunks.

    The grid is [num_chunks, number of groups of channels]. All tensors are contiguous; a row is a destination.
    """
    channel, in_d = select_group(p)
    walk(edges, ForwardProgram(*p, channel, in_d), (), start_row, add_edges, store_row)


@triton.jit
def start_row(p, row):
    """Return the row, and its state without edges."""
    zero = tl.zeros((p.BLOCK_D,), tl.float32)
    if p.REDUCE == "sum":
        return (row,), (zero,)
    else:
        return (row,), (tl.full((p.BLOCK_D,), -INF, tl.float32), zero, zero)


@triton.jit
def add_edges(p, own, state, sums, edge, node, e_row, valid):
    """Merge the state of a row with the messages of a block of its edges."""
    a, b = load_sides(
        p, node, tl.zeros_like(node) + own[0], e_row, valid[:, None] & p.in_d[None, :]
    )
    m = combine(a, b, p.OPERATION)
    if p.REDUCE == "sum":
        return merge_states(p, state, (tl.where(valid[:, None], m, 0.0),)), sums
    else:
        if p.REDUCE == "min":
            m = -m
        counts = tl.where(valid[:, None] & (m == m), 1.0, 0.0)
        nans = tl.where(valid[:, None] & (m != m), 1.0, 0.0)
        return merge_states(p, state, (tl.where(counts > 0.0, m, -INF), counts, nans)), sums


@triton.jit
def store_row(p, at, state, degree, WHOLE: tl.constexpr):
    """Write a row's result and the number of ties, which are 0 and 1 without edges, or its unfinished state."""
    if WHOLE:
        offset = at * p.D + p.channel
        if p.REDUCE == "sum":
            tl.store(p.out + offset, state[0], mask=p.in_d)
        else:
            best = state[0]
            if p.REDUCE == "min":
                best = -best
            best = tl.where(state[2] > 0.0, float("nan"), tl.where(degree == 0, 0.0, best))
            tl.store(p.out + offset, best, mask=p.in_d)
            if p.ties is not None:
                tl.store(p.ties + offset, tl.where(degree == 0, 1.0, state[1]), mask=p.in_d)
    else:
        for k in tl.static_range(p.STATES):
            tl.store(p.partial + (at * p.STATES + k) * p.D + p.channel, state[k], mask=p.in_d)


@triton.jit
def merge_forward(edges, p):
    """Finish the row that begins in this program's chunk, see :func:`walk.merge`. The grid is that of the walk."""
    channel, in_d = select_group(p)
    merge(edges, ForwardProgram(*p, channel, in_d), start_row, add_states, store_row)


@triton.jit
def add_states(p, state, slot, is_part):
    """Merge the state of a row with those that some chunks kept."""
    there = is_part[:, None] & p.in_d[None, :]
    at = p.partial + slot[:, None] * p.STATES * p.D + p.channel[None, :]
    if p.REDUCE == "sum":
        return merge_states(p, state, (tl.load(at, mask=there, other=0.0),))
    else:
        tops = tl.load(at, mask=there, other=-INF)
        ties = tl.load(at + p.D, mask=there, other=0.0)
        nans = tl.load(at + 2 * p.D, mask=there, other=0.0)
        return merge_states(p, state, (tops, ties, nans))


@triton.jit
def backward(edges, p):
    """Compute the gradients of one chunk's messages, summed by row for the operand of the rows. The grid is as above."""
    channel, in_d = select_group(p)
    walk(
        edges,
        BackwardProgram(*p, channel, in_d),
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
    q = tl.load(p.factor + at, mask=there, other=0.0)
    if p.best is not None:
        m = combine(a, b, p.OPERATION)
        q = tl.where(m == tl.load(p.best + at, mask=there, other=0.0), q, 0.0)
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

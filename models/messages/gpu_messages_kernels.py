"""Messages in Triton: reduced by destination in forward, recomputed by destination or by source in backward.

Chunks and shared rows are as in models/aggregate/gpu_forward.py. A program has one chunk and a group of channels.
"""

import triton
import triton.language as tl

from parallel_epochs.models.aggregate.gpu_encode import find_span

INF = tl.constexpr(float("inf"))


@triton.jit
def select_group(D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the channels of this program's group, and a mask of those that exist."""
    lane = tl.arange(0, BLOCK_D)
    channel = tl.program_id(1) * GROUP + lane
    return channel, (lane < GROUP) & (channel < D)


@triton.jit
def load_operand(x, columns, u_row, v_row, e_row, valid, channel, in_d, PLACE: tl.constexpr, WIDTH: tl.constexpr):
    """Read the values of a block of edges of the operand "u", "v" or "e" [BLOCK_E, BLOCK_D]."""
    row = e_row
    if PLACE == "u":
        row = u_row
    elif PLACE == "v":
        row = v_row
    column = channel
    if columns is not None:
        column = tl.load(columns + channel, mask=in_d, other=0)
    return tl.load(x + row[:, None] * WIDTH + column[None, :], mask=valid[:, None] & in_d[None, :],
                   other=0.0).to(tl.float32)


@triton.jit
def load_sides(left, left_columns, right, right_columns, u_row, v_row, e_row, valid, channel, in_d, LEFT: tl.constexpr,
               RIGHT: tl.constexpr, LEFT_WIDTH: tl.constexpr, RIGHT_WIDTH: tl.constexpr):
    """Read both operands; the right one of a copy is its left one."""
    a = load_operand(left, left_columns, u_row, v_row, e_row, valid, channel, in_d, LEFT, LEFT_WIDTH)
    b = a
    if RIGHT != "":
        b = load_operand(right, right_columns, u_row, v_row, e_row, valid, channel, in_d, RIGHT, RIGHT_WIDTH)
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
def load_edges(other, position, block, last, BLOCK_E: tl.constexpr):
    """Return the far ends of a block of edges, their rows in arrays of edges, and a mask of those that exist."""
    edge = block + tl.arange(0, BLOCK_E)
    valid = edge < last
    node = tl.load(other + edge, mask=valid, other=0).to(tl.int64)
    e_row = edge.to(tl.int64)
    if position is not None:
        e_row = tl.load(position + edge, mask=valid, other=0).to(tl.int64)
    return node, e_row, valid


@triton.jit
def merge_states(best, ties, nans, bests, more_ties, more_nans):
    """Merge the state of a row, its largest message and the numbers of ties and NaNs, with a block of others."""
    top = tl.maximum(best, tl.max(bests, 0))
    ties = tl.where(best == top, ties, 0.0) + tl.sum(tl.where(bests == top[None, :], more_ties, 0.0), 0)
    return top, ties, nans + tl.sum(more_nans, 0)


@triton.jit
def store_row(out, stat, row, channel, in_d, best, ties, nans, degree, REDUCE: tl.constexpr, D: tl.constexpr):
    """Write a row's result from its whole state, and the number of ties."""
    at = tl.cast(row, tl.int64) * D + channel
    if REDUCE == "min":
        best = -best
    if REDUCE != "sum":
        best = tl.where(nans > 0.0, float("nan"), tl.where(degree == 0, 0.0, best))
        if stat is not None:
            tl.store(stat + at, tl.where(degree == 0, 1.0, ties), mask=in_d)
    tl.store(out + at, best, mask=in_d)


@triton.jit
def forward(left, left_columns, right, right_columns, ptr, cuts, rows, src, position, out, stat, partial,
            LEFT: tl.constexpr, RIGHT: tl.constexpr, LEFT_WIDTH: tl.constexpr, RIGHT_WIDTH: tl.constexpr,
            OPERATION: tl.constexpr, REDUCE: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
            BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr):
    """Reduce the rows that lie in one chunk, and write partial states of rows that are shared with other chunks.

    The grid is [num_chunks, number of groups of channels]. All tensors are contiguous; a row is a destination. The
    tensors of :func:`ops.update_all` are not explained again.

    Args:
        left: values of the left operand [num_rows, LEFT_WIDTH].
        left_columns: its column for each channel [D], int32; none: in order.
        right: the same of the right operand; none for a copy.
        cuts: first item of each chunk, and the number of items [num_chunks + 1], int64; see :class:`gpu.ChunkPlan`.
        rows: first and last row of each chunk [2, num_chunks], int32.
        out: the result [num_dst, D], float32; written.
        stat: for max and min the number of ties [num_dst, D], float32; written; or none.
        partial: states of the rows that several chunks share [2 * num_chunks, 3, D], float32; written.
        LEFT, RIGHT: "u", "v", "e", or "" for the right one of a copy.
        REDUCE: "sum", "max" or "min".
        GROUP: channels of a program.
    """
    chunk = tl.program_id(0)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    channel, in_d = select_group(D, GROUP, BLOCK_D)
    for row in range(tl.load(rows + chunk), tl.load(rows + tl.num_programs(0) + chunk) + 1):
        first, last, degree, begins, ends = find_span(ptr, row, begin, end, WIDE)
        own = tl.zeros((BLOCK_E,), tl.int64) + row
        ties, nans = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
        best = tl.full((BLOCK_D,), 0.0 if REDUCE == "sum" else -INF, tl.float32)
        for block in range(first, last, BLOCK_E):
            node, e_row, valid = load_edges(src, position, block, last, BLOCK_E)
            a, b = load_sides(left, left_columns, right, right_columns, node, own, e_row, valid, channel, in_d, LEFT,
                              RIGHT, LEFT_WIDTH, RIGHT_WIDTH)
            m = combine(a, b, OPERATION)
            if REDUCE == "sum":
                best += tl.sum(tl.where(valid[:, None], m, 0.0), 0)
            else:
                counts = tl.where(valid[:, None] & (m == m), 1.0, 0.0)
                is_nan = tl.where(valid[:, None] & (m != m), 1.0, 0.0)
                m = tl.where(counts > 0.0, -m if REDUCE == "min" else m, -INF)
                best, ties, nans = merge_states(best, ties, nans, m, counts, is_nan)
        if begins & ends:
            store_row(out, stat, row, channel, in_d, best, ties, nans, degree, REDUCE, D)
        else:
            to = partial + (2 * chunk + begins.to(tl.int32)).to(tl.int64) * 3 * D + channel
            tl.store(to, best, mask=in_d)
            tl.store(to + D, ties, mask=in_d)
            tl.store(to + 2 * D, nans, mask=in_d)


@triton.jit(do_not_specialize=["chunk_items"])
def merge_forward(ptr, cuts, rows, out, stat, partial, chunk_items, REDUCE: tl.constexpr, WIDE: tl.constexpr,
                  D: tl.constexpr, GROUP: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr):
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
        channel, in_d = select_group(D, GROUP, BLOCK_D)
        last_chunk = (first + degree + row) // chunk_items
        ties, nans = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
        best = tl.full((BLOCK_D,), 0.0 if REDUCE == "sum" else -INF, tl.float32)
        # The parts lie in slots 2 * chunk + 1, 2 * (chunk + 1), 2 * (chunk + 2) and so on.
        for block in range(chunk, last_chunk + 1, BLOCK_C):
            part = block + tl.arange(0, BLOCK_C)
            there = (part <= last_chunk)[:, None] & in_d[None, :]
            slot = 2 * part.to(tl.int64) + (part == chunk).to(tl.int64)
            state = partial + slot[:, None] * 3 * D + channel[None, :]
            if REDUCE == "sum":
                best += tl.sum(tl.load(state, mask=there, other=0.0), 0)
            else:
                best, ties, nans = merge_states(
                    best, ties, nans, tl.load(state, mask=there, other=-INF), tl.load(state + D, mask=there, other=0.0),
                    tl.load(state + 2 * D, mask=there, other=0.0))
        store_row(out, stat, row, channel, in_d, best, ties, nans, degree, REDUCE, D)


@triton.jit
def backward(left, left_columns, right, right_columns, ptr, cuts, rows, other, position, factor, out, grad_row, partial,
             grad_edge, LEFT: tl.constexpr, RIGHT: tl.constexpr, LEFT_WIDTH: tl.constexpr, RIGHT_WIDTH: tl.constexpr,
             OPERATION: tl.constexpr, REDUCE: tl.constexpr, BY_SOURCE: tl.constexpr, ROW_SIDE: tl.constexpr,
             EDGE_SIDE: tl.constexpr, EDGE_WIDTH: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr,
             GROUP: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr):
    """Compute the gradients of one chunk's messages, summed by row for the operand of the rows.

    The grid and the arguments are those of :func:`forward`, but for these. A row is a source if BY_SOURCE.

    Args:
        other: the node at the other end of each edge [num_edges].
        factor: gradient of each of a row's messages that counts [num_dst, D], float32.
        out: results, whose messages count, for max and min [num_dst, D], float32.
        grad_row: gradient of the operand of the rows [num_rows, D], float32; written for rows that lie in one chunk.
        partial: its sums for the rows that several chunks share [2 * num_chunks, D], float32; written.
        grad_edge: gradient of `e` [num_edges, EDGE_WIDTH], its dtype; written if EDGE_SIDE. It has D columns, or one
            for each group of channels.
        ROW_SIDE, EDGE_SIDE: whether the operand is the left (1) or the right one (2), or has no gradient (0).
    """
    chunk = tl.program_id(0)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    channel, in_d = select_group(D, GROUP, BLOCK_D)
    for row in range(tl.load(rows + chunk), tl.load(rows + tl.num_programs(0) + chunk) + 1):
        first, last, degree, begins, ends = find_span(ptr, row, begin, end, WIDE)
        row_sum = tl.zeros((BLOCK_D,), tl.float32)
        for block in range(first, last, BLOCK_E):
            node, e_row, valid = load_edges(other, position, block, last, BLOCK_E)
            u_row, v_row = node, tl.zeros((BLOCK_E,), tl.int64) + row
            if BY_SOURCE:
                u_row, v_row = v_row, u_row
            a, b = load_sides(left, left_columns, right, right_columns, u_row, v_row, e_row, valid, channel, in_d, LEFT,
                              RIGHT, LEFT_WIDTH, RIGHT_WIDTH)
            there = valid[:, None] & in_d[None, :]
            at = v_row[:, None] * D + channel[None, :]
            q = tl.load(factor + at, mask=there, other=0.0)
            if REDUCE != "sum":
                q = tl.where(combine(a, b, OPERATION) == tl.load(out + at, mask=there, other=0.0), q, 0.0)
            if ROW_SIDE != 0:
                row_sum += tl.sum(tl.where(there, differentiate(q, a, b, OPERATION, ROW_SIDE), 0.0), 0)
            if EDGE_SIDE != 0:
                grad = tl.where(there, differentiate(q, a, b, OPERATION, EDGE_SIDE), 0.0)
                if EDGE_WIDTH == D:
                    tl.store(grad_edge + e_row[:, None] * D + channel[None, :], grad, mask=there)
                else:
                    tl.store(grad_edge + e_row * EDGE_WIDTH + tl.program_id(1), tl.sum(grad, 1), mask=valid)
        if ROW_SIDE != 0:
            if begins & ends:
                tl.store(grad_row + tl.cast(row, tl.int64) * D + channel, row_sum, mask=in_d)
            else:
                slot = (2 * chunk + begins.to(tl.int32)).to(tl.int64)
                tl.store(partial + slot * D + channel, row_sum, mask=in_d)

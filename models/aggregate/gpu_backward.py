"""Backward by source in Triton. Each edge is recomputed once, in the walk of models/kernels/walk.py.

Sums over all edges (for weight, bias and t) stay in a program's registers until its end and are written once for each
chunk. `sum_rows` adds them in an order that depends only on the sizes.
"""

from collections import namedtuple

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
from parallel_epochs.models.aggregate.gpu_kinds import differentiate, make_message, pack_pair
from parallel_epochs.models.kernels.walk import merge, walk

# grad: sums of rows that lie in one chunk [num_rows, D]; written. partial: those of rows that several chunks share
# [2 * num_chunks, D], float32; written.
Sum = namedtuple("Sum", "grad partial D BLOCK_D")
SumProgram = namedtuple("SumProgram", (*Sum._fields, "channel", "in_d"))
# pairs: what :func:`pack` wrote [num_dst, 2, D], float32; of "add" the gradient of the result [num_dst, D].
GRADIENTS = (*MESSAGES, "pairs", "grad", "partial")
# grad_attr: gradient for `attr`, its dtype; written if NEED_ATTR. Encoded: [num_positions, D]. Raw: the part of each
# block of channels [blocks of channels, num_positions, K], float32 if there are several.
# sums: sums over each chunk [num_chunks, num_sums, D], float32; written: if NEED_WEIGHT the K columns of the weight's
# gradient and the bias's gradient, then t's if KIND is "softmax". num_edges: num_positions, or 0 unless NEED_ATTR.
Backward, BackwardProgram = extend(
    "Backward", (*GRADIENTS, "grad_attr", "sums", "num_edges", "NEED_ATTR", "NEED_WEIGHT")
)


@triton.jit(do_not_specialize=["num_rows"])
def pack(
    grad,
    out,
    stat,
    into,
    is_gentle,
    num_rows,
    KIND: tl.constexpr,
    STEEP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the two numbers of each destination that its edges will read.

    The grid is [blocks of destinations, blocks of channels].

    Args:
        grad: gradient of `out` [num_dst, D], float32.
        out: the first result of forward [num_dst, D], float32; softmax_sg does not read it.
        stat: the second result of forward [num_dst, D], float32.
        into: [num_dst, 2, D], float32; written.
        is_gentle: one bool, true; becomes false if a softmax has finite `stat` beyond STEEP.
        num_rows: number of destinations.
        KIND: the aggregation, one of `ops.KINDS` but "add".
        STEEP: see :mod:`gpu`.
        D: number of channels.
        BLOCK_N: destinations of a program.
        BLOCK_D: channels of a program.
    """
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    channel, in_d = select_channels(tl.program_id(1), D, BLOCK_D)
    there = (row < num_rows)[:, None] & in_d[None, :]
    offset = row[:, None] * D + channel[None, :]
    g = tl.load(grad + offset, mask=there, other=0.0)
    s = tl.load(stat + offset, mask=there, other=0.0)
    if KIND == "softmax" or KIND == "softmax_sg":
        # An infinite or NaN stat must reach the loss unchanged.
        steep = (tl.abs(s) > STEEP) & (tl.abs(s) < float("inf"))
        tl.store(is_gentle, False, mask=tl.max(tl.max(steep.to(tl.int32), 1), 0) > 0)
    o = s if KIND == "softmax_sg" else tl.load(out + offset, mask=there, other=0.0)
    first, second = pack_pair(g, o, s, KIND)
    to = into + row[:, None] * 2 * D + channel[None, :]
    tl.store(to, first, mask=there)
    tl.store(to + D, second, mask=there)


@triton.jit
def backward(edges, p):
    """Compute the gradients of one chunk's messages: summed by row for x, by chunk for weight, bias and t.

    The grid is [num_chunks, number of blocks of channels]; a row is a source.
    """
    channel, in_d = select_channels(tl.program_id(1), p.D, p.BLOCK_D)
    zero = tl.zeros((p.BLOCK_D,), tl.float32)
    param_sum, bias_sum, weight_sums = walk(
        edges,
        BackwardProgram(
            *p,
            channel,
            in_d,
            load_encoder(p, channel, in_d),
            load_bias(p, channel, in_d),
            tl.load(p.parameter).to(tl.float32),
        ),
        (zero, zero, start_products(p, p.NEED_WEIGHT, p.BLOCK_D)),
        start_row,
        add_edges,
        store_sum,
        close_row,
    )
    # Rows of the sums: the weight's columns and the bias if needed, then t's.
    num_sums: tl.constexpr = (p.K + 1 if p.NEED_WEIGHT else 0) + (1 if p.KIND == "softmax" else 0)
    to = p.sums + tl.program_id(0).to(tl.int64) * num_sums * p.D + channel
    if p.NEED_WEIGHT:
        store_products(p, to, weight_sums, in_d, p.D)
        tl.store(to + p.K * p.D, bias_sum, mask=in_d)
        to += (p.K + 1) * p.D
    if p.KIND == "softmax":
        tl.store(to, param_sum, mask=in_d)


@triton.jit
def start_row(p, row):
    """Return the node of a row with its bias, and an empty sum."""
    offset = tl.cast(row, tl.int64) * p.D + p.channel
    node = tl.load(p.x + offset, mask=p.in_d, other=0.0).to(tl.float32) + p.shift
    return (node,), (tl.zeros((p.BLOCK_D,), tl.float32),)


@triton.jit
def add_edges(p, own, state, sums, edge, other, attr_row, valid):
    """Add the gradients of a block of edges to the sums of the row and of the chunk, and write those of `attr`."""
    param_sum, bias_sum, weight_sums = sums
    there = valid[:, None] & p.in_d[None, :]
    features = load_features(p, attr_row, valid)
    first, second = load_pairs(p, other, there)
    z = tl.broadcast_to(own[0][None, :], first.shape)
    z = add_encoded(p, z, features, p.columns)
    q, dparam = differentiate(make_message(z, p.eps), first, second, p.param, p.KIND)
    q = tl.where(there & (z > 0.0), q, 0.0)
    if p.KIND == "softmax":
        param_sum += tl.sum(tl.where(there, dparam, 0.0), 0)
    if p.NEED_WEIGHT:
        weight_sums = add_products(p, weight_sums, features, q)
    if p.NEED_ATTR:
        store_features(p, attr_row, valid, q)
    return (state[0] + tl.sum(q, 0),), (param_sum, bias_sum, weight_sums)


@triton.jit
def close_row(state, sums):
    """Add the sum of a row to that of the bias."""
    param_sum, bias_sum, weight_sums = sums
    return param_sum, bias_sum + state[0], weight_sums


@triton.jit
def load_pairs(p, node, there):
    """Read what :func:`pack` wrote of some destinations; of "add" there is one number, the gradient, for both."""
    stride: tl.constexpr = p.D if p.KIND == "add" else 2 * p.D
    first = tl.load(p.pairs + node[:, None] * stride + p.channel[None, :], mask=there, other=0.0)
    second = first
    if p.KIND != "add":
        second = tl.load(
            p.pairs + node[:, None] * stride + p.D + p.channel[None, :], mask=there, other=0.0
        )
    return first, second


@triton.jit
def store_sum(p, at, state, degree, WHOLE: tl.constexpr):
    """Write the sum of a row, or a part of it."""
    tl.store((p.grad if WHOLE else p.partial) + at * p.D + p.channel, state[0], mask=p.in_d)


@triton.jit
def start_products(p, NEEDED: tl.constexpr, WIDTH: tl.constexpr):
    """Return empty sums for the gradient of an encoder's weight, in the form of its columns."""
    sums = ()
    if NEEDED:
        if p.DOT:
            sums = (tl.zeros((p.BLOCK_K, WIDTH), tl.float32),)
        else:
            for _ in tl.static_range(p.K):
                sums = sums + (tl.zeros((WIDTH,), tl.float32),)
    return sums


@triton.jit
def add_products(p, weight_sums, features, q):
    """Add a block of edges to the sums of features times gradients: a tuple of K columns, or one tile for tl.dot."""
    products = ()
    if p.DOT:
        products = (tl.dot(tl.trans(features[0]), q, acc=weight_sums[0], input_precision="ieee"),)
    else:
        for k in tl.static_range(p.K):
            products = products + (weight_sums[k] + tl.sum(q * features[k][:, None], 0),)
    return products


@triton.jit
def store_products(p, to, sums, exists, stride):
    """Write what :func:`add_products` returns: K rows of channels, `stride` numbers apart."""
    if p.DOT:
        k = tl.arange(0, p.BLOCK_K)
        there = (k < p.K)[:, None] & exists[None, :]
        tl.store(to[None, :] + k[:, None] * stride, sums[0], mask=there)
    else:
        for k in tl.static_range(p.K):
            tl.store(to + k * stride, sums[k], mask=exists)


@triton.jit
def store_features(p, attr_row, valid, q):
    """Write the gradients for the features of a block of edges; of raw ones each block of channels has its own part."""
    if p.FEATURES == "encoded":
        tl.store(
            p.grad_attr + attr_row[:, None] * p.D + p.channel[None, :],
            q,
            mask=valid[:, None] & p.in_d[None, :],
        )
    else:
        to = p.grad_attr + (tl.program_id(1).to(tl.int64) * p.num_edges + attr_row) * p.K
        if p.DOT:
            k = tl.arange(0, p.BLOCK_K)
            tl.store(
                to[:, None] + k[None, :],
                tl.dot(q, tl.trans(p.columns[0]), input_precision="ieee"),
                mask=valid[:, None] & (k < p.K)[None, :],
            )
        else:
            for k in tl.static_range(p.K):
                tl.store(to + k, tl.sum(q * p.columns[k][None, :], 1), mask=valid)


@triton.jit
def merge_backward(edges, p):
    """Finish the row that begins in this program's chunk, see :func:`walk.merge`. The grid is that of the walk."""
    channel, in_d = select_channels(tl.program_id(1), p.D, p.BLOCK_D)
    merge(edges, SumProgram(*p, channel, in_d), start_sum, add_sums, store_sum)


@triton.jit
def start_sum(p, row):
    """Return nothing of the row itself, and an empty sum."""
    return (), (tl.zeros((p.BLOCK_D,), tl.float32),)


@triton.jit
def add_sums(p, state, slot, is_part):
    """Add the sums that some chunks kept."""
    return (
        state[0]
        + tl.sum(
            tl.load(
                p.partial + slot[:, None] * p.D + p.channel[None, :],
                mask=is_part[:, None] & p.in_d[None, :],
                other=0.0,
            ),
            0,
        ),
    )


@triton.jit(do_not_specialize=["num_rows"])
def sum_rows(
    values,
    out,
    num_rows,
    num_columns,
    GROUP: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Sum up groups of rows.

    The grid is [blocks of columns, groups].

    Args:
        values: [num_rows, num_columns], float32.
        out: [num_rows / GROUP rounded up, num_columns], float32; written.
        num_rows: number of rows.
        num_columns: number of columns.
        GROUP: rows of a group.
        BLOCK_R: rows that are read at a time.
        BLOCK_C: columns of a program.
    """
    group = tl.program_id(1)
    column = tl.program_id(0).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for begin in range(0, GROUP, BLOCK_R):
        row = (group * GROUP + begin + tl.arange(0, BLOCK_R)).to(tl.int64)
        total += tl.load(
            values + row[:, None] * num_columns + column[None, :],
            mask=(row < num_rows)[:, None] & (column < num_columns)[None, :],
            other=0.0,
        )
    tl.store(
        out + group.to(tl.int64) * num_columns + column, tl.sum(total, 0), mask=column < num_columns
    )

"""Backward by source in Triton, each edge recomputed once; chunks and partial rows as in gpu_forward.py.

What is summed over all edges (weight, bias, t) stays in a program's registers until its end, is written once per chunk,
and added up by `sum_rows` in an order that depends on nothing but the sizes.
"""

import triton
import triton.language as tl

from .gpu_encode import channels_of, encoded, encoder_of, features_of, span
from .gpu_kinds import gradient, message, packed


@triton.jit(do_not_specialize=["num_rows"])
def pack(grad, out, stat, stat2, into, sums, num_rows, KIND: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
         BLOCK_D: tl.constexpr):
    """All that a destination's edges will read, side by side, [num_dst, 2, D]; and power's gradient for p."""
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    channel, in_d = channels_of(tl.program_id(1), D, BLOCK_D)
    there = (row < num_rows)[:, None] & in_d[None, :]
    at = row[:, None] * D + channel[None, :]
    g = tl.load(grad + at, mask=there, other=0.0)
    s = tl.load(stat + at, mask=there, other=0.0)
    o = s if KIND == "softmax_sg" else tl.load(out + at, mask=there, other=0.0)
    first, second = packed(g, o, s, KIND)
    to = into + row[:, None] * 2 * D + channel[None, :]
    tl.store(to, first, mask=there)
    tl.store(to + D, second, mask=there)
    if KIND == "power":
        slope = tl.load(stat2 + at, mask=there, other=0.0)
        tl.store(sums + tl.program_id(0).to(tl.int64) * D + channel, tl.sum(g * slope, 0), mask=in_d)


@triton.jit(do_not_specialize=["num_edges"])
def backward(pairs, x, ptr, cuts, rows, dst, position, attr, weight, bias, param, grad_x, grad_attr, partial, sums, eps,
             low, high, num_edges, KIND: tl.constexpr, FEATURES: tl.constexpr, DOT: tl.constexpr,
             NEED_ATTR: tl.constexpr, NEED_WEIGHT: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, K: tl.constexpr,
             BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr):
    chunk = tl.program_id(0)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    channel, in_d = channels_of(tl.program_id(1), D, BLOCK_D)
    columns, b = encoder_of(weight, bias, channel, in_d, FEATURES, DOT, K, BLOCK_K, BLOCK_D)
    parameter = tl.load(param).to(tl.float32)
    stride: tl.constexpr = D if KIND == "add" else 2 * D

    bias_sum, param_sum = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
    weight_sums = ()
    if NEED_WEIGHT:
        if DOT:
            weight_sums = (tl.zeros((BLOCK_K, BLOCK_D), tl.float32),)
        else:
            for k in tl.static_range(K):
                weight_sums = weight_sums + (tl.zeros((BLOCK_D,), tl.float32),)

    for row in range(tl.load(rows + chunk), tl.load(rows + tl.num_programs(0) + chunk) + 1):
        first, last, degree, begins, ends = span(ptr, row, begin, end, WIDE)
        row_at = tl.cast(row, tl.int64) * D + channel
        node = tl.load(x + row_at, mask=in_d, other=0.0).to(tl.float32) + b
        row_sum = tl.zeros((BLOCK_D,), tl.float32)
        for block in range(first, last, BLOCK_E):
            edge = block + tl.arange(0, BLOCK_E)
            valid = edge < last
            there = valid[:, None] & in_d[None, :]
            other = tl.load(dst + edge, mask=valid, other=0).to(tl.int64)
            at = edge.to(tl.int64)
            if position is not None:
                at = tl.load(position + edge, mask=valid, other=0).to(tl.int64)
            features = features_of(attr, at, valid, channel, in_d, FEATURES, DOT, K, BLOCK_K, D)
            first_of = tl.load(pairs + other[:, None] * stride + channel[None, :], mask=there, other=0.0)
            second_of = first_of
            if KIND != "add":
                second_of = tl.load(pairs + other[:, None] * stride + D + channel[None, :], mask=there, other=0.0)
            z = encoded(tl.broadcast_to(node[None, :], first_of.shape), features, columns, FEATURES, DOT, K)
            q, dparam = gradient(message(z, eps), first_of, second_of, parameter, low, high, KIND)
            q = tl.where(there & (z > 0.0), q, 0.0)
            row_sum += tl.sum(q, 0)
            if KIND == "softmax":
                param_sum += tl.sum(tl.where(there, dparam, 0.0), 0)
            if NEED_WEIGHT:
                weight_sums = with_products(weight_sums, features, q, DOT, K)
            if NEED_ATTR:
                store_features(grad_attr, at, valid, channel, in_d, columns, q, num_edges, FEATURES, DOT, K, BLOCK_K, D)
        bias_sum += row_sum
        if begins & ends:
            tl.store(grad_x + row_at, row_sum, mask=in_d)
        else:
            tl.store(partial + (2 * chunk + begins.to(tl.int32)).to(tl.int64) * D + channel, row_sum, mask=in_d)

    # Rows of the sums: the weight's columns and the bias if needed, then t's.
    to = sums + chunk.to(tl.int64) * ((K + 1 if NEED_WEIGHT else 0) + (1 if KIND == "softmax" else 0)) * D + channel
    if NEED_WEIGHT:
        if DOT:
            k = tl.arange(0, BLOCK_K)
            tl.store(to[None, :] + k[:, None] * D, weight_sums[0], mask=(k < K)[:, None] & in_d[None, :])
        else:
            for k in tl.static_range(K):
                tl.store(to + k * D, weight_sums[k], mask=in_d)
        tl.store(to + K * D, bias_sum, mask=in_d)
        to += (K + 1) * D
    if KIND == "softmax":
        tl.store(to, param_sum, mask=in_d)


@triton.jit
def with_products(weight_sums, features, q, DOT: tl.constexpr, K: tl.constexpr):
    products = ()
    if DOT:
        products = (tl.dot(tl.trans(features[0]), q, acc=weight_sums[0], input_precision="ieee"),)
    else:
        for k in tl.static_range(K):
            products = products + (weight_sums[k] + tl.sum(q * features[k][:, None], 0),)
    return products


@triton.jit
def store_features(grad_attr, at, valid, channel, in_d, columns, q, num_edges, FEATURES: tl.constexpr,
                   DOT: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, D: tl.constexpr):
    """Gradients for the features of a block of edges; of raw ones each block of channels has its own."""
    if FEATURES == "encoded":
        tl.store(grad_attr + at[:, None] * D + channel[None, :], q, mask=valid[:, None] & in_d[None, :])
    else:
        to = grad_attr + (tl.program_id(1).to(tl.int64) * num_edges + at) * K
        if DOT:
            k = tl.arange(0, BLOCK_K)
            tl.store(to[:, None] + k[None, :], tl.dot(q, tl.trans(columns[0]), input_precision="ieee"),
                     mask=valid[:, None] & (k < K)[None, :])
        else:
            for k in tl.static_range(K):
                tl.store(to + k, tl.sum(q * columns[k][None, :], 1), mask=valid)


@triton.jit(do_not_specialize=["chunk_items"])
def merge_backward(ptr, cuts, rows, grad_x, partial, chunk_items, WIDE: tl.constexpr, D: tl.constexpr,
                   BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr):
    """As merge_forward: the row that begins in this program's chunk and ends in a later one."""
    chunk = tl.program_id(0)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    row = tl.load(rows + tl.num_programs(0) + chunk)
    first, last, degree, begins, ends = span(ptr, row, begin, end, WIDE)
    if begins & (ends == 0):
        channel, in_d = channels_of(tl.program_id(1), D, BLOCK_D)
        last_chunk = (first + degree + row) // chunk_items
        total = tl.zeros((BLOCK_D,), tl.float32)
        for block in range(chunk, last_chunk + 1, BLOCK_C):
            part = block + tl.arange(0, BLOCK_C)
            slot = 2 * part.to(tl.int64) + (part == chunk).to(tl.int64)
            total += tl.sum(tl.load(partial + slot[:, None] * D + channel[None, :],
                                    mask=(part <= last_chunk)[:, None] & in_d[None, :], other=0.0), 0)
        tl.store(grad_x + tl.cast(row, tl.int64) * D + channel, total, mask=in_d)


@triton.jit(do_not_specialize=["num_rows"])
def sum_rows(values, out, num_rows, num_columns, GROUP: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Sums of GROUP rows each, [num_rows, num_columns] to [num_rows / GROUP, num_columns]."""
    group = tl.program_id(1)
    column = tl.program_id(0).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for begin in range(0, GROUP, BLOCK_R):
        row = (group * GROUP + begin + tl.arange(0, BLOCK_R)).to(tl.int64)
        total += tl.load(values + row[:, None] * num_columns + column[None, :],
                         mask=(row < num_rows)[:, None] & (column < num_columns)[None, :], other=0.0)
    tl.store(out + group.to(tl.int64) * num_columns + column, tl.sum(total, 0), mask=column < num_columns)

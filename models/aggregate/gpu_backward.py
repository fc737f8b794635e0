"""Backward by source in Triton. Each edge is recomputed once; chunks and partial rows are as in gpu_forward.py.

Sums over all edges (for weight, bias and t) stay in a program's registers until its end and are written once for each
chunk. `sum_rows` adds them in an order that depends only on the sizes.
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
from parallel_epochs.models.aggregate.gpu_kinds import differentiate, make_message, pack_pair


@triton.jit(do_not_specialize=["num_rows"])
def pack(grad, out, stat, stat2, into, sums, is_gentle, num_rows, KIND: tl.constexpr, STEEP: tl.constexpr,
         D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write the two numbers of each destination that its edges will read, and sum power's gradient for p.

    The grid is [blocks of destinations, blocks of channels].

    Args:
        grad: gradient of `out` [num_dst, D], float32.
        out: the first result of forward [num_dst, D], float32; softmax_sg does not read it.
        stat: the second result of forward [num_dst, D], float32.
        stat2: the third result of forward [num_dst, D], float32; power alone reads it.
        into: [num_dst, 2, D], float32; written.
        sums: sums over a block of destinations [blocks of destinations, D], float32; written if KIND is "power".
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
    if KIND == "power":
        slope = tl.load(stat2 + offset, mask=there, other=0.0)
        tl.store(sums + tl.program_id(0).to(tl.int64) * D + channel, tl.sum(g * slope, 0), mask=in_d)


@triton.jit(do_not_specialize=["num_edges"])
def backward(pairs, x, ptr, cuts, rows, dst, position, attr, weight, bias, table, param, grad_x, grad_attr, partial,
             sums, eps, low, high, num_edges, KIND: tl.constexpr, FEATURES: tl.constexpr, DOT: tl.constexpr,
             NEED_ATTR: tl.constexpr, NEED_WEIGHT: tl.constexpr, WIDE: tl.constexpr, FIRST: tl.constexpr,
             D: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr):
    """Compute the gradients of one chunk's messages: summed by row for x, by chunk for weight, bias and t.

    The grid is [num_chunks, number of blocks of channels]. All tensors are contiguous; a row is a source.

    Args:
        pairs: what :func:`pack` wrote [num_dst, 2, D], float32; of "add" the gradient of the result [num_dst, D].
        x: features of the source nodes [num_src, D], float32, bfloat16 or float16.
        ptr: where each row's edges begin [num_src + 1], int32 or int64.
        cuts: first item of each chunk, and the number of items [num_chunks + 1], int64; see :class:`gpu.ChunkPlan`.
        rows: first and last row of each chunk [2, num_chunks], int32.
        dst: destination of each edge, edges sorted by source [num_edges], int32 or int64.
        position: row in `attr` of each edge [num_edges], int32 or int64; none: in order.
        attr: edge features [num_positions, FIRST + K], encoded ones [num_positions, D]; float32, bfloat16 or float16;
            or none.
        weight: the edge encoder's weight [D, K], float32; or none.
        bias: the edge encoder's bias [D], float32; or none.
        table: a row for each relation [num_relations, D], float32; or none.
        param: t or p, one element, any floating point.
        grad_x: gradient for `x` [num_src, D], its dtype; written for rows that lie in one chunk.
        grad_attr: gradient for `attr`, its dtype; written if NEED_ATTR. Encoded: [num_positions, D]. Raw: the part of
            each block of channels [blocks of channels, num_positions, FIRST + K], float32 if there are several.
        partial: sums of the rows that several chunks share [2 * num_chunks, D], float32; written: of the row that a
            chunk begins inside of at 2 * chunk, of the row it ends inside of at 2 * chunk + 1.
        sums: sums over each chunk [num_chunks, num_sums, D], float32; written: if NEED_WEIGHT the K columns of the
            weight's gradient and the bias's gradient, then t's if KIND is "softmax".
        eps: added to every message.
        low: power clamps messages from below to this.
        high: power clamps messages from above to this.
        num_edges: num_positions, the number of rows of `attr`; 0 unless NEED_ATTR.
        KIND: the aggregation, one of `ops.KINDS`.
        FEATURES: "none", "raw" (multiplied with `weight`) or "encoded" (added as they are).
        DOT: whether raw features are multiplied by tl.dot, not one by one.
        NEED_ATTR: whether `attr` has a gradient.
        NEED_WEIGHT: whether `weight` or `bias` has a gradient.
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
    stride: tl.constexpr = D if KIND == "add" else 2 * D

    bias_sum, param_sum = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
    weight_sums = ()
    if NEED_WEIGHT:
        if DOT:
            weight_sums = (tl.zeros((BLOCK_K, BLOCK_D), tl.float32),)
        else:
            for _ in tl.static_range(K):
                weight_sums = weight_sums + (tl.zeros((BLOCK_D,), tl.float32),)

    for row in range(tl.load(rows + chunk), tl.load(rows + tl.num_programs(0) + chunk) + 1):
        first, last, degree, begins, ends = find_span(ptr, row, begin, end, WIDE)
        row_offset = tl.cast(row, tl.int64) * D + channel
        node = tl.load(x + row_offset, mask=in_d, other=0.0).to(tl.float32) + b
        row_sum = tl.zeros((BLOCK_D,), tl.float32)
        for block in range(first, last, BLOCK_E):
            edge = block + tl.arange(0, BLOCK_E)
            valid = edge < last
            there = valid[:, None] & in_d[None, :]
            other = tl.load(dst + edge, mask=valid, other=0).to(tl.int64)
            attr_row = edge.to(tl.int64)
            if position is not None:
                attr_row = tl.load(position + edge, mask=valid, other=0).to(tl.int64)
            features = load_features(attr, attr_row, valid, channel, in_d, FEATURES, DOT, FIRST, K, BLOCK_K, D)
            first_of = tl.load(pairs + other[:, None] * stride + channel[None, :], mask=there, other=0.0)
            second_of = first_of
            if KIND != "add":
                second_of = tl.load(pairs + other[:, None] * stride + D + channel[None, :], mask=there, other=0.0)
            z = tl.broadcast_to(node[None, :], first_of.shape)
            z = add_relations(z, attr, attr_row, valid, table, channel, in_d, FIRST, K, D)
            z = add_encoded(z, features, columns, FEATURES, DOT, K)
            q, dparam = differentiate(make_message(z, eps), first_of, second_of, parameter, low, high, KIND)
            q = tl.where(there & (z > 0.0), q, 0.0)
            row_sum += tl.sum(q, 0)
            if KIND == "softmax":
                param_sum += tl.sum(tl.where(there, dparam, 0.0), 0)
            if NEED_WEIGHT:
                weight_sums = add_products(weight_sums, features, q, DOT, K)
            if NEED_ATTR:
                store_features(grad_attr, attr_row, valid, channel, in_d, columns, q, num_edges, FEATURES, DOT, FIRST,
                               K, BLOCK_K, D)
        bias_sum += row_sum
        if begins & ends:
            tl.store(grad_x + row_offset, row_sum, mask=in_d)
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
def add_products(weight_sums, features, q, DOT: tl.constexpr, K: tl.constexpr):
    """Add a block of edges to the sums of features times gradients: a tuple of K columns, or one tile for tl.dot."""
    products = ()
    if DOT:
        products = (tl.dot(tl.trans(features[0]), q, acc=weight_sums[0], input_precision="ieee"),)
    else:
        for k in tl.static_range(K):
            products = products + (weight_sums[k] + tl.sum(q * features[k][:, None], 0),)
    return products


@triton.jit
def store_features(grad_attr, attr_row, valid, channel, in_d, columns, q, num_edges, FEATURES: tl.constexpr,
                   DOT: tl.constexpr, FIRST: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, D: tl.constexpr):
    """Write the gradients for the features of a block of edges; of raw ones each block of channels has its own part."""
    if FEATURES == "encoded":
        tl.store(grad_attr + attr_row[:, None] * D + channel[None, :], q, mask=valid[:, None] & in_d[None, :])
    else:
        to = grad_attr + (tl.program_id(1).to(tl.int64) * num_edges + attr_row) * (K + FIRST) + FIRST
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
    """Sum up the row that begins in this program's chunk and ends in a later one, if there is one.

    The grid and the arguments are those of :func:`backward`, but for two.

    Args:
        chunk_items: number of items between two cuts inside of a long row.
        BLOCK_C: chunks whose sums are read at a time.
    """
    chunk = tl.program_id(0)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    row = tl.load(rows + tl.num_programs(0) + chunk)
    first, last, degree, begins, ends = find_span(ptr, row, begin, end, WIDE)
    if begins & (ends == 0):
        channel, in_d = select_channels(tl.program_id(1), D, BLOCK_D)
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
        total += tl.load(values + row[:, None] * num_columns + column[None, :],
                         mask=(row < num_rows)[:, None] & (column < num_columns)[None, :], other=0.0)
    tl.store(out + group.to(tl.int64) * num_columns + column, tl.sum(total, 0), mask=column < num_columns)

"""Backward of attention in Triton: by destination for what belongs to destinations, by source for the rest.

Both passes compute the scores of their edges again. Chunks are as in models/aggregate/gpu_forward.py. The sums of rows
that several chunks share are merged by :func:`gpu_backward.merge_backward`, and the sums of all edges, of `att` and
`weight`, are written once for each chunk.
"""

import triton
import triton.language as tl

from parallel_epochs.models.aggregate.gpu_backward import add_products
from parallel_epochs.models.aggregate.gpu_encode import find_span, select_channels
from parallel_epochs.models.messages.gpu_attention_edges import (
    LOG2_E,
    draw_factors,
    encode,
    find_rows,
    load_edges,
    load_features,
    load_numbers,
    load_parameters,
    load_sources,
    load_targets,
    load_vectors,
    score_edges,
)


@triton.jit(do_not_specialize=["num_rows"])
def multiply(grad, out, products, num_rows, H: tl.constexpr, C: tl.constexpr, BLOCK_N: tl.constexpr,
             BLOCK_C: tl.constexpr):
    """Compute the products of outputs and their gradients [num_rows, H]. The grid is [blocks of rows, H]."""
    head = tl.program_id(1)
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    channel, in_c = select_channels(0, C, BLOCK_C)
    g = load_vectors(grad, row, row < num_rows, head, channel, in_c, H, C)
    o = load_vectors(out, row, row < num_rows, head, channel, in_c, H, C)
    tl.store(products + row * H + head, tl.sum(g * o, 1), mask=row < num_rows)


@triton.jit
def load_results(target, grad, lse, products, node, valid, head, channel, in_c, SCORE: tl.constexpr, H: tl.constexpr,
                 C: tl.constexpr):
    """Read what backward needs of destination nodes: queries, gradients, log-sum-exps and products."""
    return (load_targets(target, node, valid, head, channel, in_c, SCORE, H, C),
            load_vectors(grad, node, valid, head, channel, in_c, H, C), load_numbers(lse, node, valid, head, H),
            load_numbers(products, node, valid, head, H))


@triton.jit
def differentiate(x, scores, z, values, g, lse, product, valid, factor, slope, scale, SCORE: tl.constexpr):
    """Return the weights of edges after dropout, and gradients [BLOCK_E, BLOCK_C] or [BLOCK_E]: of x, but for "gatv2"
    not yet multiplied with `att`, and for "dot" of the products.
    """
    if SCORE == "dot":
        values = values + z
    share = tl.exp2(scores - lse)
    grad_score = tl.where(valid, share * (factor * tl.sum(g * values, 1) - product), 0.0)
    share = tl.where(valid, share * factor, 0.0)
    if SCORE == "dot":
        return share, grad_score * (scale / LOG2_E)
    elif SCORE == "gat":
        return share, grad_score * tl.where(x > 0.0, 1.0, slope)
    else:
        return share, grad_score[:, None] * tl.where(x > 0.0, 1.0, slope)


@triton.jit(do_not_specialize=["num_listed", "threshold", "edge_threshold", "first_head"])
def by_destination(message, source, target, ptr, cuts, rows, src, position, attr, loop_attr, weight, att, seed, grad,
                   lse, products, grad_target, partial, att_sums, weight_sums, grad_attr, grad_loop_attr, num_listed,
                   first_head, slope, scale, threshold, rescale, edge_threshold, SCORE: tl.constexpr,
                   NEED_ATTR: tl.constexpr, DOT: tl.constexpr, WIDE: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
                   K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_C: tl.constexpr):
    """Compute the gradients of one chunk's edges for their destinations, `att`, `weight` and the features.

    The grid is [num_chunks, heads]. With NEED_ATTR it is [num_chunks, 1] in one launch for each head in turn, which
    adds to what the launches before it wrote. The arguments are those of :func:`gpu_attention_forward.forward`, but for
    these.

    Args:
        grad: gradient of the result [num_dst, H, C], float32.
        lse: what forward returned second [num_dst, H].
        products: what :func:`multiply` wrote [num_dst, H].
        grad_target: gradient of `target`, its shape and dtype; written for rows that lie in one chunk.
        partial: its sums for the rows that several chunks share [2 * num_chunks, ...], float32; written.
        att_sums: sums of the gradient of `att` over each chunk [num_chunks, H, C], float32; written for "gatv2".
        weight_sums: sums of the gradient of `weight` over each chunk, for "gat" [num_chunks, H, K] and else
            [num_chunks, K, H, C], float32; written.
        grad_attr: gradient of `attr`, float32; added to, if NEED_ATTR.
        grad_loop_attr: gradient of `loop_attr`, float32; added to, if NEED_ATTR.
        first_head: head of the grid's first programs.
        NEED_ATTR: whether the features have gradients.
    """
    chunk, head = tl.program_id(0), first_head + tl.program_id(1)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    channel, in_c, columns, a = load_parameters(weight, att, head, SCORE, DOT, C, K, BLOCK_K, BLOCK_C)
    att_sum = tl.zeros((BLOCK_C,), tl.float32)
    sums = start_sums(weight, SCORE, DOT, K, BLOCK_K, BLOCK_C)

    for row in range(tl.load(rows + chunk), tl.load(rows + tl.num_programs(0) + chunk) + 1):
        first, last, degree, begins, ends = find_span(ptr, row, begin, end, WIDE)
        own = tl.zeros((1,), tl.int64) + row
        queries, g, row_lse, product = load_results(target, grad, lse, products, own, own >= 0, head, channel, in_c,
                                                    SCORE, H, C)
        row_sum = start_sum(SCORE, BLOCK_C)
        for block in range(first, last, BLOCK_E):
            node, number, valid = load_edges(src, position, block, last, seed, edge_threshold, BLOCK_E)
            features = load_features(attr, loop_attr, number, num_listed, valid, DOT or SCORE == "gat", K, BLOCK_K)
            z = encode(features, columns, SCORE, DOT, K, BLOCK_E, BLOCK_C)
            values, keys = load_sources(message, source, node, valid, head, channel, in_c, SCORE, H, C)
            x, scores = score_edges(keys, queries, z, a, slope, scale, SCORE)
            factor = draw_factors(seed, number, head, threshold, rescale)
            share, grad_x = differentiate(x, scores, z, values, g, row_lse, product, valid, factor, slope, scale, SCORE)
            grad_query, grad_z, grad_att = split_gradients(x, share, grad_x, queries, g, a, valid, SCORE)
            row_sum += tl.sum(grad_query, 0)
            if SCORE == "gatv2":
                att_sum += tl.sum(grad_att, 0)
            if weight is not None:
                sums = add_sums(sums, features, grad_z, SCORE, DOT, K)
                if NEED_ATTR:
                    add_features(find_rows(grad_attr, grad_loop_attr, number, num_listed, K), valid, columns, grad_z,
                                 SCORE, DOT, K, BLOCK_K)
        if begins & ends:
            store_sum(grad_target, tl.cast(row, tl.int64), head, channel, in_c, row_sum, SCORE, H, C)
        else:
            slot = (2 * chunk + begins.to(tl.int32)).to(tl.int64)
            store_sum(partial, slot, head, channel, in_c, row_sum, SCORE, H, C)

    if SCORE == "gatv2":
        tl.store(att_sums + (chunk.to(tl.int64) * H + head) * C + channel, att_sum, mask=in_c)
    if weight is not None:
        store_sums(weight_sums, sums, chunk.to(tl.int64), head, channel, in_c, SCORE, DOT, H, C, K, BLOCK_K)


@triton.jit
def split_gradients(x, share, grad_x, queries, g, att, valid, SCORE: tl.constexpr):
    """Return the parts of edges in the gradients of target, of the encoded features and, for "gatv2", of `att`."""
    if SCORE == "gat":
        return grad_x, grad_x, grad_x
    elif SCORE == "gatv2":
        grad_z = tl.where(valid[:, None], grad_x * att[None, :], 0.0)
        return grad_z, grad_z, tl.where(valid[:, None], grad_x * x, 0.0)
    else:
        grad_z = tl.where(valid[:, None], grad_x[:, None] * queries + share[:, None] * g, 0.0)
        return tl.where(valid[:, None], grad_x[:, None] * x, 0.0), grad_z, grad_z


@triton.jit
def start_sum(SCORE: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return an empty sum of scores' gradients: a number for "gat", else a vector."""
    if SCORE == "gat":
        return tl.full((), 0.0, tl.float32)
    else:
        return tl.zeros((BLOCK_C,), tl.float32)


@triton.jit
def store_sum(to, row, head, channel, in_c, total, SCORE: tl.constexpr, H: tl.constexpr, C: tl.constexpr):
    """Write a row's sum, of one head."""
    if SCORE == "gat":
        tl.store(to + row * H + head, total)
    else:
        tl.store(to + (row * H + head) * C + channel, total, mask=in_c)


@triton.jit
def start_sums(weight, SCORE: tl.constexpr, DOT: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr,
               BLOCK_C: tl.constexpr):
    """Return empty sums for the encoder's gradient, in the form of its columns."""
    sums = ()
    if weight is not None:
        if SCORE == "gat":
            sums = (tl.zeros((BLOCK_K,), tl.float32),)
        elif DOT:
            sums = (tl.zeros((BLOCK_K, BLOCK_C), tl.float32),)
        else:
            for _ in tl.static_range(K):
                sums = sums + (tl.zeros((BLOCK_C,), tl.float32),)
    return sums


@triton.jit
def add_sums(sums, features, grad_z, SCORE: tl.constexpr, DOT: tl.constexpr, K: tl.constexpr):
    """Add a block of edges to the sums of features times gradients."""
    if SCORE == "gat":
        return (sums[0] + tl.sum(features[0] * grad_z[:, None], 0),)
    else:
        return add_products(sums, features, grad_z, DOT, K)


@triton.jit
def store_sums(to, sums, chunk, head, channel, in_c, SCORE: tl.constexpr, DOT: tl.constexpr, H: tl.constexpr,
               C: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Write a chunk's sums for the encoder's gradient."""
    k = tl.arange(0, BLOCK_K)
    if SCORE == "gat":
        tl.store(to + (chunk * H + head) * K + k, sums[0], mask=k < K)
    else:
        to += chunk * (K * H * C) + head * C + channel
        if DOT:
            tl.store(to[None, :] + k[:, None] * (H * C), sums[0], mask=(k < K)[:, None] & in_c[None, :])
        else:
            for i in tl.static_range(K):
                tl.store(to + i * (H * C), sums[i], mask=in_c)


@triton.jit
def add_features(rows, valid, columns, grad_z, SCORE: tl.constexpr, DOT: tl.constexpr, K: tl.constexpr,
                 BLOCK_K: tl.constexpr):
    """Add a head's gradients to those of the features, which begin at `rows`."""
    k = tl.arange(0, BLOCK_K)
    tile, there = rows[:, None] + k[None, :], valid[:, None] & (k < K)[None, :]
    if SCORE == "gat":
        tl.store(tile, tl.load(tile, mask=there, other=0.0) + grad_z[:, None] * columns[0][None, :], mask=there)
    elif DOT:
        product = tl.dot(grad_z, tl.trans(columns[0]), input_precision="ieee")
        tl.store(tile, tl.load(tile, mask=there, other=0.0) + product, mask=there)
    else:
        for i in tl.static_range(K):
            before = tl.load(rows + i, mask=valid, other=0.0)
            tl.store(rows + i, before + tl.sum(grad_z * columns[i][None, :], 1), mask=valid)


@triton.jit(do_not_specialize=["num_listed", "threshold", "edge_threshold"])
def by_source(message, source, target, ptr, cuts, rows, dst, position, attr, loop_attr, weight, att, seed, grad, lse,
              products, grad_message, grad_source, message_partial, source_partial, num_listed, slope, scale, threshold,
              rescale, edge_threshold, SCORE: tl.constexpr, DOT: tl.constexpr, WIDE: tl.constexpr, H: tl.constexpr,
              C: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_C: tl.constexpr):
    """Compute the gradients of one chunk's edges for their sources.

    The grid is [num_chunks, heads]; a row is a source. The arguments are those of :func:`by_destination`, but for
    these.

    Args:
        grad_message: gradient of `message`, its shape and dtype; written for rows that lie in one chunk.
        grad_source: gradient of `source`, likewise; none for "gatv2".
        message_partial: sums of `grad_message` for the rows that several chunks share [2 * num_chunks, H, C], float32;
            written.
        source_partial: the same of `grad_source`.
    """
    chunk, head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(cuts + chunk).to(WIDE), tl.load(cuts + chunk + 1).to(WIDE)
    channel, in_c, columns, a = load_parameters(weight, att, head, SCORE, DOT, C, K, BLOCK_K, BLOCK_C)

    for row in range(tl.load(rows + chunk), tl.load(rows + tl.num_programs(0) + chunk) + 1):
        first, last, degree, begins, ends = find_span(ptr, row, begin, end, WIDE)
        own = tl.zeros((1,), tl.int64) + row
        values, keys = load_sources(message, source, own, own >= 0, head, channel, in_c, SCORE, H, C)
        message_sum, source_sum = tl.zeros((BLOCK_C,), tl.float32), start_sum(SCORE, BLOCK_C)
        for block in range(first, last, BLOCK_E):
            node, number, valid = load_edges(dst, position, block, last, seed, edge_threshold, BLOCK_E)
            features = load_features(attr, loop_attr, number, num_listed, valid, DOT or SCORE == "gat", K, BLOCK_K)
            z = encode(features, columns, SCORE, DOT, K, BLOCK_E, BLOCK_C)
            queries, g, edge_lse, product = load_results(target, grad, lse, products, node, valid, head, channel, in_c,
                                                         SCORE, H, C)
            x, scores = score_edges(keys, queries, z, a, slope, scale, SCORE)
            factor = draw_factors(seed, number, head, threshold, rescale)
            share, grad_x = differentiate(x, scores, z, values, g, edge_lse, product, valid, factor, slope, scale,
                                          SCORE)
            message_sum += tl.sum(share[:, None] * g, 0)
            if SCORE == "gatv2":
                message_sum += tl.sum(grad_x, 0) * a
            elif SCORE == "gat":
                source_sum += tl.sum(grad_x, 0)
            else:
                source_sum += tl.sum(grad_x[:, None] * queries, 0)
        if begins & ends:
            store_sum(grad_message, tl.cast(row, tl.int64), head, channel, in_c, message_sum, "dot", H, C)
            if SCORE != "gatv2":
                store_sum(grad_source, tl.cast(row, tl.int64), head, channel, in_c, source_sum, SCORE, H, C)
        else:
            slot = (2 * chunk + begins.to(tl.int32)).to(tl.int64)
            store_sum(message_partial, slot, head, channel, in_c, message_sum, "dot", H, C)
            if SCORE != "gatv2":
                store_sum(source_partial, slot, head, channel, in_c, source_sum, SCORE, H, C)

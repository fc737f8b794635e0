"""Backward of attention in Triton: by destination for what belongs to destinations, by source for the rest.

Both passes compute the scores of their edges again, in the walk of models/kernels/walk.py. The sums of rows that
several chunks share are merged by :func:`gpu_backward.merge_backward`, and the sums of all edges, of `att` and
`weight`, are written once for each chunk.
"""

import triton
import triton.language as tl

from parallel_epochs.models.aggregate.gpu_backward import (
    add_products,
    start_products,
    store_products,
)
from parallel_epochs.models.aggregate.gpu_encode import select_channels
from parallel_epochs.models.kernels.walk import walk
from parallel_epochs.models.messages.gpu_attention_edges import (
    draw_factors,
    encode,
    extend,
    find_rows,
    keep_edges,
    load_ends,
    load_features,
    load_numbers,
    load_parameters,
    load_sources,
    load_vectors,
)
from parallel_epochs.models.messages.scores.gpu import differentiate, score_edges, split, sum_keys

# grad: gradient of the result [num_dst, H, C], float32. lse: what forward returned second [num_dst, H].
# products: what :func:`multiply` wrote [num_dst, H].
RESULTS = ("grad", "lse", "products")
# grad_target: gradient of `target`, its shape and dtype; written for rows that lie in one chunk. partial: its sums for
# the rows that several chunks share [2 * num_chunks, ...], float32; written. att_sums: sums of the gradient of `att`
# over each chunk [num_chunks, H, C], float32; written if there is an `att`. weight_sums: sums of that of `weight`, with
# BY_HEAD [num_chunks, H, K] and else [num_chunks, K, H, C], float32; written. grad_attr, grad_loop_attr: gradients of
# the features, float32; added to, if NEED_ATTR.
ByDestination, ByDestinationProgram = extend(
    "ByDestination",
    *RESULTS,
    *("grad_target", "partial", "att_sums", "weight_sums", "grad_attr", "grad_loop_attr"),
    "NEED_ATTR",
)
# grad_message: gradient of `message`, its shape and dtype; written for rows that lie in one chunk. grad_source: that of
# `source`; none without it. message_partial, source_partial: their sums for the rows that several chunks share
# [2 * num_chunks, ...], float32; written.
BySource, BySourceProgram = extend(
    "BySource", *RESULTS, "grad_message", "grad_source", "message_partial", "source_partial"
)


@triton.jit(do_not_specialize=["num_rows"])
def multiply(
    grad,
    out,
    products,
    num_rows,
    H: tl.constexpr,
    C: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the products of outputs and their gradients [num_rows, H]. The grid is [blocks of rows, H]."""
    head = tl.program_id(1)
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    channel, in_c = select_channels(0, C, BLOCK_C)
    at, there = (
        (row[:, None] * H + head) * C + channel[None, :],
        (row < num_rows)[:, None] & in_c[None, :],
    )
    product = tl.load(grad + at, mask=there, other=0.0) * tl.load(out + at, mask=there, other=0.0)
    tl.store(products + row * H + head, tl.sum(product, 1), mask=row < num_rows)


@triton.jit
def load_results(p, node, valid):
    """Read what backward needs of destination nodes: queries, gradients, log-sum-exps and products."""
    return (
        load_ends(p, p.target, node, valid),
        load_vectors(p, p.grad, node, valid),
        load_numbers(p, p.lse, node, valid),
        load_numbers(p, p.products, node, valid),
    )


@triton.jit
def recompute(p, z, values, keys, queries, g, lse, product, number, valid):
    """Return the weights of edges after dropout, the argument that :func:`score_edges` returns, and what
    :func:`differentiate` returns.
    """
    x, scores = score_edges(p, keys, queries, z)
    factor = draw_factors(p, number)
    if p.ENCODES:
        values = values + z
    share = tl.exp2(scores - lse)
    grad_score = tl.where(valid, share * (factor * tl.sum(g * values, 1) - product), 0.0)
    return tl.where(valid, share * factor, 0.0), x, differentiate(p, grad_score, x)


@triton.jit
def mask_rows(valid, x):
    """Replace the rows of edges that do not count by zeros."""
    if len(x.shape) == 1:
        return x
    else:
        return tl.where(valid[:, None], x, 0.0)


@triton.jit(do_not_specialize=["first_head"])
def by_destination(edges, p, first_head):
    """Compute the gradients of one chunk's edges for their destinations, `att`, `weight` and the features.

    The grid is [num_chunks, heads]. With NEED_ATTR it is [num_chunks, 1] in one launch for each head in turn, which
    adds to what the launches before it wrote.
    """
    head = first_head + tl.program_id(1)
    channel, in_c, columns, vector = load_parameters(p, head)
    att_sum, sums = walk(
        edges,
        ByDestinationProgram(*p, head, channel, in_c, columns, vector),
        (tl.zeros((p.BLOCK_C,), tl.float32), start_sums(p)),
        start_target,
        add_to_targets,
        store_target,
    )
    chunk = tl.program_id(0).to(tl.int64)
    if p.att is not None:
        tl.store(p.att_sums + (chunk * p.H + head) * p.C + channel, att_sum, mask=in_c)
    if p.weight is not None:
        if p.BY_HEAD:
            k = tl.arange(0, p.BLOCK_K)
            tl.store(p.weight_sums + (chunk * p.H + head) * p.K + k, sums[0], mask=k < p.K)
        else:
            to = p.weight_sums + chunk * (p.K * p.H * p.C) + head * p.C + channel
            store_products(p, to, sums, in_c, p.H * p.C)


@triton.jit
def start_target(p, row):
    """Return what the edges of a destination read of it, and an empty sum."""
    own = tl.zeros((1,), tl.int64) + row
    return load_results(p, own, own >= 0), (start_sum(p.BY_HEAD, p.BLOCK_C),)


@triton.jit
def add_to_targets(p, own, state, sums, edge, node, number, valid):
    """Add the gradients of a block of edges to the sums of the row and of the chunk, and to those of the features."""
    queries, g, lse, product = own
    att_sum, weight_sums = sums
    valid = keep_edges(p, number, valid)
    features = load_features(p, number, valid)
    z = encode(p, features, edge.shape[0])
    values, keys = load_sources(p, node, valid)
    share, x, grad = recompute(p, z, values, keys, queries, g, lse, product, number, valid)
    grad_query, grad_z, grad_att = split(p, grad, x, queries)
    if p.ENCODES:
        grad_z = grad_z + share[:, None] * g
    grad_z = mask_rows(valid, grad_z)
    if p.att is not None:
        att_sum += tl.sum(mask_rows(valid, grad_att), 0)
    if p.K > 0:
        weight_sums = add_to_sums(p, weight_sums, features, grad_z)
        if p.NEED_ATTR:
            add_features(p, find_rows(p, p.grad_attr, p.grad_loop_attr, number), valid, grad_z)
    return (state[0] + tl.sum(mask_rows(valid, grad_query), 0),), (att_sum, weight_sums)


@triton.jit
def store_target(p, at, state, degree, WHOLE: tl.constexpr):
    """Write the gradient of a row, or a part of it."""
    store_sum(p, p.grad_target if WHOLE else p.partial, at, state[0], p.BY_HEAD)


@triton.jit
def start_sum(BY_HEAD: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return an empty sum of gradients of keys or queries: a number with BY_HEAD, else a vector."""
    if BY_HEAD:
        return tl.full((), 0.0, tl.float32)
    else:
        return tl.zeros((BLOCK_C,), tl.float32)


@triton.jit
def store_sum(p, to, row, total, BY_HEAD: tl.constexpr):
    """Write a row's sum, of one head."""
    if BY_HEAD:
        tl.store(to + row * p.H + p.head, total)
    else:
        tl.store(to + (row * p.H + p.head) * p.C + p.channel, total, mask=p.in_c)


@triton.jit
def start_sums(p):
    """Return empty sums for the encoder's gradient, in the form of its columns."""
    if p.BY_HEAD and p.weight is not None:
        return (tl.zeros((p.BLOCK_K,), tl.float32),)
    else:
        return start_products(p, p.weight is not None, p.BLOCK_C)


@triton.jit
def add_to_sums(p, sums, features, grad_z):
    """Add a block of edges to the sums of features times gradients."""
    if p.BY_HEAD:
        return (sums[0] + tl.sum(features[0] * grad_z[:, None], 0),)
    else:
        return add_products(p, sums, features, grad_z)


@triton.jit
def add_features(p, rows, valid, grad_z):
    """Add a head's gradients to those of the features, which begin at `rows`."""
    k = tl.arange(0, p.BLOCK_K)
    tile, there = rows[:, None] + k[None, :], valid[:, None] & (k < p.K)[None, :]
    if p.BY_HEAD:
        tl.store(
            tile,
            tl.load(tile, mask=there, other=0.0) + grad_z[:, None] * p.columns[0][None, :],
            mask=there,
        )
    elif p.DOT:
        product = tl.dot(grad_z, tl.trans(p.columns[0]), input_precision="ieee")
        tl.store(tile, tl.load(tile, mask=there, other=0.0) + product, mask=there)
    else:
        for i in tl.static_range(p.K):
            before = tl.load(rows + i, mask=valid, other=0.0)
            tl.store(rows + i, before + tl.sum(grad_z * p.columns[i][None, :], 1), mask=valid)


@triton.jit
def by_source(edges, p):
    """Compute the gradients of one chunk's edges for their sources. The grid is [num_chunks, heads]."""
    head = tl.program_id(1)
    channel, in_c, columns, vector = load_parameters(p, head)
    walk(
        edges,
        BySourceProgram(*p, head, channel, in_c, columns, vector),
        (),
        start_source,
        add_to_sources,
        store_source,
    )


@triton.jit
def start_source(p, row):
    """Return what the edges of a source read of it, and empty sums of the gradients of its message and its key."""
    own = tl.zeros((1,), tl.int64) + row
    return load_sources(p, own, own >= 0), (
        tl.zeros((p.BLOCK_C,), tl.float32),
        start_sum(p.BY_HEAD, p.BLOCK_C),
    )


@triton.jit
def add_to_sources(p, own, state, sums, edge, node, number, valid):
    """Add the gradients of a block of edges to the sums of the row."""
    values, keys = own
    message_sum, source_sum = state
    valid = keep_edges(p, number, valid)
    z = encode(p, load_features(p, number, valid), edge.shape[0])
    queries, g, lse, product = load_results(p, node, valid)
    share, _, grad = recompute(p, z, values, keys, queries, g, lse, product, number, valid)
    message_sum += tl.sum(share[:, None] * g, 0)
    if p.source is None:
        message_sum += sum_keys(p, grad, queries)
    else:
        source_sum += sum_keys(p, grad, queries)
    return (message_sum, source_sum), sums


@triton.jit
def store_source(p, at, state, degree, WHOLE: tl.constexpr):
    """Write the gradients of a row, or parts of them."""
    store_sum(p, p.grad_message if WHOLE else p.message_partial, at, state[0], False)
    if p.source is not None:
        store_sum(p, p.grad_source if WHOLE else p.source_partial, at, state[1], p.BY_HEAD)

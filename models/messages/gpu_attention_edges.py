"""The Triton passes of attention share a block of edges, encoded features, scores and dropout.

This is the counterpart of attention.h. A program walks over the edges of rows, for one head. The rows are destinations
or sources; the vectors of the row have one row [1, BLOCK_C], and those of the nodes at the other ends [BLOCK_E,
BLOCK_C]. Vectors of "gat" are numbers, [1] and [BLOCK_E].
"""

import triton
import triton.language as tl

from parallel_epochs.models.aggregate import gpu_encode

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.4028234e38)
# The column of the hash that decides on whole edges, times the factor of columns.
ALL_HEADS = tl.constexpr((2**32 - 1) * 0x9e3779b1 % 2**32)
GOLDEN = tl.constexpr(0x9e3779b97f4a7c15)
FIRST, SECOND = tl.constexpr(0xbf58476d1ce4e5b9), tl.constexpr(0x94d049bb133111eb)


@triton.jit
def hash_edges(seed, number, column):
    """Compute hash.h's `hash_element` of each edge's number [BLOCK_E], in a `column` times 0x9e3779b1, as int64."""
    z = tl.load(seed).to(tl.uint64) + (number + 1).to(tl.uint64) * GOLDEN
    z = (z ^ (z >> 30)) * FIRST
    z = (z ^ (z >> 27)) * SECOND
    key = z ^ (z >> 31)
    h = tl.add(column, key.to(tl.uint32), sanitize_overflow=False)
    h = tl.mul(h ^ (h >> 16), 0x7feb352d, sanitize_overflow=False)
    h = tl.add(h, (key >> 32).to(tl.uint32), sanitize_overflow=False)
    h = tl.mul(h ^ (h >> 15), 0x846ca68b, sanitize_overflow=False)
    return (h ^ (h >> 16)).to(tl.int64)


@triton.jit
def draw_factors(seed, number, head, threshold, rescale):
    """Draw the dropout factor of each edge's weight: a number, 1, if there is no dropout."""
    if threshold is None:
        return 1.0
    else:
        column = tl.mul(tl.cast(head, tl.uint32), 0x9e3779b1, sanitize_overflow=False)
        return tl.where(hash_edges(seed, number, column) >= tl.cast(threshold, tl.int64), rescale, 0.0)


@triton.jit
def load_edges(other, position, block, last, seed, edge_threshold, BLOCK_E: tl.constexpr):
    """Return the far ends of a block of edges, their numbers in the caller's order, and which exist and stay."""
    edge = block + tl.arange(0, BLOCK_E)
    valid = edge < last
    node = tl.load(other + edge, mask=valid, other=0).to(tl.int64)
    number = edge.to(tl.int64)
    if position is not None:
        number = tl.load(position + edge, mask=valid, other=0).to(tl.int64)
    if edge_threshold is not None:
        column = tl.full((BLOCK_E,), ALL_HEADS, tl.uint32)
        valid = valid & (hash_edges(seed, number, column) >= tl.cast(edge_threshold, tl.int64))
    return node, number, valid


@triton.jit
def find_rows(attr, loop_attr, number, num_listed, K: tl.constexpr):
    """Return where the features of each edge begin: in `attr`, or those of a new self-loop in `loop_attr`."""
    rows = attr + number * K
    if loop_attr is not None:
        rows = tl.where(number < num_listed, rows, loop_attr + (number - num_listed) * K)
    return rows


@triton.jit
def load_features(attr, loop_attr, number, num_listed, valid, TILE: tl.constexpr, K: tl.constexpr,
                  BLOCK_K: tl.constexpr):
    """Read the features of a block of edges: a tuple of one tile [BLOCK_E, BLOCK_K], of K columns, or of nothing."""
    features = ()
    if attr is not None:
        rows = find_rows(attr, loop_attr, number, num_listed, K)
        if TILE:
            k = tl.arange(0, BLOCK_K)
            features = (tl.load(rows[:, None] + k[None, :], mask=valid[:, None] & (k < K)[None, :],
                                other=0.0).to(tl.float32),)
        else:
            for k in tl.static_range(K):
                features = features + (tl.load(rows + k, mask=valid, other=0.0).to(tl.float32),)
    return features


@triton.jit
def load_parameters(weight, att, head, SCORE: tl.constexpr, DOT: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
                    BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return the channels of a head, a mask of those that exist, its encoder and its part of `att`.

    The encoder is what :func:`gpu_encode.load_encoder` returns; for "gat" it is one row [BLOCK_K].
    """
    channel, in_c = gpu_encode.select_channels(0, C, BLOCK_C)
    columns = ()
    if weight is not None:
        if SCORE == "gat":
            k = tl.arange(0, BLOCK_K)
            columns = (tl.load(weight + head * K + k, mask=k < K, other=0.0),)
        else:
            columns, _ = gpu_encode.load_encoder(weight, None, head * C + channel, in_c, "raw", DOT, K, BLOCK_K,
                                                 BLOCK_C)
    a = tl.zeros((BLOCK_C,), tl.float32)
    if SCORE == "gatv2":
        a = tl.load(att + head * C + channel, mask=in_c, other=0.0)
    return channel, in_c, columns, a


@triton.jit
def encode(features, columns, SCORE: tl.constexpr, DOT: tl.constexpr, K: tl.constexpr, BLOCK_E: tl.constexpr,
           BLOCK_C: tl.constexpr):
    """Encode the features of a block of edges; 0 without features."""
    if K == 0:
        return 0.0
    elif SCORE == "gat":
        return tl.sum(features[0] * columns[0][None, :], 1)
    else:
        return gpu_encode.add_encoded(tl.zeros((BLOCK_E, BLOCK_C), tl.float32), features, columns, "raw", DOT, K)


@triton.jit
def load_vectors(x, node, valid, head, channel, in_c, H: tl.constexpr, C: tl.constexpr):
    """Read the vectors of nodes and one head [num_nodes, BLOCK_C] as float32."""
    at = x + node[:, None] * (H * C) + head * C + channel[None, :]
    return tl.load(at, mask=valid[:, None] & in_c[None, :], other=0.0).to(tl.float32)


@triton.jit
def load_numbers(x, node, valid, head, H: tl.constexpr):
    """Read a number of nodes and one head [num_nodes] as float32."""
    return tl.load(x + node * H + head, mask=valid, other=0.0).to(tl.float32)


@triton.jit
def load_sources(message, source, node, valid, head, channel, in_c, SCORE: tl.constexpr, H: tl.constexpr,
                 C: tl.constexpr):
    """Read what is summed of source nodes, and what their scores are computed from."""
    values = load_vectors(message, node, valid, head, channel, in_c, H, C)
    keys = values
    if SCORE == "gat":
        keys = load_numbers(source, node, valid, head, H)
    elif SCORE == "dot":
        keys = load_vectors(source, node, valid, head, channel, in_c, H, C)
    return values, keys


@triton.jit
def load_targets(target, node, valid, head, channel, in_c, SCORE: tl.constexpr, H: tl.constexpr, C: tl.constexpr):
    """Read what the scores of destination nodes are computed from."""
    if SCORE == "gat":
        return load_numbers(target, node, valid, head, H)
    else:
        return load_vectors(target, node, valid, head, channel, in_c, H, C)


@triton.jit
def score_edges(keys, queries, z, att, slope, scale, SCORE: tl.constexpr):
    """Compute the argument of the leaky ReLU, or for "dot" the encoded key, and the scores times log2(e) [BLOCK_E]."""
    if SCORE == "dot":
        x = keys + z
        return x, tl.sum(queries * x, 1) * scale
    else:
        x = keys + queries + z
        activated = tl.where(x > 0.0, x, x * slope)
        if SCORE == "gat":
            return x, activated * LOG2_E
        else:
            return x, tl.sum(activated * att[None, :], 1) * LOG2_E

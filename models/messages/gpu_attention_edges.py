"""The Triton passes of attention share a block of edges, encoded features, scores and dropout.

This is the counterpart of attention.h. A program walks over the edges of rows, for one head. The rows are destinations
or sources; the vectors of the row have one row [1, BLOCK_C], and those of the nodes at the other ends [BLOCK_E,
BLOCK_C]. With BY_HEAD keys and queries are numbers, [1] and [BLOCK_E]. What differs between scores is in scores/gpu.py.
"""

from collections import namedtuple

import triton
import triton.language as tl

from parallel_epochs.models.aggregate import gpu_encode

# The passes read these fields of a call. The tensors of :func:`attention_ops.forward` are not explained again.
# num_listed: number of rows of `attr`. slope: of the leaky ReLU. scale: log2(e) divided by the root of C, for "dot".
# threshold: a hash below it drops the weight of an edge, rescale multiplies the others; edge_threshold: a hash below it
# removes an edge; or none. SCORE: one of `SCORES`; BY_HEAD, ENCODES: its `by_head` and `encodes_messages`.
# DOT: whether edge features are multiplied by tl.dot. H, C, K: numbers of heads, of their channels, of features.
# BLOCK_K, BLOCK_C: K and C up to a power of two. FEATURES is "raw".
ATTENTION = (
    *("message", "source", "target", "attr", "loop_attr", "weight", "att", "seed", "num_listed"),
    *("slope", "scale", "threshold", "rescale", "edge_threshold", "SCORE", "BY_HEAD", "ENCODES"),
    *("DOT", "H", "C", "K", "BLOCK_K", "BLOCK_C", "FEATURES"),
)
# A program loads these: its head, its channels, which of them exist, the encoder and its part of `att`.
LOADED = ("head", "channel", "in_c", "columns", "vector")
LOWEST = tl.constexpr(-3.4028234e38)
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
FIRST, SECOND = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)
# The column of the hash that decides on whole edges, times the factor of columns.
ALL_HEADS = tl.constexpr((2**32 - 1) * 0x9E3779B1 % 2**32)


def extend(name, *fields):
    """Make the type of a kernel's record with these fields, and that of the same with what a program has loaded."""
    fields = (*ATTENTION, *fields)
    return namedtuple(name, fields), namedtuple(name + "Program", (*fields, *LOADED))


@triton.jit
def hash_elements(seed, number, column):
    """Compute hash.h's `hash_element` of the numbers of rows or edges, in a `column` times 0x9e3779b1, as int64."""
    z = tl.load(seed).to(tl.uint64) + (number + 1).to(tl.uint64) * GOLDEN
    z = (z ^ (z >> 30)) * FIRST
    z = (z ^ (z >> 27)) * SECOND
    key = z ^ (z >> 31)
    h = tl.add(column, key.to(tl.uint32), sanitize_overflow=False)
    h = tl.mul(h ^ (h >> 16), 0x7FEB352D, sanitize_overflow=False)
    h = tl.add(h, (key >> 32).to(tl.uint32), sanitize_overflow=False)
    h = tl.mul(h ^ (h >> 15), 0x846CA68B, sanitize_overflow=False)
    return (h ^ (h >> 16)).to(tl.int64)


@triton.jit
def draw_factors(p, number):
    """Draw the dropout factor of each edge's weight: a number, 1, if there is no dropout."""
    if p.threshold is None:
        return 1.0
    else:
        column = tl.mul(tl.cast(p.head, tl.uint32), 0x9E3779B1, sanitize_overflow=False)
        return tl.where(
            hash_elements(p.seed, number, column) >= tl.cast(p.threshold, tl.int64), p.rescale, 0.0
        )


@triton.jit
def keep_edges(p, number, valid):
    """Return which of a block of edges exist and are not removed by dropout."""
    if p.edge_threshold is not None:
        hashes = hash_elements(p.seed, number, tl.full(number.shape, ALL_HEADS, tl.uint32))
        valid = valid & (hashes >= tl.cast(p.edge_threshold, tl.int64))
    return valid


@triton.jit
def find_rows(p, attr, loop_attr, number):
    """Return where the features of each edge begin: in `attr`, or those of a new self-loop in `loop_attr`."""
    rows = attr + number * p.K
    if loop_attr is not None:
        rows = tl.where(number < p.num_listed, rows, loop_attr + (number - p.num_listed) * p.K)
    return rows


@triton.jit
def load_features(p, number, valid):
    """Read the features of a block of edges: a tuple of one tile [BLOCK_E, BLOCK_K], of K columns, or of nothing."""
    features = ()
    if p.attr is not None:
        features = gpu_encode.load_columns(
            p, find_rows(p, p.attr, p.loop_attr, number), valid, p.DOT or p.BY_HEAD
        )
    return features


@triton.jit
def load_parameters(p, head):
    """Return the channels of a head, a mask of those that exist, its encoder and its part of `att`.

    The encoder is what :func:`gpu_encode.load_encoder` returns; with BY_HEAD it is one row [BLOCK_K].
    """
    channel, in_c = gpu_encode.select_channels(0, p.C, p.BLOCK_C)
    columns = ()
    if p.weight is not None:
        if p.BY_HEAD:
            k = tl.arange(0, p.BLOCK_K)
            columns = (tl.load(p.weight + head * p.K + k, mask=k < p.K, other=0.0),)
        else:
            columns = gpu_encode.load_encoder(p, head * p.C + channel, in_c)
    vector = tl.zeros((p.BLOCK_C,), tl.float32)
    if p.att is not None:
        vector = tl.load(p.att + head * p.C + channel, mask=in_c, other=0.0)
    return channel, in_c, columns, vector


@triton.jit
def encode(p, features, BLOCK_E: tl.constexpr):
    """Encode the features of a block of edges; 0 without features."""
    if p.K == 0:
        return 0.0
    elif p.BY_HEAD:
        return tl.sum(features[0] * p.columns[0][None, :], 1)
    else:
        return gpu_encode.add_encoded(
            p, tl.zeros((BLOCK_E, p.BLOCK_C), tl.float32), features, p.columns
        )


@triton.jit
def load_vectors(p, x, node, valid):
    """Read the vectors of nodes and one head [num_nodes, BLOCK_C] as float32."""
    at = x + node[:, None] * (p.H * p.C) + p.head * p.C + p.channel[None, :]
    return tl.load(at, mask=valid[:, None] & p.in_c[None, :], other=0.0).to(tl.float32)


@triton.jit
def load_numbers(p, x, node, valid):
    """Read a number of nodes and one head [num_nodes] as float32."""
    return tl.load(x + node * p.H + p.head, mask=valid, other=0.0).to(tl.float32)


@triton.jit
def load_ends(p, x, node, valid):
    """Read what the scores are computed from of nodes at one end: vectors, or numbers with BY_HEAD."""
    if p.BY_HEAD:
        return load_numbers(p, x, node, valid)
    else:
        return load_vectors(p, x, node, valid)


@triton.jit
def load_sources(p, node, valid):
    """Read what is summed of source nodes, and their keys."""
    values = load_vectors(p, p.message, node, valid)
    keys = values
    if p.source is not None:
        keys = load_ends(p, p.source, node, valid)
    return values, keys

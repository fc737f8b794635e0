"""Messages before their ReLU (source plus encoded edge features) and the span of a row within a chunk, in Triton.

This is the counterpart of encode.h and tiles.h. Edge features are read as a tuple of columns, as one tile for tl.dot if
there are many (`DOT`), or already encoded. With a table, FIRST is 1: column 0 is the relation, whose row is added.
"""

import triton
import triton.language as tl


@triton.jit
def select_channels(block, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the channels of a block, and a mask of those that exist."""
    channel = block * BLOCK_D + tl.arange(0, BLOCK_D)
    return channel, channel < D


@triton.jit
def load_encoder(weight, bias, channel, in_d, FEATURES: tl.constexpr, DOT: tl.constexpr, K: tl.constexpr,
                 BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr):
    """Read a block of channels of the edge encoder: the weight's columns as a tuple, or as one tile [BLOCK_K, BLOCK_D]
    for tl.dot; and the bias.
    """
    b = tl.zeros((BLOCK_D,), tl.float32)
    columns = ()
    if FEATURES == "raw":
        if bias is not None:
            b = tl.load(bias + channel, mask=in_d, other=0.0)
        if DOT:
            k = tl.arange(0, BLOCK_K)
            columns = (tl.load(weight + channel[None, :] * K + k[:, None], mask=in_d[None, :] & (k < K)[:, None],
                               other=0.0),)
        else:
            for k in tl.static_range(K):
                columns = columns + (tl.load(weight + channel * K + k, mask=in_d, other=0.0),)
    return columns, b


@triton.jit
def load_features(attr, attr_row, valid, channel, in_d, FEATURES: tl.constexpr, DOT: tl.constexpr, FIRST: tl.constexpr,
                  K: tl.constexpr, BLOCK_K: tl.constexpr, D: tl.constexpr):
    """Read the features of a block of edges, rows `attr_row` of `attr`: a tuple of columns, or of one tile."""
    stride: tl.constexpr = K + FIRST
    features = ()
    if FEATURES == "encoded":
        features = (tl.load(attr + attr_row[:, None] * D + channel[None, :], mask=valid[:, None] & in_d[None, :],
                            other=0.0).to(tl.float32),)
    elif FEATURES == "raw":
        if DOT:
            k = tl.arange(0, BLOCK_K)
            features = (tl.load(attr + attr_row[:, None] * stride + FIRST + k[None, :],
                                mask=valid[:, None] & (k < K)[None, :], other=0.0).to(tl.float32),)
        else:
            for k in tl.static_range(K):
                features = features + (
                    tl.load(attr + attr_row * stride + FIRST + k, mask=valid, other=0.0).to(tl.float32),)
    return features


@triton.jit
def add_relations(z, attr, attr_row, valid, table, channel, in_d, FIRST: tl.constexpr, K: tl.constexpr,
                  D: tl.constexpr):
    """Add the table's rows of the relations of a block of edges to z, the sum of the nodes and the bias."""
    if FIRST:
        relation = tl.load(attr + attr_row * (K + FIRST), mask=valid, other=0.0).to(tl.float32).to(tl.int64)
        z += tl.load(table + relation[:, None] * D + channel[None, :], mask=valid[:, None] & in_d[None, :], other=0.0)
    return z


@triton.jit
def add_encoded(z, features, columns, FEATURES: tl.constexpr, DOT: tl.constexpr, K: tl.constexpr):
    """Add the encoded features to z. Forward and backward must round alike, as max compares their messages."""
    if FEATURES == "encoded":
        z += features[0]
    elif FEATURES == "raw":
        if DOT:
            z = tl.dot(features[0], columns[0], acc=z, input_precision="ieee")
        else:
            for k in tl.static_range(K):
                feature = tl.broadcast_to(features[k][:, None], z.shape)
                z = tl.fma(feature, tl.broadcast_to(columns[k][None, :], z.shape), z)
    return z


@triton.jit
def find_span(ptr, row, begin, end, WIDE: tl.constexpr):
    """Return a row's first edge within a chunk, the edge after its last one, the row's degree, whether the row begins
    in the chunk, and whether it ends there.
    """
    first, last = tl.load(ptr + row).to(WIDE), tl.load(ptr + row + 1).to(WIDE)
    inside_first, inside_last = tl.maximum(first, begin - row), tl.minimum(last, end - row)
    return inside_first, inside_last, last - first, first + row >= begin, last + row + 1 <= end

"""Messages before their relu, in Triton: x of the source plus the encoded edge features; and how rows lie in chunks.

The counterpart of encode.h and tiles.h. Edge features are read as a tuple of columns, or as one tile for tl.dot where
there are many (`DOT`), or already encoded.
"""

import triton
import triton.language as tl


@triton.jit
def channels_of(block, D: tl.constexpr, BLOCK_D: tl.constexpr):
    channel = block * BLOCK_D + tl.arange(0, BLOCK_D)
    return channel, channel < D


@triton.jit
def encoder_of(weight, bias, channel, in_d, FEATURES: tl.constexpr, DOT: tl.constexpr, K: tl.constexpr,
               BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr):
    """Columns of the weight as a tuple, or all as [BLOCK_K, BLOCK_D] for tl.dot; and the bias."""
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
def features_of(attr, at, valid, channel, in_d, FEATURES: tl.constexpr, DOT: tl.constexpr, K: tl.constexpr,
                BLOCK_K: tl.constexpr, D: tl.constexpr):
    """Features of a block of edges: a tuple of columns, or one tile."""
    features = ()
    if FEATURES == "encoded":
        features = (tl.load(attr + at[:, None] * D + channel[None, :], mask=valid[:, None] & in_d[None, :],
                            other=0.0).to(tl.float32),)
    elif FEATURES == "raw":
        if DOT:
            k = tl.arange(0, BLOCK_K)
            features = (tl.load(attr + at[:, None] * K + k[None, :], mask=valid[:, None] & (k < K)[None, :],
                                other=0.0).to(tl.float32),)
        else:
            for k in tl.static_range(K):
                features = features + (tl.load(attr + at * K + k, mask=valid, other=0.0).to(tl.float32),)
    return features


@triton.jit
def encoded(z, features, columns, FEATURES: tl.constexpr, DOT: tl.constexpr, K: tl.constexpr):
    """z plus the encoded features. The roundings are the same in both passes: max compares their messages."""
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
def span(ptr, row, begin, end, WIDE: tl.constexpr):
    """A row's edges inside of a chunk, its degree, and whether it begins and whether it ends there."""
    first, last = tl.load(ptr + row).to(WIDE), tl.load(ptr + row + 1).to(WIDE)
    inside_first, inside_last = tl.maximum(first, begin - row), tl.minimum(last, end - row)
    return inside_first, inside_last, last - first, first + row >= begin, last + row + 1 <= end

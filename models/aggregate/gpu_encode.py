"""Messages before their ReLU, source plus encoded edge features, in Triton.

This is the counterpart of encode.h. Edge features are read as a tuple of columns, as one tile for tl.dot if
there are many (`DOT`), or already encoded. With a table, FIRST is 1: column 0 is the relation, whose row is added.
The `p` of a pass has fields of the names used here.
"""

import triton
import triton.language as tl


@triton.jit
def select_channels(block, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the channels of a block, and a mask of those that exist."""
    channel = block * BLOCK_D + tl.arange(0, BLOCK_D)
    return channel, channel < D


@triton.jit
def load_encoder(
    weight,
    bias,
    channel,
    in_d,
    FEATURES: tl.constexpr,
    DOT: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
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
            columns = (
                tl.load(
                    weight + channel[None, :] * K + k[:, None],
                    mask=in_d[None, :] & (k < K)[:, None],
                    other=0.0,
                ),
            )
        else:
            for k in tl.static_range(K):
                columns = columns + (tl.load(weight + channel * K + k, mask=in_d, other=0.0),)
    return columns, b


@triton.jit
def load_features(p, attr_row, valid):
    """Read the features of a block of edges, rows `attr_row` of `attr`: a tuple of columns, or of one tile."""
    features = ()
    if p.FEATURES == "encoded":
        features = (
            tl.load(
                p.attr + attr_row[:, None] * p.D + p.channel[None, :],
                mask=valid[:, None] & p.in_d[None, :],
                other=0.0,
            ).to(tl.float32),
        )
    elif p.FEATURES == "raw":
        features = load_columns(p, p.attr + attr_row * (p.K + p.FIRST) + p.FIRST, valid, p.DOT)
    return features


@triton.jit
def load_columns(p, rows, valid, TILE: tl.constexpr):
    """Read the K numbers that begin at each of some rows: a tuple of columns, or of one tile [BLOCK_E, BLOCK_K]."""
    columns = ()
    if TILE:
        k = tl.arange(0, p.BLOCK_K)
        columns = (
            tl.load(
                rows[:, None] + k[None, :], mask=valid[:, None] & (k < p.K)[None, :], other=0.0
            ).to(tl.float32),
        )
    else:
        for k in tl.static_range(p.K):
            columns = columns + (tl.load(rows + k, mask=valid, other=0.0).to(tl.float32),)
    return columns


@triton.jit
def add_relations(p, z, attr_row, valid):
    """Add the table's rows of the relations of a block of edges to z, the sum of the nodes and the bias."""
    if p.FIRST:
        relation = (
            tl.load(p.attr + attr_row * (p.K + p.FIRST), mask=valid, other=0.0)
            .to(tl.float32)
            .to(tl.int64)
        )
        z += tl.load(
            p.table + relation[:, None] * p.D + p.channel[None, :],
            mask=valid[:, None] & p.in_d[None, :],
            other=0.0,
        )
    return z


@triton.jit
def add_encoded(p, z, features, columns):
    """Add the features, encoded by some columns, to z. Forward and backward must round alike, as max compares."""
    if p.FEATURES == "encoded":
        z += features[0]
    elif p.FEATURES == "raw":
        if p.DOT:
            z = tl.dot(features[0], columns[0], acc=z, input_precision="ieee")
        else:
            for k in tl.static_range(p.K):
                feature = tl.broadcast_to(features[k][:, None], z.shape)
                z = tl.fma(feature, tl.broadcast_to(columns[k][None, :], z.shape), z)
    return z

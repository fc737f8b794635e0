"""Messages before their ReLU, source plus encoded edge features, in Triton.

This is the counterpart of encode.h. Edge features are read as a tuple of columns, as one tile for tl.dot if
there are many (`DOT`), or already encoded.
"""

from collections import namedtuple

import triton
import triton.language as tl

# These fields compute the messages of edges again:
# x: features of the source nodes [num_src, D], float32, bfloat16 or float16.
# attr: edge features [num_positions, K], encoded ones [num_positions, D]; or none.
# weight, bias: the edge encoder of raw features [D, K] and [D], float32; or none.
# parameter: t, one element, any floating point.
# eps: added to every message. KIND: the aggregation, one of `ops.KINDS` but "powermean".
# FEATURES: "none", "raw" (multiplied with `weight`) or "encoded" (added as they are). DOT: whether by tl.dot.
# D, K: numbers of channels and of raw features. BLOCK_D: channels of a program. BLOCK_K: K up to a power of two.
MESSAGES = (
    *("x", "attr", "weight", "bias", "parameter", "eps"),
    *("KIND", "FEATURES", "DOT", "D", "K", "BLOCK_K", "BLOCK_D"),
)
# A program loads these: its channels, which of them exist, columns of the weight, the bias, and t.
LOADED = ("channel", "in_d", "columns", "shift", "param")


def extend(name, fields):
    """Make the type of a kernel's record with these fields, and that of the same with what a program has loaded."""
    return namedtuple(name, fields), namedtuple(name + "Program", (*fields, *LOADED))


@triton.jit
def select_channels(block, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the channels of a block, and a mask of those that exist."""
    channel = block * BLOCK_D + tl.arange(0, BLOCK_D)
    return channel, channel < D


@triton.jit
def load_encoder(p, channel, in_d):
    """Read a block of channels of the edge encoder's weight: its columns as a tuple, or as one tile [BLOCK_K, channels]
    for tl.dot.
    """
    columns = ()
    if p.weight is not None:
        if p.DOT:
            k = tl.arange(0, p.BLOCK_K)
            columns = (
                tl.load(
                    p.weight + channel[None, :] * p.K + k[:, None],
                    mask=in_d[None, :] & (k < p.K)[:, None],
                    other=0.0,
                ),
            )
        else:
            for k in tl.static_range(p.K):
                columns = columns + (tl.load(p.weight + channel * p.K + k, mask=in_d, other=0.0),)
    return columns


@triton.jit
def load_bias(p, channel, in_d):
    """Read a block of channels of the edge encoder's bias, which is 0 without one."""
    bias = tl.zeros((p.BLOCK_D,), tl.float32)
    if p.bias is not None:
        bias = tl.load(p.bias + channel, mask=in_d, other=0.0)
    return bias


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
        features = load_columns(p, p.attr + attr_row * p.K, valid, p.DOT)
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

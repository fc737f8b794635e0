"""Sums of gated messages in Triton: CUDA's version of the passes in gated.py, in the walk of models/kernels/walk.py."""

from collections import namedtuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from parallel_epochs.models.aggregate import gpu
from parallel_epochs.models.aggregate.gpu_backward import (
    add_products,
    start_products,
    store_products,
)
from parallel_epochs.models.aggregate.gpu_encode import (
    add_encoded,
    load_encoder,
    load_features,
    select_channels,
)
from parallel_epochs.models.kernels.walk import Edges, walk
from parallel_epochs.models.messages import gated

# The functions of all passes read and write this; see the arguments of :func:`run_pass`.
Gated = namedtuple(
    "Gated",
    "channel in_d of_gate of_value key pair attr gradient out partial grad_attr num_edges PASS "
    "FEATURES DOT FIRST K BLOCK_K D BLOCK_D",
)


@triton.jit(do_not_specialize=["num_edges"])
def run_pass(
    key,
    pair,
    attr,
    weight,
    ptr,
    cuts,
    rows,
    other,
    position,
    gradient,
    out,
    partial,
    grad_attr,
    sums,
    num_edges,
    PASS: tl.constexpr,
    FEATURES: tl.constexpr,
    WIDE: tl.constexpr,
    DOT: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Sum up the messages of one chunk, or their gradients.

    The grid is [num_chunks, number of blocks of channels]. Arguments that are not listed are those of
    :func:`gpu_forward.forward`.

    Args:
        key: keys of the destinations [num_dst, D], float32.
        pair: queries and values of the sources [num_src, 2 * D], float32.
        attr: edge features [num_edges, K], float32; or none.
        weight: their weights for gates, then for values [2 * D, K], float32; or none.
        ptr: where each row's edges begin; a row is a source in the pass "source", else a destination.
        other: the node at the other end of each edge.
        gradient: gradient of the sums [num_dst, D], float32; or none in the pass "forward".
        out: written for rows that lie in one chunk: the sums [num_dst, D], or the gradient of `key`, or in the pass
            "source" that of `pair`.
        partial: the same of the rows that several chunks share [2 * num_chunks, columns of `out`], float32; written.
        grad_attr: the part of each block of channels of the gradient of `attr` [blocks of channels, num_edges, K],
            float32; written in the pass "destination"; or none.
        sums: gradients of `weight`, summed over each chunk [num_chunks, K, 2 * D], float32; written in this pass.
        PASS: "forward", "destination" or "source".
    """
    channel, in_d = select_channels(tl.program_id(1), D, BLOCK_D)
    of_gate, of_value = (), ()
    if weight is not None:
        of_gate, _ = load_encoder(weight, None, channel, in_d, FEATURES, DOT, K, BLOCK_K, BLOCK_D)
        of_value, _ = load_encoder(
            weight + D * K, None, channel, in_d, FEATURES, DOT, K, BLOCK_K, BLOCK_D
        )
    NEED_WEIGHT: tl.constexpr = PASS == "destination" and K > 0
    products = walk(
        Edges(ptr, cuts, rows, other, position, WIDE, BLOCK_E),
        Gated(
            channel,
            in_d,
            of_gate,
            of_value,
            key,
            pair,
            attr,
            gradient,
            out,
            partial,
            grad_attr,
            num_edges,
            PASS,
            FEATURES,
            DOT,
            0,
            K,
            BLOCK_K,
            D,
            BLOCK_D,
        ),
        (
            start_products(NEED_WEIGHT, DOT, K, BLOCK_K, BLOCK_D),
            start_products(NEED_WEIGHT, DOT, K, BLOCK_K, BLOCK_D),
        ),
        start_row,
        add_edges,
        store_row,
    )
    if NEED_WEIGHT:
        to = sums + tl.program_id(0).to(tl.int64) * K * 2 * D + channel
        store_products(to, products[0], in_d, 2 * D, DOT, K, BLOCK_K)
        store_products(to + D, products[1], in_d, 2 * D, DOT, K, BLOCK_K)


@triton.jit
def start_row(p, row):
    """Return what the edges need of a row, query and value or key and gradient, and empty sums."""
    zero, at = tl.zeros((p.BLOCK_D,), tl.float32), tl.cast(row, tl.int64) * p.D + p.channel
    if p.PASS == "source":
        at += tl.cast(row, tl.int64) * p.D  # of a row of two vectors
        query = tl.load(p.pair + at, mask=p.in_d, other=0.0)
        return (query, tl.load(p.pair + at + p.D, mask=p.in_d, other=0.0)), (zero, zero)
    else:
        key = tl.load(p.key + at, mask=p.in_d, other=0.0)
        gradient = p.key if p.PASS == "forward" else p.gradient
        return (key, tl.load(gradient + at, mask=p.in_d, other=0.0)), (zero,)


@triton.jit
def add_edges(p, own, state, sums, edge, node, number, valid):
    """Add the messages of a block of edges, or their gradients, to the sums of the row and of the chunk."""
    there, at = valid[:, None] & p.in_d[None, :], node[:, None] * p.D + p.channel[None, :]
    if p.PASS == "source":
        z = own[0][None, :] + tl.load(p.key + at, mask=there, other=0.0)
        value = tl.broadcast_to(own[1][None, :], z.shape)
        g = tl.load(p.gradient + at, mask=there, other=0.0)
    else:
        at += node[:, None] * p.D  # of a row of two vectors
        z = own[0][None, :] + tl.load(p.pair + at, mask=there, other=0.0)
        value = tl.load(p.pair + at + p.D, mask=there, other=0.0)
        g = own[1][None, :]
    features = load_features(p, number, valid)
    gate = tl.sigmoid(add_encoded(p, z, features, p.of_gate))
    value = add_encoded(p, value, features, p.of_value)
    if p.PASS == "forward":
        return (state[0] + tl.sum(tl.where(there, gate * value, 0.0), 0),), sums
    else:
        grad_gate = tl.where(there, g * value * gate * (1.0 - gate), 0.0)
        grad_value = tl.where(there, g * gate, 0.0)
        if p.PASS == "source":
            return (state[0] + tl.sum(grad_gate, 0), state[1] + tl.sum(grad_value, 0)), sums
        else:
            if p.grad_attr is not None:
                store_attr(p, number, valid, grad_gate, grad_value)
            if p.K > 0:
                sums = (
                    add_products(p, sums[0], features, grad_gate),
                    add_products(p, sums[1], features, grad_value),
                )
            return (state[0] + tl.sum(grad_gate, 0),), sums


@triton.jit
def store_attr(p, number, valid, grad_gate, grad_value):
    """Write what this block of channels adds to the gradients of the features of a block of edges."""
    to = p.grad_attr + (tl.program_id(1).to(tl.int64) * p.num_edges + number) * p.K
    if p.DOT:
        k = tl.arange(0, p.BLOCK_K)
        found = tl.dot(grad_gate, tl.trans(p.of_gate[0]), input_precision="ieee")
        found = tl.dot(grad_value, tl.trans(p.of_value[0]), acc=found, input_precision="ieee")
        tl.store(to[:, None] + k[None, :], found, mask=valid[:, None] & (k < p.K)[None, :])
    else:
        for k in tl.static_range(p.K):
            found = grad_gate * p.of_gate[k][None, :] + grad_value * p.of_value[k][None, :]
            tl.store(to + k, tl.sum(found, 1), mask=valid)


@triton.jit
def store_row(p, at, state, degree, WHOLE: tl.constexpr):
    """Write the sums of a row, or a part of them."""
    stride: tl.constexpr = 2 * p.D if p.PASS == "source" else p.D
    to = (p.out if WHOLE else p.partial) + at * stride + p.channel
    tl.store(to, state[0], mask=p.in_d)
    if p.PASS == "source":
        tl.store(to + p.D, state[1], mask=p.in_d)


def run_on_gpu(
    name: str,
    given,
    order,
    num_others: int,
    written: Tensor,
    gradient: Tensor | None = None,
    grad_attr: Tensor | None = None,
) -> Tensor | None:
    """Run a pass as the CPU's, see gated.py."""
    key, pair, attr, weight = given
    ptr, other, position = gpu.make_contiguous(*order)
    channels = key.size(1)
    # Two weights and their gradients lie in registers: 128 channels would spill.
    blocks = gpu.choose_blocks(min(channels, 64), weight, elements=256) | dict(D=channels)
    num_blocks, num_sums = triton.cdiv(channels, blocks["BLOCK_D"]), 2 * blocks["K"] * channels
    sums = key.new_empty(0, num_sums)
    if written.numel():
        cut = gpu.plan(
            ptr, other, num_others, position, other.numel() if attr is None else attr.size(0)
        )
        partial = key.new_empty(2 * cut.num_chunks, written.size(1))
        sums = key.new_empty(cut.num_chunks if name == "destination" else 0, num_sums)
        attr_parts = None if grad_attr is None else key.new_zeros(num_blocks, *grad_attr.shape)
        with torch.cuda.device_of(key):
            gpu.launch(
                run_pass,
                (cut.num_chunks, num_blocks),
                key,
                pair,
                attr,
                weight,
                ptr,
                cut.cuts,
                cut.rows,
                other,
                position,
                gradient,
                written,
                partial,
                attr_parts,
                sums,
                0 if attr is None else attr.size(0),
                PASS=name,
                FEATURES="none" if attr is None else "raw",
                WIDE=cut.wide,
                **blocks,
            )
            gpu.merge_sums(ptr, cut, written, partial)
        if grad_attr is not None:
            torch.sum(attr_parts, 0, out=grad_attr)
    if weight is None or name != "destination":
        return None
    with torch.cuda.device_of(key):
        return gpu.sum_rows(sums).view(blocks["K"], 2 * channels).t()


def register(device_type: str = "cuda") -> None:
    """Register these kernels for a type of device, which may be "cpu" under TRITON_INTERPRET=1."""
    gpu.register_sorting(device_type)
    gated.PASSES[device_type] = run_on_gpu

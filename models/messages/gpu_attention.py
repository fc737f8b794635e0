"""The Triton attention: the CUDA kernels of the operators in attention_ops.py.

Chunks, blocks and the order of sums depend only on the sizes, never on the machine, and so does every rounding. Nothing
waits for the device.
"""

import math
from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from parallel_epochs.models.aggregate import gpu
from parallel_epochs.models.messages import (
    attention_ops,
    gpu_attention_backward,
    gpu_attention_forward,
)
from parallel_epochs.models.messages.scores import SCORES
from parallel_epochs.models.structure import Structure

_LOG2_E = 1.4426950408889634


def _choose_blocks(message: Tensor, attr: Tensor | None, score: str, *, elements: int) -> dict:
    """Choose the block sizes of a pass in which a program holds `elements` = edges x channels of a head at a time."""
    heads, channels = message.shape[1:]
    edge_dim = 0 if attr is None else attr.size(1)
    kind = SCORES[score]
    dot = edge_dim >= gpu.DOT_FROM and not kind.by_head
    block_c = max(16, triton.next_power_of_2(channels))
    return dict(
        SCORE=score,
        BY_HEAD=kind.by_head,
        ENCODES=kind.encodes_messages,
        DOT=dot,
        H=heads,
        C=channels,
        K=edge_dim,
        BLOCK_C=block_c,
        BLOCK_E=16 if dot else max(4, min(32, elements // block_c)),
        BLOCK_K=triton.next_power_of_2(max(edge_dim, 1)),
        num_warps=4 if dot or block_c > 128 else 1,
    )


def _options(channels: int, slope: float, dropout: float, edge_dropout: float) -> tuple:
    """Return slope, scale, threshold, rescale and edge_threshold, as the kernels take them."""
    thresholds = [
        None if share == 0 else 2**32 if share >= 1 else int(share * 2**32)
        for share in (dropout, edge_dropout)
    ]
    rescale = 0.0 if dropout >= 1 else 1 / (1 - dropout)
    return slope, _LOG2_E / math.sqrt(max(channels, 1)), thresholds[0], rescale, thresholds[1]


def forward(
    message: Tensor,
    source: Tensor | None,
    target: Tensor,
    edges: Sequence[Tensor | None],
    attr: Tensor | None,
    loop_attr: Tensor | None,
    weight: Tensor | None,
    att: Tensor | None,
    seed: Tensor,
    score: str,
    slope: float,
    dropout: float,
    edge_dropout: float,
    num_positions: int,
    return_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`attention_ops.forward`; message, source, target and features in float32 or 16 bits."""
    out, lse, weights = attention_ops.allocate_outputs(
        message, target, num_positions, return_weights
    )
    weights.zero_()
    message, source, target, indptr, src, position, attr, loop_attr, weight, att = (
        gpu.make_contiguous(
            message, source, target, *Structure(*edges).by_destination, attr, loop_attr, weight, att
        )
    )
    cut = gpu.plan(indptr, src, message.size(0), position, num_positions)
    blocks = _choose_blocks(message, attr, score, elements=512)
    grid, channels = (cut.num_chunks, blocks["H"]), blocks["C"]
    num_listed = 0 if attr is None else attr.size(0)
    numbers = num_listed, *_options(channels, slope, dropout, edge_dropout)
    tensors = (
        message,
        source,
        target,
        indptr,
        cut.cuts,
        cut.rows,
        src,
        position,
        attr,
        loop_attr,
        weight,
        att,
        seed,
    )
    with torch.cuda.device_of(message):
        partial = out.new_empty((2 * cut.num_chunks, blocks["H"], channels + 3))
        gpu.launch(
            gpu_attention_forward.forward,
            grid,
            *tensors,
            out,
            lse,
            partial,
            *numbers,
            WIDE=cut.wide,
            **blocks,
        )
        gpu.launch(
            gpu_attention_forward.merge_forward,
            grid,
            indptr,
            cut.cuts,
            cut.rows,
            out,
            lse,
            partial,
            cut.chunk_items,
            WIDE=cut.wide,
            H=blocks["H"],
            C=channels,
            BLOCK_P=8,
            BLOCK_C=blocks["BLOCK_C"],
            num_warps=1,
        )
        if return_weights:
            gpu.launch(
                gpu_attention_forward.write_weights,
                grid,
                *tensors,
                lse,
                weights,
                *numbers,
                WIDE=cut.wide,
                **blocks,
            )
    return out, lse, weights


def backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    message: Tensor,
    source: Tensor | None,
    target: Tensor,
    edges: Sequence[Tensor | None],
    attr: Tensor | None,
    loop_attr: Tensor | None,
    weight: Tensor | None,
    att: Tensor | None,
    seed: Tensor,
    score: str,
    slope: float,
    dropout: float,
    edge_dropout: float,
    num_positions: int,
    need_attr: bool,
) -> list[Tensor]:
    """Compute :func:`attention_ops.backward`."""
    grads = attention_ops.allocate_gradients(
        message, source, target, attr, loop_attr, weight, att, need_attr
    )
    structure = Structure(*gpu.make_contiguous(*edges))
    grad, message, source, target = gpu.make_contiguous(grad, message, source, target)
    attr, loop_attr, weight, att = gpu.make_contiguous(attr, loop_attr, weight, att)
    blocks = _choose_blocks(message, attr, score, elements=256)
    numbers = _options(blocks["C"], slope, dropout, edge_dropout)
    with torch.cuda.device_of(message):
        products = torch.empty_like(lse)
        gpu.launch(
            gpu_attention_backward.multiply,
            (triton.cdiv(lse.size(0), gpu.PACK_ROWS), blocks["H"]),
            grad,
            out,
            products,
            lse.size(0),
            H=blocks["H"],
            C=blocks["C"],
            BLOCK_N=gpu.PACK_ROWS,
            BLOCK_C=blocks["BLOCK_C"],
            num_warps=4,
        )
        nodes, features = (
            (message, source, target),
            (attr, loop_attr, weight, att, seed, grad, lse, products),
        )
        _run_by_destination(
            nodes,
            structure.by_destination,
            features,
            grads,
            num_positions,
            numbers,
            blocks,
            need_attr,
        )
        _run_by_source(nodes, structure.by_source, features, grads, num_positions, numbers, blocks)
    return grads


def _run_by_destination(
    nodes, edges, features, grads, num_positions, numbers, blocks, need_attr
) -> None:
    """Write the gradients of target, the features, weight and att."""
    message, _, target = nodes
    attr, loop_attr, weight, att, *_ = features
    _, _, grad_target, grad_attr, grad_loop_attr, grad_weight, grad_att = grads
    cut = gpu.plan(*edges[:2], message.size(0), edges[2], num_positions)
    heads, width = blocks["H"], target[0].numel() if target.size(0) else 0
    partial = _allocate(message, 2 * cut.num_chunks, width)
    att_sums = None if att is None else _allocate(message, cut.num_chunks, att.numel())
    weight_sums = None if weight is None else _allocate(message, cut.num_chunks, weight.numel())
    attr_sums = (
        None if not need_attr or attr is None else torch.zeros_like(attr, dtype=torch.float32)
    )
    loop_sums = (
        None
        if attr_sums is None or loop_attr is None
        else torch.zeros_like(loop_attr, dtype=torch.float32)
    )
    # The launches of one head after another add up the features' gradients without a copy for each head.
    grids = [(0, heads)] if attr_sums is None else [(head, 1) for head in range(heads)]
    for first_head, num_heads in grids:
        gpu.launch(
            gpu_attention_backward.by_destination,
            (cut.num_chunks, num_heads),
            *nodes,
            edges[0],
            cut.cuts,
            cut.rows,
            *edges[1:],
            *features,
            grad_target,
            partial,
            att_sums,
            weight_sums,
            attr_sums,
            loop_sums,
            0 if attr is None else attr.size(0),
            first_head,
            *numbers,
            NEED_ATTR=attr_sums is not None,
            WIDE=cut.wide,
            **blocks,
        )
    gpu.merge_sums(edges[0], cut, grad_target, partial)
    for sums, written in ((attr_sums, grad_attr), (loop_sums, grad_loop_attr)):
        if sums is not None:
            written.copy_(sums)
    if att_sums is not None:
        grad_att.copy_(gpu.sum_rows(att_sums).view_as(att))
    if weight_sums is not None:
        total = gpu.sum_rows(weight_sums)
        rows, columns = weight.shape
        grad_weight.copy_(
            total.view(rows, columns) if blocks["BY_HEAD"] else total.view(columns, rows).t()
        )


def _run_by_source(nodes, edges, features, grads, num_positions, numbers, blocks) -> None:
    """Write the gradients of message and source."""
    message, source, target = nodes
    attr, grad_message, grad_source = features[0], grads[0], None if source is None else grads[1]
    cut = gpu.plan(*edges[:2], target.size(0), edges[2], num_positions)
    widths = [
        tensor[0].numel() if tensor is not None and tensor.size(0) else 0
        for tensor in (message, source)
    ]
    partials = [_allocate(message, 2 * cut.num_chunks, width) for width in widths]
    gpu.launch(
        gpu_attention_backward.by_source,
        (cut.num_chunks, blocks["H"]),
        *nodes,
        edges[0],
        cut.cuts,
        cut.rows,
        *edges[1:],
        *features,
        grad_message,
        grad_source,
        *partials,
        0 if attr is None else attr.size(0),
        *numbers,
        WIDE=cut.wide,
        **blocks,
    )
    for written, partial in zip((grad_message, grad_source), partials, strict=True):
        if written is not None:
            gpu.merge_sums(edges[0], cut, written, partial)


def _allocate(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def register(device_type: str = "cuda") -> None:
    """Register these kernels for a type of device, which may be "cpu" under TRITON_INTERPRET=1."""
    gpu.register_sorting(device_type)
    attention_ops.forward.register_kernel(device_type, forward)
    attention_ops.backward.register_kernel(device_type, backward)

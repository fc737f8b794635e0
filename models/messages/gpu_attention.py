"""The Triton attention: the CUDA kernels of the operators in attention_ops.py.

Chunks, blocks and the order of sums depend only on the sizes, never on the machine, and so does every rounding. Nothing
waits for the device.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from parallel_epochs.models.aggregate import gpu
from parallel_epochs.models.kernels.walk import record
from parallel_epochs.models.messages import (
    attention_ops,
    gpu_attention_backward,
    gpu_attention_forward,
)
from parallel_epochs.models.messages.scores import SCORES
from parallel_epochs.models.structure import Structure

_LOG2_E = 1.4426950408889634


def _describe(
    message, source, target, attr, loop_attr, weight, att, seed, score, slope, dropout, edge_dropout
) -> dict[str, Any]:
    """Return the fields of a record that are those of :data:`gpu_attention_edges.ATTENTION`."""
    heads, channels = message.shape[1:]
    edge_dim = 0 if attr is None else attr.size(1)
    kind = SCORES[score]
    threshold, edge_threshold = (
        None if share == 0 else 2**32 if share >= 1 else int(share * 2**32)
        for share in (dropout, edge_dropout)
    )
    return dict(
        message=message,
        source=source,
        target=target,
        attr=attr,
        loop_attr=loop_attr,
        weight=weight,
        att=att,
        seed=seed,
        num_listed=0 if attr is None else attr.size(0),
        slope=slope,
        scale=_LOG2_E / math.sqrt(max(channels, 1)),
        threshold=threshold,
        rescale=0.0 if dropout >= 1 else 1 / (1 - dropout),
        edge_threshold=edge_threshold,
        SCORE=score,
        BY_HEAD=kind.by_head,
        ENCODES=kind.encodes_messages,
        DOT=edge_dim >= gpu.DOT_FROM and not kind.by_head,
        H=heads,
        C=channels,
        K=edge_dim,
        BLOCK_K=triton.next_power_of_2(max(edge_dim, 1)),
        BLOCK_C=max(16, triton.next_power_of_2(channels)),
        FEATURES="raw",
    )


def _choose_edges(call: dict[str, Any], elements: int) -> tuple[int, int]:
    """Return how many edges a program reads at a time, so that it holds `elements` = edges x channels of a head, and
    how many warps it has.
    """
    width = call["BLOCK_C"]
    block_e = 16 if call["DOT"] else max(4, min(32, elements // width))
    return block_e, 4 if call["DOT"] or width > 128 else 1


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
    call = _describe(
        message,
        source,
        target,
        attr,
        loop_attr,
        weight,
        att,
        seed,
        score,
        slope,
        dropout,
        edge_dropout,
    )
    block_e, num_warps = _choose_edges(call, 512)
    cut = gpu.plan(indptr, src, message.size(0), position, num_positions, block_e)
    grid = num_chunks, heads = cut.rows.size(1), message.size(1)
    with torch.cuda.device_of(message):
        partial = out.new_empty((2 * num_chunks, heads, message.size(2) + 3))
        given = record(gpu_attention_forward.Forward, **call, out=out, lse=lse, partial=partial)
        gpu.launch(gpu_attention_forward.forward, grid, cut, given, num_warps=num_warps)
        gpu.launch(gpu_attention_forward.merge_forward, grid, cut, given, num_warps=1)
        if return_weights:
            given = record(gpu_attention_forward.Weights, **call, lse=lse, weights=weights)
            gpu.launch(gpu_attention_forward.write_weights, grid, cut, given, num_warps=num_warps)
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
    call = _describe(
        message,
        source,
        target,
        attr,
        loop_attr,
        weight,
        att,
        seed,
        score,
        slope,
        dropout,
        edge_dropout,
    )
    with torch.cuda.device_of(message):
        products = torch.empty_like(lse)
        gpu.launch(
            gpu_attention_backward.multiply,
            (triton.cdiv(lse.size(0), gpu.PACK_ROWS), call["H"]),
            grad,
            out,
            products,
            lse.size(0),
            H=call["H"],
            C=call["C"],
            BLOCK_N=gpu.PACK_ROWS,
            BLOCK_C=call["BLOCK_C"],
            num_warps=4,
        )
        results = dict(grad=grad, lse=lse, products=products)
        _run_by_destination(
            call, results, structure.by_destination, grads, num_positions, need_attr
        )
        _run_by_source(call, results, structure.by_source, grads, num_positions)
    return grads


def _run_by_destination(call, results, edges, grads, num_positions, need_attr) -> None:
    """Write the gradients of target, the features, weight and att."""
    message, target, attr, loop_attr, weight, att = (
        call[name] for name in ("message", "target", "attr", "loop_attr", "weight", "att")
    )
    _, _, grad_target, grad_attr, grad_loop_attr, grad_weight, grad_att = grads
    block_e, num_warps = _choose_edges(call, 256)
    cut = gpu.plan(*edges[:2], message.size(0), edges[2], num_positions, block_e)
    num_chunks, width = cut.rows.size(1), target[0].numel() if target.size(0) else 0
    partial = _allocate(message, 2 * num_chunks, width)
    att_sums = None if att is None else _allocate(message, num_chunks, att.numel())
    weight_sums = None if weight is None else _allocate(message, num_chunks, weight.numel())
    attr_sums = (
        None if not need_attr or attr is None else torch.zeros_like(attr, dtype=torch.float32)
    )
    loop_sums = (
        None
        if attr_sums is None or loop_attr is None
        else torch.zeros_like(loop_attr, dtype=torch.float32)
    )
    given = record(
        gpu_attention_backward.ByDestination,
        **call,
        **results,
        grad_target=grad_target,
        partial=partial,
        att_sums=att_sums,
        weight_sums=weight_sums,
        grad_attr=attr_sums,
        grad_loop_attr=loop_sums,
        NEED_ATTR=attr_sums is not None,
    )
    # The launches of one head after another add up the features' gradients without a copy for each head.
    grids = [(0, call["H"])] if attr_sums is None else [(head, 1) for head in range(call["H"])]
    for first_head, num_heads in grids:
        gpu.launch(
            gpu_attention_backward.by_destination,
            (num_chunks, num_heads),
            cut,
            given,
            first_head,
            num_warps=num_warps,
        )
    gpu.merge_sums(cut, grad_target, partial)
    for sums, written in ((attr_sums, grad_attr), (loop_sums, grad_loop_attr)):
        if sums is not None:
            written.copy_(sums)
    if att_sums is not None:
        grad_att.copy_(gpu.sum_rows(att_sums).view_as(att))
    if weight_sums is not None:
        total = gpu.sum_rows(weight_sums)
        rows, columns = weight.shape
        grad_weight.copy_(
            total.view(rows, columns) if call["BY_HEAD"] else total.view(columns, rows).t()
        )


def _run_by_source(call, results, edges, grads, num_positions) -> None:
    """Write the gradients of message and source."""
    message, source, target = call["message"], call["source"], call["target"]
    grad_message, grad_source = grads[0], None if source is None else grads[1]
    block_e, num_warps = _choose_edges(call, 256)
    cut = gpu.plan(*edges[:2], target.size(0), edges[2], num_positions, block_e)
    partials = [
        _allocate(
            message,
            2 * cut.rows.size(1),
            tensor[0].numel() if tensor is not None and tensor.size(0) else 0,
        )
        for tensor in (message, source)
    ]
    given = record(
        gpu_attention_backward.BySource,
        **call,
        **results,
        grad_message=grad_message,
        grad_source=grad_source,
        message_partial=partials[0],
        source_partial=partials[1],
    )
    grid = cut.rows.size(1), call["H"]
    gpu.launch(gpu_attention_backward.by_source, grid, cut, given, num_warps=num_warps)
    for written, partial in zip((grad_message, grad_source), partials, strict=True):
        if written is not None:
            gpu.merge_sums(cut, written, partial)


def _allocate(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def register(device_type: str = "cuda") -> None:
    """Register these kernels for a type of device, which may be "cpu" under TRITON_INTERPRET=1."""
    gpu.register_sorting(device_type)
    attention_ops.forward.register_kernel(device_type, forward)
    attention_ops.backward.register_kernel(device_type, backward)

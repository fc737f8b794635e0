"""The Triton attention: the CUDA kernels of the operators in attention_ops.py.

Chunks, blocks and the order of sums depend only on the sizes, never on the machine, and so does every rounding. Nothing
waits for the device.
"""

import math
from typing import Any

import torch
import triton
from torch import Tensor

from parallel_epochs.models.aggregate import gpu
from parallel_epochs.models.kernels.operator import contiguous
from parallel_epochs.models.kernels.walk import record
from parallel_epochs.models.messages import (
    attention_ops,
    gpu_attention_backward,
    gpu_attention_forward,
)
from parallel_epochs.models.messages.attention_reference import DIFFERENTIABLE, AttentionCall
from parallel_epochs.models.messages.scores import SCORES
from parallel_epochs.models.structure import Structure

_LOG2_E = 1.4426950408889634


def _describe(call: AttentionCall) -> dict[str, Any]:
    """Return the fields of a record that are those of :data:`gpu_attention_edges.ATTENTION`."""
    heads, channels = call.message.shape[1:]
    kind, dropout = SCORES[call.score], call.dropout
    num_listed, edge_dim = (0, 0) if call.attr is None else call.attr.shape
    threshold, edge_threshold = (
        None if share == 0 else 2**32 if share >= 1 else int(share * 2**32)
        for share in (dropout, call.edge_dropout)
    )
    return dict(
        **{name: getattr(call, name) for name in (*DIFFERENTIABLE, "seed", "slope")},
        num_listed=num_listed,
        scale=_LOG2_E / math.sqrt(max(channels, 1)),
        threshold=threshold,
        rescale=0.0 if dropout >= 1 else 1 / (1 - dropout),
        edge_threshold=edge_threshold,
        SCORE=call.score,
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


def forward(call: AttentionCall, return_weights: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`attention_ops.forward`; message, source, target and features in float32 or 16 bits."""
    out, lse, weights = attention_ops.allocate_outputs(call, return_weights)
    weights.zero_()
    call = contiguous(call)
    message, fields = call.message, _describe(call)
    block_e, num_warps = _choose_edges(fields, 512)
    order = Structure(*call.edges).by_destination
    cut = gpu.plan(order, message.size(0), call.num_positions, block_e)
    grid = num_chunks, heads = cut.rows.size(1), message.size(1)
    with torch.cuda.device_of(message):
        partial = out.new_empty((2 * num_chunks, heads, message.size(2) + 3))
        given = record(gpu_attention_forward.Forward, **fields, out=out, lse=lse, partial=partial)
        gpu.launch(gpu_attention_forward.forward, grid, cut, given, num_warps=num_warps)
        gpu.launch(gpu_attention_forward.merge_forward, grid, cut, given, num_warps=1)
        if return_weights:
            given = record(gpu_attention_forward.Weights, **fields, lse=lse, weights=weights)
            gpu.launch(gpu_attention_forward.write_weights, grid, cut, given, num_warps=num_warps)
    return out, lse, weights


def backward(
    grad: Tensor, out: Tensor, lse: Tensor, call: AttentionCall, need_attr: bool
) -> list[Tensor]:
    """Compute :func:`attention_ops.backward`."""
    grads = attention_ops.allocate_gradients(call, need_attr)
    call, grad = contiguous(call), grad.contiguous()
    structure, fields = Structure(*call.edges), _describe(call)
    with torch.cuda.device_of(call.message):
        products = torch.empty_like(lse)
        gpu.launch(
            gpu_attention_backward.multiply,
            (triton.cdiv(lse.size(0), gpu.PACK_ROWS), fields["H"]),
            grad,
            out,
            products,
            lse.size(0),
            H=fields["H"],
            C=fields["C"],
            BLOCK_N=gpu.PACK_ROWS,
            BLOCK_C=fields["BLOCK_C"],
            num_warps=4,
        )
        fields |= dict(grad=grad, lse=lse, products=products)
        named = dict(zip(DIFFERENTIABLE, grads, strict=True))
        _run_by_destination(call, fields, structure.by_destination, named, need_attr)
        _run_by_source(call, fields, structure.by_source, named)
    return grads


def _run_by_destination(call, fields, order, grads, need_attr) -> None:
    """Write the gradients of target, the features, weight and att."""
    message, target, weight, att = call.message, call.target, call.weight, call.att
    block_e, num_warps = _choose_edges(fields, 256)
    cut = gpu.plan(order, message.size(0), call.num_positions, block_e)
    num_chunks, width = cut.rows.size(1), target[0].numel() if target.size(0) else 0
    partial = _allocate(message, 2 * num_chunks, width)
    att_sums = None if att is None else _allocate(message, num_chunks, att.numel())
    weight_sums = None if weight is None else _allocate(message, num_chunks, weight.numel())
    sums = {
        name: torch.zeros_like(value, dtype=torch.float32)
        if need_attr and (value := getattr(call, name)) is not None
        else None
        for name in ("attr", "loop_attr")
    }
    needs_heads = sums["attr"] is not None
    given = record(
        gpu_attention_backward.ByDestination,
        **fields,
        grad_target=grads["target"],
        partial=partial,
        att_sums=att_sums,
        weight_sums=weight_sums,
        grad_attr=sums["attr"],
        grad_loop_attr=sums["loop_attr"],
        NEED_ATTR=needs_heads,
    )
    # The launches of one head after another add up the features' gradients without a copy for each head.
    num_heads = fields["H"]
    grids = [(head, 1) for head in range(num_heads)] if needs_heads else [(0, num_heads)]
    for first_head, at_once in grids:
        gpu.launch(
            gpu_attention_backward.by_destination,
            (num_chunks, at_once),
            cut,
            given,
            first_head,
            num_warps=num_warps,
        )
    gpu.merge_sums(cut, grads["target"], partial)
    for name, value in sums.items():
        if value is not None:
            grads[name].copy_(value)
    if att_sums is not None:
        grads["att"].copy_(gpu.sum_rows(att_sums).view_as(att))
    if weight_sums is not None:
        total = gpu.sum_rows(weight_sums)
        rows, columns = weight.shape
        grads["weight"].copy_(
            total.view(rows, columns) if fields["BY_HEAD"] else total.view(columns, rows).t()
        )


def _run_by_source(call, fields, order, grads) -> None:
    """Write the gradients of message and source."""
    block_e, num_warps = _choose_edges(fields, 256)
    cut = gpu.plan(order, call.target.size(0), call.num_positions, block_e)
    written, partials = {}, {}
    for name in ("message", "source"):
        tensor = getattr(call, name)
        has_rows = tensor is not None and tensor.size(0) > 0
        written[f"grad_{name}"] = None if tensor is None else grads[name]
        partials[f"{name}_partial"] = _allocate(
            call.message, 2 * cut.rows.size(1), tensor[0].numel() if has_rows else 0
        )
    given = record(gpu_attention_backward.BySource, **fields, **written, **partials)
    grid = cut.rows.size(1), fields["H"]
    gpu.launch(gpu_attention_backward.by_source, grid, cut, given, num_warps=num_warps)
    for gradient, partial in zip(written.values(), partials.values(), strict=True):
        if gradient is not None:
            gpu.merge_sums(cut, gradient, partial)


def _allocate(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def register(device_type: str = "cuda") -> None:
    """Register these kernels for a type of device, which may be "cpu" under TRITON_INTERPRET=1."""
    gpu.register_sorting(device_type)
    attention_ops.forward.register_kernel(device_type, forward)
    attention_ops.backward.register_kernel(device_type, backward)

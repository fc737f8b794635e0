"""The Triton kernels of ``update_all``: CUDA's versions of the operators in ops.py.

Chunks, blocks and the order of sums depend only on the sizes, never on the machine. Nothing waits for the device.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from parallel_epochs.models.aggregate import gpu
from parallel_epochs.models.kernels.operator import contiguous
from parallel_epochs.models.kernels.walk import Edges, record
from parallel_epochs.models.messages import gpu_messages_kernels, ops
from parallel_epochs.models.messages.inputs import MESSAGES
from parallel_epochs.models.messages.ops import MessageCall
from parallel_epochs.models.structure import Structure


def _describe(call: MessageCall, group: int | None = None) -> dict[str, Any]:
    """Return the fields of a record that are those of :data:`gpu_messages_kernels.MESSAGES`.

    Args:
        group: channels of a program, or none: as many as are good.
    """
    fields: dict[str, Any] = {}
    message, operands, shape = MESSAGES[call.message], call.operands, call.full_shape
    names = (*message.names, "")
    for side, name in zip(("left", "right"), names[:2], strict=True):
        operand, columns, width = operands.get(name), None, 0
        if operand is not None:
            trailing = operand.shape[1:]
            width = trailing.numel()
            if width != shape.numel():
                columns = torch.arange(width, dtype=torch.int32, device=operand.device)
                columns = columns.view(trailing).expand(shape).contiguous()
            operand = operand.contiguous()
        fields |= {side: operand, f"{side}_columns": columns}
        fields |= {side.upper(): name, f"{side.upper()}_WIDTH": width}
    channels = shape.numel()
    group = group or min(128, max(16, triton.next_power_of_2(channels)))
    return fields | dict(
        OPERATION=message.operation,
        REDUCE=call.reduce,
        D=channels,
        GROUP=group,
        BLOCK_D=max(16, triton.next_power_of_2(group)),
    )


def _plan(fields: dict[str, Any], order: tuple, num_others: int) -> tuple[Edges, tuple, int]:
    """Return the edges, the grid, and the number of warps of a program."""
    block = fields["BLOCK_D"]
    cut = gpu.plan(contiguous(order), num_others, None, max(4, min(32, 512 // block)))
    grid = cut.rows.size(1), triton.cdiv(fields["D"], fields["GROUP"])
    return cut, grid, 1 if block <= 128 else 4


def update_all(call: MessageCall, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`ops.update_all` for sum, max and min."""
    out, stat, stat2 = ops.allocate_rows(call, save)
    if out.numel() == 0:
        return out, stat, stat2
    fields = _describe(call)
    cut, grid, num_warps = _plan(fields, Structure(*call.edges).by_destination, call.num_src)
    num_states = 1 if call.reduce == "sum" else 3
    with torch.cuda.device_of(out):
        given = record(
            gpu_messages_kernels.Forward,
            **fields,
            out=out,
            ties=stat if stat.numel() else None,
            partial=out.new_empty((2 * grid[0], num_states, fields["D"])),
            STATES=num_states,
        )
        gpu.launch(gpu_messages_kernels.forward, grid, cut, given, num_warps=num_warps)
        gpu.launch(gpu_messages_kernels.merge_forward, grid, cut, given, num_warps=1)
    return out, stat, stat2


def backward(
    results: ops.MessageResults, call: MessageCall, needed: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`ops.backward` for sum, max and min."""
    structure = Structure(*call.edges)
    factors = contiguous(ops.find_factors(results, call.reduce))
    sides, grads, full = ops.prepare_gradients(call, needed, factors[0])
    if "u" in needed:
        fields = dict(BY_SOURCE=True, ROW_SIDE=sides["u"], grad=full["u"], EDGE_SIDE=0)
        num_dst = structure.indptr.size(0) - 1
        _run_backward(call, factors, structure.by_source, num_dst, fields, None)
    if "v" in needed or "e" in needed:
        fields = dict(BY_SOURCE=False, ROW_SIDE=sides.get("v", 0), grad=full.get("v"))
        fields |= dict(EDGE_SIDE=sides.get("e", 0))
        order = structure.by_destination
        _run_backward(call, factors, order, call.num_src, fields, grads[2])
    return ops.sum_gradients(call, grads, full)


def _run_backward(call, factors, order, num_others, fields, grad_edge) -> None:
    """Write the gradients of the operand of the rows and of that of the edges.

    Args:
        factors: gradient of each message that counts [num_dst, *shape], and the maxima or minima; a sum needs none.
    """
    factor, best = factors
    channels, e, width = call.full_shape.numel(), call.e, 0
    if fields["EDGE_SIDE"] and len(e):
        width = e[0].numel()
    if channels == 0 or order[0].numel() == 1:
        return
    group = channels // width if 0 < width < channels else None
    fields = _describe(call, group) | fields
    cut, grid, num_warps = _plan(fields, order, num_others)
    with torch.cuda.device_of(factor):
        partial = factor.new_empty((2 * grid[0], channels)) if fields["ROW_SIDE"] else None
        given = record(
            gpu_messages_kernels.Backward,
            **fields,
            factor=factor,
            best=best,
            partial=partial,
            grad_edge=grad_edge if fields["EDGE_SIDE"] else None,
            EDGE_WIDTH=width,
        )
        gpu.launch(gpu_messages_kernels.backward, grid, cut, given, num_warps=num_warps)
        if partial is not None:
            gpu.merge_sums(cut, fields["grad"], partial)


def register(device_type: str = "cuda") -> None:
    """Register these kernels for a type of device, which may be "cpu" under TRITON_INTERPRET=1."""
    gpu.register_sorting(device_type)
    ops.update_all.register_kernel(device_type, update_all)
    ops.backward.register_kernel(device_type, backward)

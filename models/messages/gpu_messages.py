"""The Triton kernels of ``update_all``: CUDA's versions of the operators in ops.py.

Chunks, blocks and the order of sums depend only on the sizes, never on the machine. Nothing waits for the device.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from parallel_epochs.models.aggregate import gpu
from parallel_epochs.models.kernels.walk import Edges, record
from parallel_epochs.models.messages import gpu_messages_kernels, ops
from parallel_epochs.models.messages.inputs import MESSAGES
from parallel_epochs.models.structure import Structure


def _describe(
    message: str,
    reduce: str,
    operands: dict[str, Tensor],
    shape: torch.Size,
    group: int | None = None,
) -> dict[str, Any]:
    """Return the fields of a record that are those of :data:`gpu_messages_kernels.MESSAGES`.

    Args:
        group: channels of a program, or none: as many as are good.
    """
    fields: dict[str, Any] = {}
    names = (*MESSAGES[message].names, "")
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
        OPERATION=MESSAGES[message].operation,
        REDUCE=reduce,
        D=channels,
        GROUP=group,
        BLOCK_D=max(16, triton.next_power_of_2(group)),
    )


def _plan(call: dict[str, Any], order: tuple, num_others: int) -> tuple[Edges, tuple, int]:
    """Return the edges, the grid, and the number of warps of a program."""
    ptr, other, position = gpu.make_contiguous(*order)
    block = call["BLOCK_D"]
    block_e = max(4, min(32, 512 // block))
    cut = gpu.plan(ptr, other, num_others, position, other.numel(), block_e)
    grid = cut.rows.size(1), triton.cdiv(call["D"], call["GROUP"])
    return cut, grid, 1 if block <= 128 else 4


def update_all(
    u: Tensor | None,
    v: Tensor | None,
    e: Tensor | None,
    edges: Sequence[Tensor | None],
    num_src: int,
    message: str,
    reduce: str,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`ops.update_all` for sum, max and min."""
    out, stat, stat2 = ops.allocate_rows(u, v, e, edges, message, reduce, save)
    if out.numel() == 0:
        return out, stat, stat2
    call = _describe(message, reduce, ops.named(u, v, e), out.shape[1:])
    cut, grid, num_warps = _plan(call, Structure(*edges).by_destination, num_src)
    num_states = 1 if reduce == "sum" else 3
    with torch.cuda.device_of(out):
        given = record(
            gpu_messages_kernels.Forward,
            **call,
            out=out,
            ties=stat if stat.numel() else None,
            partial=out.new_empty((2 * grid[0], num_states, call["D"])),
            STATES=num_states,
        )
        gpu.launch(gpu_messages_kernels.forward, grid, cut, given, num_warps=num_warps)
        gpu.launch(gpu_messages_kernels.merge_forward, grid, cut, given, num_warps=1)
    return out, stat, stat2


def backward(
    grad: Tensor,
    out: Tensor | None,
    stat: Tensor | None,
    stat2: Tensor | None,
    u: Tensor | None,
    v: Tensor | None,
    e: Tensor | None,
    edges: Sequence[Tensor | None],
    num_src: int,
    message: str,
    reduce: str,
    needed: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`ops.backward` for sum, max and min."""
    operands, shape, structure = ops.named(u, v, e), grad.shape[1:], Structure(*edges)
    factor, second = ops.find_factors(grad, out, stat, stat2, reduce)
    grads = ops.allocate_gradients(u, v, e, needed)
    sides = {name: side + 1 for side, name in enumerate(MESSAGES[message].names) if name in needed}
    full = {
        name: grad.new_empty((operands[name].size(0), *shape)) for name in "uv" if name in needed
    }
    common = message, reduce, operands, shape, factor, second
    if "u" in needed:
        _run_backward(
            *common,
            structure.by_source,
            structure.indptr.size(0) - 1,
            by_source=True,
            row_side=sides["u"],
            grad_row=full["u"],
        )
    if "v" in needed or "e" in needed:
        _run_backward(
            *common,
            structure.by_destination,
            num_src,
            by_source=False,
            row_side=sides.get("v", 0),
            grad_row=full.get("v"),
            edge_side=sides.get("e", 0),
            grad_edge=grads[2],
        )
    first, other = (
        ops.sum_to(full[name], operands[name]) if name in full else empty
        for name, empty in zip("uv", grads)
    )
    return first, other, grads[2]


def _run_backward(
    message,
    reduce,
    operands,
    shape,
    factor,
    best,
    order,
    num_others,
    *,
    by_source,
    row_side,
    grad_row,
    edge_side=0,
    grad_edge=None,
) -> None:
    """Write the gradients of the operand of the rows and of that of the edges.

    Args:
        factor: gradient of each message that counts [num_dst, *shape].
        best: the maxima or minima; a sum needs none.
    """
    channels, width = (
        shape.numel(),
        operands["e"][0].numel() if edge_side and len(operands["e"]) else 0,
    )
    if channels == 0 or order[0].numel() == 1:
        return
    group = channels // width if 0 < width < channels else None
    call = _describe(message, reduce, operands, shape, group)
    cut, grid, num_warps = _plan(call, order, num_others)
    factor, best = gpu.make_contiguous(factor, best)
    with torch.cuda.device_of(factor):
        partial = factor.new_empty((2 * grid[0], channels)) if row_side else None
        given = record(
            gpu_messages_kernels.Backward,
            **call,
            factor=factor,
            best=best,
            grad=grad_row,
            partial=partial,
            grad_edge=grad_edge if edge_side else None,
            BY_SOURCE=by_source,
            ROW_SIDE=row_side,
            EDGE_SIDE=edge_side,
            EDGE_WIDTH=width,
        )
        gpu.launch(gpu_messages_kernels.backward, grid, cut, given, num_warps=num_warps)
        if row_side:
            gpu.merge_sums(cut, grad_row, partial)


def register(device_type: str = "cuda") -> None:
    """Register these kernels for a type of device, which may be "cpu" under TRITON_INTERPRET=1."""
    gpu.register_sorting(device_type)
    ops.update_all.register_kernel(device_type, update_all)
    ops.backward.register_kernel(device_type, backward)

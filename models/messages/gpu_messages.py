"""The Triton kernels of ``update_all``: CUDA's versions of the operators in ops.py.

Chunks, blocks and the order of sums depend only on the sizes, never on the machine. Nothing waits for the device.
"""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from parallel_epochs.models.aggregate import gpu
from parallel_epochs.models.messages import cpu, gpu_messages_kernels, ops, several
from parallel_epochs.models.messages.inputs import MESSAGES
from parallel_epochs.models.structure import Structure


def _describe_sides(
    message: str, operands: dict[str, Tensor], shape: torch.Size
) -> tuple[list, dict]:
    """Return both operands with the columns that their channels have, and their names and widths."""
    tensors: list[Tensor | None] = []
    names, widths = (*MESSAGES[message].names, ""), []
    for name in names[:2]:
        operand = operands.get(name)
        columns, width = None, 0
        if operand is not None:
            trailing = operand.shape[1:]
            width = trailing.numel()
            if width != shape.numel():
                columns = torch.arange(width, dtype=torch.int32, device=operand.device)
                columns = columns.view(trailing).expand(shape).contiguous()
            operand = operand.contiguous()
        tensors += [operand, columns]
        widths.append(width)
    return tensors, dict(
        LEFT=names[0],
        RIGHT=names[1],
        LEFT_WIDTH=widths[0],
        RIGHT_WIDTH=widths[1],
        OPERATION=MESSAGES[message].operation,
    )


def _choose_blocks(channels: int, group: int | None = None) -> dict:
    """Choose the block sizes of a pass, in which a program has `group` channels, or as many as are good."""
    group = min(128, max(16, triton.next_power_of_2(channels))) if group is None else group
    block = max(16, triton.next_power_of_2(group))
    return dict(
        D=channels,
        GROUP=group,
        BLOCK_D=block,
        BLOCK_E=max(4, min(32, 512 // block)),
        num_warps=1 if block <= 128 else 4,
    )


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
    _reduce(
        message,
        ops.named(u, v, e),
        edges,
        num_src,
        {reduce: out},
        {reduce: stat} if stat.numel() else {},
    )
    return out, stat, stat2


def reduce_several(
    values: Tensor, edges: Sequence[Tensor | None], parts: str, save: bool
) -> tuple[Tensor, Tensor]:
    """Compute :func:`several.several`."""
    results, ties = several.allocate(values, edges, parts, save)
    _reduce(
        "copy_u",
        {"u": values},
        edges,
        values.size(0),
        dict(zip(parts.split(), results)),
        dict(zip(several.find_extremes(parts), ties)),
    )
    return results, ties


def _reduce(
    message: str,
    operands: dict[str, Tensor],
    edges: Sequence[Tensor | None],
    num_src: int,
    results: dict[str, Tensor],
    ties: dict[str, Tensor],
) -> None:
    """Write the results of some reductions and the numbers of ties, all by the names of reductions."""
    out = next(iter(results.values()))
    if out.numel() == 0:
        return
    indptr, src, position = gpu.make_contiguous(*Structure(*edges).by_destination)
    tensors, sides = _describe_sides(message, operands, out.shape[1:])
    blocks = _choose_blocks(out[0].numel())
    cut = gpu.plan(indptr, src, num_src, position, src.numel())
    grid = cut.num_chunks, triton.cdiv(blocks["D"], blocks["GROUP"])
    written = [*map(results.get, cpu.PARTS), *map(ties.get, several.EXTREMES)]
    num_sums = len(results.keys() - {*several.EXTREMES})
    options = dict(SUMS=num_sums, STATES=3 * len(results) - 2 * num_sums, WIDE=cut.wide)
    with torch.cuda.device_of(out):
        partial = out.new_empty((2 * cut.num_chunks, options["STATES"], blocks["D"]))
        gpu.launch(
            gpu_messages_kernels.forward,
            grid,
            *tensors,
            indptr,
            cut.cuts,
            cut.rows,
            src,
            position,
            *written,
            partial,
            **options,
            **sides,
            **blocks,
        )
        gpu.launch(
            gpu_messages_kernels.merge_forward,
            grid,
            indptr,
            cut.cuts,
            cut.rows,
            *written,
            partial,
            cut.chunk_items,
            **options,
            D=blocks["D"],
            GROUP=blocks["GROUP"],
            BLOCK_C=8,
            BLOCK_D=blocks["BLOCK_D"],
            num_warps=1,
        )


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
    common = message, operands, shape, {reduce: factor}, {reduce: second}
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


def differentiate_several(
    gradient: Tensor,
    results: Tensor,
    ties: Tensor,
    values: Tensor,
    edges: Sequence[Tensor | None],
    parts: str,
) -> Tensor:
    """Compute :func:`several.backward`."""
    out = torch.empty_like(values, memory_format=torch.contiguous_format)
    _run_backward(
        "copy_u",
        {"u": values},
        values.shape[1:],
        several.divide_by_ties(gradient, ties, parts),
        dict(zip(parts.split(), results)),
        Structure(*edges).by_source,
        results.size(1),
        by_source=True,
        row_side=1,
        grad_row=out,
    )
    return out


def _run_backward(
    message,
    operands,
    shape,
    factors,
    results,
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
        factors: by reduction, the gradient of each message that counts [num_dst, *shape].
        results: by reduction, what it returned; sums need none.
    """
    ptr, other, position = gpu.make_contiguous(*order)
    channels, width = (
        shape.numel(),
        operands["e"][0].numel() if edge_side and len(operands["e"]) else 0,
    )
    if channels == 0 or ptr.numel() == 1:
        return
    cut = gpu.plan(ptr, other, num_others, position, other.numel())
    tensors, sides = _describe_sides(message, operands, shape)
    blocks = _choose_blocks(channels, channels // width if 0 < width < channels else None)
    read = gpu.make_contiguous(*map(factors.get, cpu.PARTS), *map(results.get, several.EXTREMES))
    with torch.cuda.device_of(other):
        partial = (
            next(iter(factors.values())).new_empty((2 * cut.num_chunks, channels))
            if row_side
            else None
        )
        grid = cut.num_chunks, triton.cdiv(channels, blocks["GROUP"])
        gpu.launch(
            gpu_messages_kernels.backward,
            grid,
            *tensors,
            ptr,
            cut.cuts,
            cut.rows,
            other,
            position,
            *read,
            grad_row,
            partial,
            grad_edge if edge_side else None,
            BY_SOURCE=by_source,
            ROW_SIDE=row_side,
            EDGE_SIDE=edge_side,
            EDGE_WIDTH=width,
            WIDE=cut.wide,
            **sides,
            **blocks,
        )
        if row_side:
            gpu.merge_sums(ptr, cut, grad_row, partial)


def register(device_type: str = "cuda") -> None:
    """Register these kernels for a type of device, which may be "cpu" under TRITON_INTERPRET=1."""
    gpu.register_sorting(device_type)
    ops.update_all.register_kernel(device_type, update_all)
    ops.backward.register_kernel(device_type, backward)
    several.several.register_kernel(device_type, reduce_several)
    several.backward.register_kernel(device_type, differentiate_several)

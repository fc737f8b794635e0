"""Rows of a matrix that a GPU reads from page-locked memory, by a kernel in Triton: torch has no operation for it."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def gather(
    far, near, slot, rows, out, num_rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """See :func:`gather_rows`."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = row < num_rows
    inside = there[:, None] & (column < columns)[None, :]
    number = tl.load(rows + row, mask=there, other=0).to(tl.int64)
    if slot is None:
        found = tl.load(far + number[:, None] * columns + column[None, :], mask=inside, other=0)
    else:
        place = tl.load(slot + number, mask=there, other=0).to(tl.int64)
        is_near = inside & (place >= 0)[:, None]
        is_far = inside & (place < 0)[:, None]
        found = tl.load(near + place[:, None] * columns + column[None, :], mask=is_near, other=0)
        found = tl.where(
            is_near,
            found,
            tl.load(far + number[:, None] * columns + column[None, :], mask=is_far, other=0),
        )
    tl.store(out + row.to(tl.int64)[:, None] * columns + column[None, :], found, mask=inside)


def gather_rows(far: Tensor, near: Tensor | None, slot: Tensor | None, rows: Tensor) -> Tensor:
    """Compute ``far[rows]`` on the device of `rows`; rows with a slot are read from ``near[slot]`` instead.

    Args:
        far: [num_rows, columns], contiguous, in page-locked memory.
        near: [num_near, columns], contiguous, on the device; none with `slot`.
        slot: the place in `near` of each row of `far`, int32 [num_rows]; -1 for rows that are not there.
        rows: numbers of rows, int64, on the device.
    """
    columns = far.size(1)
    out = torch.empty(len(rows), columns, dtype=far.dtype, device=rows.device)
    if out.numel():
        block = min(128, triton.next_power_of_2(columns))
        size = max(1, 1024 // block)
        with torch.cuda.device_of(rows):
            gather[triton.cdiv(len(rows), size), triton.cdiv(columns, block)](
                far, near, slot, rows, out, len(rows), columns, ROWS=size, COLUMNS=block
            )
    return out

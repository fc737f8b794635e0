"""The Triton kernels of LayerNorm, ReLU and dropout: the counterpart of norm.h, with the same random numbers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from parallel_epochs.models.kernels import norm

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
FIRST, SECOND = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)
# Elements of a program.
ELEMENTS = 2048


@triton.jit
def hash_elements(seed, number, column):
    """Compute hash.h's `hash_element` of the numbers of rows or edges, in a `column` times 0x9e3779b1, as int64."""
    z = tl.load(seed).to(tl.uint64) + (number + 1).to(tl.uint64) * GOLDEN
    z = (z ^ (z >> 30)) * FIRST
    z = (z ^ (z >> 27)) * SECOND
    key = z ^ (z >> 31)
    h = tl.add(column, key.to(tl.uint32), sanitize_overflow=False)
    h = tl.mul(h ^ (h >> 16), 0x7FEB352D, sanitize_overflow=False)
    h = tl.add(h, (key >> 32).to(tl.uint32), sanitize_overflow=False)
    h = tl.mul(h ^ (h >> 15), 0x846CA68B, sanitize_overflow=False)
    return (h ^ (h >> 16)).to(tl.int64)


@triton.jit
def load_block(values, num_rows, D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load the block of rows of this program, [BLOCK_R, BLOCK_D]; returns numbers of rows, places, which are valid, and
    values.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    lane = tl.arange(0, BLOCK_D)
    at = row[:, None] * D + lane[None, :]
    valid = (row < num_rows)[:, None] & (lane < D)[None, :]
    return row, at, valid, tl.load(values + at, mask=valid, other=0.0)


@triton.jit
def keep(values, seed, row, threshold, rescale, BLOCK_D: tl.constexpr):
    """Multiply a block by its dropout factors, 0 or `rescale`."""
    if threshold is None:
        return values
    else:
        column = tl.mul(tl.arange(0, BLOCK_D).to(tl.uint32), 0x9E3779B1, sanitize_overflow=False)
        hashes = hash_elements(seed, row[:, None], column[None, :])
        return tl.where(hashes >= tl.cast(threshold, tl.int64), values * rescale, 0.0)


@triton.jit
def forward_rows(
    x,
    weight,
    bias,
    seed,
    out,
    mean,
    scale,
    num_rows,
    eps,
    threshold,
    rescale,
    D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the result, mean and scale of a block of rows."""
    row, at, valid, a = load_block(x, num_rows, D, BLOCK_R, BLOCK_D)
    lane = tl.arange(0, BLOCK_D)
    center = tl.sum(a, 1) / D
    a = tl.where(valid, a - center[:, None], 0.0)
    factor = 1 / tl.sqrt(tl.sum(a * a, 1) / D + eps)
    w = tl.load(weight + lane, mask=lane < D, other=0.0)[None, :]
    b = tl.load(bias + lane, mask=lane < D, other=0.0)[None, :]
    y = a * factor[:, None] * w + b
    y = tl.where(y > 0.0, y, tl.where(y == y, 0.0, y))
    tl.store(out + at, keep(y, seed, row, threshold, rescale, BLOCK_D), mask=valid)
    tl.store(mean + row, center, mask=row < num_rows)
    tl.store(scale + row, factor, mask=row < num_rows)


@triton.jit
def backward_rows(
    grad,
    x,
    mean,
    scale,
    weight,
    bias,
    seed,
    grad_x,
    sums,
    num_rows,
    threshold,
    rescale,
    D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the gradient of a block of rows, and its part of those of weight and bias."""
    row, at, valid, a = load_block(x, num_rows, D, BLOCK_R, BLOCK_D)
    lane, there = tl.arange(0, BLOCK_D), row < num_rows
    center = tl.load(mean + row, mask=there, other=0.0)
    factor = tl.load(scale + row, mask=there, other=0.0)
    w = tl.load(weight + lane, mask=lane < D, other=0.0)[None, :]
    b = tl.load(bias + lane, mask=lane < D, other=0.0)[None, :]
    a = tl.where(valid, (a - center[:, None]) * factor[:, None], 0.0)
    g = keep(tl.load(grad + at, mask=valid, other=0.0), seed, row, threshold, rescale, BLOCK_D)
    g = tl.where(a * w + b > 0.0, g, 0.0)
    into = sums + tl.program_id(0) * (2 * D) + lane
    tl.store(into, tl.sum(g * a, 0), mask=lane < D)
    tl.store(into + D, tl.sum(g, 0), mask=lane < D)
    q = g * w
    along = tl.sum(q * a, 1) / D
    tl.store(
        grad_x + at,
        (q - (tl.sum(q, 1) / D)[:, None] - a * along[:, None]) * factor[:, None],
        mask=valid,
    )


def run(kernel, grid: tuple[int], *args, **options) -> None:
    """Run a kernel."""
    kernel[grid](*args, enable_fp_fusion=True, **options)


def _choose_blocks(x: Tensor, dropout: float) -> tuple[int, tuple, dict]:
    """Return the number of programs, threshold and rescale of dropout, and the sizes of blocks."""
    block_d = triton.next_power_of_2(x.size(1))
    block_r = max(1, ELEMENTS // block_d)
    numbers = (int(dropout * 2**32), 1 / (1 - dropout)) if dropout else (None, 1.0)
    return (
        triton.cdiv(x.size(0), block_r),
        numbers,
        dict(D=x.size(1), BLOCK_R=block_r, BLOCK_D=block_d, num_warps=4),
    )


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, eps: float, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`models.kernels.norm.forward`."""
    x = x.contiguous()
    out, mean, scale = norm.allocate_outputs(x)
    if out.numel():
        num_programs, numbers, sizes = _choose_blocks(x, dropout)
        with torch.cuda.device_of(x):
            run(
                forward_rows,
                (num_programs,),
                x,
                weight,
                bias,
                seed,
                out,
                mean,
                scale,
                x.size(0),
                eps,
                *numbers,
                **sizes,
            )
    return out, mean, scale


def backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor,
    eps: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`models.kernels.norm.backward`. The order of its sums depends on the sizes alone."""
    x, grad_x = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    num_programs, numbers, sizes = _choose_blocks(x, dropout)
    sums = x.new_zeros((max(num_programs, 1), 2, x.size(1)))
    if grad_x.numel():
        with torch.cuda.device_of(x):
            run(
                backward_rows,
                (num_programs,),
                grad.contiguous(),
                x,
                mean,
                scale,
                weight,
                bias,
                seed,
                grad_x,
                sums,
                x.size(0),
                *numbers,
                **sizes,
            )
    return grad_x, sums[:, 0].sum(0), sums[:, 1].sum(0)  # an operator's results share no memory


def register(device_type: str = "cuda") -> None:
    """Register these kernels for a type of device, which may be "cpu" under TRITON_INTERPRET=1."""
    norm.forward.register_kernel(device_type, forward)
    norm.backward.register_kernel(device_type, backward)

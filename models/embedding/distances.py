"""Sums of the moduli of complex differences between many rows, in compiled C++ or in blocks by torch."""

import ctypes
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from parallel_epochs.models.kernels.native import NativeLibrary

# Smallest square of a modulus, whose gradient at 0 would be infinite.
TINY = 1e-30
# Number of differences that torch computes at a time: so that they stay in a processor's cache, and on a GPU.
BLOCK, GPU_BLOCK = 1 << 15, 1 << 26

LIBRARY = NativeLibrary(
    "distances", Path(__file__).with_name("distances.cpp"), otherwise="torch computes them instead"
)


def modulus_distances(
    queries: Float[Tensor, "batch n dim"],
    entities: Float[Tensor, "batch m dim"],
    *,
    native: bool = True,
) -> Float[Tensor, "batch n m"]:
    """Sum the moduli of the complex differences of every query and every entity of the same batch.

    Args:
        queries, entities: rows of complex numbers, first all real parts, then all imaginary parts.
        native: whether C++ computes float32 on the CPU if it compiles. The results of torch differ only by rounding.
    """
    fits = queries.dtype == entities.dtype == torch.float32 and not queries.is_cuda
    if native and fits and LIBRARY.get() is not None:
        return _NativeDistances.apply(queries.contiguous(), entities.contiguous())
    return torch.stack(
        [_DistancesInBlocks.apply(q, e) for q, e in zip(queries, entities, strict=True)]
    )


def _pointers(*tensors: Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def _sizes(queries: Tensor, entities: Tensor) -> list[ctypes.c_int64]:
    batches, n, dim = queries.shape
    return [
        ctypes.c_int64(size)
        for size in (batches, n, entities.size(1), dim // 2, torch.get_num_threads())
    ]


class _NativeDistances(torch.autograd.Function):
    """Saves only the rows; backward computes the differences again."""

    @staticmethod
    def forward(ctx, queries: Tensor, entities: Tensor) -> Tensor:
        ctx.save_for_backward(queries, entities)
        sums = queries.new_empty(*queries.shape[:2], entities.size(1))
        LIBRARY.get().modulus_forward(
            *_pointers(queries, entities, sums), *_sizes(queries, entities)
        )
        return sums

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        queries, entities = ctx.saved_tensors
        grad, found = grad.contiguous(), (torch.zeros_like(queries), torch.zeros_like(entities))
        LIBRARY.get().modulus_backward(
            *_pointers(queries, entities, grad, *found), *_sizes(queries, entities)
        )
        return found


class _DistancesInBlocks(torch.autograd.Function):
    """Computes the sums of one batch [n, m] in torch, a block at a time."""

    @staticmethod
    def forward(ctx, queries: Tensor, entities: Tensor) -> Tensor:
        ctx.save_for_backward(queries, entities)
        real, imaginary = entities.chunk(2, 1)
        return torch.cat(
            [_differences(q, real, imaginary)[2].sum(-1) for q in _blocks(queries, entities)]
        )

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        queries, entities = ctx.saved_tensors
        real, imaginary = entities.chunk(2, 1)
        to_queries, to_entities = [], torch.zeros_like(entities)
        for q, g in zip(_blocks(queries, entities), _blocks(grad, entities), strict=True):
            by_real, by_imaginary, size = _differences(q, real, imaginary)
            scale = g.unsqueeze(-1) / size
            by_real, by_imaginary = by_real.mul_(scale), by_imaginary.mul_(scale)
            to_queries.append(torch.cat([by_real.sum(1), by_imaginary.sum(1)], dim=1))
            to_entities -= torch.cat([by_real.sum(0), by_imaginary.sum(0)], dim=1)
        return torch.cat(to_queries), to_entities


def _blocks(rows: Tensor, entities: Tensor) -> tuple[Tensor, ...]:
    return rows.split(
        max(1, (GPU_BLOCK if rows.is_cuda else BLOCK) // max(entities.numel() // 2, 1))
    )


def _differences(queries: Tensor, real: Tensor, imaginary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute real part, imaginary part and modulus of every difference, each [n, m, dim / 2]."""
    by_real, by_imaginary = (
        q.unsqueeze(1) - e for q, e in zip(queries.chunk(2, 1), (real, imaginary), strict=True)
    )
    return (
        by_real,
        by_imaginary,
        torch.addcmul(by_real * by_real, by_imaginary, by_imaginary).clamp_(min=TINY).sqrt_(),
    )

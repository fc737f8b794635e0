"""Sums of the moduli of complex differences between many rows, in compiled C++ or in blocks by torch."""

import ctypes
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

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
    size = max(1, (GPU_BLOCK if queries.is_cuda else BLOCK) // max(entities[0].numel() // 2, 1))
    return torch.stack(
        [
            torch.cat([checkpoint(_add_up, part, e, use_reentrant=False) for part in q.split(size)])
            for q, e in zip(queries, entities, strict=True)
        ]
    )


def modulus(rows: Float[Tensor, "*batch dim"], parts: int) -> Float[Tensor, "*batch numbers"]:
    """Compute the moduli of numbers that have `parts` real numbers each [..., dim / parts]."""
    if parts == 1:
        return rows.abs()
    return torch.stack(rows.chunk(parts, -1)).square().sum(0).clamp(min=TINY).sqrt()


def _add_up(queries: Tensor, entities: Tensor) -> Tensor:
    """Sum the moduli of the differences of some rows, which backward computes again."""
    return modulus(queries.unsqueeze(1) - entities, 2).sum(-1)


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

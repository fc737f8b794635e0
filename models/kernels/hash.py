"""Random numbers as hashes, bit for bit those of hash.h: no draw depends on threads or on the draws before it."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Bits = TypeVar("Bits", int, np.ndarray)
# Difference of two neighbours in a SplitMix64 sequence: 2^64 divided by the golden ratio.
GOLDEN = 0x9E3779B97F4A7C15
MASK = 2**64 - 1
_LOW = 2**32 - 1
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(z: Bits) -> Bits:
    """Compute the finaliser of SplitMix64 of a number below 2^64, or of each number of a uint64 array."""
    z = (z ^ (z >> 30)) * _FIRST & MASK
    z = (z ^ (z >> 27)) * _SECOND & MASK
    return z ^ (z >> 31)


def mix_tensor(z: Tensor) -> Tensor:
    """Compute :func:`mix` of each number of an int64 tensor, whose 64 bits stand for an unsigned number."""
    z = (z ^ shift_right(z, 30)) * signed(_FIRST)
    z = (z ^ shift_right(z, 27)) * signed(_SECOND)
    return z ^ shift_right(z, 31)


def shift_right(z: Tensor, places: int) -> Tensor:
    """Shift the 64 bits of each number to the right and fill up with zeros, whatever its sign."""
    return (z >> places) & (1 << 64 - places) - 1


def draw_factors(seed: Tensor, row: Tensor, lane: Tensor, dropout: float) -> Tensor:
    """Draw the dropout factors, 0 or 1 / (1 - dropout), of elements: a function of (seed, row, lane) alone.

    Args:
        seed: one int64.
        row: numbers of the rows [num_rows], int64.
        lane: numbers of the columns [num_columns], int64, below 2^32.
        dropout: probability of 0, in [0, 1].

    Returns:
        [num_rows, num_columns], float32.
    """
    key = mix_tensor(seed + (row + 1) * signed(GOLDEN)).unsqueeze(1)
    h = (lane * 0x9E3779B1 + (key & _LOW)) & _LOW
    h = ((h ^ h >> 16) * 0x7FEB352D + shift_right(key, 32)) & _LOW
    h = (h ^ h >> 15) * 0x846CA68B & _LOW
    h = h ^ h >> 16
    factor = 0.0 if dropout == 1 else 1 / (1 - dropout)
    return (h >= min(int(dropout * 2**32), _LOW)) * torch.full(
        (), factor, dtype=torch.float32, device=row.device
    )


def signed(bits: int) -> int:
    """Return the int64 that has the same 64 bits as an unsigned number."""
    return bits - 2**64 if bits >= 2**63 else bits

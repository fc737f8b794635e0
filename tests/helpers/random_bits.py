"""Sequences of random numbers as the kernels of tables draw them, one after the other."""

from collections.abc import Iterator

import numpy as np

from parallel_epochs.models.kernels.hash import GOLDEN, MASK, mix


def draw_row(bits: int, accept: np.ndarray, alias: np.ndarray) -> int:
    """Draw a row of an alias table [num_rows] with the probability that the table gives it."""
    row = (bits >> 32) * len(accept) >> 32
    return row if ((bits & 0xFFFFFFFF) >> 8) / 2**24 < accept[row] else int(alias[row])


def random_bits(key: int) -> Iterator[int]:
    """Generate the numbers of a SplitMix64 sequence: each is a hash of the key and of its place."""
    place = 0
    while True:
        place += 1
        yield mix(key + place * GOLDEN & MASK)

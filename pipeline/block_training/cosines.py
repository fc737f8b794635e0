"""Cosines and products of vectors: of given pairs, and of each vector's nearest."""

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.models.embedding.spectral import unit_rows
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.stop import StopRequest

# Products of two vectors that are computed at a time: for given pairs, and for nearest vectors.
PAIRS, MAX_PRODUCTS = 1 << 18, 2**26


def compare_pairs(
    vectors: np.ndarray,
    pairs: np.ndarray,
    *,
    score: str = "cosine",
    stop: StopRequest | None = None,
) -> np.ndarray:
    """Compute the cosines or dot products of pairs of vectors, some at a time, as memory may not hold all vectors.

    Args:
        vectors: of any length [num_nodes, dim].
        pairs: [num_pairs, 2].
        score: "cosine" or "dot".
        stop: asks for an end after the pairs in hand.

    Returns:
        [num_pairs], of the type of the vectors.

    Raises:
        Stopped: it was asked for.
    """
    scores = np.empty(len(pairs), vectors.dtype)
    for first in range(0, len(pairs), PAIRS):
        heed(stop)
        heads, tails = (
            vectors[ends] if score == "dot" else unit_rows(vectors[ends])
            for ends in pairs[first : first + PAIRS].T
        )
        scores[first : first + PAIRS] = np.einsum("ij,ij->i", heads, tails)
    return scores


def nearest_of(unit: Tensor, count: int, rows: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Find those of some vectors that have the largest cosines with each of others.

    Args:
        unit: vectors of length 1 [num_nodes, dim].
        rows: numbers of the vectors whose nearest are asked for [num_rows].
        among: numbers of those that may be found [num_others].

    Returns:
        Their numbers, the nearest first, and the cosines [num_rows, count]; no vector is its own nearest, and the
        cosine is minus infinity where there are too few.
    """
    count, others = min(count, len(among)), unit[among]
    numbers = torch.empty(len(rows), count, dtype=torch.int64)
    cosines = torch.empty(len(rows), count)
    size = max(1, MAX_PRODUCTS // len(among))
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        products = unit[part] @ others.T
        products.masked_fill_(part[:, None] == among, -torch.inf)
        cosines[first : first + size], found = products.topk(count)
        numbers[first : first + size] = among[found]
    return numbers, cosines


def heed(stop: StopRequest | None) -> None:
    """Send a heartbeat, and stop if a signal has asked for it.

    Raises:
        Stopped: a signal has asked the run to stop.
    """
    pulse.beat("scoring vectors", pulse.State.LONG)
    if stop is not None:
        stop.check()

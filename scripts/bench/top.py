"""Time of the likeliest targets of many sources by vectors, compared with numpy in tiles."""

import numpy as np
import torch

from parallel_epochs.pipeline.gnn.ranking import NUMBERS, Best, Direction, find_best
from parallel_epochs.scripts.bench.measure import extra_of_both, side_by_side, write_row


def bench_top(
    num_sources: int = 10_000,
    num_targets: int = 100_000,
    dim: int = 128,
    top: int = 10,
    repeat: int = 3,
) -> None:
    """Measure the search for the largest products of vectors, as predict top=K makes it, beside numpy's.

    Both hold as many products at a time, and numpy has the same number of threads.

    Args:
        num_sources: number of vectors that are asked about.
        num_targets: number of vectors among which the targets are.
        top: number of targets of a source.

    Raises:
        SystemExit: the two find different products.
    """
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((num_sources + num_targets, dim), np.float32)
    own, sources = torch.from_numpy(vectors), torch.arange(num_sources)
    direction = Direction(sources, torch.arange(num_sources, num_sources + num_targets))

    def ours() -> Best:
        return find_best(
            lambda rows, columns: own[rows] @ own[columns].t(),
            sources,
            top,
            torch.empty(0, 2, dtype=torch.int64),
            direction,
        )

    def theirs() -> np.ndarray:
        return _search(vectors[:num_sources], vectors[num_sources:], top)

    found, expected = ours().scores.view(num_sources, -1).numpy(), theirs()
    if not np.allclose(found, expected, rtol=1e-4, atol=1e-4):
        raise SystemExit("numpy finds other products: nothing is timed")
    write_row(
        {
            "num_sources": num_sources,
            "num_targets": num_targets,
            "dim": dim,
            "top": top,
            **side_by_side(theirs, ours, repeat, peer="numpy"),
            **extra_of_both(theirs, ours, "numpy"),
        }
    )


def _search(sources: np.ndarray, targets: np.ndarray, top: int) -> np.ndarray:
    """Return the largest products of each source [num_sources, top], the largest first."""
    found, rows = [], max(1, NUMBERS // len(targets))
    for first in range(0, len(sources), rows):
        products = sources[first : first + rows] @ targets.T
        place = np.argpartition(products, -top, axis=1)[:, -top:]
        found.append(-np.sort(-np.take_along_axis(products, place, 1), axis=1))
    return np.concatenate(found)

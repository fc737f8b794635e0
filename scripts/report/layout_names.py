"""Names of classes on a map: each where its class is densest, largest first, and none over another."""

from dataclasses import dataclass

import numpy as np

CELLS = 60  # of the longer side, in which points are counted
LEAST_SHARE = (
    0.2  # of the points around a name that are of its class; below, the name would mislead
)
AROUND = (
    (0, 0),
    (0, 1),
    (0, -1),
    (1, 0),
    (-1, 0),
    (1, 1),
    (-1, 1),
    (1, -1),
    (-1, -1),
    (0, 2),
    (0, -2),
)


@dataclass(frozen=True)
class Name:
    """A name at the place of its middle, which has the units of the points."""

    label: int
    text: str
    x: float
    y: float


def place_names(
    points: np.ndarray, labels: np.ndarray, sizes: dict[int, tuple[str, float, float]]
) -> list[Name]:
    """Choose the names that a map shows, and their places.

    Args:
        points: float64 [num_points, 2].
        labels: int64 [num_points], the class of each, -1 for none.
        sizes: of each class that may be named, from the most important to the least: its name, width and height in the
            units of the points.
    """
    low, high = points.min(0), points.max(0)
    cell = float((high - low).max()) / CELLS or 1.0
    at = np.floor((points - low) / cell).astype(np.int64)
    shape = tuple(at.max(0) + 1)
    everything = _count(at, shape)
    placed: list[tuple[Name, np.ndarray]] = []
    for label, (text, width, height) in sizes.items():
        own = _count(at[labels == label], shape)
        share = own / np.maximum(everything, 1)
        best = np.unravel_index((own * share).argmax(), shape)
        if share[best] < LEAST_SHARE:
            continue
        near = points[(labels == label) & (abs(at - best).max(1) <= 1)]
        middle = np.median(near, axis=0)
        # Where its points lie closer together than the name is high, it stands beside them and does not hide them.
        hides = float(np.median(abs(near - middle).max(1))) < height
        for right, up in AROUND[1:] if hides else AROUND:
            x, y = middle + (right * (width / 2 + cell), up * 1.1 * height)
            box = np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
            if not any(_overlap(box, other) for _, other in placed):
                placed.append((Name(label, text, float(x), float(y)), box))
                break
    return [name for name, _ in placed]


def _count(at: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Count points in each cell and the eight around it."""
    counts = np.zeros((shape[0] + 2, shape[1] + 2))
    np.add.at(counts, tuple(at.T + 1), 1)
    return sum(counts[i : i + shape[0], j : j + shape[1]] for i in range(3) for j in range(3))


def _overlap(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((one[:2] < other[2:]).all() and (other[:2] < one[2:]).all())

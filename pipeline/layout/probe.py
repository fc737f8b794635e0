"""Metrics of a layout: accuracy of nearest neighbours, trustworthiness, and the AUC of links by their length."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from parallel_epochs.pipeline.metrics import rocauc
from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.run.seeds import stream
from parallel_epochs.pipeline.run.threads import in_chunks

# Neighbours that vote, neighbours that trustworthiness looks at, and links whose lengths are compared.
NUM_VOTES, NUM_TRUSTED, MAX_LINKS = 10, 5, 200_000
# Points worked on at a time.
CHUNK = 250


def nearest_in(positions: np.ndarray, k: int) -> np.ndarray:
    """Find the nearest other points of each, no more than there are.

    Args:
        positions: [num_points, dim].

    Returns:
        Numbers, the nearest first [num_points, k], int64.
    """
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(
        n_neighbors=min(k, len(positions) - 1), n_jobs=torch.get_num_threads()
    )
    return search.fit(positions).kneighbors(return_distance=False)


def vote(positions: np.ndarray, labels: np.ndarray) -> float:
    """Compute how often the ten nearest other points have a majority for a point's own label.

    Each point is left out in turn, as in leave-one-out cross-validation of scikit-learn's ``KNeighborsClassifier(10)``;
    of labels with as many votes the smallest wins.

    Args:
        positions: [num_points, dim].
        labels: [num_points], from 0, or -1 for none: these points neither vote nor count.

    Returns:
        In [0, 1], or NaN if fewer than two points have labels.
    """
    known = np.flatnonzero(labels >= 0)
    if len(known) < 2:
        return float("nan")
    positions, labels = positions[known], labels[known]
    votes = np.zeros((len(known), int(labels.max()) + 1), np.int64)
    for neighbor in nearest_in(positions, NUM_VOTES).T:
        votes[np.arange(len(known)), labels[neighbor]] += 1
    return float((votes.argmax(1) == labels).mean())


def trust(
    positions: np.ndarray, x: np.ndarray, points: np.ndarray, *, k: int = NUM_TRUSTED
) -> float:
    """Compute the trustworthiness of a layout: 1, less a penalty for neighbours that were far apart before.

    That of scikit-learn (Venna and Kaski, https://doi.org/10.1007/3-540-44668-0_68), over some of the points; as near
    as the neighbour itself is not nearer.

    Args:
        positions: [num_points, dim].
        x: what the layout is of [num_points, channels], float32.
        points: numbers of those whose neighbours are looked at.

    Returns:
        In [0, 1], or NaN where there are not more than ``2 * k`` points.
    """
    num_points = len(x)
    if num_points <= 2 * k:
        return float("nan")
    near = nearest_in(positions, k)[points]
    x = x - x.mean(0, dtype=np.float64).astype(np.float32)
    squares, turned = np.einsum("ij,ij->i", x, x), np.ascontiguousarray(x.T)

    def penalty(chunk: slice) -> int:
        rows = np.arange(chunk.stop - chunk.start)
        distance = (-2 * x[points[chunk]]) @ turned
        distance += squares
        distance[rows, points[chunk]] = np.inf
        total = 0
        for neighbor in near[chunk].T:
            nearer = (distance < distance[rows, neighbor][:, None]).sum(1)
            total += int(np.maximum(nearer + 1 - k, 0).sum())
        return total

    total = sum(in_chunks(penalty, len(points), CHUNK))
    return 1 - 2 * total / (len(points) * k * (2 * num_points - 3 * k - 1))


def compare_links(positions: np.ndarray, links: np.ndarray, others: np.ndarray) -> float:
    """Compute how often a link is shorter than a pair of points drawn at random: the area under the ROC curve.

    Args:
        links, others: pairs of points [num_pairs, 2].
    """
    pairs, truth = np.concatenate([links, others]), np.repeat([1.0, 0.0], [len(links), len(others)])
    length = np.linalg.norm(
        positions[pairs[:, 0]].astype(np.float64) - positions[pairs[:, 1]], axis=1
    )
    return rocauc(torch.from_numpy(truth).unsqueeze(1), torch.from_numpy(-length).unsqueeze(1))


@dataclass
class LayoutProbe:
    """Scores layouts; no point is held out, so the three splits are one number.

    Attributes:
        scores: by name, each a function of positions [num_points, dim].
        metric: which of them is that of the splits.
    """

    scores: Mapping[str, Callable[[np.ndarray], float]]
    metric: str

    def __call__(self, positions: np.ndarray) -> dict[str, float]:
        """Compute all scores."""
        scores = {name: score(positions) for name, score in self.scores.items()}
        return {**dict.fromkeys(SPLITS, scores[self.metric]), **scores}


def sample_points(num_points: int, count: int, seed: int) -> np.ndarray:
    """Choose points to score, in their order: always the same ones; 0 for all."""
    if not 0 < count < num_points:
        return np.arange(num_points)
    return np.sort(stream("points to score", seed).choice(num_points, count, replace=False))


def sample_links(links: np.ndarray, num_points: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose links [num_links, 2] and as many pairs of different points, always the same ones."""
    rng = stream("links to score", seed)
    if len(links) > MAX_LINKS:
        links = links[np.sort(rng.choice(len(links), MAX_LINKS, replace=False))]
    first = rng.integers(num_points, size=len(links))
    return links, np.stack(
        [first, (first + rng.integers(1, num_points, size=len(links))) % num_points], axis=1
    )

"""Scores vectors of nodes by a linear classifier of labels, and by the links that they predict."""

import logging
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from parallel_epochs.models.embedding.spectral import unit_rows
from parallel_epochs.pipeline.block_training.cosines import compare_pairs, heed
from parallel_epochs.pipeline.metrics import rocauc
from parallel_epochs.pipeline.node_embedding.logistic import fit_labels
from parallel_epochs.pipeline.run.log import format_score
from parallel_epochs.pipeline.run.seeds import stream
from parallel_epochs.pipeline.run.stop import StopRequest

log = logging.getLogger(__name__)

# Fraction of the labelled nodes for the metric of each split, and of these for training where the others validate.
HALF, FITTED = 0.5, 0.9


def classify(
    vectors: np.ndarray,
    labels: np.ndarray,
    train: np.ndarray,
    others: Sequence[np.ndarray],
    *,
    num_threads: int = 1,
    stop: StopRequest | None = None,
) -> list[dict[str, float]]:
    """Fit a logistic regression for each label (one against the rest, as liblinear's with C = 1), and predict as many
    labels of each other node as it has, those of the largest scores: the protocol of DeepWalk and what came after it.

    Args:
        vectors: [num_nodes, dim]; rows are brought to length 1.
        labels: 0 or 1 [num_nodes, num_labels].
        train: numbers of the nodes to fit on.
        others: numbers of the nodes to predict; several sets of them.
        stop: asks for an end after the labels in hand.

    Returns:
        ``micro_f1`` and ``macro_f1`` of each set, of the labels that some of its nodes have; NaN for an empty one.

    Raises:
        ValueError: a vector is not finite.
        Stopped: it was asked for.
    """
    if not np.isfinite(vectors).all():
        raise ValueError("some vectors are not finite: training has diverged. Lower train.lr")
    vectors, known = unit_rows(vectors), labels[train] > 0
    predicted = np.concatenate(list(others))
    # Nothing tells a label apart that all nodes have, or none.
    scores = np.where(known.all(0), np.inf, -np.inf) * np.ones((len(predicted), 1))
    told = known.any(0) & ~known.all(0)
    weights = fit_labels(
        vectors[train], known[:, told], num_threads=num_threads, before_label=partial(heed, stop)
    )
    scores[:, told] = vectors[predicted] @ weights[:-1] + weights[-1]
    rank = (-scores).argsort(1, kind="stable").argsort(1, kind="stable")
    chosen = rank < labels[predicted].sum(1, keepdims=True)
    ends = np.cumsum([len(nodes) for nodes in others])[:-1]
    return [
        _f1(labels[nodes], part) for nodes, part in zip(others, np.split(chosen, ends), strict=True)
    ]


def _f1(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    # Scikit-learn is imported where it is used: it takes seconds, and no other run shall wait for it.
    from sklearn.metrics import f1_score

    occurs = truth.any(0)
    if not occurs.any():
        return {"micro_f1": float("nan"), "macro_f1": float("nan")}
    return {
        f"{average}_f1": float(
            f1_score(truth[:, occurs], predicted[:, occurs], average=average, zero_division=0)
        )
        for average in ("micro", "macro")
    }


class LabelProbe:
    """Scores vectors by labels.

    Args:
        labels: [num_nodes, num_labels], 0 and 1; NaN in the rows of nodes without labels.
        metric: "micro_f1" or "macro_f1".
        portions: of the labelled nodes, to fit on, for what is scored beside the splits.
        num_draws: of the nodes to fit on; their scores are averaged.
        stop: asks for an end after the labels in hand.

    Raises:
        ValueError: fewer than four nodes have labels.
    """

    def __init__(
        self,
        labels: np.ndarray,
        *,
        metric: str,
        portions: Sequence[float],
        num_draws: int,
        seed: int = 0,
        num_threads: int = 1,
        stop: StopRequest | None = None,
    ):
        self._nodes = np.flatnonzero(~np.isnan(labels).any(1) & (labels.sum(1) > 0))
        if len(self._nodes) < 4:
            raise ValueError(
                f"{len(self._nodes)} nodes have labels: a classifier needs at least four, two to fit, one "
                "to validate and one to test"
            )
        self._labels = np.nan_to_num(labels).astype(np.int8)
        self._metric, self._portions, self._num_draws = metric, portions, num_draws
        self._seed, self._num_threads, self._stop = seed, num_threads, stop

    def __call__(self, vectors: np.ndarray) -> dict[str, float]:
        """Score vectors [num_nodes, dim].

        ``test`` is fitted on half of the labelled nodes and scored on the other half, ``train`` on the half that it was
        fitted on; ``valid`` is fitted on nine tenths of the first half and scored on the last tenth, so that no choice
        sees the test. The scores of all portions follow, as ``micro_f1@0.1``.

        Raises:
            Stopped: it was asked for.
        """
        rows = [self._score(vectors, nodes) for nodes in map(self._draw, range(self._num_draws))]
        return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}

    def valid(self, vectors: np.ndarray) -> float:
        """Compute the metric of the validation split of the first draw alone; raises as a call does."""
        return self._fit_most(vectors, self._draw(0))[self._metric]

    def _draw(self, number: int) -> np.ndarray:
        return stream("probe", self._seed, number).permutation(self._nodes)

    def _fit(
        self, vectors: np.ndarray, nodes: np.ndarray, count: int, *others: np.ndarray
    ) -> list[dict[str, float]]:
        return classify(
            vectors,
            self._labels,
            nodes[:count],
            others,
            num_threads=self._num_threads,
            stop=self._stop,
        )

    def _fit_most(self, vectors: np.ndarray, nodes: np.ndarray) -> dict[str, float]:
        """Score the last tenth of the first half of some nodes by a fit to the others of that half."""
        half = int(HALF * len(nodes))
        fitted = max(1, int(FITTED * half))
        return self._fit(vectors, nodes, fitted, nodes[fitted:half])[0]

    def _score(self, vectors: np.ndarray, nodes: np.ndarray) -> dict[str, float]:
        half = int(HALF * len(nodes))
        valid = self._fit_most(vectors, nodes)
        train, test = self._fit(vectors, nodes, half, nodes[:half], nodes[half:])
        splits = {"train": train, "valid": valid, "test": test}
        scores = {split: metrics[self._metric] for split, metrics in splits.items()}
        for portion in self._portions:
            count = max(1, int(portion * len(nodes)))
            (metrics,) = (
                [test] if count == half else self._fit(vectors, nodes, count, nodes[count:])
            )
            scores |= {f"{name}@{portion:g}": value for name, value in metrics.items()}
        return scores


class LinkProbe:
    """Scores vectors by how well their products tell links that training did not see from pairs drawn at random.

    Args:
        pairs: for each split, links [num_links, 2] and pairs that are none.
        score: how a pair is scored: "cosine", "dot", or "auto" for the better one on the validation split.
        stop: asks for an end after the pairs in hand.
    """

    def __init__(
        self,
        pairs: dict[str, tuple[np.ndarray, np.ndarray]],
        *,
        score: str = "cosine",
        stop: StopRequest | None = None,
    ):
        self.pairs, self._score, self._stop = pairs, score, stop
        self._told: str | None = None

    def __call__(self, vectors: np.ndarray) -> dict[str, float]:
        """Compute the area under the ROC curve of each split; of vectors of any length, [num_nodes, dim].

        Raises:
            Stopped: it was asked for.
        """
        score, found = self._choose(vectors)
        return {
            split: found[split] if split in found else self._area(vectors, split, score)
            for split in self.pairs
        }

    def valid(self, vectors: np.ndarray) -> float:
        """Compute the area of the validation split alone, by the better score if that is chosen; raises as a call does."""
        return max(self._valid_areas(vectors).values())

    def _choose(self, vectors: np.ndarray) -> tuple[str, dict[str, float]]:
        """Return the score, "cosine" or "dot", and the area of the validation split where the choice needed it."""
        if self._score != "auto":
            return self._score, {}
        areas = self._valid_areas(vectors)
        chosen, other = sorted(areas, key=lambda score: -areas[score])
        if chosen != self._told:
            log.info(
                "links are scored by %s: validation AUC %s; by %s: %s",
                chosen,
                format_score(areas[chosen]),
                other,
                format_score(areas[other]),
            )
            self._told = chosen
        return chosen, {"valid": areas[chosen]}

    def _valid_areas(self, vectors: np.ndarray) -> dict[str, float]:
        """Return the area of the validation split by each score that may be taken."""
        scores = ("cosine", "dot") if self._score == "auto" else (self._score,)
        return {score: self._area(vectors, "valid", score) for score in scores}

    def _area(self, vectors: np.ndarray, split: str, score: str) -> float:
        links, others = self.pairs[split]
        pairs, truth = (
            np.concatenate([links, others]),
            np.repeat([1.0, 0.0], [len(links), len(others)]),
        )
        scores = compare_pairs(vectors, pairs, score=score, stop=self._stop)
        return rocauc(torch.from_numpy(truth).unsqueeze(1), torch.from_numpy(scores).unsqueeze(1))

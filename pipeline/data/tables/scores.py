"""Features of texts: the scores of linear models that predict the labels. No model scores a node that it was fitted to.

Stacking (Wolpert, Stacked Generalization, Neural Networks 5, 1992): what a model says of nodes that it was fitted to is
better than what it says of others, so training nodes get the scores of models that were fitted without them.
"""

import heapq
import logging
import time
import warnings
from dataclasses import dataclass, field, replace

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

from parallel_epochs.pipeline.metrics import CLASS_METRICS, VALUE_METRICS
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

NUM_FOLDS = 5
# Bounds on memory: nodes that models are fitted to, terms that they read, and models of a fold.
MAX_NODES, MAX_TERMS, MAX_COLUMNS = 200_000, 1 << 18, 1000


@dataclass
class TextScores:
    """Scores of texts, a column for each class or column of labels, with mean 0 and variance 1 on the fitted nodes.

    Those of classes have one mean and one variance, as classes are compared by their scores.

    Attributes:
        nodes: that the models were fitted to, ascending, int64 [num_fitted].
        own: their scores, by the models that were fitted without them, float32 [num_fitted, columns].
        digests: of their ids and texts, by which other tables tell them again, int64 [num_fitted].
        terms: that the models read, int64 [num_terms], of all.
        weights: weights of the models that were fitted to all of these nodes, float32 [num_terms, columns].
        bias: likewise, float32 [columns].
    """

    nodes: np.ndarray
    own: np.ndarray
    terms: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    digests: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def among(self, digests: np.ndarray) -> "TextScores":
        """Return the scores for other tables, in which the nodes that the models were fitted to keep their own.

        Args:
            digests: of all nodes of these tables, int64 [num_nodes].
        """
        order = np.argsort(self.digests)
        nodes = np.flatnonzero(np.isin(digests, self.digests))
        places = order[np.searchsorted(self.digests[order], digests[nodes])]
        if len(nodes):
            log.info(
                "scores of texts: %s of the tables keep the scores of models that were fitted without them",
                count(len(nodes), "node"),
            )
        return replace(self, nodes=nodes, own=self.own[places], digests=digests[nodes])

    def transform(self, first: int, terms: sp.csr_array) -> np.ndarray:
        """Compute the scores of consecutive nodes, float32 [num_nodes, columns].

        Args:
            first: number of the first of them.
            terms: of their texts [num_nodes, num_terms].
        """
        out = np.asarray(terms[:, self.terms] @ self.weights + self.bias, np.float32)
        begin, end = np.searchsorted(self.nodes, [first, first + len(out)])
        out[self.nodes[begin:end] - first] = self.own[begin:end]
        return out


def check_columns(num_columns: int) -> None:
    """Refuse more classes, or columns of labels, than models can be fitted to.

    Raises:
        ValueError: names the key.
    """
    if num_columns > MAX_COLUMNS:
        raise ValueError(
            f"data.nodes.text_features=scores fits a model to each class, {MAX_COLUMNS:,} at most, and "
            f"there are {num_columns:,}: set it to hashed"
        )


def fit_scores(
    nodes: np.ndarray,
    terms: sp.csr_array,
    labels: np.ndarray,
    metric: str,
    rng: np.random.Generator,
    *,
    first_id: int,
    groups: np.ndarray,
) -> TextScores:
    """Fit linear models to training nodes: support vector machines to classes and to 0 and 1, ridge regression to
    other numbers.

    Args:
        nodes: their numbers, ascending, int64 [num_nodes].
        terms: of their texts [num_nodes, num_terms], float64.
        labels: classes [num_nodes, 1] or numbers [num_nodes, columns], float64; NaN is unknown.
        rng: divides the nodes into folds.
        first_id: the first term that is an id of a neighbour. Such terms count if they are in one text, others if they
            are in two: a neighbour with one training node tells of the nodes beside this one.
        groups: of the nodes, int64 [num_nodes]; those of a group are in one fold.

    Raises:
        ValueError: no two texts have a term in common.
    """
    num_columns = int(labels.max()) + 1 if metric in CLASS_METRICS else labels.shape[1]
    frequency = np.bincount(terms.indices, minlength=terms.shape[1])
    kept = np.argsort(-frequency, kind="stable")[:MAX_TERMS]
    kept = np.sort(kept[frequency[kept] > (kept < first_id)])  # more than 1, or than 0
    if not len(kept):
        raise ValueError(
            "data.nodes.text_features=scores: no term is in the texts of two training nodes; set it to "
            "hashed"
        )
    start = time.perf_counter()
    terms = sp.csr_array(terms[:, kept])
    fold = divide_groups(groups, rng)
    own = np.zeros((len(nodes), num_columns), np.float32)
    weights, bias = (
        np.zeros((len(kept), num_columns), np.float32),
        np.zeros(num_columns, np.float32),
    )
    for number in range(NUM_FOLDS + 1):  # the last ones see all nodes
        seen, held_out = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        seen_terms, held_out_terms = terms[seen], terms[held_out]
        for column in range(num_columns):
            pulse.beat(
                f"fitting scores of texts, {number + 1} of {NUM_FOLDS + 1}", pulse.State.LONG
            )
            target = _target(labels[seen], metric, column)
            weights[:, column], bias[column] = _fit_one(
                seen_terms, target, is_real=metric in VALUE_METRICS
            )
            own[held_out, column] = held_out_terms @ weights[:, column] + bias[column]
    correct = f"; right for {(own.argmax(1) == labels[:, 0]).mean():.1%} of the held-out" * (
        metric in CLASS_METRICS
    )
    log.info(
        "scores of texts: %s linear models of %s terms, fitted to %s nodes in %s folds, %.0f s%s",
        f"{num_columns * (NUM_FOLDS + 1):,}",
        f"{len(kept):,}",
        f"{len(nodes):,}",
        NUM_FOLDS,
        time.perf_counter() - start,
        correct,
    )
    axis = None if metric in CLASS_METRICS else 0
    mean, std = own.mean(axis), np.maximum(own.std(axis), 1e-6)
    return TextScores(nodes, (own - mean) / std, kept, weights / std, (bias - mean) / std)


def divide_groups(groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Divide nodes into folds of about equal size: large groups first, each into the smallest fold.

    Args:
        groups: of the nodes, int64 [num_nodes].

    Returns:
        The fold of each node, int64 [num_nodes].
    """
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = rng.permutation(len(sizes))
    fold, filled = np.empty(len(sizes), np.int64), [(0, number) for number in range(NUM_FOLDS)]
    for place in order[np.argsort(-sizes[order], kind="stable")]:
        size, fold[place] = filled[0]
        heapq.heapreplace(filled, (size + int(sizes[place]), int(fold[place])))
    return fold[group]


def _target(labels: np.ndarray, metric: str, column: int) -> np.ndarray:
    return (
        np.where(labels[:, 0] == column, 1.0, 0.0) if metric in CLASS_METRICS else labels[:, column]
    )


def _fit_one(terms: sp.csr_array, target: np.ndarray, *, is_real: bool) -> tuple[np.ndarray, float]:
    """Fit one model; returns its weights [num_terms] and its constant."""
    known = np.flatnonzero(~np.isnan(target))
    values = target[known]
    if not len(values) or (values == values[0]).all():
        constant = float(values[0]) if len(values) else 0.0
        return np.zeros(
            terms.shape[1]
        ), constant if is_real else 2 * constant - 1  # a sure no, or yes
    model = Ridge(solver="sparse_cg") if is_real else LinearSVC(C=0.25, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(terms[known], values)
    return model.coef_.reshape(-1), float(np.ravel(model.intercept_)[0])

"""Trees on own columns, on summaries of the neighbours and edges, and on the labels of neighbours."""

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from sklearn import ensemble
from sklearn.base import BaseEstimator
from threadpoolctl import threadpool_limits
from torch import Tensor

from parallel_epochs.pipeline.gnn.base import rows as rows_of_table
from parallel_epochs.pipeline.gnn.base.edges import are_edges, columns_of_ends, labels_of_ends
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.base.labels import Labels
from parallel_epochs.pipeline.gnn.base.method import Method, TooLong
from parallel_epochs.pipeline.gnn.base.propagation import PRIOR, both_steps, weights_of_labels
from parallel_epochs.pipeline.gnn.tasks.row import RowTask

log = logging.getLogger(__name__)

# They are fitted to so many training rows at most, and compared on so many.
MOST_ROWS, COARSE_ROWS, COARSE_TREES = 50_000, 5_000, 30
# Boosting puts the values of a column into so many bins. With fewer rounds than these, each goes so long a way.
NUM_BINS, RATES, LAST_RATE = 63, {30: 0.4, 100: 0.2}, 0.1
# Boosting stops early where so many rows can spare this part of them, with a row of each class. The last number is the
# logit of a class that no row has.
LEAST_TO_STOP, SPARED, ABSENT = 200, 0.1, -30.0
# Here stands a function that predicts the same as :func:`evaluate`, and sooner, until the trees are kept.
QUICK = "quick"
# One fit may take this share of the time that a method may take, as there are folds and several choices of columns.
SHARE = 0.1
# Names of the columns of graphs.
GRAPHS = {
    ("own",): "sums over nodes and edges",
    ("patterns",): "patterns of categories",
    ("own", "patterns"): "sums and patterns of categories",
}
# Labels of neighbours that trees read, at most.
MOST_LABELS = 128


def columns_of(
    inputs: Inputs, known: Bool[Tensor, " num_rows"], parts: tuple[str, ...]
) -> Float[Tensor, "num_own columns"]:
    """Return the columns of the rows that may have labels.

    Args:
        known: rows whose labels their neighbours read; no row reads its own.
        parts: names of them, as :func:`choices` returns them.
    """
    found: dict[str, Callable[[], Any]] = {
        "own": lambda: inputs.hop(0),
        "patterns": lambda: inputs.patterns,
        "relations": lambda: inputs.relations,
        "labels": lambda: _of_labels(inputs, known),
        "ends": lambda: columns_of_ends(inputs),
        "labels of ends": lambda: labels_of_ends(inputs, known),
    }
    if unknown := [part for part in parts if part not in found]:
        raise ValueError(
            f"the simple method of the run reads {unknown[0]} of nodes, as version 0.6.0 and before make "
            "them: pip install parallel-epochs==0.6.0"
        )
    return torch.cat([found[part]() for part in parts], dim=1)


def choices(inputs: Inputs) -> list[tuple[str, ...]]:
    """Return the parts that are tried together. More columns are not better: a tree may look at too many of them."""
    own = ("own",) if inputs.hop(0).size(1) else ()
    if inputs.are_graphs:
        more: list[tuple[str, ...]] = [("patterns",)] if inputs.patterns is not None else []
        return [own, *more, *[own + each for each in more]]
    if are_edges(inputs):
        more = [("labels of ends",), ("ends",), ("ends", "labels of ends")]
    else:
        more = [("labels",)]
        if inputs.has_relations:
            more += [("relations",), *[("relations", *each) for each in more]]
    return [parts for parts in (own, *[own + each for each in more]) if parts]


def _of_labels(inputs: Inputs, known: Tensor) -> Tensor:
    """Compute the mean labels one step and two steps away without a node's own, and how many of them are known.

    Rows of a label table get the latest and the mean label of earlier rows of their node.
    """
    if inputs.of_labels is not None and torch.equal(inputs.of_labels[0], known):
        return inputs.of_labels[1]
    if isinstance(inputs.task, RowTask):
        found = rows_of_table.columns(inputs, known)
    else:
        weights = list(weights_of_labels(inputs.data))
        mean = inputs.labels.mean(known)
        parts = []
        for values, num in zip(*both_steps(inputs.data, inputs.labels, weights[-1], known)):
            parts += [((values + PRIOR * mean) / (num + PRIOR))[:, :MOST_LABELS], num[:, :1]]
        found = torch.cat(parts, dim=1)[inputs.own]
    inputs.of_labels = known, found
    return found


def methods(inputs: Inputs, seed: int) -> Iterator[Method]:
    """Yield the forest or the boosted trees that are the best when fitted to some training rows.

    Forests choose the columns, since they are fitted sooner.
    """
    train, best, tried = inputs.labels.train, None, choices(inputs)
    too_long = dict[str, float]()
    for fit, cost, noun in KINDS:
        for parts in tried if best is None else [best[1]]:
            size = (
                int(train.sum()),
                columns_of(inputs, train, parts).size(1),
                inputs.task.out_channels,
            )
            seconds = cost.of_one(*size) / SHARE
            num_trees = int(min(cost.most, inputs.seconds / seconds))
            if num_trees < cost.least:
                too_long[f"{noun.format(cost.least)} on {', '.join(parts)}"] = seconds * cost.least
                continue
            model = fit(
                inputs,
                parts,
                seed,
                min(num_trees, COARSE_TREES) if cost.is_forest else num_trees,
                train,
                most=COARSE_ROWS,
            )
            score = inputs.valid(predict(inputs, model, train, inputs.data.valid_mask))
            if best is None or score > best[0]:
                best = score, parts, fit, noun, num_trees
    if best is None:
        raise TooLong(
            f"trees would take longer than {inputs.seconds:.3g} s", min(too_long.values())
        )
    for name, seconds in too_long.items():
        log.info(
            "simple methods: %s would take some %.2g s, and may take %.3g s (task.base_seconds)",
            name,
            seconds,
            inputs.seconds,
        )
    _, parts, fit, noun, num_trees = best
    of = GRAPHS[parts] if inputs.are_graphs else f"columns ({', '.join(parts)})"
    yield Method(
        "forest" if inputs.are_graphs else "trees",
        f"{noun.format(num_trees)} on {of}",
        partial(fit, inputs, parts, seed, num_trees),
        predict,
        reads_labels=bool({"labels", "labels of ends"} & set(parts)),
    )


def predict(inputs: Inputs, fitted: dict, known: Tensor, asked: Tensor | None = None) -> Tensor:
    """Predict by plain arrays of trees; the mean label for rows that are not asked for."""
    inputs.follow(fitted)
    labels, own = inputs.labels, columns_of(inputs, known, fitted["parts"])
    chosen = slice(None) if asked is None else asked[inputs.own]
    with threadpool_limits(1, "openmp"):
        found = fitted.get(QUICK, partial(evaluate, fitted))(own[chosen].numpy())
    rows = torch.from_numpy(found)
    if fitted["is_boosted"] and not labels.are_values:
        rows = rows.softmax(1) if labels.are_classes else rows.sigmoid()
    return inputs.among_all(rows.float(), fitted["mean"], chosen)


def evaluate(
    fitted: dict, x: Float[np.ndarray, "num_rows channels"]
) -> Float[np.ndarray, "num_rows columns"]:
    """Sum the leaves of all trees, float64.

    Args:
        fitted: ``roots`` of the trees among all nodes; of each node ``feature``, ``threshold``, ``left`` and ``right``,
            which are 0 at a leaf, and ``value``, the place of its leaf; ``leaves`` [num_leaves, width]; ``column`` of
            each tree, of which the leaves have one number, or -1; ``start`` [columns].
    """
    arrays = {name: value.numpy() for name, value in fitted.items() if isinstance(value, Tensor)}
    out = np.tile(fitted["start"].numpy().astype(np.float64), (len(x), 1))
    rows = np.arange(len(x))
    for root, column in zip(fitted["roots"].tolist(), fitted["column"].tolist(), strict=True):
        node, open_ = np.full(len(x), root), rows
        while len(open_):  # no circle of nodes is read
            open_ = open_[arrays["left"][node[open_]] > 0]
            at = node[open_]
            below = x[open_, arrays["feature"][at]] <= arrays["threshold"][at]
            node[open_] = np.where(below, arrays["left"][at], arrays["right"][at])
        found = arrays["leaves"][arrays["value"][node]]
        if column < 0:
            out += found
        else:
            out[:, column] += found[:, 0]
    return out


class Trees:
    """Trees as plain arrays, one behind the other; see :func:`evaluate`."""

    def __init__(self) -> None:
        self._parts: list[dict[str, np.ndarray]] = []
        self._roots: list[int] = []
        self._columns: list[int] = []
        self._first = self._num_leaves = 0

    def add(
        self,
        is_leaf: np.ndarray,
        feature: np.ndarray,
        threshold: np.ndarray,
        left: np.ndarray,
        right: np.ndarray,
        value: np.ndarray,
        column: int = -1,
    ) -> None:
        """Add a tree: for each node whether it is a leaf, the column and the threshold of its split, and both ends.

        Args:
            value: of each leaf [num_leaves, width].
        """
        self._roots.append(self._first)
        self._columns.append(column)
        self._parts.append(
            {
                "feature": np.where(is_leaf, 0, feature).astype(np.int32),
                "threshold": threshold,
                "left": np.where(is_leaf, 0, left + self._first).astype(np.int32),
                "right": np.where(is_leaf, 0, right + self._first).astype(np.int32),
                "value": np.where(is_leaf, np.cumsum(is_leaf) - 1 + self._num_leaves, 0).astype(
                    np.int32
                ),
                "leaves": value.astype(np.float32),
            }
        )
        self._first, self._num_leaves = self._first + len(is_leaf), self._num_leaves + len(value)

    def arrays(self) -> dict[str, Tensor]:
        """Return the arrays of all trees."""
        found = {
            name: torch.from_numpy(np.concatenate([part[name] for part in self._parts]))
            for name in (self._parts[0] if self._parts else ())
        }
        return {**found, "roots": torch.tensor(self._roots), "column": torch.tensor(self._columns)}


def _rows_of(
    inputs: Inputs, parts: tuple[str, ...], seed: int, known: Tensor, most: int
) -> tuple[np.ndarray, Tensor]:
    """Return the columns and the labels of the rows that trees are fitted to."""
    rows = inputs.draw(known & ~inputs.labels.y.isnan().all(1), most, seed)
    return columns_of(inputs, known, parts)[rows[inputs.own]].numpy(), inputs.labels.y[rows]


def fit_forest(
    inputs: Inputs,
    parts: tuple[str, ...],
    seed: int,
    num_trees: int,
    known: Tensor,
    most: int = MOST_ROWS,
) -> dict:
    """Fit randomised trees whose leaves have numbers for all classes, or all columns of labels.

    Unknown labels count as the mean.

    Args:
        parts: columns, as :func:`columns_of` takes them.
        known: the training rows, whose labels their neighbours read.
        most: of them that trees are fitted to, at most, drawn at random.
    """
    labels, (x, y), trees = inputs.labels, _rows_of(inputs, parts, seed, known, most), Trees()
    mean = labels.mean(known)
    options: dict[str, Any] = {"n_estimators": num_trees, "random_state": seed}
    if labels.are_classes:
        model = _fit(ensemble.ExtraTreesClassifier(**options), x, y.argmax(1).numpy())
        present = model.classes_
    else:
        target = y.where(~y.isnan(), mean).numpy()
        options["max_features"] = 0.3 if labels.are_values and y.size(1) == 1 else "sqrt"
        model = _fit(
            ensemble.ExtraTreesRegressor(min_samples_leaf=3, **options),
            x,
            target if y.size(1) > 1 else target[:, 0],
        )
        present = np.arange(y.size(1))
    found = []
    for each in model.estimators_:
        tree = each.tree_
        is_leaf = tree.children_left < 0
        value = np.zeros((int(is_leaf.sum()), y.size(1)), np.float32)
        value[:, present] = tree.value.reshape(tree.node_count, -1)[is_leaf] / num_trees
        found.append((tree, is_leaf.cumsum() - 1, value))
        trees.add(
            is_leaf, tree.feature, tree.threshold, tree.children_left, tree.children_right, value
        )

    def quick(x: np.ndarray) -> np.ndarray:
        out = np.zeros((len(x), y.size(1)))
        for tree, place, value in found:
            out += value[place[tree.apply(x)]]
        return out

    return {
        **trees.arrays(),
        "start": torch.zeros(y.size(1)),
        "is_boosted": False,
        "mean": mean,
        "parts": parts,
        "plan": inputs.kept_plan,
        QUICK: quick,
    }


def fit_boosted(
    inputs: Inputs,
    parts: tuple[str, ...],
    seed: int,
    num_rounds: int,
    known: Tensor,
    most: int = MOST_ROWS,
) -> dict:
    """Fit trees one after the other, each to what those before leave; arguments as of :func:`fit_forest`."""
    labels, (x, y), trees = inputs.labels, _rows_of(inputs, parts, seed, known, most), Trees()
    start = torch.full((y.size(1),), ABSENT if labels.are_classes else 0.0)
    columns = [y.argmax(1).float()] if labels.are_classes else y.unbind(1)
    models, waiting = (
        list[tuple[np.ndarray, BaseEstimator]](),
        list[tuple[int, np.ndarray, Future]](),
    )
    # A thread for each label: several within a fit wait for each other.
    with ThreadPoolExecutor(
        torch.get_num_threads(), initializer=threadpool_limits, initargs=(1, "openmp")
    ) as pool:
        for column, target in enumerate(columns):
            has = ~target.isnan()
            values = target[has].numpy()
            kinds, counts = np.unique(values, return_counts=True)
            if len(kinds) < 2:
                start[int(kinds[0]) if labels.are_classes else column] = _constant(labels, kinds)
                continue
            make = (
                ensemble.HistGradientBoostingRegressor
                if labels.are_values
                else ensemble.HistGradientBoostingClassifier
            )
            stops = len(values) >= LEAST_TO_STOP and (
                labels.are_values or counts.min() > 1 and SPARED * len(values) >= len(kinds)
            )
            model = make(
                max_iter=num_rounds,
                random_state=seed,
                early_stopping=stops,
                n_iter_no_change=10,
                validation_fraction=SPARED,
                max_bins=NUM_BINS,
                learning_rate=next((RATES[few] for few in RATES if num_rounds < few), LAST_RATE),
            )
            waiting.append((column, kinds, pool.submit(model.fit, x[has.numpy()], values)))
    for column, kinds, fitted in waiting:
        model = fitted.result()
        # With two classes there is one tree a round, which tells the second from the first.
        model._baseline_prediction = model._baseline_prediction.astype(np.float32).astype(
            np.float64
        )
        first = np.ravel(model._baseline_prediction)
        outputs = kinds.astype(int)[-len(first) :] if labels.are_classes else np.array([column])
        if labels.are_classes:
            start[torch.from_numpy(kinds.astype(int))] = 0.0
        start[torch.from_numpy(outputs)] = torch.from_numpy(first).float()
        models.append((outputs, model))
        for output, predictor in (
            (output, each)
            for round_ in model._predictors
            for output, each in zip(outputs.tolist(), round_, strict=True)
        ):
            nodes = predictor.nodes
            nodes["value"] = nodes["value"].astype(np.float32)
            is_leaf = nodes["is_leaf"].astype(bool)
            trees.add(
                is_leaf,
                nodes["feature_idx"],
                nodes["num_threshold"],
                nodes["left"].astype(np.int64),
                nodes["right"].astype(np.int64),
                nodes["value"][is_leaf].reshape(-1, 1),
                output,
            )

    def quick(x: np.ndarray) -> np.ndarray:
        out = np.tile(start.numpy().astype(np.float64), (len(x), 1))
        for outputs, model in models:
            found = model.predict(x) if labels.are_values else model.decision_function(x)
            out[:, outputs] = found.reshape(len(x), -1)
        return out

    return {
        **trees.arrays(),
        "start": start,
        "is_boosted": True,
        "mean": labels.mean(known),
        "parts": parts,
        "plan": inputs.kept_plan,
        QUICK: quick,
    }


def _fit(model: BaseEstimator, x: np.ndarray, y: np.ndarray) -> BaseEstimator:
    """Fit a model of scikit-learn's without its warning that many rows have a class of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return model.fit(x, y)


def _constant(labels: Labels, kinds: np.ndarray) -> float:
    """Return what stands for labels that are all alike, or of which none is known."""
    if labels.are_classes or not len(kinds):
        return 0.0
    return float(kinds[0]) if labels.are_values else -ABSENT if kinds[0] else ABSENT


class Cost(NamedTuple):
    """The seconds that one tree of a forest, or one round of boosting, takes on a core; a rough estimate.

    Attributes:
        least, most: numbers of trees or rounds.
    """

    least: int
    most: int
    is_forest: bool

    def of_one(self, num_rows: int, width: int, num_labels: int) -> float:
        """Return the seconds for so many rows, columns and labels."""
        rows = min(num_rows, MOST_ROWS)
        if not self.is_forest:
            return num_labels * width * (2.5e-5 + 6e-9 * rows)
        tried = math.sqrt(width) if num_labels > 1 else 0.3 * width
        return rows * math.log2(rows + 2) * (6e-8 + 5e-9 * tried + 5e-10 * tried * num_labels)


KINDS = (
    (fit_forest, Cost(10, 100, True), "forest of {} trees"),
    (fit_boosted, Cost(10, 300, False), "boosted trees, at most {} rounds,"),
)

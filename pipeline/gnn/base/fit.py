"""The scores of the best simple method, at which a run may begin: out of fold for training rows."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.networks.propagation import correct_and_smooth
from parallel_epochs.pipeline.data.tables.scores import NUM_FOLDS
from parallel_epochs.pipeline.gnn.base import (
    edges,
    linear,
    mean,
    propagation,
    rows as rows_of_table,
    trees,
)
from parallel_epochs.pipeline.gnn.base.folds import divide
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.base.labels import to_logits
from parallel_epochs.pipeline.gnn.base.method import Method, TooLong
from parallel_epochs.pipeline.gnn.tasks.edge import EdgeTask
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.gnn.tasks.row import RowTask
from parallel_epochs.pipeline.metrics import CLASS_METRICS, check_finite
from parallel_epochs.pipeline.names import LOWER_IS_BETTER, ROW_TIMES, SPLITS, merit
from parallel_epochs.pipeline.run.baseline_file import Baseline
from parallel_epochs.pipeline.run.errors import one_line

log = logging.getLogger(__name__)

# Seconds that each method may take, by an estimate that does not depend on the machine.
SECONDS = 60.0
# The share of the time of all methods that each may take where the best one is chosen.
PARTS = {"trees": 0.5, "forest": 0.6, "linear": 0.4, "diffusion": 0.1, "smoothed": 0.3}
# These errors keep a method from being chosen: no time, numbers that it cannot compute with, or no memory.
FAILURES = (ValueError, ArithmeticError, RuntimeError, MemoryError)
# The linear model, corrected and smoothed by what it misses at the training rows; it alone scores other data.
SMOOTHED = "smoothed"
# A score that lacks so many times more of a perfect metric than another one is far below it.
FAR_BELOW = 2.0


@dataclass(frozen=True)
class Base:
    """Scores of a simple method.

    Attributes:
        name: value of ``task.base``.
        title: for people, with the settings that validation has chosen.
        rows: logits, or values as they are learned, [num_rows, out_channels], float32. Those of training rows are out
            of fold. Those of others are of the model of all training rows, or the mean over the folds, by validation.
            None where links are scored, which `fitted` does: by ``weights`` of walks and ``units`` of their logarithms.
        scores: the metric of each split.
        reads_labels: whether it reads labels of neighbours.
        seconds: what fitting took, with that of the others among which it was chosen.
        fitted: plain tensors and numbers, by which :func:`apply` scores other data; empty where it cannot.
    """

    name: str
    title: str
    rows: Float[Tensor, "num_rows out_channels"] | None
    scores: dict[str, float]
    reads_labels: bool
    seconds: float
    fitted: dict[str, Any]


# By the value of task.base: the settings of each method, of which validation chooses.
NODES: dict[str, Callable[[Inputs, int], Iterator[Method]]] = {
    "mean": mean.methods,
    "diffusion": propagation.many_steps,
    "propagation": propagation.two_steps,
    "linear": linear.methods,
    "trees": trees.methods,
}
EDGES: dict[str, Callable[[Inputs, int], Iterator[Method]]] = {
    "mean": mean.methods,
    **{end: partial(edges.methods, end) for end in edges.GROUPS},
    "trees": trees.methods,
}
ROWS: dict[str, Callable[[Inputs, int], Iterator[Method]]] = {
    "mean": mean.methods,
    "earlier": rows_of_table.methods,
    "linear": linear.methods,
    "trees": trees.methods,
}
GRAPHS: dict[str, Callable[[Inputs, int], Iterator[Method]]] = {
    "mean": mean.methods,
    "linear": linear.methods,
    "forest": trees.methods,
}
PREDICT = {
    "mean": mean.predict,
    "diffusion": propagation.predict_many_steps,
    "propagation": propagation.predict_two_steps,
    "linear": linear.predict,
    "earlier": rows_of_table.predict,
    "trees": trees.predict,
    "forest": trees.predict,
    **dict.fromkeys(edges.GROUPS, edges.predict),
}


def names_of(data: Data, task: NodeTask) -> list[str]:
    """Return the values of ``task.base`` that a graph and its labels allow."""
    if "ptr" in data:
        return list(GRAPHS)
    if isinstance(task, EdgeTask):
        return list(EDGES)
    if isinstance(task, RowTask):
        # Without a span, nobody knows when a label is known.
        return [
            name for name in ROWS if name != "earlier" or bool(data[ROW_TIMES][1].isfinite().any())
        ]
    if data.x is None or not data.x.size(1):
        return [name for name in NODES if name != "linear"]
    return [*NODES, *[SMOOTHED] * (data.metric in CLASS_METRICS and len(data.types.names) == 1)]


def fit_base(
    data: Data, task: NodeTask, name: str, *, seed: int = 0, seconds: float = SECONDS
) -> Base:
    """Fit a simple method.

    Args:
        name: value of ``task.base``; auto: that with the best validation metric.
        seed: of folds, draws and trees.
        seconds: what the method, or with auto all of them, may take, by an estimate.

    Raises:
        ValueError: the data or the task do not fit; names the key.
    """
    if "y" not in data or "edge_index" not in data:
        raise ValueError(
            f"task.base={name} needs labels of nodes or graphs; this run has none. Set task.base=none"
        )
    inputs = Inputs(data, task, seconds)
    check(inputs, name)
    if name != "auto":
        try:
            return _fit(inputs, name, seed)
        except TooLong as error:
            raise ValueError(
                f"task.base={name}: {error}. Set task.base=none, or choose another one"
            ) from None
    began, found = time.perf_counter(), dict[str, Chosen]()
    for each in names_of(data, task):
        if each == SMOOTHED and (
            "linear" not in found
            or is_far_below(
                "acc", found["linear"].score, max(chosen.score for chosen in found.values())
            )
        ):
            continue  # a linear model that is far below the others will not be the best one
        share = PARTS.get(each, 1.0)
        try:
            inputs.seconds = seconds * share
            found[each] = _choose(inputs, each, seed, found.get("linear"))
        except FAILURES as error:
            needed = error.seconds / share if isinstance(error, TooLong) else 0.0
            hint = f"; task.base_seconds={math.ceil(needed)} allows it" if needed else ""
            log.info("task.base=%s is left out: %s%s", each, one_line(error), hint)
    for best in sorted(found, key=lambda each: found[each].score, reverse=True):
        log.info(
            "task.base=auto: %s; valid %s",
            best,
            ", ".join(
                f"{each} {merit(task.metric, chosen.score):.4f}" for each, chosen in found.items()
            ),
        )
        try:
            return replace(
                _complete(inputs, best, found[best], seed), seconds=time.perf_counter() - began
            )
        except FAILURES as error:
            log.info("task.base=%s is left out: %s", best, one_line(error))
    raise ValueError("task.base=auto: every simple method fails on these data. Set task.base=none")


def of_labels(data: Data, task: NodeTask, seconds: float = SECONDS) -> Iterator[Baseline]:
    """Fit each simple method to the labels of nodes or graphs; yields one after the other, as they end."""
    inputs = Inputs(data, task, seconds)
    for name in names_of(data, task):
        try:
            found = _fit(inputs, name, 0)
        except TooLong as error:
            log.info("baselines: %s: left out, %s", name, error)
            continue
        yield Baseline(found.title, found.scores, found.seconds)


def check(inputs: Inputs, name: str) -> None:
    """Refuse a base that the data do not allow; arguments and errors as of :func:`fit_base`."""
    key, data, task = f"task.base={name}", inputs.data, inputs.task
    if name not in (names := [*names_of(data, task), "auto"]):
        raise ValueError(
            f"{key} is no simple method for this data; choose one of {', '.join(names)}, or none"
        )
    if not bool(inputs.labels.known(data.train_mask).any()):
        raise ValueError(
            f"{key} is fitted to the training labels, and there are none. Set task.base=none"
        )
    if not task.is_defined("valid"):
        raise ValueError(
            f"{key} is chosen by the {task.metric} of the valid split, which has too few labels for it. "
            "Set task.base=none, or choose another split"
        )


def apply(
    fitted: dict[str, Any], data: Data, task: NodeTask, asked: Tensor | None = None
) -> Float[Tensor, "num_rows out_channels"]:
    """Score other data of the same form, or the same: every row by what was fitted to training rows.

    Args:
        fitted: of a :class:`Base`.
        asked: marks the rows that are read; others may have any scores. None: all.

    Raises:
        ValueError: the data have other columns than those that it was fitted to.
    """
    return _predict(Inputs(data, task), fitted, asked)


def _predict(inputs: Inputs, fitted: dict, asked: Tensor | None) -> Tensor:
    predict = PREDICT[fitted["name"]]
    found = torch.stack(
        [predict(inputs, model, inputs.labels.train, asked) for model in fitted["models"]]
    ).mean(0)
    return to_logits(found, fitted["logits"])


def _fit(inputs: Inputs, name: str, seed: int) -> Base:
    return _complete(inputs, name, _choose(inputs, name, seed), seed)


def is_far_below(metric: str, score: float, other: float) -> bool:
    """Tell whether a score lacks much more of a perfect metric than another one."""
    lacks = [each if metric in LOWER_IS_BETTER else 1 - each for each in (score, other)]
    return lacks[0] > FAR_BELOW * lacks[1]


def _choose(inputs: Inputs, name: str, seed: int, smoothed: "Chosen | None" = None) -> "Chosen":
    """Fit a method with each of its settings to all training rows, and take the best by validation.

    Args:
        smoothed: the linear model that is smoothed. None: it is fitted.
    """
    began, best, train = time.perf_counter(), None, inputs.labels.train
    if name == SMOOTHED:
        num_alphas = len(propagation.SMOOTHING_ALPHAS)
        num_times = num_alphas * (num_alphas + 1) + 2 + 2 * NUM_FOLDS
        propagation.refuse_long(inputs, num_times * propagation.SMOOTHING_STEPS)
        return _smooth(
            inputs,
            _complete(inputs, "linear", smoothed or _choose(inputs, "linear", seed), seed),
            seed,
        )
    for method in (GRAPHS if inputs.are_graphs else NODES | EDGES | ROWS)[name](inputs, seed):
        model = method.fit(train)
        rows = method.predict(inputs, model, train, ~train)
        score = inputs.valid(rows)
        if best is None or score > best.score:
            best = Chosen(score, method, model, rows, 0.0)
    assert best is not None
    return best._replace(seconds=time.perf_counter() - began)


def _complete(inputs: Inputs, name: str, chosen: "Chosen", seed: int) -> Base:
    """Score training rows out of fold, and others by the model of all training rows or by the mean of the folds."""
    began, train, method = time.perf_counter(), inputs.labels.train, chosen.method
    models, rows, own = [chosen.model], chosen.rows, chosen.rows
    if method.reads_labels or not method.leaves_out:
        own, of_folds = out_of_fold(inputs, method, seed)
    if not method.leaves_out:
        mean_rows = torch.stack(
            [method.predict(inputs, each, train, ~train) for each in of_folds]
        ).mean(0)
        if inputs.valid(mean_rows) > chosen.score:
            models, rows = of_folds, mean_rows
    logits = inputs.labels.calibrate(own, train)
    rows = to_logits(torch.where(train.unsqueeze(1), own, rows), logits).float().contiguous()
    check_finite(rows, f"task.base={name} does not fit these data. Set task.base=none")
    scores = {split: inputs.task.score(split, rows) for split in SPLITS}
    title = method.title + f", mean of {NUM_FOLDS} folds" * (len(models) > 1)
    plain = [{key: value for key, value in model.items() if key != trees.QUICK} for model in models]
    fitted = chosen.model if name == SMOOTHED else {"name": name, "models": plain, "logits": logits}
    return Base(
        name,
        title,
        rows,
        scores,
        method.reads_labels,
        chosen.seconds + time.perf_counter() - began,
        fitted,
    )


class Chosen(NamedTuple):
    """A method with the settings that validation has chosen.

    Attributes:
        score: of the validation rows, with the sign for which more is better.
        model: what was fitted to all training rows; of a smoothed linear model, what scores other data.
        rows: its predictions.
        seconds: what all settings together took.
    """

    score: float
    method: Method
    model: dict
    rows: Tensor
    seconds: float


def _smooth(inputs: Inputs, base: Base, seed: int) -> Chosen:
    """Correct and smooth the linear model by its errors at training rows, each by models that were fitted without it.

    A training row is smoothed without the labels and the errors of its fold. Other data get the scores of the linear
    model, which reads no labels.
    """
    began, y = time.perf_counter(), inputs.data.y[:, 0].clamp(min=0)
    labelled = inputs.labels.known(inputs.labels.train)[:, 0]
    probabilities = cast(Tensor, base.rows).softmax(1)

    def smoothed(
        known: Tensor, corrections: Sequence[float], alphas: Sequence[float]
    ) -> Iterator[tuple]:
        return correct_and_smooth(
            inputs.adjacency,
            probabilities,
            y,
            known,
            corrections,
            alphas,
            propagation.SMOOTHING_STEPS,
        )

    tried = smoothed(labelled, propagation.SMOOTHING_ALPHAS, propagation.SMOOTHING_ALPHAS)
    score, first, second, rows = max(
        ((inputs.valid(rows), first, second, rows) for first, second, rows in tried),
        key=lambda found: found[0],
    )
    fold = divide(inputs, seed)
    for number in range(NUM_FOLDS):
        known = labelled & (fold != number)
        if bool(known.any()):
            rows[fold == number] = next(smoothed(known, (first,), (second,)))[2][fold == number]
    title = f"{base.title}, with Correct and Smooth (alphas {first:g} and {second:g})"
    method = Method(SMOOTHED, title, lambda known: {}, lambda *_: rows, leaves_out=True)
    return Chosen(score, method, base.fitted, rows, base.seconds + time.perf_counter() - began)


def out_of_fold(inputs: Inputs, method: Method, seed: int) -> tuple[Tensor, list[dict]]:
    """Predict the training rows by models that were fitted without their folds; returns the models too.

    A method that leaves out the own label reads those of neighbours in the same fold, and the mean label of others.
    """
    fold, models = divide(inputs, seed), []
    out = torch.zeros(len(fold), inputs.task.out_channels)
    for number in range(NUM_FOLDS):
        known, held_out = (fold >= 0) & (fold != number), fold == number
        models.append(method.fit(known))
        if method.leaves_out:
            known = inputs.labels.train
        out[held_out] = method.predict(inputs, models[-1], known, held_out)[held_out]
    return out, models

"""The scores of the best simple method, at which a run may begin: out of fold for training rows."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.simple import linear, mean, propagation, trees
from parallel_epochs.pipeline.gnn.simple.folds import NUM_FOLDS, divide
from parallel_epochs.pipeline.gnn.simple.inputs import Inputs
from parallel_epochs.pipeline.gnn.simple.labels import to_logits
from parallel_epochs.pipeline.gnn.simple.method import Method
from parallel_epochs.pipeline.gnn.simple.trees import TooLong
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.metrics import check_finite
from parallel_epochs.pipeline.names import SPLITS, merit
from parallel_epochs.pipeline.run.baseline_file import Baseline

log = logging.getLogger(__name__)

# Seconds that each method may take, by an estimate that does not depend on the machine.
SECONDS = 60.0

@dataclass(frozen=True)
class Base:
    """Scores of a simple method.

    Attributes:
        name: value of ``task.base``.
        title: for people, with the settings that validation has chosen.
        rows: logits, or values as they are learned, [num_rows, out_channels], float32. Those of training rows are out
            of fold. Those of others are of the model of all training rows, or the mean over the folds, by validation.
        scores: the metric of each split.
        reads_labels: whether it reads labels of neighbours.
        seconds: what fitting took.
        fitted: plain tensors and numbers, by which :func:`apply` scores other data; empty where it cannot.
    """

    name: str
    title: str
    rows: Float[Tensor, "num_rows out_channels"]
    scores: dict[str, float]
    reads_labels: bool
    seconds: float
    fitted: dict[str, Any]


# By the value of task.base: the settings of each method, of which validation chooses.
NODES: dict[str, Callable[[Inputs, int], Iterator[Method]]] = {
    "mean": mean.methods, "diffusion": propagation.many_steps, "propagation": propagation.two_steps,
    "linear": linear.methods, "trees": trees.methods}
GRAPHS: dict[str, Callable[[Inputs, int], Iterator[Method]]] = {
    "mean": mean.methods, "linear": linear.methods, "forest": trees.methods}
PREDICT = {"mean": mean.predict, "diffusion": propagation.predict_many_steps,
           "propagation": propagation.predict_two_steps, "linear": linear.predict,
           "trees": trees.predict, "forest": trees.predict}


def names_of(data: Data) -> list[str]:
    """Return the values of ``task.base`` that a graph allows."""
    graphs = "ptr" in data
    has_columns = graphs or data.x is not None and data.x.size(1) > 0
    return [name for name in (GRAPHS if graphs else NODES) if has_columns or name != "linear"]


def fit_base(data: Data, task: NodeTask, name: str, *, seed: int = 0, seconds: float = SECONDS) -> Base:
    """Fit a simple method.

    Args:
        name: value of ``task.base``; auto: that with the best validation metric of all.
        seed: of folds, draws and trees.
        seconds: what each method may take, by an estimate.

    Raises:
        ValueError: the data or the task do not fit; names the key.
    """
    check(data, task, name)
    inputs, best = Inputs(data, task, seconds), None
    for each in names_of(data) if name == "auto" else [name]:
        try:
            found = _fit_one(inputs, each, seed)
        except TooLong as error:
            if name != "auto":
                raise ValueError(f"task.base={each}: {error}. Raise it, or set task.base=none") from None
            log.info("task.base=%s is left out: %s", each, error)
            continue
        log.info("task.base=%s: %s, %s, %.1f s", each, found.title, ", ".join(
            f"{split} {score:.4f}" for split, score in found.scores.items()), found.seconds)
        if best is None or _merit(task, found) > _merit(task, best):
            best = found
    assert best is not None
    return best


def of_labels(data: Data, task: NodeTask, seconds: float = SECONDS) -> Iterator[Baseline]:
    """Fit each simple method to the labels of nodes or graphs; yields one after the other, as they end."""
    inputs = Inputs(data, task, seconds)
    for name in names_of(data):
        try:
            found = _fit_one(inputs, name, 0)
        except TooLong as error:
            log.info("baselines: %s: left out, %s", name, error)
            continue
        yield Baseline(found.title, found.scores, found.seconds)


def check(data: Data, task: NodeTask, name: str) -> None:
    """Refuse a base that the data do not allow; arguments and errors as of :func:`fit_base`."""
    key = f"task.base={name}"
    if "y" not in data or "edge_index" not in data:
        raise ValueError(f"{key} needs labels of nodes or graphs; this run has none. Set task.base=none")
    if name not in (names := [*names_of(data), "auto"]):
        raise ValueError(f"{key} is no simple method for this data; choose one of {', '.join(names)}, or none")
    if not bool(Inputs(data, task).labels.known(data.train_mask).any()):
        raise ValueError(f"{key} is fitted to the training labels, and there are none. Set task.base=none")
    if not task.is_defined("valid"):
        raise ValueError(f"{key} is chosen by the {task.metric} of the valid split, which has too few labels for it. "
                         "Set task.base=none, or choose another split")


def apply(fitted: dict[str, Any], data: Data, task: NodeTask) -> Float[Tensor, "num_rows out_channels"]:
    """Score other data of the same form, or the same: every row by what was fitted to training rows.

    Args:
        fitted: of a :class:`Base`.

    Raises:
        ValueError: the data have other columns than those that it was fitted to.
    """
    inputs = Inputs(data, task)
    return _predict(inputs, fitted)


def _predict(inputs: Inputs, fitted: dict) -> Tensor:
    predict = PREDICT[fitted["name"]]
    found = torch.stack([predict(inputs, model, inputs.labels.train, None) for model in fitted["models"]]).mean(0)
    return to_logits(found, fitted["logits"])


def _merit(task: NodeTask, base: Base) -> float:
    score = base.scores["valid"]
    return -math.inf if math.isnan(score) else merit(task.metric, score)


def _fit_one(inputs: Inputs, name: str, seed: int) -> Base:
    began, best, train = time.perf_counter(), None, inputs.labels.train
    for method in (GRAPHS if inputs.are_graphs else NODES)[name](inputs, seed):
        model = method.fit(train)
        rows = method.predict(inputs, model, train, ~train)
        score = inputs.valid(rows)
        if best is None or score > best[0]:
            best = score, method, model, rows
    assert best is not None
    score, method, model, rows = best
    models, own = [model], rows
    if not method.leaves_out:
        own, of_folds = _out_of_fold(inputs, method, seed)
        mean_rows = torch.stack([method.predict(inputs, each, train, ~train) for each in of_folds]).mean(0)
        if inputs.valid(mean_rows) > score:
            models, rows = of_folds, mean_rows
    logits = inputs.labels.calibrate(own, train)
    rows = to_logits(torch.where(train.unsqueeze(1), own, rows), logits).float().contiguous()
    check_finite(rows, f"task.base={name} does not fit these data. Set task.base=none")
    scores = {split: inputs.task.score(split, inputs.task.from_learned(rows)) for split in SPLITS}
    title = method.title + f", mean of {NUM_FOLDS} folds" * (len(models) > 1)
    return Base(name, title, rows, scores, method.reads_labels, time.perf_counter() - began,
                {"name": name, "models": models, "logits": logits})


def _out_of_fold(inputs: Inputs, method: Method, seed: int) -> tuple[Tensor, list[dict]]:
    """Predict the training rows by models that were fitted without their folds; returns the models too."""
    fold, models = divide(inputs, seed), []
    out = torch.zeros(len(fold), inputs.task.out_channels)
    for number in range(NUM_FOLDS):
        known = (fold >= 0) & (fold != number)
        models.append(method.fit(known))
        held_out = fold == number
        out[held_out] = method.predict(inputs, models[-1], known, held_out)[held_out]
    return out, models

"""Predictions of several runs, averaged: probabilities of classes and binary tasks, or values."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from parallel_epochs.pipeline.gnn.config import GNNPredictConfig
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.kinds.build import kind_of
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.run.saved import SavedRun


def check(run: SavedRun, asked: GNNPredictConfig) -> None:
    """Refuse what several runs do not have together, before any long work.

    Raises:
        ValueError: names the key, or the run that predicts something else than the first.
    """
    if not run.others:
        return
    for name in ("export", "embeddings", "pairs"):
        if value := getattr(asked, name):
            _refuse(run, f"{name}={str(value).lower()} is for one")
    kept = [one for one in (run, *run.others) if one.shared is None]
    trained_on = [one.load().get("data_hash") for one in kept]
    for other, data_hash in zip(kept, trained_on):
        if data_hash != trained_on[0]:
            _refuse(run, f"{other.folder} was trained on other data than {kept[0].folder}")
    for other in run.others:
        kinds = [kind_of(one.config) for one in (run, other)]
        if type(kinds[0]) is not type(kinds[1]) or run.config.task.type != other.config.task.type:
            _refuse(run, f"{other.folder} has another task than {run.folder}")
        if not kinds[1].averages:
            _refuse(
                run,
                f"they are of {kinds[1].unit}, and those of classes, binary tasks and values can be",
            )


def average(run: SavedRun, found: Sequence[tuple[Setup, Predicted]]) -> tuple[Setup, Predicted]:
    """Average the predictions of runs; those of one run stay as they are.

    Args:
        run: the first of the runs, with the others.
        found: the data and the predictions of each.

    Returns:
        Those of the first run, with the mean of all rows and the rows of each.

    Raises:
        ValueError: a run was trained on other data, or for other labels.
    """
    (setup, predicted), *others = found
    if not others:
        return found[0]
    for other, (its, _) in zip(run.others, others, strict=True):
        tasks = [(one.task.metric, one.task.kind, one.task.out_channels) for one in (setup, its)]
        if tasks[0] != tasks[1]:
            _refuse(
                run,
                f"{other.folder} has the metric {tasks[1][0]} and {tasks[1][2]} columns, and {run.folder} has "
                f"{tasks[0][0]} and {tasks[0][2]}",
            )
    rows, thresholds = [one.rows for _, one in found], [one.thresholds for _, one in found]
    known = [each for each in thresholds if each is not None]
    return setup, replace(
        predicted,
        rows=mean_rows(rows, setup.task.kind),
        members=rows,
        thresholds=torch.stack(known).mean(0) if len(known) == len(found) else None,
    )


def mean_rows(
    rows: Sequence[Float[Tensor, "num_rows columns"]], kind: str
) -> Float[Tensor, "num_rows columns"]:
    """Average values, or probabilities, and return the logits of these.

    Args:
        kind: of the labels, as in :data:`pipeline.metrics.KINDS`.
    """
    each = torch.stack([one.double() for one in rows])
    return MEANS[kind](each).float()


MEANS: dict[str, Callable[[Tensor], Tensor]] = {
    "real values": lambda each: each.mean(0),
    "classes": lambda each: each.log_softmax(2).logsumexp(0) - math.log(len(each)),
    "binary tasks": lambda each: logsigmoid(each).logsumexp(0) - logsigmoid(-each).logsumexp(0),
}


def _refuse(run: SavedRun, why: str) -> NoReturn:
    raise ValueError(
        f"the predictions of {1 + len(run.others)} runs cannot be averaged: {why}. Name one, such as "
        f"run={run.folder}"
    )

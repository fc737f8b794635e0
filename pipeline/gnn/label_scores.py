"""Scores of each class or task at the best epoch, in a file of the run directory that the report reads."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parallel_epochs.pipeline.gnn.prediction_table import labels_of
from parallel_epochs.pipeline.gnn.relations import describe_schema, listed_schema, score_by_neighbours
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.gnn.trainer import GNNTrainer, Task
from parallel_epochs.pipeline.metrics import KINDS
from parallel_epochs.pipeline.names import MASKS, MAX_LABELS, SCORES, SPLITS
from parallel_epochs.pipeline.run import files

log = logging.getLogger(__name__)


def report_limit(task: Task) -> None:
    """Log that a run has too many classes or tasks for scores of each."""
    if not isinstance(task, LinkTask) and task.out_channels > MAX_LABELS:
        log.info("%s %s: %s has a score for each of them only up to %d", f"{task.out_channels:,}", task.kind, SCORES,
                 MAX_LABELS)


def write_best(setup: Setup, trainer: GNNTrainer, folder: Path) -> None:
    """Write the scores of each class or task from the predictions of the evaluation that has just ended.

    Of a graph with several types of nodes, write its schema and the scores by neighbours too.

    Raises:
        FileError: the file cannot be written.
    """
    data, task = setup.data, setup.task
    record: dict[str, Any] = {"epoch": trainer.progress.epochs, "metric": task.metric, "unit": task.unit}
    if isinstance(task, LinkTask):
        record |= {"kind": task.kind, "splits": {split: {
            "rows": len(data[f"{split}_pairs"]), **({} if split == "train" else {
                "negatives": len(data[f"{split}_negatives"])})} for split in SPLITS}}
    else:
        num_labels, few = task.out_channels, task.out_channels <= MAX_LABELS
        record |= {"kind": task.kind, "num_labels": num_labels,
                   "names": labels_of(data, num_labels) if few else None,
                   "splits": {split: {"rows": int(data[mask].sum()), **(count_labels(
                       task.kind, task.metric, data.y[data[mask]], trainer.rows[data[mask]], scored=split != "train")
                       if few else {})} for split, mask in zip(SPLITS, MASKS)}}
    if (schema := listed_schema(data)) is not None:
        near = [] if isinstance(task, LinkTask) else score_by_neighbours(
            schema, setup.neighbours, task.kind, task.metric, data.y[data.test_mask], trainer.rows[data.test_mask])
        record["typed"] = describe_schema(schema, setup.neighbours) | {"neighbours": near}
    files.write_text(folder / SCORES, json.dumps(record) + "\n")


def count_labels(kind: str, metric: str, y: Tensor, rows: Tensor, *, scored: bool) -> dict[str, list]:
    """Count the labels of each class, task or target in a split, and score each.

    Args:
        kind: of the labels, as in :data:`pipeline.metrics.KINDS`.
        metric: one of its metrics.
        y: labels of the rows of the split, [num_rows, num_columns].
        rows: predictions of these rows, [num_rows, num_labels].
        scored: whether to score the predictions too.

    Returns:
        ``labels`` for each; ``positive`` for each binary task. If `scored`, ``confusion`` of classes, a list of how
        often each class was predicted for the rows of a class, or else ``score``, None where it is undefined.
    """
    if kind == "classes":
        known = y[:, 0] >= 0
        labels, num_labels = y[known, 0].long(), rows.size(1)
        found: dict[str, list] = {"labels": torch.bincount(labels, minlength=num_labels).tolist()}
        if scored:
            both = labels * num_labels + rows[known].argmax(1)
            found["confusion"] = torch.bincount(both, minlength=num_labels**2).view(num_labels, num_labels).tolist()
        return found
    found = {"labels": (~y.isnan()).sum(0).tolist()}
    if kind == "binary tasks":
        found["positive"] = (y == 1).sum(0).tolist()
    if scored:
        scores = [KINDS[kind][metric](y[:, [i]], rows[:, [i]]) if len(y) else math.nan for i in range(y.size(1))]
        found["score"] = [score if math.isfinite(score) else None for score in scores]
    return found

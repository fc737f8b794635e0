"""Scores of each class or task at the best epoch, in a file of the run directory that the report reads."""

import json
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from parallel_epochs.pipeline.gnn.relations import describe_types, listed_types, score_by_neighbours
from parallel_epochs.pipeline.names import MAX_LABELS, SCORES
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.saved import SavedRun

if TYPE_CHECKING:
    from parallel_epochs.pipeline.gnn.setup import Setup
    from parallel_epochs.pipeline.gnn.trainer import GNNTrainer

log = logging.getLogger(__name__)


def report_limit(setup: "Setup") -> None:
    """Log that a run has too many classes or tasks for scores of each."""
    task = setup.task
    if setup.kind.has_labels and task.out_channels > MAX_LABELS:
        log.info(
            "%s %s: %s has a score for each of them only up to %d",
            f"{task.out_channels:,}",
            task.kind,
            SCORES,
            MAX_LABELS,
        )


def write_best(setup: "Setup", trainer: "GNNTrainer", folder: Path) -> None:
    """Write the scores of each class or task from the predictions of the evaluation that has just ended.

    Of a graph with several types of nodes, write these and the scores by neighbours too.

    Raises:
        FileError: the file cannot be written.
    """
    assert trainer.rows is not None, "the first rank has the rows of the last evaluation"
    with trainer.averaged():
        write(setup, trainer.model, trainer.rows, trainer.progress.epochs, folder)


def read_decisions(folder: Path) -> dict[str, Any]:
    """Return what a run reports of its thresholds: precision, recall and F1 of validation and test; nothing of others."""
    record = files.read_json(folder / SCORES) if files.is_there(folder / SCORES) else {}
    if "thresholds" not in record:
        return {}
    thresholds = (
        {"thresholds": record["thresholds"]} if len(record["thresholds"]) <= MAX_LABELS else {}
    )
    return {
        "decisions": {
            "threshold": record["threshold"],
            **thresholds,
            **{split: record["splits"][split]["decisions"] for split in ("valid", "test")},
        }
    }


def read_thresholds(run: SavedRun, num_tasks: int | None = None) -> Tensor | None:
    """Return the thresholds of the best checkpoint of a run, float64; none where it has none.

    Args:
        num_tasks: how many there must be, if it is known.

    Raises:
        DamagedFile: the run holds something else.
    """
    path = run.folder / SCORES
    if run.shared is not None:
        found = run.shared.get("thresholds")
    elif run.config.task.threshold == "none" or not run.is_best or not files.is_there(path):
        return None
    else:
        found = files.read_json(path).get("thresholds")
    if found is None:
        return None
    if not (
        isinstance(found, list)
        and len(found) in (num_tasks, num_tasks or len(found))
        and all(isinstance(each, float) and math.isfinite(each) for each in found)
    ):
        raise DamagedFile(
            f"{path} is damaged: its thresholds are {found!r:.80}, and there must be one number for each "
            "task"
        )
    return torch.tensor(found, dtype=torch.float64)


def write(setup: "Setup", model: torch.nn.Module, rows: Tensor, epoch: int, folder: Path) -> None:
    """Write the scores of each class or task from predictions; see :func:`write_best`."""
    data, task, kind = setup.data, setup.task, setup.kind
    record: dict[str, Any] = {
        "epoch": epoch,
        "metric": task.metric,
        "unit": kind.unit,
        "kind": task.kind,
        **kind.record(data, task, model, rows),
    }
    if (types := listed_types(data)) is not None:
        near = (
            score_by_neighbours(
                types,
                setup.neighbours,
                task.kind,
                task.metric,
                data.y[data.test_mask],
                rows[data.test_mask],
            )
            if kind.has_labels
            else []
        )
        record["typed"] = describe_types(types, setup.neighbours) | {"neighbours": near}
    files.write_text(folder / SCORES, json.dumps(record) + "\n")

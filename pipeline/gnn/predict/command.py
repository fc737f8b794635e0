"""Runs of trainer=gnn after training: the metrics, the predictions and the tables of a checkpoint."""

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.gnn import build
from parallel_epochs.pipeline.gnn.base import answers, label_scores
from parallel_epochs.pipeline.gnn.base.calibration import calibrate
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNEvaluateConfig, GNNPredictConfig
from parallel_epochs.pipeline.gnn.features import load_weights
from parallel_epochs.pipeline.gnn.kinds.base import Kind, Predicted
from parallel_epochs.pipeline.gnn.kinds.build import kind_of
from parallel_epochs.pipeline.gnn.predict import new_data
from parallel_epochs.pipeline.gnn.predict.predictor import build_predictor
from parallel_epochs.pipeline.gnn.predict.top import Question
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.run import files, tables
from parallel_epochs.pipeline.run.checkpoint import fitting
from parallel_epochs.pipeline.run.log import format_score, format_table
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.pipeline.run.saved import SavedRun

log = logging.getLogger(__name__)

# Keys of `evaluate` that replace those of the run below `evaluation`.
EVALUATION = ("method", "num_views", "num_parts", "num_neighbors")


def evaluate(run: SavedRun[GNNConfig], asked: GNNEvaluateConfig) -> dict[str, float]:
    """Evaluate a checkpoint of a run, and save its predictions if asked to.

    Returns:
        The metric of each split.

    Raises:
        ValueError: see :func:`predict_rows`.
    """
    wanted, is_new = GNNPredictConfig(**vars(asked)), bool(new_data.choose(run, asked.data))
    if is_new and asked.data.known_labels != new_data.OLD:
        old = "data.known_labels=old scores the labels of rows that the training did not have, and "
        raise ValueError(
            f"other data have no test split. {old * new_data.may_know_labels(run.config)}predict "
            "writes predictions without a score"
        )
    setup, predicted = predict_rows(run, wanted)

    scores = setup.task.scores(setup.model, predicted.rows)
    if is_new:
        scores = _name_parts(setup, scores)
    title = f"{run.title(predicted.epoch)}, by {setup.config.evaluation.method}"
    log.info(
        "%s",
        format_table(
            [
                (
                    f"{name} {setup.task.metric}" if name in (*SPLITS, *new_data.PARTS) else name,
                    format_score(value),
                )
                for name, value in scores.items()
            ],
            title,
        ),
    )
    save(setup.kind, predicted, wanted)
    return scores


def _name_parts(setup: Setup, scores: dict[str, float]) -> dict[str, float]:
    """Name the scores of other data, and leave out that of rows whose own labels are inputs.

    Raises:
        ValueError: no row has a label that can be scored.
    """
    if math.isnan(scores["test"]):
        raise ValueError(
            "data.known_labels=old: there is nothing to score. No row that the training did not have has "
            "a label, or the metric is not defined on those"
        )
    names = dict(zip(SPLITS, setup.data.split_names, strict=True))
    reads_labels = bool(setup.config.train.label_input)
    return {
        names.get(split, split): score
        for split, score in scores.items()
        if not math.isnan(score) and not (split == "train" and reads_labels)
    }


def predict(run: SavedRun[GNNConfig], wanted: GNNPredictConfig) -> None:
    """Save the predictions of a checkpoint of a run.

    Raises:
        ValueError: see :func:`predict_rows`.
    """
    setup, predicted = predict_rows(run, wanted)
    save(setup.kind, predicted, wanted)


def predict_rows(run: SavedRun, asked: GNNPredictConfig) -> tuple[Setup, Predicted]:
    """Load a checkpoint of a run and predict every row with it.

    Returns:
        What the model was trained on, with the evaluation that was asked for; and the predictions.

    Raises:
        ValueError: no such checkpoint, a damaged one, another dataset, an unknown method, or something asked for that
            cannot be read or predicted.
    """
    setup, dataset, chosen, round_, epoch = open_run(run, asked)
    question = None
    if isinstance(chosen, Question):
        question, chosen = chosen, None
    rows = build_predictor(setup, embeddings=asked.embeddings)(round_)
    embeddings, width = None, setup.task.out_channels
    if asked.embeddings:
        rows, embeddings = rows[:, :width], rows[:, width:]
    found = Predicted(
        setup.data,
        dataset,
        setup.task,
        setup.model,
        rows,
        epoch,
        chosen,
        embeddings=embeddings,
        question=question,
    )
    found = answers.answer(setup, found, run)
    if found.thresholds is None:
        found = replace(found, thresholds=label_scores.read_thresholds(run, width))
    return setup, calibrate(found) if asked.calibrate else found


def open_run(
    run: SavedRun, asked: GNNPredictConfig
) -> tuple[Setup, Data, Tensor | Question | None, int, int]:
    """Load a checkpoint of one run and its data; see :func:`predict_rows`. Nothing is predicted.

    Returns:
        What the model was trained on, with its weights; all of the dataset; what is asked for, as :meth:`Kind.find`
        returns it; the round and the epoch of the checkpoint.
    """
    new = new_data.choose(run, asked.data)
    kind = kind_of(run.config)
    given = _check(run, kind, asked, is_new=bool(new))
    state = run.load()
    changes = {
        f"evaluation.{name}": value
        for name, value in vars(asked).items()
        if name in EVALUATION and value is not None
    }
    config, known_labels = keys.replaced(run.config, new | changes), asked.data.known_labels
    if new and known_labels == "none":
        config.data.leave_labels()
    config.check()
    build.check(config)
    if new:
        config.data.check()
        opened = new_data.open_data(config, run, state, known_labels=known_labels)
    else:
        opened = build.open_data(config, choose_device(run.device), describes=False)
        run.check_data(state, opened.parts[0].data.get("content_hash"))
    setup = cast(Setup, opened.parts[0])
    setup.kind.refuse_columns(asked, setup.task)
    chosen = setup.kind.find(given, setup.data, opened.data, asked)
    with fitting(state):
        load_weights(state["model"], setup.model, None if new else setup.table)
        return (setup, opened.data, chosen, *new_data.place_of(state, is_best=run.is_best))


def _check(run: SavedRun, kind: Kind, asked: GNNPredictConfig, *, is_new: bool) -> Any:
    """Refuse keys that do not fit the run or each other, before any long work.

    Args:
        is_new: whether other data than those of the training are predicted, whose labels nobody knows.

    Returns:
        What the files say that is asked for, as :meth:`Kind.read` returns it.
    """
    if run.config.data.components == "separate":
        raise ValueError(
            f"{run.folder} holds a model for each component. Choose one of "
            f"{', '.join(sorted(str(path) for path in run.folder.glob('component_*')))}"
        )
    if asked.output is not None:
        tables.format_of("output", asked.output)
    if asked.columns != "all" and asked.output is None:
        raise ValueError(f"columns={asked.columns} is for a table of predictions. Give output=FILE")
    if asked.top is None and (asked.candidates is not None or not asked.filtered):
        name = "filtered=false" if asked.candidates is None else f"candidates={asked.candidates}"
        raise ValueError(
            f"{name} is for the likeliest targets of each source. Give top=K, or leave it out"
        )
    given = kind.read(asked, str(run.folder), is_new=is_new)
    if is_new and asked.calibrate:
        raise ValueError(
            "calibrate=true reads the validation labels of the training, and other data are predicted "
            "here. Leave it out"
        )
    return given


def save(kind: Kind, predicted: Predicted, asked: GNNPredictConfig) -> None:
    """Save what is asked for: logits or values as tensors, and a table."""
    if asked.predictions is not None:
        found, path = kind.tensors(predicted), Path(asked.predictions)
        files.write_atomically(path, lambda file: torch.save(found, file))
        name, rows = main_of(found)
        log.info("wrote the %s of %s %s to %s", name, f"{len(rows):,}", kind.unit, path)
    if asked.output is not None:
        kind.table(predicted, asked).write(asked.output)


def main_of(tensors: dict[str, Tensor]) -> tuple[str, Tensor]:
    """Return the name and the rows of what is predicted, among what a file of predictions holds."""
    name = "values" if "values" in tensors else "logits"
    return name, tensors[name]

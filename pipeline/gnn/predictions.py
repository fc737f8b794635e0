"""Runs of trainer=gnn after training: the metrics and the predictions of a checkpoint."""

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.config import settings
from parallel_epochs.pipeline.gnn import build, prediction_table as tables
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNEvaluateConfig
from parallel_epochs.pipeline.gnn.features import load_weights
from parallel_epochs.pipeline.gnn.predictor import build_predictor
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.graph.pairs import read_pairs
from parallel_epochs.pipeline.run import files, tables as formats
from parallel_epochs.pipeline.run.log import format_score, format_table
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.pipeline.run.session import check_data, load_checkpoint

log = logging.getLogger(__name__)

# Keys of tables of predictions.
TABLE_KEYS = ("output", "output_nodes", "embeddings")


@dataclass
class Restored:
    """A trained model and what it takes to use it.

    Attributes:
        setup: what the model was trained on; its configuration has the evaluation that was asked for.
        epoch: passes over the graph when the checkpoint was saved.
        rows: predictions of every row, [num_rows, out_channels].
        pairs: of nodes to predict the links of, [num_pairs, 2]; none: those of the task.
        table: what ``output`` shall hold; none without it.
        nodes: places of the rows that it shall hold; none for all.
    """

    setup: Setup
    epoch: int
    rows: Tensor
    pairs: Tensor | None = None
    table: tables.Predictions | None = None
    nodes: np.ndarray | None = None


def check_tables(options: GNNEvaluateConfig) -> list[str] | None:
    """Refuse keys that do not fit each other and files that cannot be written or read, before any long work.

    Returns:
        The ids that ``output_nodes`` lists; none without it.

    Raises:
        ValueError: names the key.
    """
    if options.output is None:
        for name in TABLE_KEYS[1:]:
            if value := getattr(options, name):
                raise ValueError(f"{name}={value} is for a table of predictions. Give output=FILE")
        return None
    formats.format_of("output", options.output)
    if options.predictions is not None and Path(options.predictions).resolve() == Path(options.output).resolve():
        raise ValueError(f"output={options.output} and predictions={options.predictions} name the same file. "
                         "Give the logits another")
    return None if options.output_nodes is None else tables.read_ids(options.output_nodes)


def refuse_tables(options: GNNEvaluateConfig, reason: str) -> None:
    """Refuse the keys of tables.

    Raises:
        ValueError: names the first that has been given, and the reason.
    """
    for name in TABLE_KEYS:
        if value := getattr(options, name):
            raise ValueError(f"{name}={value}: {reason}")


def restore(options: GNNEvaluateConfig, config: GNNConfig) -> Restored:
    """Load a checkpoint of a run and predict every row with it.

    Args:
        config: of the run.

    Raises:
        ValueError: no such checkpoint, a damaged one, another dataset, an unknown method, or pairs that cannot be read
            or predicted.
    """
    pairs = None if options.pairs is None else read_pairs(Path(options.pairs))
    if pairs is not None and options.predictions is None:
        raise ValueError(f"pairs={options.pairs} needs a file for its predictions. Give predictions=FILE")
    folder = Path(options.run)
    if config.task.name != "node":
        refuse_tables(options, f"{folder} has task={config.task.name}, and tables have a row for each node. Give "
                               "predictions=FILE")
    wanted = check_tables(options)
    if config.data.components == "separate":
        raise ValueError(f"{folder} holds a model for each component. Choose one of "
                         f"{', '.join(sorted(str(path) for path in folder.glob('component_*')))}")
    state = load_checkpoint(folder, options.checkpoint, settings(config))
    given = {key: getattr(options, key) for key in ("method", "num_views", "num_parts", "num_neighbors")
             if getattr(options, key) is not None}
    config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, **given))
    config.check()
    build.check(config)

    opened = build.open_data(config, choose_device(options.device))
    setup = cast(Setup, opened.parts[0])
    data, task = setup.data, setup.task
    check_data(folder, state, data.get("content_hash"))
    if pairs is not None:
        task.check_pairs(pairs)
    ids = tables.ids_of(opened.data, data.get("n_id")) if options.output is not None else None
    nodes = tables.find_nodes(wanted, ids, options.output_nodes) if wanted is not None and ids is not None else None
    load_weights(state["model"], setup.model, setup.table)
    if options.checkpoint == "best":
        round_, epoch = state["round"], state["epoch"]
    else:  # which holds the number of rounds that are complete
        round_, epoch = max(state["round"] - 1, 0), state["progress"]["epochs"]
    predict_all = build_predictor(setup, embeddings=options.embeddings)
    rows, embeddings = predict_all(round_), None
    if options.embeddings:
        rows, embeddings = rows[:, :task.out_channels], rows[:, task.out_channels:]
    found = None if ids is None else tables.Predictions(
        task.metric, rows, embeddings, ids, tables.splits_of(data), tables.labels_of(opened.data, task.out_channels))
    return Restored(setup, epoch, rows, pairs, found, nodes)


def evaluate(options: GNNEvaluateConfig, config: GNNConfig) -> dict[str, float]:
    """Evaluate a checkpoint of a run by OGB's Evaluator, and save its predictions if asked to.

    Returns:
        The metric of each split.

    Raises:
        ValueError: see :func:`restore`.
    """
    restored = restore(options, config)
    setup = restored.setup
    scores = setup.task.scores(setup.model, restored.rows, official=True)
    title = (f"{options.checkpoint} checkpoint of {Path(options.run)}, epoch {restored.epoch}, "
             f"by {setup.config.evaluation.method}")
    log.info("%s", format_table([(f"{split} {setup.task.metric}", format_score(score))
                                 for split, score in scores.items()], title))
    save(options, restored)
    return scores


def predict(options: GNNEvaluateConfig, config: GNNConfig) -> None:
    """Save the predictions of a checkpoint of a run.

    Raises:
        ValueError: see :func:`restore`; neither a file nor a table is asked for.
    """
    if options.predictions is None and options.output is None:
        raise ValueError("One argument is missing: predictions=FILE, or output=TABLE for a table of nodes")
    save(options, restore(options, config))


def save(options: GNNEvaluateConfig, restored: Restored) -> None:
    """Save what is asked for: logits or values as tensors, and a table."""
    if options.predictions is not None:
        save_predictions(Path(options.predictions), restored)
    if options.output is not None and restored.table is not None:
        tables.save(options.output, restored.table, restored.nodes)


def save_predictions(path: Path, restored: Restored) -> None:
    """Save predictions, and the nodes that they are of where these are not all nodes of the dataset."""
    setup = restored.setup
    predictions = setup.task.predictions(setup.model, restored.rows, restored.pairs)
    if "n_id" in setup.data:
        predictions["n_id"] = setup.data.n_id
    files.write_atomically(path, lambda file: torch.save(predictions, file))
    kind = next(kind for kind in ("logits", "values") if kind in predictions)
    log.info("%s of %s %s in %s", kind, f"{len(predictions[kind]):,}", setup.task.unit, path)

"""A trained model again: the checkpoint of a run with the graph that it was trained on."""

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pipeline import answers, build, config as configuration, folder as run_folder, keys, predictions as tables, vectors
from pipeline.config import Config, EvaluateConfig
from pipeline.features import load_weights
from pipeline.run import files
from pipeline.run.log import format_score, format_table
from pipeline.run.session import check_data
from pipeline.trainers.gnn import Task
from pipeline.vectors import read_pairs

log = logging.getLogger(__name__)


@dataclass
class Restored:
    """A trained model and what it takes to use it.

    Attributes:
        config: of the run, with the evaluation that was asked for.
        data: what the model was trained on.
        epoch: passes over the graph when the checkpoint was saved.
        rows: predictions of every row, [num_rows, out_channels].
        pairs: of nodes to predict the links of, [num_pairs, 2]; none: those of the task.
        table: what ``output`` shall hold; none without it.
        nodes: places of the rows that it shall hold; none for all.
    """

    config: Config
    data: Data
    task: Task
    model: torch.nn.Module
    epoch: int
    rows: Tensor
    pairs: Tensor | None = None
    table: tables.Predictions | None = None
    nodes: np.ndarray | None = None


def restore(options: EvaluateConfig) -> Restored:
    """Load a checkpoint of a run and predict every row with it.

    Raises:
        ValueError: no such run or checkpoint, a damaged checkpoint, another dataset, an unknown method, or pairs that
            cannot be read or predicted.
    """
    keys.check(options)
    pairs = None if options.pairs is None else read_pairs(Path(options.pairs))
    if pairs is not None and options.predictions is None:
        raise ValueError(f"pairs={options.pairs}: where to save their predictions? Give predictions=FILE")
    folder = Path(options.run)
    config = configuration.load(folder / "config.yaml")
    if options.neighbors:
        raise ValueError(f"neighbors={options.neighbors}: {folder} learned no vectors that have neighbours; leave it "
                         "out")
    vectors.refuse(options, vectors.QUESTIONS, "learned no triples")
    if config.task.name != "node":
        vectors.refuse(options, tables.KEYS, f"has task={config.task.name}, and tables are of nodes; give "
                                             "predictions=FILE")
    wanted = tables.check(options)
    if config.data.components == "separate":
        raise ValueError(f"{folder} holds a model for each component: evaluate one of "
                         f"{', '.join(sorted(str(path) for path in folder.glob('component_*')))}")
    state = run_folder.load_checkpoint(folder, config, options.checkpoint)
    given = {key: getattr(options, key) for key in ("method", "num_views", "num_parts", "num_neighbors")
             if getattr(options, key) is not None}
    config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, **given))
    configuration.check(config)

    opened = build.open_graph(config)
    _, data = opened.parts[0]
    check_data(folder, state, data.get("content_hash"))
    device = build.choose_device(options.device)
    task, loader = build.build_task(config, data), build.build_loader(config, data, device)
    if pairs is not None:
        task.check_pairs(pairs)
    ids = tables.ids_of(opened.data, data.get("n_id")) if options.output is not None else None
    nodes = tables.find_nodes(wanted, ids, options.output_nodes) if wanted is not None and ids is not None else None
    model = build.build_model(config, data, task).to(device)
    table = build.build_table(config, data, device)
    load_weights(state["model"], model, table)
    if options.checkpoint == "best":
        round_, epoch = state["round"], state["epoch"]
    else:  # which holds the number of rounds that are complete
        round_, epoch = max(state["round"] - 1, 0), state["progress"]["epochs"]
    predict_all = build.build_predictor(config, model, task, loader, table=table, embeddings=options.embeddings)
    rows, embeddings = predict_all(round_), None
    if options.embeddings:
        rows, embeddings = rows[:, :task.out_channels], rows[:, task.out_channels:]
    found = None if ids is None else tables.Predictions(
        task.metric, rows, embeddings, ids, tables.splits_of(data), tables.labels_of(opened.data, task.out_channels))
    return Restored(config, data, task, model, epoch, rows, pairs, found, nodes)


def evaluate(options: EvaluateConfig) -> dict[str, float]:
    """Evaluate a checkpoint of a run by OGB's Evaluator, and save its predictions if asked to.

    Returns:
        The metric of each split.

    Raises:
        ValueError: see :func:`restore`.
    """
    if room := room_of(options):
        vectors.refuse(options, tables.KEYS, NO_TABLE)
        return room.evaluate(options)
    restored = restore(options)
    scores = restored.task.scores(restored.model, restored.rows, official=True)
    title = (f"{options.checkpoint} checkpoint of {Path(options.run)}, epoch {restored.epoch}, "
             f"by {restored.config.evaluation.method}")
    log.info("%s", format_table([(f"{split} {restored.task.metric}", format_score(score))
                                 for split, score in scores.items()], title))
    save(options, restored)
    return scores


def predict(options: EvaluateConfig) -> None:
    """Save the predictions of a checkpoint of a run.

    Raises:
        ValueError: see :func:`restore`.
    """
    if room := room_of(options):
        vectors.refuse(options, tables.KEYS, NO_TABLE)
        room.predict(options)
    else:
        save(options, restore(options))


# What reads the runs of trainers of vectors, by the name of the trainer.
ROOMS = {"node_embedding": vectors, "layout": vectors, "knowledge": answers}
NO_TABLE = "learned vectors, which predictions=FILE saves, as .parquet too"


def room_of(options: EvaluateConfig) -> ModuleType | None:
    """Return the module that reads a run of vectors; none for a run with a model."""
    return ROOMS.get(configuration.load(Path(options.run) / "config.yaml").trainer.name)


def save(options: EvaluateConfig, restored: Restored) -> None:
    """Save what is asked for: logits or values as tensors, and a table."""
    if options.predictions is not None:
        save_predictions(Path(options.predictions), restored)
    if options.output is not None and restored.table is not None:
        tables.save(options.output, restored.table, restored.nodes)


def save_predictions(path: Path, restored: Restored) -> None:
    """Save predictions, and the nodes that they are of where these are not all nodes of the dataset."""
    predictions = restored.task.predictions(restored.model, restored.rows, restored.pairs)
    if "n_id" in restored.data:
        predictions["n_id"] = restored.data.n_id
    files.write_atomically(path, lambda file: torch.save(predictions, file))
    kind = next(kind for kind in ("logits", "values") if kind in predictions)
    log.info("%s of %s %s in %s", kind, f"{len(predictions[kind]):,}", restored.task.unit, path)

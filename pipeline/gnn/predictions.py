"""Runs of trainer=gnn after training: the metrics and the predictions of a checkpoint."""

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.data.cache import name_graphs
from parallel_epochs.pipeline.data.kinds import DataKind, data_kind
from parallel_epochs.pipeline.data.objects import are_tables
from parallel_epochs.pipeline.data.opened import OpenData
from parallel_epochs.pipeline.data.typed import Schema, schema_of
from parallel_epochs.pipeline.data.typed_links import link_relation_of
from parallel_epochs.pipeline.gnn import build, new_data, pair_table, prediction_table as tables
from parallel_epochs.pipeline.gnn.calibration import calibrate
from parallel_epochs.pipeline.gnn.features import load_weights
from parallel_epochs.pipeline.gnn.in_memory import saved_pairs, written
from parallel_epochs.pipeline.gnn.new_data import Others, export, write_start  # noqa: F401 - of this product
from parallel_epochs.pipeline.gnn.pair_table import (
    first_nodes,
    number_ends,
    number_pairs,
    number_typed_pairs,
    read_pairs,
)
from parallel_epochs.pipeline.gnn.predictor import build_predictor, predict_nodes
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.smoothing import Smoothed, finish, smooth_rows  # noqa: F401 - of this product
from parallel_epochs.pipeline.run import files, tables as formats
from parallel_epochs.pipeline.run.checkpoint import fitting
from parallel_epochs.pipeline.run.log import format_scores, format_table
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.pipeline.run.saved import SavedRun

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """What is asked of a trained model. The attributes are the keys of `predict` that have their names.

    Attributes:
        predictions: file of logits or values.
        output: table with a row for each node, graph or pair.
        output_nodes: table of the ids that `output` shall hold.
        output_type: type of the nodes that `output` shall hold, or "all".
        embeddings: whether `output` holds the embeddings of the nodes too.
        pairs: file of the pairs whose links are predicted.
        calibrate: whether logits are divided by temperatures.
        export: file to share the model by.
        data: the files of other data than those of the training, as :class:`new_data.Others` has them.
    """

    predictions: str | None = None
    output: str | None = None
    output_nodes: str | None = None
    output_type: str | None = None
    embeddings: bool = False
    pairs: str | None = None
    calibrate: bool = False
    export: str | None = None
    data: Any = Others()

    def of_nodes(self) -> dict[str, Any]:
        """Return the keys of tables that have a row for each node."""
        return {"output_nodes": self.output_nodes, "output_type": self.output_type, "embeddings": self.embeddings}


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
        ids: of all nodes or graphs; none without a table.
        smoothed: smoothed predictions; none without them.
        temperatures: what the logits were divided by; none if they were not.
    """

    setup: Setup
    epoch: int
    rows: Tensor
    pairs: Tensor | None = None
    table: tables.Predictions | None = None
    nodes: np.ndarray | None = None
    ids: np.ndarray | None = None
    smoothed: Smoothed | None = None
    temperatures: Tensor | None = None


def check_tables(asked: Asked) -> list[str] | None:
    """Refuse keys that do not fit each other and files that cannot be written or read, before any long work.

    Returns:
        The ids that ``output_nodes`` lists; none without it.

    Raises:
        ValueError: names the key.
    """
    if asked.output is None:
        for name, value in asked.of_nodes().items():
            if value:
                raise ValueError(f"{name}={value} is for a table of predictions. Give output=FILE")
        return None
    formats.format_of("output", asked.output)
    if asked.predictions is not None and Path(asked.predictions).resolve() == Path(asked.output).resolve():
        raise ValueError(f"output={asked.output} and predictions={asked.predictions} name the same file. "
                         "Give the logits another")
    return None if asked.output_nodes is None else tables.read_ids(asked.output_nodes)


def restore(run: SavedRun, asked: Asked, *, whole: bool = True, **evaluation: Any) -> Restored:
    """Load a checkpoint of a run and predict every row with it.

    Args:
        whole: whether all rows are needed. Without, only those of ``output_nodes`` are predicted, where that is exact.
        evaluation: keys of the configuration's evaluation that replace those of the run, if they are not None.

    Raises:
        ValueError: no such checkpoint, a damaged one, another dataset, an unknown method, or pairs that cannot be read
            or predicted.
    """
    config, folder = run.config, run.folder
    given_pairs = _read_pairs(run, asked)
    if config.task.name != "node":
        _refuse_nodes(run, asked)
    wanted = check_tables(asked)
    _refuse_several(run)
    new = new_data.choose(run, asked.data)
    _check_new(run, asked, is_new=bool(new), smooth=evaluation.get("smooth"))
    state = run.load()
    given = {name: value for name, value in evaluation.items() if value is not None}
    config = keys.replaced(config, new | {f"evaluation.{name}": value for name, value in given.items()})
    opened = _open(run, state, config, is_new=bool(new))
    setup = cast(Setup, opened.parts[0])
    data, task = setup.data, setup.task
    is_named = isinstance(given_pairs, pd.DataFrame)
    ids = _ids_of(opened.data, data, config.data) if asked.output is not None or is_named else None
    pairs = _number_pairs(data, given_pairs, ids, asked.pairs)
    _check_pairs(setup, pairs, asked, folder)
    nodes = None if ids is None or config.predicts_links else _choose_nodes(asked, schema_of(data), ids, wanted)
    with fitting(state):
        load_weights(state["model"], setup.model, setup.table)
        round_, epoch = new_data.place_of(state, is_best=run.is_best)
    rows = part = None
    if wanted is not None and nodes is not None and not (whole or asked.calibrate or setup.config.evaluation.smooths):
        rows = predict_nodes(setup, torch.from_numpy(nodes), embeddings=asked.embeddings)
    if rows is None:
        rows = build_predictor(setup, embeddings=asked.embeddings)(round_)
    else:
        part, nodes = nodes, None
    rows, embeddings = rows.split([task.out_channels, rows.size(1) - task.out_channels], 1) if asked.embeddings else (
        rows, None)
    smoothed, temperatures = smooth_rows(setup, rows) if setup.config.evaluation.smooths else None, None
    if asked.calibrate:
        rows, temperatures, text = calibrate(rows, data)
        log.info("%s", text)
    found = None if ids is None or config.predicts_links else tables.Predictions(
        task.kind, rows, embeddings, ids if part is None else ids[part], tables.splits_of(data, part),
        tables.labels_of(opened.data, task.out_channels), task.unit, None if smoothed is None else smoothed.rows,
        *_types_of(asked, schema_of(data), part))
    return Restored(setup, epoch, rows, pairs, found, nodes, ids, smoothed, temperatures)


def _choose_nodes(asked: Asked, schema: Schema | None, ids: np.ndarray, wanted: list[str] | None) -> np.ndarray | None:
    """Return the nodes that a table shall hold; none for all.

    Args:
        ids: of all nodes; of several types they are unique within a type only.
        wanted: ids that the user listed.

    Raises:
        ValueError: a type or an id is not there, or labels are asked for of a type that has none.
    """
    if schema is None:
        if asked.output_type is not None:
            raise ValueError(f"output_type={asked.output_type} is for graphs with several types of nodes, and this one "
                             "has one. Leave it out")
        return None if wanted is None else tables.find_nodes(wanted, ids, asked.output_nodes)
    name = asked.output_type or schema.labelled
    if name not in (*schema.types, "all"):
        raise ValueError(f"output_type={name}: there is no such type of nodes; there are {', '.join(schema.types)}, "
                         "and all")
    if name != schema.labelled and not asked.embeddings:
        raise ValueError(f"output_type={name}: the model predicts labels of {schema.labelled}. For the vectors of "
                         "other nodes give embeddings=true")
    if name == "all":
        if wanted is not None:
            raise ValueError(f"output_nodes={asked.output_nodes} lists ids, which are unique within a type only. Name "
                             "their type by output_type")
        return None
    own = schema.nodes_of(name)
    return np.arange(own.start, own.stop) if wanted is None else own.start + tables.find_nodes(
        wanted, ids[own.start:own.stop], asked.output_nodes)


def _types_of(asked: Asked, schema: Schema | None, part: np.ndarray | None) -> tuple[bool, np.ndarray | None]:
    """Return whether a table holds labels, and the type of each node where it holds nodes of several types."""
    if schema is None or asked.output_type in (None, schema.labelled):
        return True, None
    types = np.repeat(np.array(schema.types, object), schema.counts)
    return False, (types if part is None else types[part]) if asked.output_type == "all" else None


def _number_pairs(data: Data, given: Tensor | pd.DataFrame | None, ids: np.ndarray | None,
                  path: str | None) -> Tensor | None:
    """Find the nodes of the pairs that are asked for; those of a relation are named within their types."""
    own = link_relation_of(data)
    if isinstance(given, pd.DataFrame):
        assert ids is not None and path is not None
        return number_pairs(given, ids, path) if own is None else number_typed_pairs(given, ids, path, own)
    return given if own is None or given is None else number_ends(given, own)


def _check_pairs(setup: Setup, pairs: Tensor | None, asked: Asked, folder: Path) -> None:
    """Refuse pairs that cannot be predicted, and a table of the pairs of the test where there are none."""
    if pairs is not None:
        setup.task.check_pairs(pairs)
    elif setup.config.predicts_links and asked.output is not None and not len(setup.data.test_pairs):
        raise ValueError(f"output={asked.output} holds the pairs of the test without pairs=FILE, and {folder} has no "
                         "test pairs. Give a table with the columns source and target as pairs=FILE")


def _refuse_several(run: SavedRun) -> None:
    """Refuse a run with a model for each component."""
    if run.config.data.components == "separate":
        raise ValueError(f"{run.folder} holds a model for each component. Choose one of "
                         f"{', '.join(sorted(str(path) for path in run.folder.glob('component_*')))}")


def _open(run: SavedRun, state: dict, config: Any, *, is_new: bool) -> OpenData:
    """Open the data to predict: those of the training, or others, which `config` then names."""
    if is_new:
        config.data.reads_labels = not config.data.is_stored
    config.check()
    build.check(config)
    device = choose_device(run.device)
    if is_new:
        config.data.check()
        return new_data.open_data(config, run, state, device)
    opened = build.open_data(config, device, describes=False)
    run.check_data(state, opened.parts[0].data.get("content_hash"))
    return opened


def _check_new(run: SavedRun, asked: Asked, *, is_new: bool, smooth: str | None) -> None:
    """Refuse what only labels of the training, or none, can be asked for.

    Args:
        is_new: whether other data than those of the training are predicted.
        smooth: how predictions shall be smoothed, if the command says it.
    """
    if is_new and smooth not in (None, "none"):
        raise ValueError(f"smooth={smooth} spreads the labels of the training, and other data are predicted here. "
                         "Leave it out")
    if is_new and run.config.predicts_links and asked.pairs is None:
        raise ValueError("other data have no pairs to predict: name them by pairs=FILE")
    if asked.calibrate and run.config.predicts_links:
        raise ValueError(f"calibrate=true is for classes and binary tasks, and {run.folder} has task=link. Leave it "
                         "out")
    if asked.calibrate and is_new:
        raise ValueError("calibrate=true reads the validation labels of the training, and other data are predicted "
                         "here. Leave it out")


def _read_pairs(run: SavedRun, asked: Asked) -> Tensor | pd.DataFrame | None:
    """Read the pairs that are asked for, before any long work; none without them."""
    if asked.pairs is None:
        return None
    if not run.config.predicts_links:
        raise ValueError(f"pairs={asked.pairs} needs a run of task=link; {run.folder} has task={run.config.task.name}. "
                         "Leave it out")
    if asked.predictions is None and asked.output is None:
        raise ValueError(f"pairs={asked.pairs} needs a file for its predictions. Give output=TABLE or "
                         "predictions=FILE")
    return read_pairs(asked.pairs, has_types=run.config.task.relation is not None)


def _refuse_nodes(run: SavedRun, asked: Asked) -> None:
    """Refuse the keys of tables with a row for each node."""
    for name, value in asked.of_nodes().items():
        if value:
            raise ValueError(f"{name}={value} needs a table with a row for each node, and {run.folder} has "
                             f"task={run.config.task.name}. Leave it out")


def _ids_of(whole: Data, data: Data, source: Any) -> np.ndarray:
    """Return the ids of the nodes, or of the graphs of a source: names, or numbers where there are none."""
    if data_kind(data) is DataKind.PAIRS:
        return pair_table.ids_of(whole)
    if data_kind(data) is not DataKind.GRAPHS:
        return tables.ids_of(whole, data.get("n_id"))
    names = name_graphs(source)
    return np.arange(len(data.ptr) - 1) if names is None else np.array(names, object)


def evaluate(run: SavedRun, *, method: str | None, num_views: int | None, num_parts: int | None,
             num_neighbors: Any, smooth: str | None, **asked: Any) -> dict[str, float]:
    """Evaluate a checkpoint of a run by OGB's Evaluator, and save its predictions if asked to.

    Args:
        asked: see :class:`Asked`.

    Returns:
        The metric of each split, without smoothing.

    Raises:
        ValueError: see :func:`restore`.
    """
    wanted = Asked(**asked)
    restored = restore(run, wanted, method=method, num_views=num_views, num_parts=num_parts,
                       num_neighbors=num_neighbors, smooth=smooth)
    setup = restored.setup
    scores = setup.task.scores(setup.model, restored.rows, official=True)
    title = f"{run.title(restored.epoch)}, by {setup.config.evaluation.method}"
    smoothed = {} if restored.smoothed is None else restored.smoothed.scores
    log.info("%s", format_table([(f"{split} {setup.task.metric}", format_scores(score, smoothed.get(split)))
                                 for split, score in scores.items()], title))
    save(wanted, restored)
    return scores


def predict(run: SavedRun, *, method: str | None, num_views: int | None, num_parts: int | None,
            num_neighbors: Any, smooth: str | None, **asked: Any) -> None:
    """Save the predictions of a checkpoint of a run.

    Args:
        asked: see :class:`Asked`.

    Raises:
        ValueError: see :func:`restore`; neither a file nor a table is asked for.
    """
    wanted = Asked(**asked)
    if wanted.export is not None:
        export(run, Path(wanted.export))
        if wanted.predictions is None and wanted.output is None:
            return
    if wanted.predictions is None and wanted.output is None:
        raise ValueError("One argument is missing: predictions=FILE, or output=TABLE for a table")
    save(wanted, restore(run, wanted, whole=wanted.predictions is not None, method=method, num_views=num_views,
                         num_parts=num_parts, num_neighbors=num_neighbors, smooth=smooth))


def predict_in_memory(run: SavedRun, data: Any, pairs: Any) -> tuple[Tensor, str]:
    """Predict rows with a trained model.

    Args:
        data: what :func:`in_memory.written` takes; none for the data of the training.
        pairs: of nodes, for models of links [num_pairs, 2]; none for others.

    Returns:
        Logits or values [num_rows, columns], of several types of nodes those of the type with labels, of links
        [num_pairs]; and the kind of the labels, see
        :data:`pipeline.metrics.KINDS`.

    Raises:
        ValueError: the data are not like those of the training, or `pairs` does not fit the model.
    """
    if run.config.predicts_links != (pairs is not None):
        raise ValueError("pairs= is for models of links (task=link)" if pairs is not None else
                         "this model predicts links: name the pairs of nodes by pairs=")
    with contextlib.ExitStack() as stack:
        others = Others() if data is None else stack.enter_context(written(data, run.config.data, run.folder))
        asked = Asked(data=others)
        if pairs is not None:
            path = stack.enter_context(saved_pairs(torch.as_tensor(pairs)))
            asked = Asked(data=others, pairs=path, predictions="in memory")
        restored = restore(run, asked)
    task = restored.setup.task
    found = task.predictions(restored.setup.model, restored.rows, restored.pairs)
    rows = found["values" if "values" in found else "logits"][_labelled_rows(restored.setup)]
    if isinstance(data, (list, tuple)) and not are_tables(data) and len(rows) != len(data):
        raise ValueError(f"{len(data) - len(rows)} of the {len(data)} molecules cannot be read, and "
                         "data.skip_invalid=true leaves such out. Leave them out yourself")
    return rows, getattr(task, "kind", "binary tasks")


def _labelled_rows(setup: Setup) -> slice:
    """Return the rows whose predictions mean something: of several types of nodes those of the type with labels."""
    schema = schema_of(setup.data)
    if schema is None or schema.labelled is None or setup.config.predicts_links:
        return slice(None)
    nodes = schema.nodes_of(schema.labelled)
    return slice(nodes.start, nodes.stop)


def save(asked: Asked, restored: Restored) -> None:
    """Save what is asked for: logits or values as tensors, and a table."""
    if asked.predictions is not None:
        save_predictions(Path(asked.predictions), restored)
    if asked.output is not None and restored.table is not None:
        tables.save(asked.output, restored.table, restored.nodes)
    elif asked.output is not None:
        save_pairs(asked.output, restored)


def save_pairs(path: str, restored: Restored) -> None:
    """Save a table of the pairs that are asked for, or of those of the test, each with the probability of a link."""
    setup, is_link = restored.setup, None
    assert restored.ids is not None
    found = setup.task.predictions(setup.model, restored.rows, restored.pairs)
    if restored.pairs is None:
        is_link = torch.arange(len(found["pairs"])) < len(setup.data.test_pairs)
    pair_table.save(path, pair_table.PairPredictions(restored.ids, found["pairs"].long(), found["logits"], is_link))


def save_predictions(path: Path, restored: Restored) -> None:
    """Save predictions, and the nodes that they are of where these are not all nodes of the dataset."""
    setup = restored.setup
    predictions, own_rows = setup.task.predictions(setup.model, restored.rows, restored.pairs), _labelled_rows(setup)
    for kind in {"logits", "values"} & predictions.keys():
        predictions[kind] = predictions[kind][own_rows].clone()  # a view would be saved with all rows
    if restored.smoothed is not None:
        predictions["smoothed"] = restored.smoothed.rows
    if restored.temperatures is not None:
        predictions["temperature"] = restored.temperatures
    if "pairs" in predictions and (own := link_relation_of(setup.data)) is not None:
        predictions["first_node"] = first_nodes(own)
        predictions["pairs"] = predictions["pairs"] - predictions["first_node"]
    if "n_id" in setup.data:
        predictions["n_id"] = setup.data.n_id[own_rows]
    files.write_atomically(path, lambda file: torch.save(predictions, file))
    kind = next(kind for kind in ("logits", "values") if kind in predictions)
    log.info("wrote the %s of %s %s to %s", kind, f"{len(predictions[kind]):,}", setup.task.unit, path)

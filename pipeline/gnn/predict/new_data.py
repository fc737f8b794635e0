"""Other data than those of the training, prepared as the training data were, for a trained model."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.data import learned as learning
from parallel_epochs.pipeline.data.cache import hash_graph, open_other, prepare_as, read
from parallel_epochs.pipeline.data.config import DATASETS
from parallel_epochs.pipeline.data.degrees import add_degrees
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.learned import (
    PREPROCESSING,
    Learned,
    check_columns,
    learn,
)
from parallel_epochs.pipeline.data.opened import OpenData
from parallel_epochs.pipeline.gnn.base import bases, fusion, label_scores
from parallel_epochs.pipeline.gnn.config import GNNConfig, NewDataConfig
from parallel_epochs.pipeline.gnn.kinds.base import Kind
from parallel_epochs.pipeline.gnn.kinds.build import kind_of
from parallel_epochs.pipeline.gnn.predict.ids import ids_of
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.metrics import LINK_METRICS, METRICS
from parallel_epochs.pipeline.run import checkpoint, files, words
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.ranks import choose_device
from parallel_epochs.pipeline.run.saved import SavedRun

log = logging.getLogger(__name__)

# A model without weights may have as many outputs.
FEW_CHANNELS = 10_000
# Value of data.known_labels: labels of nodes that the training had are known.
OLD = "old"
# A graph that has grown has none of these.
OF_STORE = (
    "names",
    "names_ptr",
    "store",
    "structure",
    "content_hash",
    learning.FITTED,
    "on_disk",
)
# Names of the splits of other data then.
PARTS = (OLD, "valid", "new")
# Keys that say where labels and splits are.
OF_LABELS = (
    "data.split",
    "data.time_column",
    "data.edge_time",
    "data.label_columns",
    "data.edges.time",
    "data.edges.split_column",
    "data.split_by",
    "data.train_until",
    "data.valid_until",
)
# Those of them that are of edges, whose age may be summarised.
TIMES_OF_EDGES = ("data.edge_time", "data.edges.time")


def write_start(setup: Setup, folder: Path) -> None:
    """Keep with a run what the preparation of its data learned, where it predicts others, if it is not kept already."""
    if why_not(setup.config, 1.0) is None and not files.is_there(folder / PREPROCESSING):
        learned = learn_of(setup).to_dict() | {"data_hash": setup.data.get("content_hash")}
        checkpoint.save(folder / PREPROCESSING, learned)


def learn_of(setup: Setup) -> Learned:
    """Collect what the preparation of a run's data and its task learned of them."""
    config = setup.config.data
    return learn(
        setup.bare or setup.data,
        node_features=config.node_features,
        labels=setup.task.label_moments,
    )


def why_not(config: GNNConfig, share: float) -> str | None:
    """Say why a run cannot predict other data; none if it can.

    Args:
        share: of its simple method in what it answers; at 1, the network has no part in that.
    """
    if not config.data.other_keys:
        can = [name for name, (_, source) in DATASETS.items() if source.other_keys]
        return (
            f"data={config.data.source} cannot be read from other files; data={', '.join(can)} can"
        )
    if config.learned_channels and share < 1:
        return "its model learned features of the nodes of its training, and new nodes have none (features=embedding)"
    if config.data.on_disk:
        return "it was trained with data.on_disk=true"
    if config.data.components != "all":
        return f"it was trained on a part of its graph (data.components={config.data.components})"
    return None


def choose(run: SavedRun, new: NewDataConfig) -> dict[str, Any]:
    """Return the keys whose values change if other data are read, with these values; none for the run's own data.

    Args:
        new: their files.

    Raises:
        ValueError: they do not fit the run; the message names the key.
    """
    config, folder = run.config, run.folder
    given: dict[str, str | None] = {
        f"data.{entry.name}": entry.value
        for entry in keys.entries(new)
        if entry.value is not None and entry.name not in ("unknown", "known_labels")
    }
    known = [f"data.{name}" for name in config.data.other_keys]
    if run.shared is not None and (missing := config.data.missing_others(given)):
        raise ValueError(
            f"{folder} has no data of its own: name those to predict by {' and '.join(missing)}"
        )
    if not given:
        for name, value, usual in (
            ("unknown", new.unknown, None),
            ("known_labels", new.known_labels, "none"),
        ):
            if value != usual:
                raise ValueError(
                    f"data.{name}={value} is for other tables than those of the training. Name such "
                    "tables, or leave it out"
                )
        return {}
    key, value = next(iter(given.items()))
    if reason := why_not(config, fusion.share_of(run)):
        raise ValueError(f"{key}={value}: {folder} cannot predict other data: {reason}")
    if wrong := [name for name in given if name not in known]:
        raise ValueError(
            f"{wrong[0]}={given[wrong[0]]}: {folder} was trained on data={config.data.source}. Name other "
            f"data by {' or '.join(known)}"
        )
    config.data.check_others(given, folder)
    if new.unknown is not None:
        given["data.unknown"] = new.unknown
    if new.known_labels != "none" and not may_know_labels(config):
        raise ValueError(
            f"data.known_labels={new.known_labels} is for models of labels that were trained on tables "
            "(data=tables). Leave it out"
        )
    if new.known_labels == OLD and run.shared is not None:
        raise ValueError(
            f"data.known_labels={OLD}: {folder} holds no ids of its training. Name the directory of the "
            "run, or set data.known_labels=all"
        )
    return (
        given
        if config.train.label_input and not config.data.is_stored
        else given | _without_labels(config)
    )


def may_know_labels(config: GNNConfig) -> bool:
    """Tell whether labels of other data may be known."""
    return config.data.is_stored and kind_of(config).has_labels


def _without_labels(config: GNNConfig) -> dict[str, Any]:
    kept = (*TIMES_OF_EDGES, "data.time_column") if config.data.has_rows else ()
    return dict.fromkeys(key for key in OF_LABELS if key not in kept)


def open_data(config: GNNConfig, run: SavedRun, state: dict, *, known_labels: str) -> OpenData:
    """Read other data than those of the training, and prepare them as those were.

    Args:
        config: of the run, with the other data.
        state: the checkpoint of the run.
        known_labels: the key data.known_labels.

    Raises:
        ValueError: the data are wrong, or are not like those of the training.
    """
    source, learned = config.data, read_learned(run, state)
    kind = kind_of(config)
    if source.is_stored:
        data = open_other(source, learned, config.cache_dir)
    else:
        data = prepare_as(
            source,
            read(source, needs_labels=kind.has_labels and config.train.label_input > 0),
            learned=learned,
        )
    data.content_hash = hash_graph(source)
    return OpenData(
        config,
        data,
        [complete(config, run, state, learned, data, known_labels=known_labels)],
    )


def complete(
    config: GNNConfig,
    run: SavedRun,
    state: dict,
    learned: Learned,
    data: Data,
    *,
    known_labels: str,
) -> Setup:
    """Give a prepared graph the features that are made of its edges, its labels and the scores of the simple method.

    Args:
        learned: what the preparation of the training data told.
        data: other data than those of the training.
    """
    source, origin, kind = config.data, config.data.origin(), kind_of(config)
    if learned.schema is not None:  # other data need not say which type has labels
        data.types = replace(data.types, labelled=learned.schema["labelled"])
    check_columns(learned, data, origin)
    if learned.degrees is not None:
        add_degrees(data, learned.degrees, num_last=source.num_last)
    data, base = kind.accept(data, learned), cast(Any, None)
    if known_labels == OLD:
        _hide_new(data, run, state)
    if (kept := fusion.read_kept(run)) is not None:
        base = kind.other_base(kept, data)
    shown = bases.show(config, data, base, None if kept is None else kept.moments)
    setup = Setup(
        _for_prediction(kind, shown),
        shown,
        choose_device(run.device),
        base=base,
        bare=data if shown is not data else None,
    )
    setup.task.label_moments = learned.labels
    if config.train.label_input and not bool(data.train_mask.any()):
        log.warning(
            "the model reads labels of neighbours (train.label_input), and none of %s are known%s",
            origin,
            "; data.known_labels=all reads those of the tables" if known_labels == "none" else "",
        )
    log.info(
        "data: %s, %s nodes, %s directed edges",
        origin,
        f"{data.num_nodes:,}",
        f"{data.num_edges:,}",
    )
    return setup


def _hide_new(data: Data, run: SavedRun, state: dict) -> None:
    """Move the labels of nodes that the training did not have from the first split, whose labels are inputs, to the
    last, whose predictions are scored.
    """
    trained = kind_of(run.config).load(None)
    run.check_data(state, trained.get("content_hash"))
    own, known = (
        ids_of(graph, None)[graph.types.nodes_of(graph.types.labelled)] for graph in (data, trained)
    )
    is_new = torch.zeros(data.num_nodes, dtype=torch.bool)
    is_new[data.types.nodes_of(data.types.labelled)] = torch.from_numpy(
        ~pd.Series(own).isin(known).to_numpy()
    )
    data.train_mask, data.test_mask = data.train_mask & ~is_new, data.train_mask & is_new
    data.split_names = list(PARTS)
    log.info(
        "data.known_labels=%s: %s with a label were in the training, and %s were not",
        OLD,
        words.count(int(data.train_mask.sum()), "row"),
        f"{int(data.test_mask.sum()):,}",
    )


def without_store(own: Graph) -> Graph:
    """Return a copy of a graph that may grow: it has no names, no store and no digest."""
    return Graph(**{name: value for name, value in own.to_dict().items() if name not in OF_STORE})


def read_learned(run: SavedRun, state: dict) -> Learned:
    """Read what was learned of the training data.

    Args:
        state: the checkpoint of the run.

    Raises:
        ValueError: an earlier version kept nothing of it.
        DamagedFile: it does not fit.
    """
    if run.shared is not None:
        path, content = run.folder, checkpoint.Content(run.folder, run.shared["learned"])
    else:
        path = run.folder / PREPROCESSING
        if not files.is_there(path):
            raise ValueError(
                f"{path} does not exist, since an earlier version trained the run: predict other data with "
                "that version, or train it again"
            )
        content = checkpoint.load(path)
    try:
        with checkpoint.fitting(content):
            found = learning.from_dict(path, content)
            _check_channels(found, state["model"])
    except (TypeError, ValueError) as error:
        raise DamagedFile(f"{path} cannot be used: {error}") from None
    if run.shared is None:
        run.check_data(state, content["data_hash"])
    return found


def _check_channels(learned: Learned, weights: dict[str, Tensor]) -> None:
    """Refuse a number of outputs that weights cannot have, before a model with as many is built.

    Raises:
        ValueError: names the number.
    """
    limit = max(FEW_CHANNELS, sum(values.numel() for values in weights.values()))
    if learned.out_channels > limit:
        raise ValueError(
            f"out_channels is {learned.out_channels:,}, and its weights are too few for so many"
        )
    if learned.metric not in (*METRICS, *LINK_METRICS):
        raise ValueError(f"metric is {learned.metric!r:.40}, which this version does not know")


def export(run: SavedRun, path: Path) -> None:
    """Write a model to a file of its own: the configuration, the weights, and what the preparation learned.

    Raises:
        ValueError: the model cannot predict other data.
    """
    if reason := why_not(run.config, fusion.share_of(run)):
        raise ValueError(f"export={path}: {run.folder} cannot predict other data: {reason}")
    state = run.load()
    with checkpoint.fitting(state):
        round_, epoch = place_of(state, is_best=run.is_best)
        weights = state["model"]
    config = keys.replaced(
        run.config,
        {
            **run.config.data.without_files(),
            "cache_dir": ".cache",
            "resume": None,
            **_without_labels(run.config),
        },
    )
    checkpoint.save(
        path,
        {
            "shared": 1,
            "config": keys.to_yaml(config),
            "state": {"model": weights, "round": round_, "epoch": epoch},
            "learned": read_learned(run, state).to_dict(),
            **(
                {}
                if (found := label_scores.read_thresholds(run)) is None
                else {"thresholds": found.tolist()}
            ),
            **(
                {}
                if (kept := fusion.read_kept(run)) is None
                else {"base": vars(kept) | {"fitted": dict(kept.fitted)}}
            ),
        },
    )
    log.info("wrote the model to %s", path)


def place_of(state: dict, *, is_best: bool) -> tuple[int, int]:
    """Return the round and the epoch of a checkpoint; the last one holds the number of rounds that are complete."""
    if is_best:
        return int(state["round"]), int(state["epoch"])
    return max(state["round"] - 1, 0), int(state["progress"]["epochs"])


def _for_prediction(kind: Kind, data: Data) -> GNNConfig:
    """Leave out what training does: with labels, which other data need not have, and with batches, which may be more
    than there are nodes.
    """
    config = kind.config
    changes: dict[str, Any] = {"task.class_weights": None}
    if kind.is_one_graph:
        changes["loader.name"] = "cluster"
    if config.evaluation.method == "views":  # whose batches are clusters
        changes |= {
            "partition.num_parts": min(config.partition.num_clusters, data.num_nodes),
            "evaluation.num_parts": min(config.evaluation.num_parts, data.num_nodes),
        }
    elif kind.is_one_graph:
        changes |= {"partition.name": "whole", "partition.num_parts": 1}
    return keys.replaced(config, changes)

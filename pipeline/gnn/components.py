"""The connected components of a graph, and a model for each that is large enough."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.cache import path_of
from parallel_epochs.pipeline.data.opened import OpenData
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.features import load_weights
from parallel_epochs.pipeline.gnn.kinds.build import kind_of
from parallel_epochs.pipeline.gnn.predict.inference import predict_exact
from parallel_epochs.pipeline.gnn.predict.predictor import build_predictor
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.graph.components import Components, find_components
from parallel_epochs.pipeline.graph.ranges import check_numbers
from parallel_epochs.pipeline.graph.subgraph import induced_subgraph
from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)


def find_or_read(config: GNNConfig, data: Data, *, verify: bool) -> Components:
    """Find the connected components of a graph; those that are costly to find are kept in the cache.

    Args:
        verify: whether to check what the cache holds.
    """
    if config.data.components == "all" and not data.on_disk:
        return find_components(data)

    def check(path: Path, kept: dict) -> None:
        check_numbers(path, "index", kept["index"], len(kept["table"]), "component")

    return Components.unpack(
        checkpoint.keep(
            path_of(config.data, config.cache_dir, data.content_hash, "-components"),
            lambda: find_components(data).pack(),
            again="finding them again",
            verify=verify,
            check=check,
        )
    )


def train_components(
    train_one: Callable[[Setup, Path], dict],
    opened: OpenData,
    folder: Path,
    *,
    ranks: Ranks = Ranks(),
) -> dict:
    """Train a model for all of the data, or one for each component: the largest one's model predicts all other nodes.

    Args:
        train_one: trains the model of a component in a folder.

    Returns:
        The content of ``summary.json``: of all nodes, with each component's own metrics; empty on other ranks than
        the first.
    """
    data = opened.data
    if opened.parts[0].number is None:
        return train_one(cast(Setup, opened.parts[0]), folder)
    logits = torch.zeros(data.num_nodes, data.out_channels)
    predicted = torch.zeros(data.num_nodes, dtype=torch.bool)
    summaries, predict_largest = {}, None
    for part in opened.parts:
        setup, own_folder = cast(Setup, part), folder / f"component_{part.number}"
        log.info(
            "component %s of %s, in %s",
            setup.number,
            count(setup.data.num_nodes, "node"),
            own_folder,
        )
        summaries[str(setup.number)] = train_one(setup, own_folder)
        if not ranks.is_first:
            continue
        nodes = setup.data.n_id if "n_id" in setup.data else torch.arange(data.num_nodes)
        logits[nodes], predict = predict_part(setup, own_folder)
        predicted[nodes] = True
        predict_largest = predict_largest or predict
    if not ranks.is_first:
        return {}
    rest = (~predicted).nonzero().squeeze(1)
    if len(rest):
        small = induced_subgraph(data, rest, dtype=torch.int64)
        logits[rest] = predict_exact(
            cast(Callable, predict_largest),
            small,
            num_rows=len(rest),
            out_channels=data.out_channels,
            device=opened.parts[0].device,
        )
        log.info(
            "%s nodes of small components and of those without training nodes are predicted by the model of "
            "component %s",
            f"{len(rest):,}",
            opened.parts[0].number,
        )
    return merge_summaries(summaries, kind_of(opened.config).task(data).scores(None, logits))


def predict_part(setup: Setup, folder: Path) -> tuple[torch.Tensor, Callable]:
    """Predict the nodes of a component by its best checkpoint.

    Returns:
        Their logits, and what predicts a batch of other nodes by the same model.
    """
    task, model, table = setup.task, setup.model, setup.table
    best = checkpoint.load(folder / "checkpoints" / "best.pt")
    with checkpoint.fitting(best):
        load_weights(best["model"], model, table)
    logits = build_predictor(setup)(best["round"])
    if table is None:
        return logits, partial(task.predict, model)
    return logits, lambda batch: task.predict(model, table.attach_mean(batch, setup.device))


def merge_summaries(summaries: dict[str, dict], scores: dict[str, float]) -> dict:
    """Sum the components' summaries up; the metrics are those of all nodes together."""
    each = list(summaries.values())
    return {
        **each[0],
        "best_epoch": None,
        "best_valid": scores["valid"],
        "train": scores["train"],
        "test": scores["test"],
        **(
            {"scores": more}
            if (more := {name: scores[name] for name in scores if name not in SPLITS})
            else {}
        ),
        "weights_sha256": checkpoint.digest([s["weights_sha256"] for s in each]),
        "num_parameters": sum(s["num_parameters"] for s in each),
        "wall_seconds": sum(s["wall_seconds"] for s in each),
        "data_epochs": max(s["data_epochs"] for s in each),
        "peak_memory_bytes": max(s["peak_memory_bytes"] for s in each),
        "components": {
            number: {key: s[key] for key in ("best_epoch", "best_valid", "test")}
            for number, s in summaries.items()
        },
    }

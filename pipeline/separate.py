"""A model for each connected component that is large enough."""

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch_geometric.data import Data

from pipeline import build, folder as run_folder
from pipeline.build import OpenGraph
from pipeline.config import Config
from pipeline.features import load_weights
from pipeline.graph.subgraph import induced_subgraph
from pipeline.inference import predict_exact
from pipeline.run import checkpoint, files
from pipeline.run.ranks import Ranks
from pipeline.run.stop import StopRequest

log = logging.getLogger(__name__)


def train_components(train_one: Callable[..., dict], config: Config, graph: OpenGraph, folder: Path,
                     device: torch.device, command: str, *, ranks: Ranks = Ranks(),
                     stop: StopRequest | None = None) -> dict:
    """Train a model for each component; the largest one's model predicts all other nodes.

    Args:
        train_one: trains one model on a graph, as :func:`pipeline.training.train_one`.

    Returns:
        The content of ``summary.json``: of all nodes, with each component's own metrics; empty on other ranks than
        the first.
    """
    data = graph.data
    logits = torch.zeros(data.num_nodes, data.out_channels)
    predicted = torch.zeros(data.num_nodes, dtype=torch.bool)
    summaries, predict_largest = {}, None
    for number, part in graph.parts:
        own = dataclasses.replace(config, data=dataclasses.replace(config.data, components=number))
        own_folder = folder / f"component_{number}"
        own_folder.mkdir(exist_ok=True)
        if ranks.is_first:
            run_folder.write_config(own_folder, own)
        log.info("component %s of %s nodes, in %s", number, f"{part.num_nodes:,}", own_folder)
        summaries[number] = train_one(own, part, own_folder, device, command, ranks=ranks, stop=stop)
        if not ranks.is_first:
            continue
        files.write_json(own_folder / "summary.json", summaries[number])
        nodes = part.n_id if "n_id" in part else torch.arange(data.num_nodes)
        logits[nodes], predict = predict_part(own, part, own_folder, device)
        predicted[nodes] = True
        predict_largest = predict_largest or predict
    if not ranks.is_first:
        return {}
    rest = (~predicted).nonzero().squeeze(1)
    if len(rest):
        small = induced_subgraph(data, rest, dtype=torch.int64)
        logits[rest] = predict_exact(predict_largest, small, num_rows=len(rest), out_channels=data.out_channels,
                                     device=device)
        log.info("%s nodes of small components and of those without training nodes are predicted by the model of "
                 "component %s", f"{len(rest):,}", graph.parts[0][0])
    return merge_summaries(summaries, build.build_task(config, data).scores(None, logits))


def predict_part(config: Config, part: Data, folder: Path, device: torch.device) -> tuple[torch.Tensor, Callable]:
    """Predict the nodes of a component by its best checkpoint.

    Returns:
        Their logits, and what predicts a batch of other nodes by the same model.
    """
    task, loader = build.build_task(config, part), build.build_loader(config, part, device)
    best = checkpoint.load(folder / "checkpoints" / "best.pt")
    model = build.build_model(config, part, task).to(device)
    table = build.build_table(config, part, device)
    load_weights(best["model"], model, table)
    logits = build.build_predictor(config, model, task, loader, table=table)(best["round"])
    if table is None:
        return logits, partial(task.predict, model)
    return logits, lambda batch: task.predict(model, table.attach_mean(batch, device))


def merge_summaries(summaries: dict[str, dict], scores: dict[str, float]) -> dict:
    """Sum the components' summaries up; the metrics are those of all nodes together."""
    each = list(summaries.values())
    return {**each[0], "best_epoch": None, "best_valid": scores["valid"], "train": scores["train"],
            "test": scores["test"],
            "weights_sha256": checkpoint.digest([s["weights_sha256"] for s in each]),
            "num_parameters": sum(s["num_parameters"] for s in each),
            "wall_seconds": sum(s["wall_seconds"] for s in each),
            "data_epochs": max(s["data_epochs"] for s in each),
            "peak_memory_bytes": max(s["peak_memory_bytes"] for s in each),
            "components": {number: {key: s[key] for key in ("best_epoch", "best_valid", "test")}
                           for number, s in summaries.items()}}

"""Runs of trainer=layout after training: the metrics of a checkpoint, and its positions in files."""

from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.block_training import vectors
from parallel_epochs.pipeline.config import EvaluateConfig
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.layout.build import build_probe, check_data, describe, prepare, weigh
from parallel_epochs.pipeline.layout.config import LayoutConfig
from parallel_epochs.pipeline.run.checkpoint import fitting
from parallel_epochs.pipeline.run.saved import SavedRun


def evaluate(run: SavedRun[LayoutConfig], asked: EvaluateConfig) -> dict[str, float]:
    """Compute the metrics of a checkpoint's positions, and save them if asked to.

    Raises:
        ValueError: no such checkpoint, a damaged one, another dataset, or a format that nothing writes.
    """
    if asked.predictions is not None:
        vectors.writer_of(vectors.check_predictions(run, asked.predictions))
    positions, names, epoch, data = _restore(run)
    probe = build_probe(run.config, data)
    scores = probe(positions.numpy())
    vectors.log_scores(run.title(epoch), scores, probe.metric)
    if asked.predictions is not None:
        vectors.save(Path(asked.predictions), positions, names)
    return scores


def predict(run: SavedRun[LayoutConfig], asked: EvaluateConfig) -> None:
    """Save the positions.

    Raises:
        ValueError: as :func:`evaluate`.
    """
    path = vectors.check_predictions(run, asked.predictions)
    vectors.writer_of(path)
    vectors.save(path, *positions_of(run))


def positions_of(run: SavedRun[LayoutConfig]) -> tuple[Tensor, list[str]]:
    """Return the positions of a run [num_nodes, dim], and the names of the nodes.

    Raises:
        ValueError: no such checkpoint, a damaged one, or another dataset.
    """
    return _restore(run)[:2]


def _restore(run: SavedRun) -> tuple[Tensor, list[str], int, Data]:
    state, part = vectors.open_run(run, check_data, describe)
    data = part.data
    with fitting(state):
        if run.is_best:
            return (
                state["model"]["embedding"].clone(),
                unpack_names(data),
                int(state["epoch"]),
                data,
            )
        rows, epoch = state["positions"]["rows"], int(state["progress"]["epochs"])
        positions = torch.empty_like(rows)
    positions[weigh(run.config, data, prepare(part))[1].node] = rows
    return positions, unpack_names(data), epoch, data

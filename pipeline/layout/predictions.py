"""Runs of trainer=layout after training: the metrics of a checkpoint, and its positions in files."""

from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.block_training import vectors
from parallel_epochs.pipeline.config import EvaluateConfig, settings
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.layout.build import build_probe, open_data, prepare, weigh
from parallel_epochs.pipeline.layout.config import LayoutConfig
from parallel_epochs.pipeline.run.session import check_data, load_checkpoint


def evaluate(options: EvaluateConfig, config: LayoutConfig) -> dict[str, float]:
    """Compute the metrics of a checkpoint's positions, and save them if asked to.

    Raises:
        ValueError: no such checkpoint, a damaged one, another dataset, or a format that nothing writes.
    """
    vectors.check_evaluation(options)
    positions, names, epoch, data = _restore(options, config)
    probe = build_probe(config, data)
    scores = probe(positions.numpy())
    vectors.log_scores(options, scores, probe.metric, epoch)
    if options.predictions is not None:
        vectors.save(Path(options.predictions), positions, names)
    return scores


def predict(options: EvaluateConfig, config: LayoutConfig) -> None:
    """Save the positions.

    Raises:
        ValueError: as :func:`evaluate`.
    """
    vectors.check_options(options)
    positions, names, _, _ = _restore(options, config)
    vectors.save(Path(options.predictions), positions, names)


def _restore(options: EvaluateConfig, config: LayoutConfig) -> tuple[Tensor, list[str], int, Data]:
    folder = Path(options.run)
    state = load_checkpoint(folder, options.checkpoint, settings(config))
    opened = open_data(config, torch.device("cpu"))
    data = opened.data
    check_data(folder, state, data.get("content_hash"))
    if options.checkpoint == "best":
        return state["model"]["embedding"].clone(), unpack_names(data), state["epoch"], data
    rows = state["positions"]["rows"]
    positions = torch.empty_like(rows)
    positions[weigh(config, data, prepare(opened.parts[0]))[1].node] = rows
    return positions, unpack_names(data), state["progress"]["epochs"], data

"""Runs of trainer=node_embedding after training: the metrics of a checkpoint, and its vectors in files."""

from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.block_training import vectors
from parallel_epochs.pipeline.config import EvaluateConfig, settings
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.node_embedding.build import Training, finish_vectors, open_data, prepare_training
from parallel_epochs.pipeline.node_embedding.config import NodeEmbeddingConfig, PredictVectorsConfig
from parallel_epochs.pipeline.run.session import check_data, load_checkpoint


def evaluate(options: EvaluateConfig, config: NodeEmbeddingConfig) -> dict[str, float]:
    """Compute the metrics of a checkpoint's vectors, and save them if asked to.

    Raises:
        ValueError: no such checkpoint, a damaged one, another dataset, or a format that nothing writes.
    """
    vectors.check_evaluation(options)
    data, state = _open(options, config)
    training = prepare_training(config, data)
    found, epoch = _vectors_of(options, config, state, training)
    scores = training.score(found.numpy())
    vectors.log_scores(options, scores, training.metric, epoch)
    if options.predictions is not None:
        vectors.save(Path(options.predictions), found, unpack_names(data))
    return scores


def predict(options: PredictVectorsConfig, config: NodeEmbeddingConfig) -> None:
    """Save vectors, the nearest nodes of each, or the cosines of pairs.

    Raises:
        ValueError: as :func:`evaluate`; pairs that name no nodes.
    """
    pairs = vectors.check_options(options)
    data, state = _open(options, config)
    # What training saw matters for a checkpoint in its middle alone.
    training = None if options.checkpoint == "best" else prepare_training(config, data)
    found, names = _vectors_of(options, config, state, training)[0], unpack_names(data)
    if not vectors.save_cosines(options, pairs, found, names):
        vectors.save(Path(options.predictions), found, names)


def _open(options: EvaluateConfig, config: NodeEmbeddingConfig) -> tuple[Data, dict]:
    folder = Path(options.run)
    state = load_checkpoint(folder, options.checkpoint, settings(config))
    data = open_data(config, torch.device("cpu")).data
    check_data(folder, state, data.get("content_hash"))
    return data, state


def _vectors_of(options: EvaluateConfig, config: NodeEmbeddingConfig, state: dict,
                training: Training | None) -> tuple[Tensor, int]:
    """Return the vectors of a checkpoint [num_nodes, dim], and its epoch."""
    if options.checkpoint == "best":
        return state["model"]["embedding"].clone(), state["epoch"]
    return finish_vectors(config, training, state["heads"]["rows"]), state["progress"]["epochs"]

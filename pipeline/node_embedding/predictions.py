"""Runs of trainer=node_embedding after training: the metrics of a checkpoint, and its vectors in files."""

from pathlib import Path

from torch import Tensor

from parallel_epochs.pipeline.block_training import vectors
from parallel_epochs.pipeline.block_training.open import describe_graph
from parallel_epochs.pipeline.config import EvaluateConfig
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.node_embedding.build import (
    Training,
    check_graph,
    finish_vectors,
    prepare_training,
)
from parallel_epochs.pipeline.node_embedding.config import NodeEmbeddingConfig
from parallel_epochs.pipeline.run.checkpoint import fitting
from parallel_epochs.pipeline.run.saved import SavedRun


def evaluate(run: SavedRun[NodeEmbeddingConfig], asked: EvaluateConfig) -> dict[str, float]:
    """Compute the metrics of a checkpoint's vectors, and save them if asked to.

    Raises:
        ValueError: no such checkpoint, a damaged one, another dataset, or a format that nothing writes.
    """
    if asked.predictions is not None:
        vectors.writer_of(vectors.check_predictions(run, asked.predictions))
    state, part = vectors.open_run(run, check_graph, describe_graph)
    training = prepare_training(run.config, part.data)
    learned, epoch = _vectors_of(run, state, training)
    scores = training.score(learned.numpy())
    vectors.log_scores(run.title(epoch), scores, training.metric)
    if asked.predictions is not None:
        vectors.save(Path(asked.predictions), learned, unpack_names(part.data))
    return scores


def predict(run: SavedRun[NodeEmbeddingConfig], asked: EvaluateConfig) -> None:
    """Save the vectors.

    Raises:
        ValueError: as :func:`evaluate`.
    """
    path = vectors.check_predictions(run, asked.predictions)
    vectors.writer_of(path)
    vectors.save(path, *vectors_of(run))


def vectors_of(run: SavedRun[NodeEmbeddingConfig]) -> tuple[Tensor, list[str]]:
    """Return the vectors of a run [num_nodes, dim], and the names of the nodes.

    Raises:
        ValueError: no such checkpoint, a damaged one, or another dataset.
    """
    state, part = vectors.open_run(run, check_graph, describe_graph)
    training = None if run.is_best else prepare_training(run.config, part.data)
    return _vectors_of(run, state, training)[0], unpack_names(part.data)


def _vectors_of(run: SavedRun, state: dict, training: Training | None) -> tuple[Tensor, int]:
    """Return the vectors of a checkpoint [num_nodes, dim], and its epoch."""
    with fitting(state):
        if run.is_best:
            return state["model"]["embedding"].clone(), int(state["epoch"])
        rows, epoch = state["heads"]["rows"], int(state["progress"]["epochs"])
    assert training is not None, "a checkpoint in mid-training needs the training edges"
    return finish_vectors(run.config, training, rows), epoch

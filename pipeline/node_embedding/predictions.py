"""Runs of trainer=node_embedding after training: the metrics of a checkpoint, and its vectors in files."""

from pathlib import Path
from typing import cast

from torch import Tensor

from parallel_epochs.pipeline.block_training import vectors
from parallel_epochs.pipeline.block_training.open import describe_graph
from parallel_epochs.pipeline.config import EvaluateConfig
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.node_embedding.build import (
    Training,
    check_graph,
    finish_vectors,
    metric_of,
    prepare_training,
)
from parallel_epochs.pipeline.node_embedding.config import NodeEmbeddingConfig, PredictVectorsConfig
from parallel_epochs.pipeline.node_embedding.probe import LinkProbe
from parallel_epochs.pipeline.run.checkpoint import fitting
from parallel_epochs.pipeline.run.saved import SavedRun


def evaluate(run: SavedRun[NodeEmbeddingConfig], asked: EvaluateConfig) -> dict[str, float]:
    """Compute the metrics of a checkpoint's vectors, and save them if asked to.

    Raises:
        ValueError: no such checkpoint, a damaged one, another dataset, or a format that nothing writes.
    """
    if asked.predictions is not None:
        vectors.check_predictions(run, asked.predictions)
    state, part = vectors.open_run(run, check_graph, describe_graph)
    training = prepare_training(run.config, part.data)
    learned, epoch = _vectors_of(run, state, training)
    scores = training.score(learned.numpy())
    vectors.log_scores(run.title(epoch), scores, training.metric)
    if asked.predictions is not None:
        vectors.save(Path(asked.predictions), learned, unpack_names(part.data))
    return scores


def predict(run: SavedRun[NodeEmbeddingConfig], asked: PredictVectorsConfig) -> None:
    """Save vectors, the nearest nodes of each, or the scores of pairs.

    Raises:
        ValueError: as :func:`evaluate`; pairs that name no nodes.
    """
    path, pairs = vectors.check_predictions(
        run, asked.predictions, pairs=asked.pairs, neighbors=asked.neighbors
    )
    state, part = vectors.open_run(run, check_graph, describe_graph)
    data = part.data
    score = run.config.trainer.score
    if score == "auto" and (pairs is None or metric_of(run.config.trainer, data) != "auc"):
        score = "cosine"
    # The training edges matter for a checkpoint in mid-training, and the held-out ones where they choose the score.
    training = None if run.is_best and score != "auto" else prepare_training(run.config, data)
    learned, names = _vectors_of(run, state, training)[0], unpack_names(data)
    if score == "auto":
        score = cast(LinkProbe, cast(Training, training).score).choose(learned.numpy())
    if not vectors.save_cosines(path, pairs, asked.neighbors, learned, names, score=score):
        vectors.save(path, learned, names)


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

"""From a configuration to what trains vectors: these trainers need neither a task nor a loader nor a model."""

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from models.embedding import skipgram, spectral
from models.embedding.skipgram import Negatives, Options, Table
from pipeline import build_knowledge, build_layout
from pipeline.config import Config
from pipeline.graph import walks
from pipeline.graph.blocks import NodeParts, check_parts, deal_nodes
from pipeline.graph.edges import choose_weight, sort_edges, weight_matrix
from pipeline.names import MASKS
from pipeline.probe import LabelProbe, LinkProbe
from pipeline.run.memory import format_bytes, machine_memory
from pipeline.run.ranks import Ranks
from pipeline.run.seeds import seed_torch, stream
from pipeline.run.session import Trainer
from pipeline.run.stop import StopRequest
from pipeline.trainers.config import NodeEmbeddingConfig
from pipeline.trainers.node_embedding import NodeEmbeddingTrainer, Plan, plan_walks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Builder:
    """What a trainer needs of here.

    Attributes:
        check: refuses a configuration, see :func:`check`.
        check_data: refuses data, see :func:`check_data`.
        describe: see :func:`describe`.
        build: builds the trainer for a rank.
        prepare: fills caches beside that of the data.
        write: writes what others read of a run that has ended, into its folder.
    """

    check: Callable[[Config], None]
    check_data: Callable[[Config, Data], None]
    describe: Callable[[Data], str]
    build: Callable[[Config, Data, Ranks, StopRequest | None], Trainer]
    prepare: Callable[[Config, Data], object] = lambda config, data: None
    write: Callable[[Config, Data, Path], None] = lambda config, data, folder: None


def check(config: Config) -> None:
    """Refuse what no data can be trained with, before any long work.

    Raises:
        ValueError: names the key.
    """
    if config.device.startswith("cuda"):
        raise ValueError(f"device={config.device}: trainer={config.trainer.name} runs on the CPU alone; leave device "
                         "out")
    TRAINERS[config.trainer.name].check(config)


def check_data(config: Config, data: Data) -> None:
    """Refuse data that do not fit the trainer.

    Raises:
        ValueError: says what is missing, or names the key.
    """
    TRAINERS[config.trainer.name].check_data(config, data)


def describe(config: Config, data: Data) -> str:
    """Say what there is to learn from."""
    return TRAINERS[config.trainer.name].describe(data)


def build_trainer(config: Config, data: Data, ranks: Ranks, stop: StopRequest | None) -> Trainer:
    """Build what trains vectors, for this rank.

    Raises:
        ValueError: the configuration does not fit the data.
    """
    return TRAINERS[config.trainer.name].build(config, data, ranks, stop)


def prepare(config: Config, data: Data) -> None:
    """Fill the caches that the trainer has beside that of the data."""
    TRAINERS[config.trainer.name].prepare(config, data)


def write_results(config: Config, data: Data, folder: Path) -> None:
    """Write what others read of a run that has ended, beside its summary; most trainers leave nothing."""
    if builder := TRAINERS.get(config.trainer.name):
        builder.write(config, data, folder)


def _check_portions(config: Config) -> None:
    options = cast(NodeEmbeddingConfig, config.trainer)
    if wrong := [portion for portion in options.portions if not 0 < portion < 1]:
        raise ValueError(f"trainer.portions: {wrong[0]} of the labelled nodes cannot be trained on; give fractions "
                         "between 0 and 1")
    walks.library()


def _check_graph(config: Config, data: Data) -> None:
    options = cast(NodeEmbeddingConfig, config.trainer)
    metric = _metric_of(options, data)
    if metric != "auc" and data.get("y") is None:
        raise ValueError(f"trainer.metric={metric} needs labels, and {config.data.origin()} has none: give "
                         "data.labels, or choose trainer.metric=auc")
    if data.num_edges == 0:
        raise ValueError(f"{config.data.origin()} has no edges: there is nothing to walk on")
    check_parts(data.num_nodes, options.num_parts)
    width = 4 * (1 + {"sgd": 0, "adagrad": 1, "adam": 2}[options.optimizer]) * -(-options.dim // 16) * 16
    needed = 2 * width * data.num_nodes * config.parallel.num_ranks
    if needed > machine_memory():
        raise ValueError(f"trainer.dim={options.dim}: two tables of {data.num_nodes:,} nodes take "
                         f"{format_bytes(needed)}, this machine has {format_bytes(machine_memory())}: lower it")


def _metric_of(options: NodeEmbeddingConfig, data: Data) -> str:
    return options.metric or ("auc" if data.get("y") is None else "micro_f1")


def _describe_graph(data: Data) -> str:
    degree = data.edge_index.get_csc()[0][0].diff()
    isolated = int((degree == 0).sum())
    text = f"graph: {data.num_nodes:,} nodes, {data.num_edges:,} directed edges"
    if data.edge_attr is not None:
        text += ", weighted"
    if isolated:
        text += f"; {isolated:,} without an edge keep the vector that they begin with"
    if data.get("y") is not None:
        labels = _as_binary(data)
        labelled = int((~data.y.float().isnan().any(1) & (labels > 0).any(1)).sum())
        text += f"; {labelled:,} nodes have labels, of {labels.size(1):,} kinds"
    return text


def _as_binary(data: Data) -> Tensor:
    """Return labels as a column of 0 and 1 for each, NaN where unknown [num_nodes, num_labels]."""
    y = data.y
    if y.is_floating_point():
        return y
    binary = torch.nn.functional.one_hot(y[:, 0], data.out_channels).float()
    known = torch.stack([data[mask] for mask in MASKS]).any(0)
    binary[~known] = float("nan")
    return binary


def build_node_embedding(config: Config, data: Data, ranks: Ranks, stop: StopRequest | None) -> NodeEmbeddingTrainer:
    """Build what trains vectors of nodes."""
    with ranks.first_then_others():  # what is compiled, the others find
        walks.library(), skipgram.LIBRARY.get()
    options = cast(NodeEmbeddingConfig, config.trainer)
    edge_index, weight = data.edge_index, choose_weight(data.edge_attr)
    metric = _metric_of(options, data)
    score: LabelProbe | LinkProbe
    if metric == "auc":
        edge_index, weight, score = _hold_out(data, weight, options.holdout, config.seed)
    else:
        score = LabelProbe(_as_binary(data).numpy(), metric=metric, portions=options.portions,
                           num_draws=options.num_draws, seed=config.seed, num_threads=torch.get_num_threads())
    is_line, is_walk = options.model == "line", options.model in ("deepwalk", "node2vec")
    length = options.walk_length if is_walk else options.augmentation_distance
    second_order = options.model == "node2vec"
    sampler = walks.WalkSampler(edge_index, weight, length=length, p=options.p if second_order else 1.0,
                                q=options.q if second_order else 1.0, random_starts=is_line)
    degree = edge_index.get_csc()[0][0].diff()
    parts = deal_nodes(degree, options.num_parts)
    both = _is_symmetric(edge_index)
    train = config.train
    plan = plan_walks(edge_index.size(1), train.epochs, length, min(options.augmentation_distance, length), both,
                      options.episode_size, lr=train.lr, last_lr=options.last_lr, eval_every=train.eval_every)
    if options.model == "spectral":
        plan = dataclasses.replace(plan, num_epochs=1, num_walks=1, walks_per_episode=1, lr=0.0)
    matrix = weight_matrix(edge_index, weight)
    heads, tails = _build_tables(options, parts, matrix, config.seed)
    frequency = degree[parts.node].double().pow(options.negative_exponent).float().contiguous()
    trainer = NodeEmbeddingTrainer(
        sampler, parts, heads, tails, Negatives(*walks.alias_tables(parts.ptr, frequency)),
        Options(num_negatives=options.num_negatives, negative_weight=options.negative_weight,
                optimizer=options.optimizer, weight_decay=options.weight_decay),
        plan, finish=partial(_propagate, matrix, options.propagation_steps),
        score=score, metric=metric, dim=options.dim,
        seed=config.seed, ranks=ranks, stop=stop)
    _say(options, plan, trainer)
    return trainer


def _say(options: NodeEmbeddingConfig, plan: Plan, trainer: NodeEmbeddingTrainer) -> None:
    if options.model == "spectral":
        log.info("model: spectral, %d numbers a node", options.dim)
        return
    log.info("model: %s, %d numbers a node, %s in all", options.model, options.dim, f"{trainer.num_parameters:,}")
    log.info("pairs: %s walks of up to %d nodes in %d episodes, at most %d steps apart; %d partitions, %d steps an "
             "episode", f"{plan.num_walks:,}", trainer.walk_nodes, plan.num_rounds, plan.distance, options.num_parts,
             trainer.num_steps)


def _build_tables(options: NodeEmbeddingConfig, parts: NodeParts, matrix: sp.csr_array,
                  seed: int) -> tuple[Table, Table]:
    """Build the tables with word2vec's first values: even in +-1/2dim for the vectors, zero for the contexts."""
    num_nodes, dim = parts.node.numel(), options.dim
    heads = Table.zeros(num_nodes, dim, options.optimizer)
    if options.init == "spectral" or options.model == "spectral":
        first = torch.from_numpy(spectral.factorise(matrix, dim, seed=_small_seed(seed)))
    else:
        first = (torch.rand(num_nodes, dim, generator=seed_torch("vectors", seed)) - 0.5) / dim
    heads.rows[:, :dim] = first[parts.node]
    if options.model == "line" and options.order == 1:
        return heads, heads
    return heads, Table.zeros(num_nodes, dim, options.optimizer)


def _small_seed(seed: int) -> int:
    return int(stream("spectral", seed).integers(2**31))


def _propagate(matrix: sp.csr_array, num_terms: int, vectors: Tensor) -> Tensor:
    if not num_terms:
        return vectors
    return torch.from_numpy(spectral.propagate(matrix, vectors.numpy(), num_terms=max(num_terms, 2)))


def _is_symmetric(edge_index: EdgeIndex) -> bool:
    matrix = weight_matrix(edge_index, None)
    return (matrix != matrix.T).nnz == 0


def _hold_out(data: Data, weight: Tensor | None, fraction: float,
              seed: int) -> tuple[EdgeIndex, Tensor | None, LinkProbe]:
    """Leave edges out of training: half of them validate, the others test, both ways round of each link.

    Raises:
        ValueError: there are too few edges.
    """
    edges = data.edge_index.as_tensor().long()
    rng = stream("holdout", seed)
    low, high = edges.min(0).values.numpy(), edges.max(0).values.numpy()
    links, link_of = np.unique(np.stack([low, high]), axis=1, return_inverse=True)
    chosen = rng.permutation(links.shape[1])[:int(fraction * links.shape[1])]
    if len(chosen) < 2:
        raise ValueError(f"trainer.holdout={fraction:g} of {links.shape[1]:,} links leaves none to validate and test: "
                         "raise it")
    held = np.zeros(links.shape[1], bool)
    held[chosen] = True
    kept = torch.from_numpy(~held[link_of.reshape(-1)])
    half = len(chosen) // 2
    seen = rng.choice(np.flatnonzero(~held), min(len(chosen), int((~held).sum())), replace=False)
    pairs = {}
    for split, numbers in (("train", seen), ("valid", chosen[:half]), ("test", chosen[half:])):
        others = rng.integers(data.num_nodes, size=(len(numbers), 2))
        pairs[split] = links[:, numbers].T, others
    trained, perm = sort_edges(edges[:, kept], data.num_nodes)
    return trained, None if weight is None else weight[kept][perm].contiguous(), LinkProbe(pairs)


def _describe_layout(data: Data) -> str:
    return build_layout.describe(data) if data.edge_index is None else _describe_graph(data)


def _prepare_layout(config: Config, data: Data) -> None:
    if data.edge_index is None:
        build_layout.keep_neighbors(config, data)


# Trainers by name: what checks and builds each. The keys are those of pipeline/trainers/config.py.
TRAINERS: dict[str, Builder] = {
    "node_embedding": Builder(_check_portions, _check_graph, _describe_graph, build_node_embedding),
    "knowledge": Builder(build_knowledge.check, build_knowledge.check_data, build_knowledge.describe,
                         build_knowledge.build_knowledge),
    "layout": Builder(build_layout.check, build_layout.check_data, _describe_layout, build_layout.build_layout,
                      _prepare_layout, build_layout.write)}

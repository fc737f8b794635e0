"""From a configuration to what trains vectors: these trainers need neither a task nor a loader nor a model."""

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from models.edges import from_csc
from models.embedding import skipgram, spectral
from models.embedding.skipgram import Negatives, Options, Table
from pipeline import build_knowledge, build_layout
from pipeline.config import Config
from pipeline.graph import walks
from pipeline.graph.blocks import NodeParts, check_parts, deal_nodes
from pipeline.graph.edges import choose_weight, weight_matrix
from pipeline.graph.structure import draw_lots, inspect
from pipeline.names import MASKS
from pipeline.probe import LabelProbe, LinkProbe
from pipeline.run import seeds
from pipeline.run.memory import format_bytes, machine_memory
from pipeline.run.ranks import Ranks
from pipeline.run.seeds import seed_torch, stream
from pipeline.run.session import Trainer
from pipeline.run.stop import StopRequest
from pipeline.run.storage import DiskStorage, MemoryStorage, free_space
from pipeline.trainers.config import NodeEmbeddingConfig
from pipeline.trainers.node_embedding import NodeEmbeddingTrainer, Plan, plan_walks

log = logging.getLogger(__name__)

# Rows that are filled at a time.
FILLED = 2**20


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
    build: Callable[[Config, Data, torch.device, Ranks, StopRequest | None], Trainer]
    prepare: Callable[[Config, Data], object] = lambda config, data: None
    write: Callable[[Config, Data, Path], None] = lambda config, data, folder: None


def check(config: Config) -> None:
    """Refuse what no data can be trained with, before any long work.

    Raises:
        ValueError: names the key.
    """
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


def build_trainer(config: Config, data: Data, device: torch.device, ranks: Ranks,
                  stop: StopRequest | None) -> Trainer:
    """Build what trains vectors, for this rank.

    Raises:
        ValueError: the configuration does not fit the data.
    """
    return TRAINERS[config.trainer.name].build(config, data, device, ranks, stop)


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
    if options.tables == "disk" and config.device.startswith("cuda"):
        raise ValueError(f"trainer.tables=disk with device={config.device}: a GPU trains what lies in its memory; "
                         "leave one of them out")
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
    needed = 8 * Table.numbers_per_row(options.dim, options.optimizer) * data.num_nodes * config.parallel.num_ranks
    tables = f"trainer.dim={options.dim}: two tables of {data.num_nodes:,} nodes take {format_bytes(needed)}"
    if options.tables == "memory" and needed > machine_memory():
        raise ValueError(f"{tables}, this machine has {format_bytes(machine_memory())}: lower it, or set "
                         "trainer.tables=disk")
    if options.tables == "disk" and needed > (free := free_space(Path(config.cache_dir))):
        raise ValueError(f"{tables} on the disk of cache_dir={config.cache_dir}, where {format_bytes(free)} are free: "
                         "lower it, or choose another cache_dir")


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


def build_node_embedding(config: Config, data: Data, device: torch.device, ranks: Ranks,
                         stop: StopRequest | None) -> NodeEmbeddingTrainer:
    """Build what trains vectors of nodes."""
    with ranks.first_then_others():  # what is compiled, the others find
        walks.library(), skipgram.LIBRARY.get()
    options = cast(NodeEmbeddingConfig, config.trainer)
    edge_index, weight = data.edge_index, choose_weight(data.edge_attr)
    metric = _metric_of(options, data)
    score: LabelProbe | LinkProbe
    if metric == "auc":
        edge_index, weight, score = _hold_out(data, weight, options.holdout, config.seed, stop)
    else:
        score = LabelProbe(_as_binary(data).numpy(), metric=metric, portions=options.portions,
                           num_draws=options.num_draws, seed=config.seed, num_threads=torch.get_num_threads(),
                           stop=stop)
    structure = inspect(edge_index)
    is_line, is_walk = options.model == "line", options.model in ("deepwalk", "node2vec")
    length = options.walk_length if is_walk else options.augmentation_distance
    second_order = options.model == "node2vec"
    sampler = walks.WalkSampler(edge_index, weight, length=length, p=options.p if second_order else 1.0,
                                q=options.q if second_order else 1.0, random_starts=is_line,
                                symmetric=structure.is_undirected and not structure.num_duplicates)
    degree = edge_index.get_csc()[0][0].diff()
    parts = deal_nodes(degree, options.num_parts)
    train = config.train
    plan = plan_walks(edge_index.size(1), train.epochs, length, min(options.augmentation_distance, length),
                      structure.is_undirected,
                      options.episode_size, lr=train.lr, last_lr=options.last_lr, eval_every=train.eval_every)
    if options.model == "spectral":
        plan = dataclasses.replace(plan, num_epochs=1, num_walks=1, walks_per_episode=1, lr=0.0)
    matrix = weight_matrix(edge_index, weight) if options.propagation_steps or _is_spectral(options) else None
    storage = DiskStorage(Path(config.cache_dir) / "tables") if options.tables == "disk" else MemoryStorage()
    heads, tails = _build_tables(options, parts, matrix, storage, config.seed)
    if options.tables == "memory":
        heads, tails = (heads.to(device),) * 2 if heads is tails else (heads.to(device), tails.to(device))
    frequency = degree[parts.node].double().pow(options.negative_exponent).float().contiguous()
    trainer = NodeEmbeddingTrainer(
        sampler, parts, heads, tails, Negatives(*walks.alias_tables(parts.ptr, frequency)),
        Options(num_negatives=options.num_negatives, negative_weight=options.negative_weight,
                optimizer=options.optimizer, weight_decay=options.weight_decay),
        plan, finish=partial(_propagate, matrix, options.propagation_steps),
        score=score, metric=metric, dim=options.dim, storage=storage, seed=config.seed, ranks=ranks, stop=stop)
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


def _is_spectral(options: NodeEmbeddingConfig) -> bool:
    return "spectral" in (options.init, options.model)


def _build_tables(options: NodeEmbeddingConfig, parts: NodeParts, matrix: sp.csr_array | None, storage: MemoryStorage,
                  seed: int) -> tuple[Table, Table]:
    """Build the tables with word2vec's first values: even in +-1/2dim for the vectors, zero for the contexts."""
    num_nodes, dim = parts.node.numel(), options.dim
    heads = Table.zeros(num_nodes, dim, options.optimizer, make=storage.zeros)
    if matrix is not None and _is_spectral(options):
        heads.rows[:, :dim] = torch.from_numpy(spectral.factorise(matrix, dim, seed=_small_seed(seed)))[parts.node]
    else:
        generator = seed_torch("vectors", seed)
        for rows in parts.row.long().split(FILLED):  # in the order of the nodes
            heads.rows[rows, :dim] = (torch.rand(len(rows), dim, generator=generator) - 0.5) / dim
    for part in range(parts.num_parts):
        storage.release(heads.rows, int(parts.ptr[part]), int(parts.ptr[part + 1]))
    if options.model == "line" and options.order == 1:
        return heads, heads
    return heads, Table.zeros(num_nodes, dim, options.optimizer, make=storage.zeros)


def _small_seed(seed: int) -> int:
    return int(stream("spectral", seed).integers(2**31))


def _propagate(matrix: sp.csr_array | None, num_terms: int, vectors: Tensor) -> Tensor:
    if matrix is None or not num_terms:
        return vectors
    return torch.from_numpy(spectral.propagate(matrix, vectors.numpy(), num_terms=max(num_terms, 2)))


def _hold_out(data: Data, weight: Tensor | None, fraction: float, seed: int,
              stop: StopRequest | None) -> tuple[EdgeIndex, Tensor | None, LinkProbe]:
    """Leave edges out of training: half of them validate, the others test, both ways round of each link. As many that
    stay tell how well training fits.

    Raises:
        ValueError: there are too few edges.
    """
    (indptr, src), _ = data.edge_index.get_csc()
    bounds = [0.0, fraction / 2, fraction, min(2 * fraction, 1.0)]
    lot = draw_lots(data.edge_index, seeds.key("holdout", seed))
    rng, pairs, links = stream("holdout", seed), {}, data.edge_index.as_tensor()
    for split, first, last in zip(("valid", "test", "train"), bounds[:-1], bounds[1:], strict=True):
        chosen = ((lot >= first) & (lot < last)).nonzero().squeeze(1)
        ends = links[:, chosen].long().sort(0).values.unique(dim=1).T.numpy()
        if not len(ends):
            mend = "train: lower it" if split == "train" else f"{split}: raise it"
            raise ValueError(f"trainer.holdout={fraction:g} of {data.num_edges:,} edges leaves no link to {mend}")
        pairs[split] = ends, rng.integers(data.num_nodes, size=ends.shape)
    kept = lot >= fraction
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), kept.cumsum(0)])[indptr.long()]
    probe = LinkProbe(pairs, stop=stop)
    return from_csc(links[:, kept], ptr), None if weight is None else weight[kept].contiguous(), probe


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

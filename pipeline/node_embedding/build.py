"""From the configuration of trainer=node_embedding to what trains vectors of nodes."""

import dataclasses
import logging
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.models.embedding import skipgram, spectral
from parallel_epochs.models.embedding.skipgram import Negatives, SkipGramOptions, VectorTable
from parallel_epochs.pipeline.block_training.open import label_columns
from parallel_epochs.pipeline.data.join_types import edge_features
from parallel_epochs.pipeline.data.opened import Part
from parallel_epochs.pipeline.graph import walks
from parallel_epochs.pipeline.graph.edges import check_weight, choose_weight, weight_matrix
from parallel_epochs.pipeline.graph.node_parts import NodeParts, check_parts, deal_nodes
from parallel_epochs.pipeline.graph.structure import draw_lots, inspect
from parallel_epochs.pipeline.node_embedding.config import (
    NodeEmbeddingConfig,
    NodeEmbeddingTrainerConfig,
)
from parallel_epochs.pipeline.node_embedding.probe import LabelProbe, LinkProbe
from parallel_epochs.pipeline.node_embedding.trainer import (
    EpisodePlan,
    NodeEmbeddingTrainer,
    plan_walks,
)
from parallel_epochs.pipeline.run import seeds
from parallel_epochs.pipeline.run.log import format_score
from parallel_epochs.pipeline.run.memory import machine_memory
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.seeds import seed_torch, stream
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# Rounds in which pairs that are links are drawn again.
MAX_DRAWS = 64
# Copies of the vectors that the spectral filter holds.
COPIES = 8


def check(config: NodeEmbeddingConfig) -> None:
    """Refuse a machine that cannot draw walks.

    Raises:
        ValueError: there is no compiler.
    """
    walks.library()


def check_graph(config: NodeEmbeddingConfig, data: Data) -> None:
    """Refuse a graph that vectors cannot be learned from, and tables that the machine cannot hold.

    Raises:
        ValueError: says what is missing, or names the key.
    """
    options = config.trainer
    metric = metric_of(options, data)
    if metric != "auc" and data.get("y") is None:
        raise ValueError(
            f"trainer.metric={metric} needs labels, and {config.data.origin()} has none: give "
            "data.labels, or choose trainer.metric=auc"
        )
    if data.num_edges == 0:
        raise ValueError(
            f"{config.data.origin()} has no edges, but trainer=node_embedding learns from edges. Choose "
            "another dataset"
        )
    check_weight(edge_features(data), config.data.origin())
    check_parts(data.num_nodes, options.num_parts)


def metric_of(options: NodeEmbeddingTrainerConfig, data: Data) -> str:
    """Return the metric of a run, which depends on whether the nodes have labels."""
    return options.metric or ("auc" if data.get("y") is None else "micro_f1")


@dataclass(frozen=True)
class Training:
    """The training edges of vectors, and the function that scores them.

    Attributes:
        edge_index, weight: the edges that training sees.
        parts: partitions of the nodes, by their degree in these edges.
        score: computes the metric of each split.
        metric: its name.
    """

    edge_index: EdgeIndex
    weight: Tensor | None
    parts: NodeParts
    score: LabelProbe | LinkProbe
    metric: str


def prepare_training(
    config: NodeEmbeddingConfig, data: Data, stop: StopRequest | None = None
) -> Training:
    """Split a graph into what training sees and what scores its vectors."""
    options, metric = config.trainer, metric_of(config.trainer, data)
    edge_index, weight = data.edge_index, choose_weight(edge_features(data))
    score: LabelProbe | LinkProbe
    if metric == "auc":
        edge_index, weight, score = _hold_out(data, weight, options, config.seed, stop)
    else:
        score = LabelProbe(
            label_columns(data).numpy(),
            metric=metric,
            portions=options.portions,
            num_draws=options.num_draws,
            seed=config.seed,
            num_threads=torch.get_num_threads(),
            stop=stop,
        )
    return Training(
        edge_index, weight, deal_nodes(degrees(edge_index), options.num_parts), score, metric
    )


def degrees(edge_index: EdgeIndex) -> Tensor:
    """Return the number of edges that lead to each node [num_nodes]."""
    return edge_index.get_csc()[0][0].diff()


def build_trainer(
    part: Part, *, ranks: Ranks = Ranks(), stop: StopRequest | None = None
) -> NodeEmbeddingTrainer:
    """Build what trains vectors of nodes, for this rank."""
    config, data = part.config, part.data
    with ranks.first_then_others():  # what is compiled, the others find
        walks.library(), skipgram.LIBRARY.get()
    options, train = config.trainer, config.train
    training = prepare_training(config, data, stop)
    edge_index, weight, parts = training.edge_index, training.weight, training.parts
    structure = inspect(edge_index)
    is_line, is_walk = options.model == "line", options.model in ("deepwalk", "node2vec")
    length = options.walk_length if is_walk else options.augmentation_distance
    second_order = options.model == "node2vec"
    sampler = walks.WalkSampler(
        edge_index,
        weight,
        length=length,
        p=options.p if second_order else 1.0,
        q=options.q if second_order else 1.0,
        random_starts=is_line,
        symmetric=structure.is_undirected and not structure.num_duplicates,
    )
    plan = plan_walks(
        edge_index.size(1),
        train.epochs,
        length,
        min(options.augmentation_distance, length),
        structure.is_undirected,
        options.episode_size,
        lr=train.lr,
        last_lr=options.last_lr,
        eval_every=train.eval_every,
    )
    if options.model == "spectral":
        plan = dataclasses.replace(plan, num_epochs=1, num_walks=1, walks_per_episode=1, lr=0.0)
    is_filtered = _is_filtered(options, data.num_nodes)
    matrix = weight_matrix(edge_index, weight) if is_filtered or _is_spectral(options) else None
    heads, tails = _build_tables(options, parts, matrix, config.seed)
    degree = degrees(edge_index)[parts.node]
    negatives = Negatives(*walks.negative_tables(parts.ptr, degree))
    if config.device.startswith("cuda"):
        log.warning("device=%s: the CPU trains, as vectors have no kernel for GPUs", config.device)
    trainer = NodeEmbeddingTrainer(
        sampler,
        parts,
        heads,
        tails,
        negatives,
        SkipGramOptions(
            num_negatives=options.num_negatives,
            negative_weight=options.negative_weight,
            optimizer=options.optimizer,
            weight_decay=options.weight_decay,
        ),
        plan,
        finish=partial(_finish, options, training.score, matrix if is_filtered else None),
        score=training.score,
        metric=training.metric,
        dim=options.dim,
        seed=config.seed,
        ranks=ranks,
        stop=stop,
    )
    _say(options, plan, trainer)
    return trainer


def finish_vectors(config: NodeEmbeddingConfig, training: Training, rows: Tensor) -> Tensor:
    """Make the vectors of nodes from the rows of a checkpoint in the middle of training.

    Args:
        rows: of the first table, in the order of the partitions [num_nodes, at least dim].

    Returns:
        [num_nodes, dim], in the order of the graph.
    """
    options = config.trainer
    vectors = torch.empty(len(rows), options.dim)
    vectors[training.parts.node] = rows[:, : options.dim]
    matrix = (
        weight_matrix(training.edge_index, training.weight)
        if _is_filtered(options, len(rows))
        else None
    )
    return _finish(options, training.score, matrix, vectors)


def _say(
    options: NodeEmbeddingTrainerConfig, plan: EpisodePlan, trainer: NodeEmbeddingTrainer
) -> None:
    if options.model == "spectral":
        log.info("model: spectral, %d numbers per node", options.dim)
        return
    if options.model == "node2vec" and options.p == options.q == 1:
        log.warning(
            "trainer.model=node2vec with trainer.p=1 and trainer.q=1 draws the walks of deepwalk: set one of "
            "them, for example trainer.p=0.25 trainer.q=4"
        )
    log.info(
        "model: %s, %d numbers a node, %s in all",
        options.model,
        options.dim,
        f"{trainer.about.num_parameters:,}",
    )
    log.info(
        "pairs: %s of up to %d nodes in %s, at most %s apart; %s, %s an episode",
        count(plan.num_walks, "walk"),
        trainer.walk_nodes,
        count(plan.num_rounds, "episode"),
        count(plan.distance, "step"),
        count(options.num_parts, "partition"),
        count(trainer.about.num_steps, "step"),
    )


def _is_spectral(options: NodeEmbeddingTrainerConfig) -> bool:
    return "spectral" in (options.init, options.model)


def _build_tables(
    options: NodeEmbeddingTrainerConfig,
    parts: NodeParts,
    matrix: sp.csr_array | None,
    seed: int,
) -> tuple[VectorTable, VectorTable]:
    """Build the tables with word2vec's first values: even in +-1/2dim for the vectors, zero for the contexts."""
    num_nodes, dim = parts.node.numel(), options.dim
    heads = VectorTable.zeros(num_nodes, dim, options.optimizer)
    if matrix is not None and _is_spectral(options):
        small = int(stream("spectral", seed).integers(2**31))
        heads.rows[:, :dim] = torch.from_numpy(spectral.factorise(matrix, dim, seed=small))[
            parts.node
        ]
    else:
        generator = seed_torch("vectors", seed)
        # In the order of the nodes.
        heads.rows[parts.row.long(), :dim] = (
            torch.rand(num_nodes, dim, generator=generator) - 0.5
        ) / dim
    if options.model == "line" and options.order == 1:
        return heads, heads
    return heads, VectorTable.zeros(num_nodes, dim, options.optimizer)


def _is_filtered(options: NodeEmbeddingTrainerConfig, num_nodes: int) -> bool:
    """Tell whether the spectral filter is tried, for which memory needs room for its copies of the vectors."""
    has_room = 4 * COPIES * options.dim * num_nodes < machine_memory() // 2
    return options.propagation_steps > 0 and has_room


def _finish(
    options: NodeEmbeddingTrainerConfig,
    score: LabelProbe | LinkProbe,
    matrix: sp.csr_array | None,
    vectors: Tensor,
) -> Tensor:
    """Apply the spectral filter to trained vectors [num_nodes, dim] where it is better.

    Args:
        matrix: weights of the edges. None: no filter.
    """
    if matrix is None:
        return vectors
    num_terms = max(options.propagation_steps, 2)
    filtered = torch.from_numpy(spectral.propagate(matrix, vectors.numpy(), num_terms=num_terms))
    without, with_ = (score.valid(rows.numpy()) for rows in (vectors, filtered))
    log.info(
        "spectral filter: validation %s with it, %s without it: %s",
        format_score(with_),
        format_score(without),
        "applied" if with_ > without else "left out",
    )
    return filtered if with_ > without else vectors


def redraw_linked(
    rng: np.random.Generator, pairs: np.ndarray, edge_index: EdgeIndex, num_nodes: int
) -> np.ndarray:
    """Draw pairs that are links, or one node twice, again; in a graph of nearly all links some are left.

    Args:
        pairs: [num_pairs, 2].
        edge_index: edges of the graph, which count in both directions.
    """
    pairs, left, links = pairs.copy(), np.arange(len(pairs)), weight_matrix(edge_index, None)
    for _ in range(MAX_DRAWS):
        first, second = pairs[left].T
        left = left[(links[first, second] > 0) | (links[second, first] > 0) | (first == second)]
        if not len(left):
            return pairs
        pairs[left] = rng.integers(num_nodes, size=(len(left), 2))
    log.warning(
        "holdout: %s drawn for the AUC %s still a link or one node twice: nearly all pairs of the graph are "
        "linked",
        count(len(left), "pair"),
        "is" if len(left) == 1 else "are",
    )
    return pairs


def _hold_out(
    data: Data,
    weight: Tensor | None,
    options: NodeEmbeddingTrainerConfig,
    seed: int,
    stop: StopRequest | None,
) -> tuple[EdgeIndex, Tensor | None, LinkProbe]:
    """Hold edges out of training, in both directions of each link: half of them for validation, half for the test.

    As many of the edges that stay are the train split of the score.

    Raises:
        ValueError: there are too few edges.
    """
    (indptr, _), _ = data.edge_index.get_csc()
    fraction = options.holdout
    bounds = [0.0, fraction / 2, fraction, min(2 * fraction, 1.0)]
    lot = draw_lots(data.edge_index, seeds.key("holdout", seed))
    rng, pairs, links = stream("holdout", seed), {}, data.edge_index.as_tensor()
    for split, first, last in zip(("valid", "test", "train"), bounds[:-1], bounds[1:], strict=True):
        chosen = ((lot >= first) & (lot < last)).nonzero().squeeze(1)
        ends = links[:, chosen].long().sort(0).values.unique(dim=1).T.numpy()
        if not len(ends):
            if (num_links := links.long().sort(0).values.unique(dim=1).size(1)) < 3:
                raise ValueError(
                    f"{data.num_edges:,} edges link {num_links} different pairs of nodes: training, "
                    "validation and test need one each (trainer.holdout). Choose another dataset"
                )
            mend = "train: lower it" if split == "train" else f"{split}: raise it"
            raise ValueError(
                f"trainer.holdout={fraction:g} of {data.num_edges:,} edges leaves no link to {mend}"
            )
        others = rng.integers(data.num_nodes, size=ends.shape)
        pairs[split] = ends, redraw_linked(rng, others, data.edge_index, data.num_nodes)
    kept = lot >= fraction
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), kept.cumsum(0)])[indptr.long()]
    probe = LinkProbe(pairs, score=options.score, stop=stop)
    return (
        from_csc(links[:, kept], ptr),
        None if weight is None else weight[kept].contiguous(),
        probe,
    )

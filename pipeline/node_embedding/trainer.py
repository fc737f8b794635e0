"""Vectors of nodes from random walks: episodes of pairs in blocks, the same bits for any number of workers."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from parallel_epochs.models.embedding import skipgram
from parallel_epochs.models.embedding.skipgram import (
    Negatives,
    PairBlock,
    SkipGramOptions,
    VectorTable,
)
from parallel_epochs.pipeline.block_training.trainer import BlockTrainer, Round, RoundPlan, Score
from parallel_epochs.pipeline.graph.node_parts import NodeParts, orthogonal_rounds, tied_rounds
from parallel_epochs.pipeline.graph.walks import Pairs, WalkSampler, collect_pairs
from parallel_epochs.pipeline.run import seeds
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.stop import StopRequest

# At the start products are about 0, and a pair with its negatives costs (1 + their weight) log 2. A mean loss that is
# so many times larger comes from vectors that have diverged.
MOST_OF_UNTRAINED = 20


@dataclass(frozen=True, kw_only=True)
class EpisodePlan(RoundPlan):
    """How many walks are trained, and how.

    Attributes:
        num_walks: walks that give as many pairs as the epochs have.
        walks_per_episode: walks drawn at a time.
        pairs_of_walk: pairs that a walk gives, at most.
        distance: steps between the nodes of a pair, at most.
        both: whether pairs are taken both ways round.
    """

    num_walks: int
    walks_per_episode: int
    pairs_of_walk: int
    distance: int
    both: bool

    @property
    def num_rounds(self) -> int:
        return math.ceil(self.num_walks / self.walks_per_episode)

    def epochs_after(self, num_rounds: int) -> int:
        """Count the epochs that are complete after some rounds."""
        return (
            self.num_epochs
            * min(num_rounds * self.walks_per_episode, self.num_walks)
            // self.num_walks
        )


def plan_walks(
    num_edges: int,
    num_epochs: int,
    length: int,
    distance: int,
    both: bool,
    episode_size: int,
    *,
    lr: float,
    last_lr: float,
    eval_every: int,
) -> EpisodePlan:
    """Choose the numbers of walks.

    Args:
        num_edges: directed edges; an epoch has as many pairs.
        length: steps of a walk.
        episode_size: pairs drawn at a time.
    """
    pairs = sum(max(length + 1 - d, 0) for d in range(1, distance + 1)) * (2 if both else 1)
    return EpisodePlan(
        num_epochs=num_epochs,
        num_walks=max(1, math.ceil(num_epochs * num_edges / pairs)),
        walks_per_episode=max(1, episode_size // pairs),
        pairs_of_walk=pairs,
        distance=distance,
        both=both,
        lr=lr,
        last_lr=last_lr,
        eval_every=eval_every,
    )


class NodeEmbeddingTrainer(BlockTrainer):
    """Trains vectors of nodes by skip-gram with negative sampling.

    A round is an episode: the pairs of some walks, drawn while the episode before it is trained.

    Args:
        sampler: of the walks.
        parts: of the nodes.
        heads: the vectors, a row for each node in the order of `parts`; their values are the start.
        tails: of the contexts; the same object for one vector for both.
        negatives: how contexts are drawn; None where a subclass draws them.
        finish: makes the vectors that are scored and kept of those that were trained, [num_nodes, dim].
        score, metric: see :class:`BlockTrainer`.
        dim: columns of the tables that are vectors.
    """

    kernel = "skip-gram on orthogonal blocks"

    def __init__(
        self,
        sampler: WalkSampler,
        parts: NodeParts,
        heads: VectorTable,
        tails: VectorTable,
        negatives: Negatives | None,
        options: SkipGramOptions,
        plan: EpisodePlan,
        *,
        finish: Callable[[Tensor], Tensor],
        score: Score,
        metric: str,
        dim: int,
        seed: int = 0,
        ranks: Ranks = Ranks(),
        stop: StopRequest | None = None,
    ):
        tables = {
            "heads": heads.tensors(),
            **({} if heads is tails else {"tails": tails.tensors()}),
        }
        arrange = tied_rounds if heads is tails else orthogonal_rounds
        super().__init__(
            parts,
            tables,
            arrange(parts.num_parts),
            plan,
            finish=finish,
            score=score,
            metric=metric,
            dim=dim,
            seed=seed,
            ranks=ranks,
            stop=stop,
            loss_limit=MOST_OF_UNTRAINED * (1 + options.negative_weight) * math.log(2),
        )
        self.heads, self.tails, self._walk_plan = heads, tails, plan
        self._sampler, self._negatives, self._options = sampler, negatives, options
        self._num_threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="walks")
        self._drawn: dict[int, Future[tuple[Pairs, float]]] = {}
        self._pairs: Pairs | None = None

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def walk_nodes(self) -> int:
        """Nodes of a walk, at most."""
        return self._sampler.length + 1

    def _open_round(self, round_: int) -> Round:
        """Wait for the pairs of an episode; those of the next one are begun."""
        for number in (round_, round_ + 1):
            if number < self.num_rounds and number not in self._drawn:
                self._drawn[number] = self._pool.submit(self._draw, number)
        drawn, seconds = self._drawn.pop(round_).result()
        self._pairs = drawn
        return Round(int(drawn.counts.sum()), seconds)

    def _draw(self, round_: int) -> tuple[Pairs, float]:
        start, plan = time.perf_counter(), self._walk_plan
        first = round_ * plan.walks_per_episode
        walks = self._sampler.draw(
            first,
            min(plan.walks_per_episode, plan.num_walks - first),
            seeds.key("walks", self._seed),
            num_threads=self._num_threads,
        )
        pairs = collect_pairs(
            walks,
            self.parts,
            distance=plan.distance,
            both=plan.both,
            num_threads=self._num_threads,
        )
        return pairs, time.perf_counter() - start

    def _train(self, tasks: list[list[tuple[int, int]]]) -> tuple[float, float]:
        pairs, ptr, num_parts = self._pairs, self.parts.ptr.tolist(), self.parts.num_parts
        assert pairs is not None and self._negatives is not None, "the pairs of the round are drawn"

        def block(i: int, j: int) -> PairBlock:
            first = int(pairs.ptr[i, j])
            return PairBlock(
                i * num_parts + j,
                ptr[i],
                ptr[j],
                ptr[i + 1] - ptr[i],
                ptr[j + 1] - ptr[j],
                first,
                first + int(pairs.counts[i, j]),
            )

        return skipgram.train(
            self.heads,
            self.tails,
            [[block(i, j) for i, j in task] for task in tasks],
            pairs.pairs,
            self._negatives,
            self._options,
            lr=self.progress.lr,
            key=seeds.key("skip-gram", self._seed, self.progress.round),
        )

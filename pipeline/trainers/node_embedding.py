"""Vectors of nodes from random walks: episodes of pairs in blocks, the same bits for any number of workers."""

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.embedding import skipgram, skipgram_torch
from models.embedding.skipgram import Block, Negatives, Options, Table
from pipeline.graph.blocks import NodeParts, orthogonal_rounds, tied_rounds
from pipeline.graph.walks import Pairs, WalkSampler, collect_pairs
from pipeline.run import pulse, seeds
from pipeline.run.errors import Stopped
from pipeline.run.ranks import Ranks
from pipeline.run.stop import StopRequest
from pipeline.run.storage import MemoryStorage
from pipeline.schedule import fall_linearly
from pipeline.trainers.progress import Progress, Step

# Rows that are summed at a time.
SUMMED = 2**20
# From the finished vectors, [num_nodes, dim], to the metric of each split, and perhaps others.
Score = Callable[[np.ndarray], dict[str, float]]


@dataclass(frozen=True)
class Plan:
    """How many walks are trained, and how.

    Attributes:
        num_epochs: pairs to train, for each directed edge of the graph.
        num_walks: walks that give as many pairs.
        walks_per_episode: walks drawn at a time.
        distance: steps between the nodes of a pair, at most.
        both: whether pairs are taken both ways round.
        lr: learning rate at the beginning; it falls linearly.
        last_lr: fraction of it at the end.
        eval_every: epochs between two evaluations.
    """

    num_epochs: int
    num_walks: int
    walks_per_episode: int
    distance: int
    both: bool
    lr: float
    last_lr: float
    eval_every: int

    @property
    def num_rounds(self) -> int:
        return math.ceil(self.num_walks / self.walks_per_episode)

    def epochs_after(self, num_rounds: int) -> int:
        """Count the epochs that are complete after some rounds."""
        return self.num_epochs * min(num_rounds * self.walks_per_episode, self.num_walks) // self.num_walks

    def is_evaluation_due(self, round_: int) -> bool:
        """Tell whether a round, from 0, is followed by an evaluation: the last one is."""
        before, after = self.epochs_after(round_), self.epochs_after(round_ + 1)
        return round_ + 1 == self.num_rounds or before // self.eval_every < after // self.eval_every

    def learning_rate(self, done: float) -> float:
        """Compute the learning rate when a fraction of the rounds is done."""
        return fall_linearly(self.lr, self.last_lr, done)


def plan_walks(num_edges: int, num_epochs: int, length: int, distance: int, both: bool, episode_size: int, *,
               lr: float, last_lr: float, eval_every: int) -> Plan:
    """Choose the numbers of walks.

    Args:
        num_edges: directed edges; an epoch has as many pairs.
        length: steps of a walk.
        episode_size: pairs drawn at a time.
    """
    pairs = sum(max(length + 1 - d, 0) for d in range(1, distance + 1)) * (2 if both else 1)
    return Plan(num_epochs, max(1, math.ceil(num_epochs * num_edges / pairs)), max(1, episode_size // pairs),
                distance, both, lr, last_lr, eval_every)


class NodeEmbeddingTrainer:
    """Trains vectors of nodes by skip-gram with negative sampling.

    A round is an episode: the pairs of some walks, drawn while the episode before it is trained. A step is a set of
    blocks that share no partition, one after another dealt out to ranks and threads. Which pairs a block holds, their
    order and its negatives are functions of the seed, the episode and the block: so the result has the same bits for
    any number of threads and ranks.

    Args:
        sampler: of the walks.
        parts: of the nodes.
        heads: the vectors, a row for each node in the order of `parts`; their values are the start.
        tails: of the contexts; the same object for one vector for both.
        negatives: how contexts are drawn.
        finish: makes the vectors that are scored and kept of those that were trained, [num_nodes, dim].
        score: computes the metrics of each split.
        metric: the name of the one that the best round is chosen by.
        dim: columns of the tables that are vectors.
        storage: where the tables lie.
    """

    lower_is_better = False
    kernel = "skip-gram on orthogonal blocks"

    def __init__(self, sampler: WalkSampler, parts: NodeParts, heads: Table, tails: Table, negatives: Negatives,
                 options: Options, plan: Plan, *, finish: Callable[[Tensor], Tensor], score: Score, metric: str,
                 dim: int, storage: MemoryStorage = MemoryStorage(), seed: int = 0, ranks: Ranks = Ranks(),
                 stop: StopRequest | None = None):
        self.metric, self.plan, self.parts, self.progress = metric, plan, parts, Progress()
        self.heads, self.tails = heads, tails
        self._sampler, self._negatives, self._options = sampler, negatives, options
        on_cpu = heads.rows.device.type == "cpu"
        self._train_blocks = skipgram.train if on_cpu else skipgram_torch.train
        self._finish, self.score, self._dim, self._seed = finish, score, dim, seed
        self._storage, self._ranks, self._stop = storage, ranks, stop or StopRequest()
        arrange = tied_rounds if heads is tails else orthogonal_rounds
        self._schedule = arrange(parts.num_parts)
        self._num_threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="walks")
        self._drawn: dict[int, Future[tuple[Pairs, float]]] = {}
        self._round_numbers: dict[str, float] = {}
        self._finished: tuple[int, Tensor] | None = None

    def __enter__(self) -> "NodeEmbeddingTrainer":
        return self

    def __exit__(self, *exc) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def num_rounds(self) -> int:
        return self.plan.num_rounds

    @property
    def num_epochs(self) -> int:
        return self.plan.num_epochs

    @property
    def num_steps(self) -> int:
        return len(self._schedule)

    @property
    def walk_nodes(self) -> int:
        """Nodes of a walk, at most."""
        return self._sampler.length + 1

    @property
    def num_parameters(self) -> int:
        return self.parts.row.numel() * self._dim * (1 if self.heads is self.tails else 2)

    @property
    def arithmetic(self) -> str:
        """What rounds sums: not the number of threads."""
        return f"{self.heads.rows.device.type}, skip-gram"

    def steps(self) -> Iterator[Step]:
        """Train the rest of this episode; :meth:`state` is whole after each step."""
        progress, plan = self.progress, self.plan
        start, synced = time.perf_counter(), 0.0
        pairs, draw_seconds = self._episode(progress.round)
        waited = time.perf_counter() - start
        for number in range(progress.step_in_round, self.num_steps):
            progress.lr = plan.learning_rate((progress.round + number / self.num_steps) / self.num_rounds)
            loss, count = self._train(pairs, self._schedule[number])
            began = time.perf_counter()
            stop = self._exchange(number, loss, count)
            synced += time.perf_counter() - began
            progress.step += 1
            progress.step_in_round += 1
            if not math.isfinite(progress.loss_sum):
                raise FloatingPointError(f"loss is {progress.loss_sum} in episode {progress.round + 1}, step "
                                         f"{number + 1}; the last checkpoint is from before. Try a lower train.lr")
            yield Step(progress.step, progress.step_in_round == self.num_steps, stop)
        seconds = time.perf_counter() - start
        self._round_numbers = {
            "loss": progress.mean_loss, "lr": progress.lr, "seconds": seconds, "num_pairs": int(pairs.counts.sum()),
            "hidden": 1 - min(waited / draw_seconds, 1), "draw_seconds": draw_seconds, "sync_seconds": synced}

    def _episode(self, round_: int) -> tuple[Pairs, float]:
        """Return the pairs of an episode and how long it took to draw them; the next one is begun."""
        for number in (round_, round_ + 1):
            if number < self.num_rounds and number not in self._drawn:
                self._drawn[number] = self._pool.submit(self._draw, number)
        return self._drawn.pop(round_).result()

    def _draw(self, round_: int) -> tuple[Pairs, float]:
        start, plan = time.perf_counter(), self.plan
        first = round_ * plan.walks_per_episode
        walks = self._sampler.draw(first, min(plan.walks_per_episode, plan.num_walks - first),
                                   seeds.key("walks", self._seed), num_threads=self._num_threads)
        pairs = collect_pairs(walks, self.parts, distance=plan.distance, both=plan.both,
                              num_threads=self._num_threads)
        return pairs, time.perf_counter() - start

    def _train(self, pairs: Pairs, tasks: list[list[tuple[int, int]]]) -> tuple[float, float]:
        """Train this rank's tasks of a step."""
        ptr, num_parts = self.parts.ptr.tolist(), self.parts.num_parts

        def block(i: int, j: int) -> Block:
            first = int(pairs.ptr[i, j])
            return Block(i * num_parts + j, ptr[i], ptr[j], ptr[i + 1] - ptr[i], ptr[j + 1] - ptr[j], first,
                         first + int(pairs.counts[i, j]))

        own = tasks[self._ranks.rank::self._ranks.num_ranks]
        key, loss, count = seeds.key("skip-gram", self._seed, self.progress.round), 0.0, 0.0
        # Of what is done the partitions may leave the memory.
        at_once = self._num_threads if self._storage.releases else len(own)
        for first in range(0, len(own), max(at_once, 1)):
            now = own[first:first + at_once]
            pulse.beat(f"step {self.progress.step_in_round + 1} of episode {self.progress.round + 1}")
            more = self._train_blocks(self.heads, self.tails, [[block(i, j) for i, j in task] for task in now],
                                  pairs.pairs, self._negatives, self._options, lr=self.progress.lr, key=key)
            loss, count = loss + more[0], count + more[1]
            for task in now:
                self._release(task)
        return loss, count

    def _touched(self, task: list[tuple[int, int]]) -> Iterator[tuple[Tensor, int, int]]:
        """Go through what a task changes: tensors, and the first and last rows of each."""
        ptr = self.parts.ptr.tolist()
        parts = [(self.heads, {i for i, _ in task}), (self.tails, {j for _, j in task})]
        for table, numbers in parts[:1] if self.heads is self.tails else parts:
            for part in sorted(numbers):
                for tensor in table.tensors().values():
                    if tensor.numel():
                        yield tensor, ptr[part], ptr[part + 1]

    def _release(self, task: list[tuple[int, int]]) -> None:
        for tensor, first, last in self._touched(task):
            self._storage.release(tensor, first, last)

    def _exchange(self, number: int, loss: float, count: float) -> bool:
        """Bring every rank what the others have trained; returns whether one was asked to stop."""
        message = torch.tensor([loss, count, float(self._stop.signum != 0)], dtype=torch.float64)
        # Of the loss the last bit may depend on the number of ranks; of the vectors none does.
        self._ranks.sum_(message)
        self.progress.loss_sum += float(message[0])
        self.progress.loss_count += float(message[1])
        if self._ranks.num_ranks > 1:
            for place, task in enumerate(self._schedule[number]):
                for tensor, first, last in self._touched(task):
                    self._ranks.broadcast_(tensor[first:last], place % self._ranks.num_ranks)
                self._release(task)
        return bool(message[2] > 0)

    def embedding(self) -> Tensor:
        """Return the vectors of all nodes in the order of the graph [num_nodes, dim], finished."""
        if self._finished is None or self._finished[0] != self.progress.step:
            vectors = self._storage.zeros(self.parts.node.numel(), self._dim)
            for part in range(self.parts.num_parts):
                rows = slice(int(self.parts.ptr[part]), int(self.parts.ptr[part + 1]))
                vectors[self.parts.node[rows]] = self.heads.rows[rows, :self._dim].cpu()
                self._storage.release(self.heads.rows, rows.start, rows.stop)
            self._finished = self.progress.step, self._finish(vectors)
        return self._finished[1]

    def evaluate(self) -> dict[str, float] | None:
        """Compute the metrics, the same on all ranks; none if they are not due.

        Raises:
            Stopped: on all ranks, if the first of them was asked to stop.
        """
        progress, scores = self.progress, None
        if self.plan.is_evaluation_due(progress.round):
            pulse.beat(f"evaluating episode {progress.round + 1}", pulse.State.LONG)
            try:
                scores = self.score(self.embedding().numpy()) if self._ranks.is_first else None
            except Stopped:
                pass  # the others wait to be told
            if (scores := self._ranks.broadcast(scores)) is None:
                raise Stopped(self._stop.signum or signal.SIGTERM)
        progress.round += 1
        progress.epochs = self.plan.epochs_after(progress.round)
        progress.begin_round()
        return scores

    def describe(self) -> dict[str, dict]:
        """Say nothing that the log does not have yet."""
        return {}

    def round_numbers(self) -> dict[str, float]:
        """Return what the episode that has just ended is remembered by."""
        return self._round_numbers

    def weights(self) -> dict[str, Tensor]:
        """Return what was learned: the finished vectors, [num_nodes, dim]."""
        return {"embedding": self.embedding()}

    def fingerprint(self) -> dict:
        """Return what ranks compare: sums in place of large tables."""
        return {name: torch.stack([rows.sum(0, dtype=torch.float64) for rows in table.rows.split(SUMMED)]).sum(0)
                for name, table in (("heads", self.heads), ("tails", self.tails))}

    def state(self) -> dict:
        """Return all that a resumed run needs to go on with the same bits."""
        tables = {"heads": self.heads.tensors(),
                  **({} if self.heads is self.tails else {"tails": self.tails.tensors()})}
        return {**tables, "progress": dataclasses.asdict(self.progress)}

    def load(self, state: dict) -> None:
        """Go on from a copy of what :meth:`state` returned."""
        for name, table in (("heads", self.heads), *(() if self.heads is self.tails else (("tails", self.tails),))):
            for key, tensor in table.tensors().items():
                tensor.copy_(state[name][key])
        self.progress = Progress(**state["progress"])

    def restart_round(self) -> None:
        """Begin to count the steps of a round."""
        self.progress.begin_round()

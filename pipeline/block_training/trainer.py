"""Tables that are trained block by block: rounds of steps whose blocks share no rows, the same bits for any workers."""

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.graph.node_parts import NodeParts
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.contract import About, Progress, RoundNumbers, Step, Trainer
from parallel_epochs.pipeline.run.errors import Stopped
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.schedule import fall_linearly
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.sync import sum_columns

# From what was learned, [num_nodes, dim], to the metric of each split, and perhaps others.
Score = Callable[[np.ndarray], dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """How many rounds are trained, and how; here a round is an epoch.

    Attributes:
        num_epochs: pairs to train, for each directed edge of the graph.
        lr: learning rate at the beginning; it falls linearly.
        last_lr: fraction of it at the end.
        eval_every: epochs between two evaluations.
    """

    num_epochs: int
    lr: float
    last_lr: float
    eval_every: int

    @property
    def num_rounds(self) -> int:
        return self.num_epochs

    def epochs_after(self, num_rounds: int) -> int:
        """Count the epochs that are complete after some rounds."""
        return num_rounds

    def is_evaluation_due(self, round_: int) -> bool:
        """Tell whether a round, from 0, is followed by an evaluation: the last one is."""
        before, after = self.epochs_after(round_), self.epochs_after(round_ + 1)
        return round_ + 1 == self.num_rounds or before // self.eval_every < after // self.eval_every

    def learning_rate(self, done: float) -> float:
        """Compute the learning rate when a fraction of the rounds is done."""
        return fall_linearly(self.lr, self.last_lr, done)


@dataclass(frozen=True)
class Round:
    """A round, as it is known before its first step.

    Attributes:
        num_pairs: to train.
        draw_seconds: it took to draw them, if that is done beforehand.
    """

    num_pairs: int
    draw_seconds: float = 0.0


class BlockTrainer(Trainer):
    """Trains tables of rows block by block.

    A step is a set of blocks that share no partition of a table, one after another dealt out to ranks and threads.
    What is drawn for a block is a function of the seed, the round and the block: so the result has the same bits for
    any number of threads and ranks.

    Args:
        parts: of the nodes.
        tables: by name, each the tensors of it by name, rows in the order of `parts`. The first is of heads, the
            second of tails; one alone is of both.
        schedule: of each step its tasks, lists of blocks (head partition, tail partition) for one thread of a rank.
        finish: makes what is scored and kept of the first table's rows, [num_nodes, dim].
        score: computes the metrics of each split.
        metric: the name of the one that the best round is chosen by.
        dim: columns of the tables that are learned.
        loss_limit: mean loss of a round beyond which training has diverged.
    """

    kernel = ""
    round_name = "episode"

    def __init__(
        self,
        parts: NodeParts,
        tables: Mapping[str, Mapping[str, Tensor]],
        schedule: list[list[list[tuple[int, int]]]],
        plan: RoundPlan,
        *,
        finish: Callable[[Tensor], Tensor],
        score: Score,
        metric: str,
        dim: int,
        seed: int,
        ranks: Ranks,
        stop: StopRequest | None,
        loss_limit: float = math.inf,
    ):
        self.plan, self.parts, self.progress = plan, parts, Progress()
        self.score, self._tables, self._schedule, self._finish = score, tables, schedule, finish
        self._dim, self._seed, self._ranks, self._stop = dim, seed, ranks, stop or StopRequest()
        self.numbers: RoundNumbers | None = None
        self._finished: tuple[int, Tensor] | None = None

        # The number of threads changes no bit.
        self.about = About(
            metric=metric,
            kernel=self.kernel,
            num_epochs=plan.num_epochs,
            num_steps=len(schedule),
            arithmetic=f"{self._rows.device.type}, {self.kernel.partition(' on ')[0]}",
            num_parameters=parts.row.numel() * dim * len(tables),
            loss_limit=loss_limit,
        )

    @property
    def num_rounds(self) -> int:
        return self.plan.num_rounds

    @property
    def _rows(self) -> Tensor:
        """The rows of the first table."""
        return next(iter(self._tables.values()))["rows"]

    def _open_round(self, round_: int) -> Round:
        """Make a round ready."""
        raise NotImplementedError

    def _train(self, tasks: list[list[tuple[int, int]]]) -> tuple[float, float]:
        """Train some tasks of a step; returns the loss of some pairs, and their number."""
        raise NotImplementedError

    def steps(self) -> Iterator[Step]:
        """Train the rest of this round; :meth:`state` is whole after each step."""
        progress = self.progress
        start, synced = time.perf_counter(), 0.0
        opened = self._open_round(progress.round)
        waited = time.perf_counter() - start
        for number in range(progress.step_in_round, len(self._schedule)):
            self._beat()
            progress.lr = self.plan.learning_rate(
                (progress.round + number / len(self._schedule)) / self.num_rounds
            )
            loss, count = self._train(
                self._schedule[number][self._ranks.rank :: self._ranks.num_ranks]
            )
            began = time.perf_counter()
            stop = self._exchange(number, loss, count)
            synced += time.perf_counter() - began
            progress.step += 1
            progress.step_in_round += 1
            if not math.isfinite(progress.loss_sum):
                raise FloatingPointError(
                    f"loss is {progress.loss_sum} in {self.round_name} {progress.round + 1}, step "
                    f"{number + 1}. The last checkpoint was saved before this step. Try a lower "
                    "train.lr"
                )
            yield Step(progress.step, progress.step_in_round == len(self._schedule), stop)
        drawn = opened.draw_seconds
        self.numbers = RoundNumbers(
            loss=progress.mean_loss,
            lr=progress.lr,
            seconds=time.perf_counter() - start,
            num_pairs=opened.num_pairs,
            hidden=1 - min(waited / drawn, 1) if drawn else 1.0,
            draw_seconds=drawn,
            sync_seconds=synced,
        )

    def _beat(self) -> None:
        """Say which step is in hand."""
        pulse.beat(
            f"step {self.progress.step_in_round + 1} of {self.round_name} {self.progress.round + 1}"
        )

    def _exchange(self, number: int, loss: float, count: float) -> bool:
        """Bring every rank what the others have trained; returns whether one was asked to stop."""
        message = torch.tensor([loss, count, float(self._stop.signum != 0)], dtype=torch.float64)
        # The last bit of the loss may depend on the number of ranks; no bit of the tables does.
        self._ranks.sum_(message)
        self.progress.loss_sum += float(message[0])
        self.progress.loss_count += float(message[1])
        if self._ranks.num_ranks > 1:
            for turn, task in enumerate(self._schedule[number]):
                for tensor, first, last in self._touched(task):
                    self._ranks.broadcast_(tensor[first:last], turn % self._ranks.num_ranks)
        return bool(message[2] > 0)

    def _touched(self, task: list[tuple[int, int]]) -> Iterator[tuple[Tensor, int, int]]:
        """Go through what a task changes: tensors, and the first and last rows of each."""
        for side, tensors in enumerate(self._tables.values()):
            for part in sorted({block[side] for block in task}):
                for tensor in tensors.values():
                    if tensor.numel():
                        yield tensor, int(self.parts.ptr[part]), int(self.parts.ptr[part + 1])

    def embedding(self) -> Tensor:
        """Return what was learned of all nodes in the order of the graph [num_nodes, dim], finished."""
        if self._finished is None or self._finished[0] != self.progress.step:
            vectors = torch.zeros(self.parts.node.numel(), self._dim)
            vectors[self.parts.node] = self._rows[:, : self._dim]
            self._finished = self.progress.step, self._finish(vectors)
        return self._finished[1]

    def evaluate(self) -> dict[str, float] | None:
        """Compute the metrics, the same on all ranks; none if they are not due.

        Raises:
            Stopped: on all ranks, if the first of them was asked to stop.
        """
        progress, scores = self.progress, None
        if self.plan.is_evaluation_due(progress.round):
            pulse.beat(f"evaluating {self.round_name} {progress.round + 1}", pulse.State.LONG)
            try:
                scores = self.score(self.embedding().numpy()) if self._ranks.is_first else None
            except Stopped:
                pass  # the others wait to be told
            if (scores := self._ranks.broadcast(scores)) is None:
                raise Stopped(self._stop.signum or signal.SIGTERM)
        progress.end_round(epochs=self.plan.epochs_after(progress.round + 1))
        return scores

    def weights(self) -> dict[str, Tensor]:
        """Return what was learned, [num_nodes, dim], finished."""
        return {"embedding": self.embedding()}

    def fingerprint(self) -> dict:
        """Return what ranks compare: sums in place of large tables."""
        return {name: sum_columns(tensors["rows"]) for name, tensors in self._tables.items()}

    def state(self) -> dict:
        """Return all that a resumed run needs to go on with the same bits."""
        return {
            **{name: dict(tensors) for name, tensors in self._tables.items()},
            "progress": dataclasses.asdict(self.progress),
        }

    def load(self, state: dict) -> None:
        """Go on from a copy of what :meth:`state` returned."""
        for name, tensors in self._tables.items():
            for key, tensor in tensors.items():
                tensor.copy_(state[name][key])
        self.progress = Progress(**state["progress"])

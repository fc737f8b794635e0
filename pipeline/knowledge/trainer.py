"""Vectors of entities and relations from the triples of a knowledge graph."""

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from parallel_epochs.models.embedding.triples import TripleTables
from parallel_epochs.pipeline.knowledge.ranking import TripleProbe
from parallel_epochs.pipeline.knowledge.tables import TrainedTables
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.contract import About, Progress, RoundNumbers, Step, Trainer
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.schedule import fall_linearly
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.sync import sum_columns, sum_rows


class Steps(Protocol):
    """The steps of a round; see :mod:`pipeline.knowledge.steps`."""

    is_sparse: bool
    num_steps: int

    def order(self, round_: int) -> Tensor: ...
    def backward(
        self, tables: TripleTables, order: Tensor, round_: int, step: int, ranks: Ranks
    ) -> tuple[float, int]: ...


class KnowledgeTrainer(Trainer):
    """Trains the tables of a knowledge graph.

    A round is an epoch: every training triple once, in an order drawn anew. A step is a batch. Each rank computes the
    gradient of a part of it; their sum moves the tables, which all ranks hold. So the number of ranks changes no batch
    and no negative, but the last bits of sums.

    Args:
        tables: what is learned, with its optimizer. Its learning rate is set at every step, and a group with an
            ``lr_factor`` gets that fraction of it.
        steps: batches and losses.
        num_epochs: rounds.
        lr: learning rate at the beginning; it falls linearly.
        last_lr: fraction of it at the end.
        eval_every: epochs between two evaluations.
        probe: ranks triples of each split, by all ranks together.
    """

    def __init__(
        self,
        tables: TrainedTables,
        steps: Steps,
        *,
        num_epochs: int,
        lr: float,
        last_lr: float,
        eval_every: int,
        probe: TripleProbe,
        ranks: Ranks = Ranks(),
        stop: StopRequest | None = None,
    ):
        self.tables, self.progress = tables, Progress()
        device = tables.entities.device.type
        # Another number of threads rounds otherwise.
        self.about = About(
            metric="mrr",
            kernel="matrix products over triples",
            num_epochs=num_epochs,
            arithmetic=f"cpu, {torch.get_num_threads()} threads, triples"
            if device == "cpu"
            else f"{device}, triples",
            num_steps=steps.num_steps,
            num_parameters=sum(table.numel() for table in self.weights().values()),
        )
        self._steps, self._probe, self._lr, self._last_lr = steps, probe, lr, last_lr
        self._eval_every, self._ranks, self._stop = eval_every, ranks, stop or StopRequest()
        self.numbers: RoundNumbers | None = None

    def steps(self) -> Iterator[Step]:
        """Train on the rest of this epoch; :meth:`state` is whole after each step."""
        progress, steps = self.progress, self._steps
        start, synced, num_triples = time.perf_counter(), 0.0, 0
        order = steps.order(progress.round)
        drawn = time.perf_counter() - start
        for number in range(progress.step_in_round, steps.num_steps):
            pulse.beat(f"step {number + 1} of epoch {progress.round + 1}")
            progress.lr = fall_linearly(
                self._lr,
                self._last_lr,
                (progress.round + number / steps.num_steps) / self.num_rounds,
            )
            loss, count = steps.backward(self.tables, order, progress.round, number, self._ranks)
            began = time.perf_counter()
            stop = self._exchange(loss, count)
            synced += time.perf_counter() - began
            num_triples += count
            for group in self.tables.optimizer.param_groups:
                group["lr"] = progress.lr * group.get("lr_factor", 1.0)
            with torch.sparse.check_sparse_tensor_invariants(
                False
            ):  # as it is without, but then torch warns
                self.tables.optimizer.step()
            self.tables.optimizer.zero_grad(set_to_none=True)
            progress.step += 1
            progress.step_in_round += 1
            yield Step(progress.step, progress.step_in_round == steps.num_steps, stop)
        self.numbers = RoundNumbers(
            loss=progress.mean_loss,
            lr=progress.lr,
            seconds=time.perf_counter() - start,
            draw_seconds=drawn,
            sync_seconds=synced,
            num_triples=num_triples,
        )

    def _exchange(self, loss: float, count: int) -> bool:
        """Sum losses and gradients over the ranks; returns whether one was asked to stop.

        Raises:
            FloatingPointError: on all ranks, before the tables have moved.
        """
        tables = list(self.tables.parameters())
        grads = [table.grad for table in tables if table.grad is not None]
        finite = math.isfinite(loss) and all(
            bool((grad._values() if grad.is_sparse else grad).sum().isfinite()) for grad in grads
        )
        message = torch.tensor(
            [loss, count, self._stop.signum != 0, not finite], dtype=torch.float64
        )
        self._ranks.sum_(message)
        if message[3] > 0:
            progress = self.progress
            raise FloatingPointError(
                f"the loss or its gradient is not finite (loss {float(message[0])}) in epoch "
                f"{progress.round + 1}, step {progress.step_in_round + 1}; the tables have not "
                "moved. Try a lower train.lr"
            )
        self.progress.loss_sum += float(message[0])
        self.progress.loss_count += float(message[1])
        if self._ranks.num_ranks > 1 and message[1] > 0:  # else no rank has a gradient
            for table in tables:
                if self._steps.is_sparse:
                    table.grad = sum_rows(table, self._ranks)
                else:
                    table.grad = torch.zeros_like(table) if table.grad is None else table.grad
                    self._ranks.sum_(table.grad)
        return bool(message[2] > 0)

    def evaluate(self) -> dict[str, float] | None:
        """Rank triples of training and validation, all ranks together; none if it is not due."""
        number, scores = self.progress.round + 1, None
        if number == self.num_rounds or number % self._eval_every == 0:
            scores = self._probe(self.tables.score_all)
        self.progress.end_round(epochs=number)
        return scores

    def test(self) -> dict[str, float]:
        """Rank the triples of the test, all ranks together; see :meth:`TripleProbe.test`.

        Raises:
            Stopped: on all ranks, if one of them was asked to stop.
        """
        return self._probe.test(self.tables.score_all)

    def weights(self) -> dict[str, Tensor]:
        """Return what was learned: ``entities`` [num_entities, dim] and ``relations``; see TripleTables."""
        return self.tables.weights()

    def fingerprint(self) -> dict:
        """Return what ranks compare: sums in place of large tables."""
        return {name: sum_columns(table) for name, table in self.weights().items()}

    def state(self) -> dict:
        """Return all that a resumed run needs to go on with the same bits."""
        return {
            "tables": self.weights(),
            "optimizer": self.tables.moments(),
            "progress": dataclasses.asdict(self.progress),
        }

    def load(self, state: dict) -> None:
        """Go on from a copy of what :meth:`state` returned, which may lie in a file that is mapped into memory."""
        self.tables.load(state["tables"], state["optimizer"])
        self.progress = Progress(**state["progress"])

    def load_weights(self, tables: dict[str, Tensor]) -> None:
        """Replace the tables by those that :meth:`weights` returned."""
        self.tables.load(tables)

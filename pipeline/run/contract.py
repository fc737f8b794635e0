"""The interface between a trainer and the session and the loop: the same for all products."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol


@dataclass
class Progress:
    """How far a run is: with the weights and the optimizer's state, all that a resumed run needs to know.

    Attributes:
        round: rounds that are complete.
        epochs: passes over the graph in them, summed over the ranks.
        step: optimizer steps in all.
        step_in_round: optimizer steps in the round that has begun.
        loss_sum, loss_count: loss and number of labels, or sum of their weights, summed over these.
        lr, grad_norm: learning rate of the last of them, and norm of its gradient.
        best_epoch: passes over the graph at the best validation metric so far.
        best_scores: metrics of the splits that were evaluated then.
        num_worse: evaluations since then.
        wall_seconds: time spent so far, by all starts of the run.
        first_loss: mean loss of the first step; None in checkpoints of before it was kept.
    """

    round: int = 0
    epochs: int = 0
    step: int = 0
    step_in_round: int = 0
    loss_sum: float = 0.0
    loss_count: float = 0.0
    lr: float = 0.0
    grad_norm: float = 0.0
    best_epoch: int | None = None
    best_scores: dict[str, float] = field(default_factory=dict)
    num_worse: int = 0
    wall_seconds: float = 0.0
    first_loss: float | None = None

    def begin_round(self) -> None:
        """Count no steps of a round, and no loss."""
        self.step_in_round, self.loss_sum, self.loss_count = 0, 0.0, 0.0

    def end_round(self, epochs: int) -> None:
        """Count a round, after which the graph has been passed over `epochs` times."""
        self.round, self.epochs = self.round + 1, epochs
        self.begin_round()

    @property
    def mean_loss(self) -> float:
        return self.loss_sum / (self.loss_count or 1)


@dataclass(frozen=True)
class Step:
    """An optimizer step that all ranks have taken.

    Attributes:
        number: since the run began, from 1.
        is_last: whether it ends a round.
        stop: whether any rank was asked to stop.
    """

    number: int
    is_last: bool
    stop: bool


@dataclass(frozen=True, kw_only=True)
class About:
    """Constants of a run, for the log, the summary and a checkpoint.

    Attributes:
        metric: name of the metric by which the best round is chosen.
        lower_is_better: whether a lower value of it is better.
        kernel: what computes a step.
        arithmetic: what decides about the last bits: device, threads and kernel.
        num_epochs: passes over the data in all, summed over the ranks.
        num_steps: steps of a round.
        num_parameters: numbers that are learned.
        loss_limit: mean loss of a round beyond which training has diverged, where that is known beforehand.
    """

    metric: str
    lower_is_better: bool = False
    kernel: str
    arithmetic: str
    num_epochs: int
    num_steps: int
    num_parameters: int
    loss_limit: float = math.inf


@dataclass(frozen=True, kw_only=True)
class RoundNumbers:
    """The numbers of a round's training for metrics.jsonl. Numbers that a trainer does not have stay None.

    Attributes:
        loss: mean loss.
        lr: learning rate of the last step.
        grad_norm: norm of its gradient.
        seconds: time of all steps, of which `draw_seconds` draw batches and `sync_seconds` wait for other ranks.
        hidden: fraction of the drawing that went on behind the steps.
        num_pairs, num_triples: pairs or triples that this rank has trained.
    """

    loss: float
    lr: float
    grad_norm: float | None = None
    seconds: float
    hidden: float = 1.0
    draw_seconds: float
    sync_seconds: float
    num_pairs: int | None = None
    num_triples: int | None = None

    def record(self) -> dict[str, float]:
        """Return the numbers that there are, by name."""
        return {
            name: value for name, value in dataclasses.asdict(self).items() if value is not None
        }


class Trainer(Protocol):
    """The methods of a trainer that a session and :func:`pipeline.loop.fit` call.

    A round is what all ranks do together before an evaluation may happen, an epoch a pass over the data (summed over
    the ranks).

    - `num_rounds`: rounds of the whole run, as far as they are known; by default as many as epochs.
    - `describe`: measure what the first round draws; records for metrics.jsonl by their kind, none by default.
    - `steps`: train the rest of this round; `state` is whole after each step.
    - `evaluate`: close the round; the metric of training, validation and, unless the product does so at the end, the
      test, the same on all ranks; None if no evaluation is due.
    - `numbers`: of the round that has just ended; None before.
    - `weights`: what was learned, as best.pt holds it; `fingerprint`: what ranks compare of it.
    - `state` and `load`: all that a resumed run needs to go on with the same bits.
    - `close`: end threads and let go of files. By default there are none.
    """

    about: About
    progress: Progress
    numbers: RoundNumbers | None

    @property
    def num_rounds(self) -> int:
        return self.about.num_epochs

    def describe(self) -> dict[str, dict]:
        return {}

    def steps(self) -> Iterator[Step]: ...
    def evaluate(self) -> dict[str, float] | None: ...
    def weights(self) -> dict: ...
    def fingerprint(self) -> dict: ...
    def state(self) -> dict: ...
    def load(self, state: dict) -> None: ...
    def close(self) -> None:
        return None

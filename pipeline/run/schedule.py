"""Rounds, shares and learning rates of every rank: numbers only, no graph and no model."""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Share:
    """A rank's part of a draw.

    Attributes:
        draw: which of a round's draws, a partition each: with parallel epochs a rank has its own, with split all have
            the same.
        first: number of the share's first batch in the draw.
        stride: from one batch of the share to the next.
        is_empty: whether this rank has nothing to do in the round.
    """

    draw: int = 0
    first: int = 0
    stride: int = 1
    is_empty: bool = False

    def batches(self, num_batches: int) -> range:
        """Return the numbers of the share's batches among the `num_batches` of the draw."""
        return range(self.first, 0 if self.is_empty else num_batches, self.stride)


@dataclass(frozen=True)
class Schedule:
    """The assignment of batches to ranks and steps: all ranks take the same number of steps.

    With parallel epochs each rank goes through a draw of its own, so that a round is as many epochs (passes over the
    graph) as there are ranks, or as remain. With split the batches of one draw are dealt out. A rank that has no batch
    left in a step takes part in it with a weight of zero.

    Attributes:
        num_epochs: passes over the graph in all, summed over the ranks.
        num_batches: batches of a draw.
        rank, num_ranks: whose schedule it is.
        split: whether one draw is shared out.
        accumulate: batches of a rank in a step, of which the last one of a round may have fewer.
        lr, lr_scaling, warmup_steps: see :meth:`learning_rate`.
        eval_every: epochs between two evaluations.
    """

    num_epochs: int
    num_batches: int
    rank: int = 0
    num_ranks: int = 1
    split: bool = False
    accumulate: int = 1
    lr: float = 1e-3
    lr_scaling: str = "none"
    warmup_steps: int = 0
    eval_every: int = 1

    @property
    def num_steps(self) -> int:
        """Steps of a round."""
        each = math.ceil(self.num_batches / self.num_ranks) if self.split else self.num_batches
        return math.ceil(each / self.accumulate)

    @property
    def total_steps(self) -> int:
        """Steps of the run."""
        return self.rounds_left(0) * self.num_steps

    def steps_before(self, epochs: int) -> int:
        """Return the number of steps in which a run of this schedule does its first `epochs` passes over the graph."""
        return self.total_steps - self.rounds_left(epochs) * self.num_steps

    def epochs_of_round(self, epochs: int) -> int:
        """Return the number of passes over the graph in the round that begins after `epochs` of them."""
        return 1 if self.split else min(self.num_ranks, self.num_epochs - epochs)

    def rounds_left(self, epochs: int) -> int:
        """Return the number of rounds that remain after `epochs` passes over the graph."""
        return max(math.ceil((self.num_epochs - epochs) / (1 if self.split else self.num_ranks)), 0)

    def share(self, epochs: int, first_step: int = 0) -> Share:
        """Return this rank's part of the round that begins after `epochs` passes, from `first_step` on."""
        first = first_step * self.accumulate
        if self.split:
            return Share(draw=0, first=self.rank + first * self.num_ranks, stride=self.num_ranks)
        return Share(
            draw=self.rank, first=first, is_empty=self.rank >= self.epochs_of_round(epochs)
        )

    def learning_rate(
        self, step: int, epochs: int, step_in_round: int = 0, *, lr: float | None = None
    ) -> float:
        """Compute the learning rate of a step: that of one rank, times a factor for the ranks and one for the warm-up.

        The factor for the ranks is 1 (none), the root (sqrt) or the number itself (linear) of the ranks that train in
        the step; `accumulate` does not change it. The warm-up rises linearly to 1 over `warmup_steps` steps.

        Args:
            step: number of the step since the run began, from 0.
            epochs: passes over the graph before its round.
            step_in_round: number of the step in it, from 0; in the last one of split fewer ranks may train.
            lr: learning rate of one rank. None: :attr:`lr`.
        """
        left = self.num_batches - step_in_round * self.accumulate * self.num_ranks
        together = min(self.num_ranks, left) if self.split else self.epochs_of_round(epochs)
        scale = {"none": 1, "sqrt": math.sqrt(together), "linear": together}[self.lr_scaling]
        return (
            (self.lr if lr is None else lr) * scale * min(1, (step + 1) / max(self.warmup_steps, 1))
        )

    def is_evaluation_due(self, before: int, after: int) -> bool:
        """Tell whether to evaluate after a round that went from `before` to `after` passes over the graph."""
        return after // self.eval_every > before // self.eval_every or after >= self.num_epochs

    def remaining(
        self, round_: int, epochs: int, first_step: int = 0
    ) -> Iterator[tuple[int, Share]]:
        """Go through the rounds that are left, and this rank's share of each.

        Args:
            round_: number of the next round, which may have begun.
            epochs: passes over the graph before it.
            first_step: its first step that was not taken yet.
        """
        while epochs < self.num_epochs:
            yield round_, self.share(epochs, first_step)
            round_, epochs, first_step = round_ + 1, epochs + self.epochs_of_round(epochs), 0

    def __str__(self) -> str:
        if self.num_ranks == 1:
            return f"learning rate {self.lr:g}"
        warmup = f" after {self.warmup_steps} steps" if self.warmup_steps else ""
        return (
            f"{self.num_ranks} ranks, parallel={'split' if self.split else 'epochs'}: learning rate {self.lr:g}, "
            f"scaled ({self.lr_scaling}) {self.learning_rate(self.warmup_steps, 0):g}{warmup}"
        )


@dataclass(frozen=True)
class DecayOptions:
    """Options of a learning rate that changes.

    Attributes:
        lr: at the beginning, of one rank.
        first_step, last_step: number of the step after the warm-up, and number of steps of the run.
        plateau_factor, plateau_patience, lower_is_better: see :class:`Plateau`.
    """

    lr: float
    first_step: int = 0
    last_step: int = 1
    plateau_factor: float = 0.1
    plateau_patience: int = 10
    lower_is_better: bool = False


# From the end of the warm-up to the end of the run, "linear" falls as torch's LinearLR and "cosine" as its
# CosineAnnealingLR, see "SGDR: Stochastic Gradient Descent with Warm Restarts" (https://arxiv.org/abs/1608.03983), here
# without restarts. Of each: its text for the log, and the part of the fall after a part of the steps.
FALLS: dict[str, tuple[str, Callable[[float], float]]] = {
    "none": ("", lambda done: 0.0),
    "linear": ("falls linearly", lambda done: done),
    "cosine": ("falls by a cosine", lambda done: (1 - math.cos(math.pi * done)) / 2),
}


class Decay:
    """How the learning rate of one rank, without the warm-up, changes in the course of a run.

    Args:
        how: a key of FALLS.
    """

    def __init__(self, options: DecayOptions, how: str = "none"):
        self._options = options
        self._text, self._fall = FALLS[how]

    def lr(self, step: int) -> float:
        """Return the learning rate of a step, given its number since the run began."""
        first, last = self._options.first_step, self._options.last_step
        done = min(max(step - first, 0) / max(last - first, 1), 1)
        return fall_linearly(self._options.lr, 0.0, self._fall(done))

    def observe(self, score: float) -> None:
        """Learn of the validation metric of an evaluation that follows the warm-up, the same on all ranks."""

    def state(self) -> dict:
        """Return what a resumed run needs beside the arguments of :meth:`lr`, by name."""
        return {}

    def load(self, state: dict) -> None:
        """Go on from what :meth:`state` returned."""

    def __str__(self) -> str:
        return f", {self._text} to 0" if self._text else ""


class Plateau(Decay):
    """A learning rate that falls when the validation metric stops improving, by torch's ReduceLROnPlateau.

    It is multiplied by `plateau_factor`, in (0, 1), after more than `plateau_patience` evaluations in a row without a
    better metric.
    """

    def __init__(self, options: DecayOptions):
        super().__init__(options)
        # Its learning rate is that of one rank. The optimizer of the model has that of all ranks.
        self._optimizer = torch.optim.SGD([torch.zeros(1)], lr=options.lr)
        self._scheduler = ReduceLROnPlateau(
            self._optimizer,
            "min" if options.lower_is_better else "max",
            factor=options.plateau_factor,
            patience=options.plateau_patience,
        )

    def lr(self, step: int) -> float:
        """Return the learning rate now."""
        return self._optimizer.param_groups[0]["lr"]

    def observe(self, score: float) -> None:
        """Count an evaluation. The learning rate falls if too many in a row were no better than the best one."""
        before, scheduler = self.lr(0), self._scheduler
        scheduler.step(score)
        if self.lr(0) < before:
            log.info(
                "learning rate falls from %g to %g: the validation metric was not better than %.4f; evaluations "
                "in a row: %d",
                before,
                self.lr(0),
                scheduler.best,
                scheduler.patience + 1,
            )

    def state(self) -> dict:
        """Return the learning rate, and what the scheduler counts."""
        return {
            "lr": self.lr(0),
            "best": self._scheduler.best,
            "num_bad": self._scheduler.num_bad_epochs,
        }

    def load(self, state: dict) -> None:
        """Go on from what :meth:`state` returned."""
        self._optimizer.param_groups[0]["lr"] = state["lr"]
        self._scheduler.best, self._scheduler.num_bad_epochs = state["best"], state["num_bad"]

    def __str__(self) -> str:
        return (
            f", times {self._scheduler.factor:g} after more than {self._scheduler.patience} evaluations without a "
            "better validation metric"
        )


def fall_linearly(lr: float, last: float, done: float) -> float:
    """Compute a learning rate that falls linearly to a fraction of its first value.

    Args:
        lr: at the beginning.
        last: fraction of it at the end.
        done: fraction of the run.
    """
    return lr * (1 - (1 - last) * done)


# By train.schedule.
DECAYS: dict[str, Callable[[DecayOptions], Decay]] = {
    **{name: partial(Decay, how=name) for name in FALLS},
    "plateau": Plateau,
}

"""How far a run is, and its steps: the same for all trainers."""

from dataclasses import dataclass, field


@dataclass
class Progress:
    """How far a run is: with the weights and the optimizer's state, all that a resumed run needs to know.

    Attributes:
        round: rounds that are complete.
        epochs: passes over the graph in them, summed over the ranks.
        step: optimizer steps in all.
        step_in_round: optimizer steps in the round that has begun.
        loss_sum, loss_count: loss and number of labels, summed over these.
        lr, grad_norm: learning rate of the last of them, and norm of its gradient.
        best_epoch: passes over the graph at the best validation metric so far.
        best_scores: metrics of each split after it.
        num_worse: evaluations since then.
        wall_seconds: time spent so far, by all starts of the run.
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

    def begin_round(self) -> None:
        """Count no steps of a round, and no loss."""
        self.step_in_round, self.loss_sum, self.loss_count = 0, 0.0, 0.0

    @property
    def mean_loss(self) -> float:
        return self.loss_sum / max(self.loss_count, 1)


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

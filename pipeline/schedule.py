"""Who trains on what and when: partitions, steps, learning rate and evaluations of every rank."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from pipeline.config import Config
from pipeline.distributed import Ranks
from pipeline.partition import Partition, Partitioner


@dataclass
class Progress:
    """How far a run is: with the weights and the optimizer's state, all that a resumed run needs to know.

    Attributes:
        epoch: wall epochs that are complete.
        data_epochs: passes over the graph in them, summed over the ranks.
        step: optimizer steps in all.
        steps_in_epoch: of them in the wall epoch that has begun.
        loss_sum, loss_count: over these.
        evaluations: how often validation has not been better since the best epoch.
    """

    epoch: int = 0
    data_epochs: int = 0
    step: int = 0
    steps_in_epoch: int = 0
    loss_sum: float = 0.0
    loss_count: float = 0.0
    best_epoch: int | None = None
    best_scores: dict[str, float] = field(default_factory=dict)
    evaluations: int = 0
    wall_seconds: float = 0.0


class Schedule:
    """Which rank trains on which clusters, and when: all ranks take the same number of steps.

    With `parallel=epochs` each rank goes through a partition of its own, so that a wall epoch is as many data epochs
    (passes over the graph) as there are ranks, or as remain. With `parallel=split` the clusters of one partition are
    dealt out. Who has no cluster left in a step takes part in it with a weight of zero.

    Attributes:
        num_steps: steps of a wall epoch.
    """

    def __init__(self, config: Config, partitioner: Partitioner, ranks: Ranks):
        self._config, self._partitioner, self._ranks = config, partitioner, ranks
        self._split = config.parallel.name == "split"
        num_batches = math.ceil(partitioner.num_parts / config.partition.clusters_per_step)
        self.num_steps = math.ceil(num_batches / ranks.num_ranks) if self._split else num_batches

    def num_data_epochs(self, done: int) -> int:
        """Passes over the graph in the next wall epoch, `done` of them being behind."""
        return 1 if self._split else min(self._ranks.num_ranks, self._config.train.epochs - done)

    def draw(self, epoch: int, done: int, first_step: int = 0) -> tuple[Partition, range]:
        """A wall epoch's partition, and the clusters of it that are this rank's from `first_step` on."""
        rank, num_ranks = self._ranks.rank, self._ranks.num_ranks
        partition = self._partitioner.draw(epoch, 0 if self._split else rank)
        partition = partition.merge(self._config.partition.clusters_per_step)
        if self._split:
            return partition, range(rank + first_step * num_ranks, partition.num_parts, num_ranks)
        return partition, range(first_step, partition.num_parts if rank < self.num_data_epochs(done) else 0)

    def learning_rate(self, step: int, done: int) -> float:
        """Of a step: scaled by the number of partitions, or of clusters, that are trained on at a time, and warmed up."""
        train, scaling = self._config.train, self._config.parallel.lr_scaling
        together = self._ranks.num_ranks if self._split else self.num_data_epochs(done)
        scale = {"none": 1, "sqrt": math.sqrt(together), "linear": together}[scaling]
        return train.lr * scale * min(1, (step + 1) / max(train.warmup_steps, 1))

    def evaluates(self, done: int, before: int) -> bool:
        """Whether to evaluate after `done` data epochs, `before` being the number at the end of the last wall epoch."""
        train = self._config.train
        return done // train.eval_every > before // train.eval_every or done >= train.epochs

    def describe(self) -> str:
        num_ranks, scaling = self._ranks.num_ranks, self._config.parallel.lr_scaling
        rate = f"learning rate {self._config.train.lr:g}"
        if num_ranks == 1:
            return rate
        warmup = self._config.train.warmup_steps
        return (f"{num_ranks} ranks, parallel={self._config.parallel.name}: {rate}, scaled ({scaling}) "
                f"{self.learning_rate(warmup, 0):g}{f' after {warmup} steps' if warmup else ''}")

    def remaining(self, at: Progress) -> Iterator[tuple[int, Callable[[], tuple[Partition, range]]]]:
        """The wall epochs that are left, and a function that draws each."""
        epoch, done, first_step = at.epoch, at.data_epochs, at.steps_in_epoch
        while done < self._config.train.epochs:
            yield epoch, partial(self.draw, epoch, done, first_step)
            epoch, done, first_step = epoch + 1, done + self.num_data_epochs(done), 0

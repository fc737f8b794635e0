"""A step of a deep graph neural network: one batch, its loss, the ranks' gradients, the optimizer."""

import contextlib
import copy
import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.check import find_large
from parallel_epochs.pipeline.gnn.average import WeightAverage
from parallel_epochs.pipeline.gnn.contract import Loader, Task, autocast
from parallel_epochs.pipeline.gnn.features import NodeTable, load_weights, weights_of
from parallel_epochs.pipeline.gnn.loaders.background import BackgroundRounds
from parallel_epochs.pipeline.names import LOWER_IS_BETTER
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.contract import About, Progress, RoundNumbers, Step
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.schedule import Decay, DecayOptions, Schedule
from parallel_epochs.pipeline.run.seeds import seed_torch
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.sync import Agreement, GradientSync

log = logging.getLogger(__name__)

# The scale of a loss in float16 is not halved below this.
SMALLEST_SCALE = 2.0**-14


class GNNTrainer:
    """Trains a model on the batches of a loader; a rank of several does so together with the others.

    Args:
        model: with weights on `device`.
        optimizer: of the model's parameters.
        task: what is learned.
        loader: of the batches.
        schedule: of this rank.
        decay: changes the learning rate in the course of the run; a constant one if not given.
        average: of the model's weights, which is evaluated and saved in their place.
        predict_all: predicts every row after a round, given its number; empty on other ranks than the first where
            only the first can.
        table: node features that are learned beside the model.
        precision: "fp32", "bf16" by autocast, or "fp16" by autocast with a scaled loss.
        clip_grad_norm: largest norm of the gradient; 0 for no clipping.
        seed: of dropout and of the labels that are inputs.
        kernel: what aggregates messages, for the log.
        stop: looked at in every step.

    Attributes:
        rows: predictions of the last evaluation, until the next step; none on other ranks than the first.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        task: Task,
        loader: Loader,
        schedule: Schedule,
        predict_all: Callable[[int], Tensor],
        *,
        device: torch.device,
        decay: Decay | None = None,
        average: WeightAverage | None = None,
        table: NodeTable | None = None,
        precision: str = "fp32",
        clip_grad_norm: float = 0.0,
        seed: int = 0,
        kernel: str = "",
        ranks: Ranks = Ranks(),
        stop: StopRequest | None = None,
    ):
        self.model, self.optimizer, self.task, self.loader, self.schedule = (
            model,
            optimizer,
            task,
            loader,
            schedule,
        )
        self.table, self.device, self.progress = table, device, Progress()
        self._average, self._decay = average, decay or Decay(DecayOptions(schedule.lr))
        self._weights = [*model.parameters(), *([] if table is None else [table.weight])]
        # Another device, or another number of threads outside of the fused kernel, rounds otherwise.
        self.about = About(
            metric=task.metric,
            lower_is_better=task.metric in LOWER_IS_BETTER,
            kernel=kernel,
            arithmetic=f"{device.type}, {torch.get_num_threads()} threads, {kernel}",
            num_epochs=schedule.num_epochs,
            num_steps=schedule.num_steps,
            num_parameters=sum(weight.numel() for weight in self._weights),
        )
        self._predict_all, self._ranks, self._seed = (
            predict_all,
            ranks,
            seed,
        )
        self._precision, self._clip_grad_norm = precision, clip_grad_norm
        self._sync = GradientSync(model, ranks, stop, table=None if table is None else table.weight)
        self._scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self._num_skipped = self._skipped_in_round = 0  # steps in a row, and of the round
        self._background: BackgroundRounds | None = None
        self._exit = contextlib.ExitStack()
        self.numbers: RoundNumbers | None = None
        self.rows: Tensor | None = None

    def close(self) -> None:
        """End the thread that makes the batches."""
        self._exit.close()

    @property
    def num_rounds(self) -> int:
        """Rounds of the whole run, as far as it can be told from here."""
        return self.progress.round + self.schedule.rounds_left(self.progress.epochs)

    def steps(self) -> Iterator[Step]:
        """Train on the rest of this round; :meth:`state` is whole after each step. :meth:`evaluate` closes it."""
        progress, schedule, self.rows = self.progress, self.schedule, None
        start, self._sync.seconds = time.perf_counter(), 0.0
        background = self._background_rounds()
        self.model.train()
        num_left = schedule.num_steps - progress.step_in_round
        batches = _padded(background.batches(progress.round), num_left * schedule.accumulate)
        for group in _grouped(batches, schedule.accumulate):
            pulse.beat(f"step {progress.step_in_round + 1} of round {progress.round + 1}")
            # As if all rounds before this one had been those of so many ranks.
            step = schedule.steps_before(progress.epochs) + progress.step_in_round
            progress.lr = schedule.learning_rate(
                step, progress.epochs, progress.step_in_round, lr=self._decay.lr(step)
            )
            agreed, norm = self._step(group, progress.lr)
            progress.step += 1
            progress.step_in_round += 1
            progress.loss_sum += agreed.loss_sum
            progress.loss_count += agreed.count
            progress.grad_norm = float(norm)
            yield Step(progress.step, progress.step_in_round == schedule.num_steps, agreed.stop)

        if self._skipped_in_round:
            self._tell_skipped()
        self.numbers = RoundNumbers(
            loss=progress.mean_loss,
            lr=progress.lr,
            grad_norm=progress.grad_norm,
            seconds=time.perf_counter() - start,
            hidden=background.hidden,
            draw_seconds=background.busy_seconds,
            sync_seconds=self._sync.seconds,
        )

    def _step(self, batches: Iterable[Data | None], lr: float) -> tuple[Agreement, Tensor]:
        """Take one step on some batches, one after the other; a rank without any takes part with a weight of zero."""
        progress = self.progress
        # Every random number of the step comes from here.
        rng = seed_torch(
            "dropout", self._seed, progress.round, progress.step_in_round, self._ranks.rank
        )
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        if self.table is not None:
            self.table.zero_grad()

        # Forward and backward: the loss is a sum over labels, and so are its gradients.
        loss_sum = count = trained = None
        for batch in batches:
            if batch is None:
                continue
            trained = self._on_device(batch, rng)
            with autocast(self.device, self._precision):
                loss, number = self.task.loss(self.model, trained, rng)
            self._backward(loss, number)
            loss_sum = loss.detach() if loss_sum is None else loss_sum + loss.detach()
            count = number if count is None else count + number
        if trained is None:
            self._scaler.scale(torch.zeros((), device=self.device))  # all ranks have the scale

        # Gradients of all ranks, divided by all their labels. Batches without a label have a gradient of zero, not NaN.
        agreed = self._sync(loss_sum, count)
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        rows = [] if self.table is None else [self.table.gradient()]
        scale = 1 / (agreed.count or 1)  # weights of labels may add up to less than 1
        if grads:
            torch._foreach_mul_(grads, scale)
        for values in rows:  # perhaps on another device
            values.mul_(scale)
        if self._scaler.is_enabled():
            self._scaler.unscale_(self.optimizer)
        norm = self._clip(grads, rows)
        # Beyond what float16 holds: the scaler leaves the step out and halves the scale, of which some is left.
        is_overflow = self._scaler.is_enabled() and self._scaler.get_scale() > SMALLEST_SCALE
        if not math.isfinite(agreed.loss_sum) or not torch.isfinite(norm) and not is_overflow:
            where = (
                ""
                if trained is None
                else f", batch {trained.cluster + 1} ({trained.num_nodes:,} nodes)"
            )
            raise self._not_finite(
                agreed, float(norm), f"step {progress.step_in_round + 1}{where}", trained
            )

        return agreed, self._update(norm, lr)

    def _update(self, norm: Tensor, lr: float) -> Tensor:
        """Take the step, or count it if its gradients are not finite; return the norm of the last step that was taken."""
        is_finite = bool(torch.isfinite(norm))
        self._num_skipped = 0 if is_finite else self._num_skipped + 1
        self._skipped_in_round += not is_finite
        if is_finite:
            self._scaler.step(self.optimizer)
            if self.table is not None:
                self.table.step(lr / self.schedule.lr)
            if self._average is not None:
                self._average.update()
        self._scaler.update()
        return norm if is_finite else torch.tensor(self.progress.grad_norm)

    def _backward(self, loss: Tensor, number: Tensor) -> None:
        """Add the gradient of a loss that is a sum over so many labels.

        In float16 the mean is scaled, which holds where the sum overflows. A power of two in place of the number leaves
        the bits of the gradients as they are.
        """
        if not self._scaler.is_enabled():
            loss.backward()
            return
        size = torch.exp2(torch.log2(number.float().clamp(min=1)).ceil())
        for weight in self._weights:
            if weight.grad is not None:
                weight.grad.div_(size.to(weight.device))
        self._scaler.scale(loss / size).backward()
        for weight in self._weights:
            if weight.grad is not None:
                weight.grad.mul_(size.to(weight.device))

    def _tell_skipped(self) -> None:
        """Warn of the steps of a round that were left out.

        Raises:
            FloatingPointError: no step of the run was taken.
        """
        progress, number = self.progress, self._num_skipped
        beyond = "since their gradients are beyond what float16 holds"
        if number >= progress.step and self.schedule.rounds_left(progress.epochs) == 1:
            raise FloatingPointError(
                f"all {number} steps were left out, {beyond}. Scale the features down, train for more epochs, or "
                "try train.precision=fp32"
            )
        log.warning(
            "round %d: %d of %d steps were left out, %s",
            progress.round + 1,
            self._skipped_in_round,
            progress.step_in_round,
            beyond,
        )
        self._skipped_in_round = 0

    def _on_device(self, batch: Data, rng: torch.Generator) -> Data:
        if self.table is not None:
            return self.table.attach(batch, self.device, rng)
        return batch.to(self.device, non_blocking=True)

    def _clip(self, grads: list[Tensor], rows: list[Tensor]) -> Tensor:
        """Clip the gradients of the model and the rows of a table's together, by one norm of all; return it."""
        norm = torch.nn.utils.get_total_norm([*grads, *rows])
        max_norm = self._clip_grad_norm or math.inf
        torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), max_norm, norm)
        for values in rows:
            values.mul_((max_norm / (norm.to(values.device) + 1e-6)).clamp(max=1))
        return norm

    def evaluate(self) -> dict[str, float] | None:
        """Predict every row and compute the metric of each split, the same on all ranks; none if it is not due.

        Raises:
            Stopped: a rank was asked to stop, and the round is as open as after its last step.
        """
        progress, scores = self.progress, None
        epochs = progress.epochs + self.schedule.epochs_of_round(progress.epochs)
        if self.schedule.is_evaluation_due(progress.epochs, epochs):
            pulse.beat(f"evaluating round {progress.round + 1}")
            with self.averaged():
                rows = self._predict_all(progress.round)
                scores = self._ranks.broadcast(
                    self.task.scores(self.model, rows) if self._ranks.is_first else None
                )
            self.rows = rows if self._ranks.is_first else None
            is_warm = self.schedule.steps_before(epochs) >= self.schedule.warmup_steps
            if scores is not None and is_warm:
                self._decay.observe(scores["valid"])
        progress.end_round(epochs)
        return scores

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Let the model have the weights that are evaluated, inside of a ``with`` block."""
        return contextlib.nullcontext() if self._average is None else self._average.applied()

    def describe(self) -> dict[str, dict]:
        """Measure what the next round draws and say so: records for who writes them down."""
        start = time.perf_counter()
        pulse.beat("drawing the first partition", pulse.State.LONG)
        with self._ranks.first_then_others():  # METIS leaves its cut in the cache
            drawn = self.loader.draw(self.progress.round, self.schedule.share(self.progress.epochs))
        if not self._ranks.is_first:
            return {}
        records = self.loader.measure(drawn, time.perf_counter() - start)
        return {
            kind: {"metric": self.about.metric, "round": self.progress.round, **values}
            for kind, values in records.items()
        }

    def weights(self) -> dict[str, Tensor]:
        """Return what was learned: the averages of the weights, where they are averaged."""
        return (
            weights_of(self.model, self.table) if self._average is None else self._average.weights()
        )

    def fingerprint(self) -> dict:
        """Return what :meth:`weights` are compared by between ranks: sums in place of a large table."""
        return {
            **self.model.state_dict(),
            **({} if self.table is None else {"table": self.table.sums()}),
        }

    def state(self) -> dict:
        """Return all that a resumed run needs to go on with the same bits."""
        return {
            "model": self.weights(),
            "optimizer": self.optimizer.state_dict(),
            **({} if self.table is None else {"table_optimizer": self.table.state()}),
            **({"scaler": self._scaler.state_dict()} if self._scaler.is_enabled() else {}),
            **({} if self._average is None else {"trained": self.model.state_dict()}),
            **({"decay": decay} if (decay := self._decay.state()) else {}),
            "progress": dataclasses.asdict(self.progress),
        }

    def load(self, state: dict) -> None:
        """Go on from a copy of what :meth:`state` returned, which may lie in a file that is mapped into memory."""
        load_weights(
            state["model"] if self._average is None else state["trained"], self.model, self.table
        )
        if self._average is not None:
            self._average.load(state["model"])
        _check_groups(self.optimizer, state["optimizer"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        _check_moments(self.optimizer)
        if self.table is not None:
            self.table.load(state["table_optimizer"])
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])
        self._decay.load(state.get("decay", {}))
        self.progress = Progress(**state["progress"])

    def _background_rounds(self) -> BackgroundRounds:
        """Return the thread that makes the batches, started when the first of them is needed."""
        if self._background is None:
            progress = self.progress
            remaining = self.schedule.remaining(
                progress.round, progress.epochs, progress.step_in_round
            )
            rounds = (
                (round_, lambda round_=round_, share=share: self.loader.batches(round_, share))
                for round_, share in remaining
            )
            self._background = self._exit.enter_context(
                BackgroundRounds(rounds, device=self.device)
            )
        return self._background

    def _not_finite(
        self, agreed: Agreement, norm: float, where: str, batch: Data | None
    ) -> FloatingPointError:
        what, value = (
            ("gradient norm", norm) if math.isfinite(agreed.loss_sum) else ("loss", agreed.loss_sum)
        )
        where = f"round {self.progress.round + 1}, {where}"
        if self._ranks.num_ranks > 1:
            where = f"{where.partition(', batch')[0]}, of rank {', '.join(map(str, agreed.broken))}"
        mend = "the weights have not moved. Try a lower train.lr, train.clip_grad_norm or train.precision=fp32"
        if (
            large := None
            if batch is None
            else next(
                filter(
                    None,
                    (
                        find_large(key, batch[key])
                        for key in ("edge_attr", "x")
                        if batch.get(key) is not None
                    ),
                ),
                None,
            )
        ):
            mend = f"the weights have not moved. Probably, {large}"
        elif self.progress.step == 0:
            mend = (
                "the model has not learned yet, so train.lr is not the cause. Look for extreme values in the "
                "features and labels, or for a division by zero in a model of your own"
                + ("" if self._precision == "fp32" else ", or try train.precision=fp32")
            )
        return FloatingPointError(f"{what} is {value} in {where}; {mend}")


def _check_groups(optimizer: torch.optim.Optimizer, state: dict) -> None:
    """Refuse options of an optimizer of other types than it has, before they are loaded.

    Raises:
        TypeError: names what is odd.
    """
    for own, saved in zip(
        optimizer.param_groups, state["param_groups"], strict=False
    ):  # load_state_dict counts
        for name, value in own.items():
            if name in saved and type(saved[name]) is not type(value):
                raise TypeError(f"{name} of the optimizer is {saved[name]!r:.40}")


def _check_moments(optimizer: torch.optim.Optimizer) -> None:
    """Refuse the state of an optimizer that its next step could not read.

    Raises:
        TypeError: names what is odd.
    """
    names = {name for moments in optimizer.state.values() for name in moments}
    for parameter, moments in optimizer.state.items():
        for name in names:
            value = moments.get(name)
            if (
                not isinstance(value, Tensor)
                or value.shape not in ((), parameter.shape)
                or not value.is_floating_point()
            ):
                raise TypeError(
                    f"{name} of the optimizer is {type(value).__name__} of {getattr(value, 'shape', '')}"
                )


def _padded(batches: Iterator[Data], num_steps: int) -> Iterator[Data | None]:
    """Yield the batches, and nothing for each step without one."""
    for batch in batches:
        num_steps -= 1
        yield batch
    yield from [None] * num_steps


def _grouped(batches: Iterator[Data | None], size: int) -> Iterator[Iterable[Data | None]]:
    """Yield the batches `size` at a time, each made when it is asked for; every group must be used up."""
    for first in batches:
        yield itertools.chain([first], itertools.islice(batches, size - 1))

"""A training step on tensors that stay where they are, which a GPU replays as CUDA graphs: see train.cuda_graph."""

import contextlib
import copy
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol, cast

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import ShapeVaries, room_for
from parallel_epochs.models.structure import StaticEdges
from parallel_epochs.pipeline.gnn.average import WeightAverage
from parallel_epochs.pipeline.gnn.contract import StaticTask, autocast
from parallel_epochs.pipeline.run.contract import Progress
from parallel_epochs.pipeline.run.errors import one_line
from parallel_epochs.pipeline.run.sync import Agreement, GradientSync

log = logging.getLogger(__name__)

# Smallest scale of a loss whose gradients overflow float16: below it, the scale is not at fault.
SMALLEST_SCALE = 2.0**-14
# Each part of a step runs so often before it is captured. The first runs compile kernels and allocate what stays; a
# later size needs one run, as some kernels may be compiled anew for it.
WARM_UP, WARM_UP_LATER = 2, 1
# Largest number of sizes of batches that there is room for. Further ones run eagerly.
MAX_SIZES = 8


class Recorder(Protocol):
    """Captures the work of a function: `capture` returns a function that replays it, and `run` only runs it."""

    def capture(self, function: Callable[[], None]) -> Callable[[], None]: ...
    def run(self, function: Callable[[], None]) -> None: ...


class CudaRecorder:
    """Captures CUDA graphs, which share their memory, as one is replayed after the other."""

    def __init__(self, device: torch.device):
        self._device, self._failed = device, list[torch.cuda.CUDAGraph]()
        self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def run(self, function: Callable[[], None]) -> None:
        """Run a function on the stream on which it will be captured."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            function()
        current.wait_stream(self._stream)

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Capture the work of a function without doing it. If that fails, eager work can go on."""
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        state = torch.cuda.get_rng_state(self._device)
        try:
            # The thread that makes batches may go on meanwhile.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                function()
        except BaseException:
            self._failed.append(graph)  # torch's allocator of page-locked memory goes on asking it
            self._end_capture(before, state)
            raise
        return graph.replay

    def _end_capture(self, stream: torch.cuda.Stream, state: Tensor) -> None:
        """Do what torch 2.11 leaves undone where a capture cannot be ended: else its stream stays the current one, its
        allocator keeps freed memory, and its random numbers fail.
        """
        torch.cuda.set_stream(stream)
        with contextlib.suppress(RuntimeError):  # the capture itself was ended
            torch._C._cuda_endAllocateToPool(self._device.index or 0, self._pool)
        fresh = torch.Generator(self._device)
        fresh.set_state(state)
        torch.cuda.default_generators[self._device.index or 0].graphsafe_set_state(
            fresh.graphsafe_get_state()
        )


class StaticBatch:
    """Room for one batch after the other, all with as many nodes and about as many edges.

    Args:
        batch: the first of them, on its device.
        room: number of edges that there is room for.
        drawn: random numbers of its nodes, or none.
        has_loops: as for :class:`models.structure.StaticEdges`.
    """

    def __init__(self, batch: Data, room: int, drawn: Tensor | None, has_loops: Callable[[], bool]):
        self._edges, self.data = StaticEdges(batch.edge_index, room, has_loops), copy.copy(batch)
        self.data.edge_index = self._edges.edge_index
        for name, value in batch:
            if isinstance(value, Tensor) and name != "edge_index":
                self.data[name] = value.new_zeros(
                    (room if name == "edge_attr" else value.size(0), *value.shape[1:])
                )
        self.drawn = (
            None if drawn is None else torch.empty_like(drawn, device=batch.edge_index.device)
        )
        self.load(batch, drawn)

    def load(self, batch: Data, drawn: Tensor | None) -> None:
        """Take up a batch."""
        self._edges.load(batch.edge_index)
        for name, value in batch:
            if isinstance(value, Tensor) and name != "edge_index":
                self.data[name][: value.size(0)].copy_(value, non_blocking=True)
                self.data[name][value.size(0) :].zero_()
        if self.drawn is not None and drawn is not None:
            self.drawn.copy_(drawn, non_blocking=True)

    def touch(self) -> None:
        """Let kernels plan anew: what they planned in a capture that failed was never computed."""
        self._edges.touch()


class StaticStep:
    """A step of Adam on static tensors: forward and backward of each batch, the ranks' sum, and the update.

    It computes what a step of :class:`pipeline.gnn.trainer.GNNTrainer` does. On the CPU the last bits of a loss may
    differ, where a vector holds other labels. What the device must be waited for, such as whether the loss is finite,
    is only asked for by :meth:`settle`. After a step whose loss or gradient is not finite, the weights do not move any
    more.

    Args:
        scaler: of the loss; disabled unless the precision is fp16.
        max_norm: largest norm of the gradient; infinite for no clipping.
        recorder: captures the parts of a step; none runs them eagerly.
        graph: the batches are parts of it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        task: StaticTask,
        *,
        device: torch.device,
        precision: str,
        scaler: torch.amp.GradScaler,
        max_norm: float,
        average: WeightAverage | None,
        sync: GradientSync,
        num_ranks: int,
        recorder: Recorder | None,
        graph: Data,
    ):
        self._model, self._optimizer, self._task, self._device = model, optimizer, task, device
        self._precision, self._scaler, self._max_norm, self._average = (
            precision,
            scaler,
            max_norm,
            average,
        )
        self._sync, self._num_ranks, self._recorder = sync, num_ranks, recorder
        self._batches = dict[tuple[int, int], StaticBatch]()
        self._replays, self._num_runs = dict[tuple, Callable[[], None]](), Counter[tuple]()
        self._trained = list[torch.nn.Parameter]()
        self._grads = list[Tensor]()
        self._varies = self._is_pending = False
        # A step has a loss, its divisor, and its number in the round. A round has loss, divisor and norm of the last
        # gradient, and then number, loss and norm of the first step that is not finite, or -1.
        self._now, self._round = (
            torch.zeros(size, dtype=torch.float64, device=device) for size in (3, 6)
        )
        self._lr = torch.zeros(
            (), device=device, dtype=torch.float64 if device.type == "cpu" else torch.float32
        )
        self._places, self._said = dict[int, str](), {""}
        self._has_loops = functools.cache(lambda: graph.has_self_loops())

    def forget(self) -> None:
        """Forget what was captured, since the tensors of the model or the optimizer were replaced."""
        self._replays.clear()
        self._num_runs.clear()

    def begin(self, progress: Progress) -> None:
        """Go on in a round from its numbers so far."""
        self._round.copy_(
            torch.tensor([progress.loss_sum, progress.loss_count, progress.grad_norm, -1, 0, 0])
        )
        self._places.clear()

    def take(
        self, batches: Iterable[Data | None], lr: float, rng: torch.Generator, number: int
    ) -> Agreement:
        """Take a step on some batches; a rank without any takes part with a weight of zero.

        Args:
            lr: learning rate.
            rng: on the CPU; decides which labels are inputs.
            number: of the step in the round.
        """
        is_first = True
        for batch in batches:
            if batch is not None:
                self._places[number] = f", batch {batch.cluster + 1} ({batch.num_nodes:,} nodes)"
                self._run_batch(batch, rng, is_first)
                is_first = False
        agreed = self._agree(has_batch=not is_first)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._lr.fill_(lr)
        self._now[2].fill_(number)
        self._run(("update",), self._update)
        self._is_pending = True
        return agreed

    def settle(self, progress: Progress) -> tuple[float, float, str] | None:
        """Wait for the device and write the numbers of the round into `progress`.

        Returns:
            Loss and norm of the first step that was not finite, and its place; none if all were.
        """
        if not self._is_pending:
            return None
        self._is_pending = False
        *numbers, bad, loss, norm = self._round.tolist()
        progress.loss_sum, progress.loss_count, progress.grad_norm = numbers
        if bad < 0:
            return None
        return loss, norm, f"step {int(bad) + 1}{self._places.get(int(bad), '')}"

    def _run_batch(self, batch: Data, rng: torch.Generator, is_first: bool) -> None:
        """Add the gradients of a batch, on static tensors if there is room for it."""
        drawn = self._task.draw(batch, rng)
        batch = batch.to(self._device, non_blocking=True)
        key = batch.num_nodes, room_for(batch.num_edges)
        try:
            if self._varies or key not in self._batches and len(self._batches) >= MAX_SIZES:
                raise ShapeVaries(
                    "" if self._varies else f"batches have more than {MAX_SIZES} sizes"
                )
            if key in self._batches:
                self._batches[key].load(batch, drawn)
            else:
                static = StaticBatch(batch, key[1], drawn, self._has_loops)
                if not self._batches:
                    self._try(static)
                self._batches[key] = static
        except ShapeVaries as error:
            if str(error) not in self._said:
                log.info("training steps run without a CUDA graph: %s", error)
            self._said.add(str(error))
            self._varies = self._varies or not self._batches
            self._add(batch, None if drawn is None else drawn.to(self._device), is_first)
            return
        static = self._batches[key]
        self._run((*key, is_first), lambda: self._add(static.data, static.drawn, is_first))

    def _try(self, static: StaticBatch) -> None:
        """Let a copy of the model show that no shape varies, since a step must not be left half way."""
        states = (
            torch.get_rng_state(),
            torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None,
        )
        try:
            with autocast(self._device, self._precision):
                self._task.static_loss(copy.deepcopy(self._model), static.data, static.drawn)
        finally:
            torch.set_rng_state(states[0])
            if states[1] is not None:
                torch.cuda.set_rng_state(states[1], self._device)

    def _add(self, batch: Data, drawn: Tensor | None, is_first: bool) -> None:
        """Compute the loss of a batch and its gradients, and add them to those of the batches before."""
        for parameter in self._model.parameters():
            parameter.grad = None
        with autocast(self._device, self._precision):
            loss, count = self._task.static_loss(self._model, batch, drawn)
        self._scaler.scale(loss).backward()
        grads = self._find_gradients()
        now = torch.stack([loss.detach().double(), count.double()])
        if is_first:
            torch._foreach_copy_(self._grads, grads)
            self._now[:2].copy_(now)
        else:
            torch._foreach_add_(self._grads, grads)
            self._now[0].copy_((self._now[0].to(loss.dtype) + loss.detach()).double())
            self._now[1].add_(now[1])

    def _agree(self, *, has_batch: bool) -> Agreement:
        """Sum the gradients of all ranks."""
        if self._num_ranks == 1:
            return self._sync.only_stop()
        if not has_batch:
            self._scaler.scale(torch.zeros((), device=self._device))  # all ranks have the scale
        for parameter in self._model.parameters():
            parameter.grad = None
        if has_batch:
            self._give_gradients()
        agreed = self._sync(*(self._now[0], self._now[1]) if has_batch else (None, None))
        grads = self._find_gradients()
        torch._foreach_copy_(self._grads, grads)
        self._now[:2].copy_(torch.tensor([agreed.loss_sum, agreed.count], dtype=torch.float64))
        return agreed

    def _find_gradients(self) -> list[Tensor]:
        """Return the gradients that backward has left; the first time there is room made for them.

        Several ranks have one for every parameter, also where a rank has no batch.
        """
        if not self._grads:
            self._trained = [
                parameter
                for parameter in self._model.parameters()
                if parameter.grad is not None or self._num_ranks > 1 and parameter.requires_grad
            ]
            self._grads = [torch.zeros_like(parameter) for parameter in self._trained]
        return [
            torch.zeros_like(weight) if weight.grad is None else weight.grad
            for weight in self._trained
        ]

    def _give_gradients(self) -> None:
        for parameter, grad in zip(self._trained, self._grads, strict=True):
            parameter.grad = grad

    def _update(self) -> None:
        """Divide, unscale and clip the gradients, and move the weights unless something is not finite."""
        self._give_gradients()
        loss, count, number = self._now
        torch._foreach_mul_(self._grads, (1 / torch.where(count == 0, 1.0, count)).float())
        overflow = torch.zeros((), dtype=torch.bool, device=self._device)
        if self._scaler.is_enabled():
            self._scaler.unscale_(self._optimizer)
            overflow = cast(Tensor, self._scaler._scale) > SMALLEST_SCALE
        norm = torch.nn.utils.get_total_norm(self._grads)
        torch.nn.utils.clip_grads_with_norm_(self._model.parameters(), self._max_norm, norm)

        is_sound = loss.isfinite() & (norm.isfinite() | overflow)
        was_sound = self._round[3] < 0
        self._round[3:].copy_(
            torch.where(
                ~is_sound & was_sound, torch.stack([number, loss, norm.double()]), self._round[3:]
            )
        )
        is_sound &= was_sound
        last = torch.where(norm.isfinite(), norm.double(), self._round[2])
        self._round[:3].copy_(
            torch.where(
                is_sound,
                torch.stack([self._round[0] + loss, self._round[1] + count, last]),
                self._round[:3],
            )
        )
        self._move(~(is_sound & norm.isfinite()) if self._scaler.is_enabled() else ~is_sound)
        self._scaler.update()
        if self._average is not None:
            self._average.update()

    def _move(self, stays: Tensor) -> None:
        """Take the optimizer's step, which changes nothing if `stays` is true."""
        optimizer = self._optimizer
        kept = [(group["lr"], group["capturable"]) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = self._lr
            group["capturable"] = (
                self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()
            )
        optimizer.found_inf = stays.float()  # type: ignore[attr-defined]
        try:
            optimizer.step()
        finally:
            del optimizer.found_inf  # type: ignore[attr-defined]
            for group, (lr, capturable) in zip(optimizer.param_groups, kept, strict=True):
                group["lr"], group["capturable"] = lr, capturable

    def _run(self, key: tuple, function: Callable[[], None]) -> None:
        """Run a part of the step, or replay it once it was captured."""
        if self._recorder is None:
            function()
        elif key in self._replays:
            self._replays[key]()
        elif self._num_runs[key] < (WARM_UP_LATER if self._replays else WARM_UP):
            self._num_runs[key] += 1
            self._recorder.run(function)
        else:
            self._capture(key, function)

    def _capture(self, key: tuple, function: Callable[[], None]) -> None:
        assert self._recorder is not None
        try:
            self._replays[key] = self._recorder.capture(function)
        except Exception as error:  # of whatever kind the driver or a layer raises
            log.warning(
                "training steps run without a CUDA graph, as it cannot be captured: %s",
                one_line(error),
            )
            self._recorder = None
            if self._scaler.is_enabled():
                self._scaler._per_optimizer_states.clear()  # a part of what an update has done
            for batch in self._batches.values():
                batch.touch()
            self.forget()
            function()
            return
        self._replays[key]()

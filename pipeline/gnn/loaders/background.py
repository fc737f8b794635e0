"""Batches made by a thread in the background while the device works on the ones before."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.run.threads import compute_alone, restored_threads


class BackgroundRounds:
    """Makes the batches of rounds in a background thread, which is a few batches ahead of the consumer.

    Use it in a ``with`` statement, which stops the thread. What goes wrong in the thread is raised by :meth:`batches`.
    Beside a model on the CPU the thread computes without OpenMP threads of its own.

    Args:
        rounds: the number of each round, and a function that starts making its batches.
        device: what consumes the batches.
        prefetch: number of batches that may be ready and waiting.

    Attributes:
        busy_seconds: time that the thread needed for the round consumed last.
        wait_seconds: the part of it that the consumer had to wait.
    """

    def __init__(
        self,
        rounds: Iterable[tuple[int, Callable[[], Iterator[Data]]]],
        *,
        device: torch.device = torch.device("cpu"),
        prefetch: int = 2,
    ):
        self._rounds, self._device = rounds, device
        self._queue: queue.Queue = queue.Queue(maxsize=prefetch)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="next-round", daemon=True)
        self._threads = restored_threads()
        self.busy_seconds = self.wait_seconds = 0.0

    def __enter__(self) -> "BackgroundRounds":
        self._threads.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self._threads.__exit__(kind, error, trace)

    @property
    def hidden(self) -> float:
        """Fraction of the thread's work of the last round that nobody had to wait for."""
        return 1 - min(self.wait_seconds / self.busy_seconds, 1) if self.busy_seconds else 1.0

    def batches(self, round_: int) -> Iterator[Data]:
        """Return the batches of the next round, which must be `round_`."""
        self.busy_seconds = self.wait_seconds = 0.0
        while True:
            start = time.perf_counter()
            of_round, batch, seconds = self._queue.get()
            self.wait_seconds += time.perf_counter() - start
            if isinstance(batch, BaseException):
                raise batch
            assert of_round == round_, f"round {round_} was asked for, {of_round} is next"
            self.busy_seconds += seconds
            if batch is None:
                return
            yield batch

    def _produce(self) -> None:
        try:
            if self._device.type == "cpu":
                compute_alone()
            for round_, start_making in self._rounds:
                start = time.perf_counter()
                batches = start_making()
                while True:
                    batch = next(batches, None)
                    if not self._put((round_, batch, time.perf_counter() - start)):
                        return
                    if batch is None:
                        break
                    start = time.perf_counter()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer raises it
            self._put((None, error, 0.0))

    def _put(self, item: tuple) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

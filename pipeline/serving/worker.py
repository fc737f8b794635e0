"""One thread that computes. Requests that wait for the same computation are computed together."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

# Takes what several requests ask for, and gives an answer or an error for each.
Compute = Callable[[Sequence[Any]], Iterable[Any]]


class _Waiting(NamedTuple):
    compute: Compute
    item: object
    future: asyncio.Future

    def settle(self, answer: object) -> None:
        """Give the request its answer, from another thread."""
        loop = self.future.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, self.future, answer)


class ComputeThread:
    """Computes in a thread of its own, so that the event loop goes on answering."""

    def __init__(self) -> None:
        self._waiting, self._changed = list[_Waiting](), threading.Condition()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._waiting)

    def ask(self, compute: Compute, item: object) -> asyncio.Future:
        """Return what will hold the answer of a computation. If it is cancelled first, nothing is computed."""
        asked = _Waiting(compute, item, asyncio.get_running_loop().create_future())
        asked.future.add_done_callback(lambda _: self._forget(asked))
        with self._changed:
            self._waiting.append(asked)
            self._changed.notify()
        # A forked process has no threads.
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="serving", daemon=True)
            self._thread.start()
        return asked.future

    def _forget(self, asked: _Waiting) -> None:
        with self._changed:
            self._waiting = [each for each in self._waiting if each is not asked]

    def _work(self) -> None:
        while True:  # without names for what was answered, which would keep the model
            self._answer(*self._take())

    def _take(self) -> tuple[Compute, list[_Waiting]]:
        """Wait for a request, and take it with all that wait for the same computation."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            compute = self._waiting[0].compute
            taken = [each for each in self._waiting if each.compute == compute]
            self._waiting = [each for each in self._waiting if each.compute != compute]
            return compute, taken

    @staticmethod
    def _answer(compute: Compute, asked: list[_Waiting]) -> None:
        try:
            answers = compute([each.item for each in asked])
            for each, answer in zip(asked, answers, strict=True):
                each.settle(answer)
        except Exception as error:
            for each in asked:
                each.settle(error)


def _settle(future: asyncio.Future, answer: object) -> None:
    """Give a future its answer, unless nobody waits for it any more."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)

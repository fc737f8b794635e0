"""One thread that computes. Requests that wait for the same computation are computed together."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

# Takes what several requests ask for, and gives an answer or an error for each.
Compute = Callable[[Sequence[Any]], Iterable[Any]]


class Busy(Exception):
    """As many requests wait as may."""


class _Waiting(NamedTuple):
    compute: Compute
    item: object
    future: asyncio.Future
    loop: asyncio.AbstractEventLoop

    def settle(self, answer: object) -> None:
        """Give the request its answer, from another thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(_settle, self.future, answer)


class Worker:
    """Computes in a thread of its own, so that the event loop goes on answering.

    Args:
        most_waiting: requests that may wait.
    """

    def __init__(self, most_waiting: int):
        self._most_waiting = most_waiting
        self._waiting, self._changed = deque[_Waiting](), threading.Condition()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._waiting)

    async def ask(self, compute: Compute, item: object) -> Any:
        """Compute an answer, together with those of other requests that wait for `compute`.

        Raises:
            Busy: too many requests wait.
            Exception: what `compute` returned or raised.
        """
        loop = asyncio.get_running_loop()
        asked = _Waiting(compute, item, loop.create_future(), loop)
        with self._changed:
            if len(self._waiting) >= self._most_waiting:
                raise Busy
            self._waiting.append(asked)
            if (
                self._thread is None or not self._thread.is_alive()
            ):  # a forked process has no threads
                self._thread = threading.Thread(target=self._work, name="serving", daemon=True)
                self._thread.start()
            self._changed.notify()
        return await asked.future

    def _work(self) -> None:
        while True:
            self._answer(self._take())

    @staticmethod
    def _answer(asked: list[_Waiting]) -> None:
        try:
            for each, answer in zip(
                asked, asked[0].compute([each.item for each in asked]) if asked else ()
            ):
                each.settle(answer)
        except Exception as error:
            for each in asked:
                each.settle(error)

    def _take(self) -> list[_Waiting]:
        """Wait for a request, and take it with all that wait for the same computation."""
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            first, everyone = self._waiting[0], list(self._waiting)
            self._waiting.clear()
            self._waiting.extend(each for each in everyone if each.compute != first.compute)
        return [
            each
            for each in everyone
            if each.compute == first.compute and not each.future.cancelled()
        ]


def _settle(future: asyncio.Future, answer: object) -> None:
    """Give a future its answer, unless nobody waits for it any more."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)

"""One thread that computes, so that the event loop goes on answering."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class ComputeThread:
    """Computes one request after another. The process can end while it does."""

    def __init__(self) -> None:
        self._asked = SimpleQueue[tuple[Future, Callable[[], Any]]]()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Return how many requests wait."""
        return self._asked.qsize()

    def ask(self, compute: Callable[[], Any]) -> asyncio.Future:
        """Return what will hold the answer of a computation. If it is cancelled first, nothing is computed."""
        future: Future = Future()
        self._asked.put((future, compute))
        # A forked process has no threads.
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="serving", daemon=True)
            self._thread.start()
        return asyncio.wrap_future(future)

    def _work(self) -> None:
        while True:  # without names for what was answered, which would keep the model
            self._answer(*self._asked.get())

    @staticmethod
    def _answer(future: Future, compute: Callable[[], Any]) -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(compute())
            except Exception as error:
                future.set_exception(error)

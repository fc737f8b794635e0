"""Requests to stop: signals are noted, and obeyed after the step in hand."""

import ctypes
import multiprocessing
import signal
import threading

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class StopRequest:
    """Notes a SIGTERM, SIGUSR1 or SIGUSR2 instead of dying from it, while used in a ``with`` statement.

    Child processes that are handed the object see what their parent was told.
    """

    def __init__(self) -> None:
        # Not locked: a signal may arrive while the lock is held.
        self._signum = multiprocessing.get_context("spawn").RawValue(ctypes.c_int, 0)
        self._before: dict = {}

    def __getstate__(self):
        return self._signum

    def __setstate__(self, signum):
        self._signum, self._before = signum, {}

    @property
    def signum(self) -> int:
        """The signal, or 0."""
        return self._signum.value

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = {signum: signal.signal(signum, self._note) for signum in STOP_SIGNALS}
        return self

    def __exit__(self, *exc) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, frame) -> None:
        self._signum.value = signum

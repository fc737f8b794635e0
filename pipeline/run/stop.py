"""Handles requests to stop: a signal is noted, and the run stops after the current step."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading

from parallel_epochs.pipeline.run.errors import Stopped

STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


def end_with(parent: int, signum: int = signal.SIGKILL) -> None:
    """Let the system send this process a signal when its parent ends, and exit if it has ended. Only Linux does so."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:
            os._exit(1)


class StopRequest:
    """Notes a SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 or SIGINT (Ctrl-C) inside a ``with`` statement.

    Before :meth:`defer` there is nothing to save, and a signal raises :class:`Stopped` at once. Afterwards the signal
    is only noted, and the current step ends first. A second Ctrl-C ends the process at once. Child processes that get
    the object see the signals of their parent.
    """

    def __init__(self) -> None:
        # Not locked: a signal may arrive while the lock is held.
        self._signum = multiprocessing.get_context("spawn").RawValue(ctypes.c_int, 0)
        self._before: dict = {}
        self._deferred = False

    def __getstate__(self) -> object:
        return self._signum

    def __setstate__(self, signum: ctypes.c_int) -> None:
        self._signum, self._before, self._deferred = signum, {}, True

    @property
    def signum(self) -> int:
        """The signal, or 0."""
        return self._signum.value

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            # Ctrl-C is ignored in the background of a script, where it is meant for another process, and the end of a
            # terminal under nohup.
            self._before = {
                signum: signal.signal(signum, self._note)
                for signum in STOP_SIGNALS
                if signum not in (signal.SIGINT, signal.SIGHUP)
                or signal.getsignal(signum) != signal.SIG_IGN
            }
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def defer(self) -> None:
        """From now on only note signals, as there is something to save. The caller checks :attr:`signum`."""
        self._deferred = True

    def check(self) -> None:
        """Raise an error if a signal has asked the run to stop.

        Raises:
            Stopped: a signal has.
        """
        if self.signum:
            raise Stopped(self.signum)

    def ask(self) -> int:
        """Ask the run to stop, from another thread, as a SIGUSR1 would; returns the number of this signal."""
        self._signum.value = self._signum.value or signal.SIGUSR1
        return self.signum

    def _note(self, signum: int, frame: object) -> None:
        self._signum.value = signum
        if signum == signal.SIGINT:
            signal.signal(signum, signal.SIG_DFL)
        if not self._deferred:
            raise Stopped(signum)

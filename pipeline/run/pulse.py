"""Heartbeats: each process of a run writes what it is doing into memory that the watchdog can always read."""

import contextlib
import enum
import faulthandler
import json
import mmap
import os
import shutil
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# On this signal a process writes the tracebacks of its threads, even while one of them holds the interpreter's lock.
TRACE_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGQUIT)


class State(enum.IntEnum):
    """The state of a process.

    `LONG` may last minutes without a heartbeat. `SAVING` is not cut off by a request to stop.
    """

    ABSENT, BUSY, LONG, WAITING, ENDED, SAVING = range(6)


@dataclass(frozen=True)
class Sign:
    """The last heartbeat of a process, and what it was doing.

    Attributes:
        rank: its number among all ranks; -1 for the process that starts the ranks.
        beat: time of the heartbeat, in seconds of the system's monotonic clock.
        alive: when one of its threads last held the interpreter's lock, for example while it waits for others.
    """

    pid: int = 0
    rank: int = 0
    state: State = State.ABSENT
    beat: float = 0.0
    doing: str = ""
    alive: float = 0.0

    def __str__(self) -> str:
        return "the process that starts the ranks" if self.rank < 0 else f"rank {self.rank}"


_LAYOUT = struct.Struct("<qiid88sd")
_ALIVE, _ALIVE_OFFSET = struct.Struct("<d"), _LAYOUT.size - 8
# The words for a process that has just taken its place.
STARTING = "starting"
# Seconds between two updates of `alive`.
PERIOD = 0.25


class Board:
    """A file in memory with a place for the heartbeat of each process of a run on this machine.

    Args:
        folder: holds the file, the traces of hanging processes, and the verdict of the watchdog.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        with open(folder / "board", "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @classmethod
    def create(cls, num_places: int) -> "Board":
        """Make a board, in shared memory where the system has a folder for it."""
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        from parallel_epochs.pipeline.run import (
            files,
        )  # not in the watchdog's own process, which has no packages

        with files.naming(Path(shared or tempfile.gettempdir(), "board"), "written"):
            folder = Path(tempfile.mkdtemp(prefix="parallel-epochs-", dir=shared))
            (folder / "board").write_bytes(bytes(num_places * _LAYOUT.size))
        return cls(folder)

    def remove(self) -> None:
        """Delete the folder. Processes that have it open may go on using it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def signs(self) -> list[Sign]:
        """Read the last heartbeat of every process."""
        return [
            Sign(pid, rank, State(state), beat, doing.rstrip(b"\0").decode(errors="replace"), alive)
            for pid, rank, state, beat, doing, alive in _LAYOUT.iter_unpack(self._memory[:])
        ]

    def write(self, place: int, sign: Sign) -> None:
        """Write a heartbeat."""
        _LAYOUT.pack_into(
            self._memory,
            place * _LAYOUT.size,
            *(sign.pid, sign.rank, sign.state, sign.beat, sign.doing.encode(), sign.alive),
        )

    def write_alive(self, place: int) -> None:
        """Write that Python code runs in the process."""
        _ALIVE.pack_into(self._memory, place * _LAYOUT.size + _ALIVE_OFFSET, time.monotonic())

    def trace(self, place: int) -> Path:
        """Return the file that the process of a place writes its traceback to."""
        return self.folder / f"trace-{place}"

    @property
    def verdict(self) -> dict | None:
        """Return why the watchdog ended the run, as `message` and `signum`; None if it has not."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.folder / "verdict").read_text())
        return None

    def judge(self, message: str, signum: int) -> None:
        """Write the verdict."""
        temporary = self.folder / ".verdict"
        temporary.write_text(json.dumps({"message": message, "signum": signum}))
        temporary.replace(self.folder / "verdict")


class Pulse:
    """Writes the heartbeats of this process. Without a board it writes none."""

    def __init__(self) -> None:
        self.board: Board | None = None
        self._place, self._sign = 0, Sign()
        self._trace: BinaryIO | None = None
        self._left = threading.Event()
        self._thread: threading.Thread | None = None

    def join(self, board: Board, place: int, rank: int) -> None:
        """Take a place on a board."""
        self.board, self._place = board, place
        self._sign = Sign(os.getpid(), rank)
        self.beat(STARTING, State.LONG)
        self._trace = open(board.trace(place), "wb")  # noqa: SIM115 - open as long as a trace may be asked for
        faulthandler.register(TRACE_SIGNAL, file=self._trace, all_threads=True)
        self._left.clear()
        self._thread = threading.Thread(
            target=self._live, args=(board, place), name="pulse", daemon=True
        )
        self._thread.start()

    def _live(self, board: Board, place: int) -> None:
        while not self._left.wait(PERIOD):
            board.write_alive(place)

    def leave(self) -> None:
        """Stop writing heartbeats."""
        if self.board is not None and self._thread is not None and self._trace is not None:
            self.beat("", State.ENDED)
            self._left.set()
            self._thread.join()
            faulthandler.unregister(TRACE_SIGNAL)
            self._trace.close()
            self.board = None

    def beat(self, doing: str, state: State = State.BUSY) -> None:
        """Write a heartbeat.

        Args:
            doing: what the process is doing, as in "last seen: step 3 of round 1".
        """
        if self.board is not None:
            now = time.monotonic()
            self._sign = Sign(self._sign.pid, self._sign.rank, state, now, doing, now)
            self.board.write(self._place, self._sign)

    def renew(self) -> None:
        """Write a heartbeat with the text and state of the last one."""
        self.beat(self._sign.doing, self._sign.state)

    @contextlib.contextmanager
    def waiting(self, doing: str = "waiting for the other ranks") -> Iterator[None]:
        """Mark this process as waiting for others until the end of the block."""
        before = self._sign
        self.beat(f"{before.doing}, {doing}" if before.doing else doing, State.WAITING)
        try:
            yield
        finally:
            self.beat(before.doing, before.state)


# There is one for each process, so that all code can write heartbeats without being handed an object.
_pulse = Pulse()
join, leave, beat = _pulse.join, _pulse.leave, _pulse.beat
renew, waiting = _pulse.renew, _pulse.waiting


def board() -> Board | None:
    """Return the board on which this process has a place."""
    return _pulse.board

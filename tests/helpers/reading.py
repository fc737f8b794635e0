"""What processes that read graphs do in tests; they import it by name, and little with it."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np

from parallel_epochs.pipeline.data.readers.many import Graphs, read_in_parallel


def tell(number: int, end: int = -1) -> Graphs:
    """A graph of one node that tells its number, its process, and how many files that process has open."""
    if number == end:
        os.kill(os.getpid(), signal.SIGKILL)
    y = np.array([[number, os.getpid(), len(os.listdir("/proc/self/fd"))]])
    return Graphs(np.array([1]), np.array([0]), np.empty((2, 0), np.int64), y=y)


def refuse(number: int) -> Graphs:
    if number >= 700:
        raise ValueError(f"item {number} is none")
    return tell(number)


def wait_for_ever(folder: Path, number: int) -> Graphs:
    (folder / str(os.getpid())).touch()
    time.sleep(600)
    return tell(number)


def read_for_ever(folder: str) -> None:
    """Read graphs of which none is ever ready, in a process of its own."""
    read_in_parallel(partial(wait_for_ever, Path(folder)), range(5000))

"""The number of threads that torch computes with; nothing else in the project sets it."""

import contextlib
import os
from collections.abc import Iterator

import torch


def threads_per_rank(num_local: int, requested: int = 0) -> int:
    """Return `requested` threads, or the machine's processors divided among its `num_local` ranks."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return requested or max(1, available // num_local)


def use_threads(num_threads: int) -> None:
    """Compute with this many threads from now on, in this process."""
    torch.set_num_threads(num_threads)


@contextlib.contextmanager
def borrowed_threads(factor: int) -> Iterator[None]:
    """Compute with `factor` times as many threads while the other ranks of the machine wait."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(num_threads * factor)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@contextlib.contextmanager
def restored_threads() -> Iterator[None]:
    """Restore the number of threads afterwards; :func:`compute_alone` sets it for threads that begin later."""
    num_threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def compute_alone() -> None:
    """Let the calling thread compute without OpenMP threads of its own.

    With those, OpenMP counts more threads than processors and puts the model's threads to sleep at every barrier.
    """
    torch.set_num_threads(1)

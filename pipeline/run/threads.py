"""Sets the number of threads that torch computes with. Nothing else in the project does."""

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits

from parallel_epochs.pipeline.run import pulse

T = TypeVar("T")


def threads_per_rank(num_local: int, requested: int = 0) -> int:
    """Return `requested`, or the machine's processors divided by the number of its ranks if `requested` is 0."""
    available = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return requested or max(1, available // num_local)


def use_threads(num_threads: int) -> None:
    """Compute with this many threads from now on, in this process."""
    torch.set_num_threads(num_threads)


@contextlib.contextmanager
def restored_threads() -> Iterator[None]:
    """Restore the number of threads at the end of the block, since :func:`compute_alone` changes it for new threads."""
    num_threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@contextlib.contextmanager
def borrowed_threads(factor: int) -> Iterator[None]:
    """Compute with `factor` times as many threads until the end of the block, while the machine's other ranks wait."""
    with restored_threads():
        torch.set_num_threads(torch.get_num_threads() * factor)
        yield


def compute_alone() -> None:
    """Let the calling thread compute without OpenMP threads of its own.

    Otherwise OpenMP counts more threads than processors, and puts the model's threads to sleep at every barrier.
    """
    torch.set_num_threads(1)


def in_chunks(function: Callable[[slice], T], num_rows: int, size: int) -> list[T]:
    """Call a function for chunks of rows, several at a time, each with a single thread. Each chunk is a heartbeat.

    The chunks do not depend on the number of threads, so the results have the same bits for any number.

    Args:
        function: takes the slice of rows of a chunk.
        size: number of rows in a chunk. The last one may have fewer.

    Returns:
        The results in the order of the chunks.
    """

    def call(rows: slice) -> T:
        pulse.renew()
        return function(rows)

    chunks = [slice(first, min(first + size, num_rows)) for first in range(0, num_rows, size)]
    with (
        restored_threads(),
        threadpool_limits(1, "blas"),
        ThreadPoolExecutor(torch.get_num_threads(), initializer=compute_alone) as pool,
    ):
        return list(pool.map(call, chunks))

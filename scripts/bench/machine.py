"""The limits of the machine, and how close a function comes to them."""

import ctypes
import functools
import math
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from parallel_epochs.scripts.bench.measure import seconds_of

# Rows that are read for each row of sums that is written.
ROWS_PER_SUM = 4096


@dataclass
class MachineLimits:
    """The limits of a machine with torch's number of threads."""

    bandwidth: float  # bytes a second, reading memory in order
    peak: float  # float32 operations a second, fused multiply-adds counted as two

    def limit(self, num_bytes: int, operations: int) -> float:
        """Return the fewest seconds that this machine needs to move so many bytes and do so many operations."""
        return max(num_bytes / self.bandwidth, operations / self.peak)


@functools.cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.so"
        subprocess.run(
            [
                "c++",
                "-O3",
                "-march=native",
                "-ffp-contract=fast",
                "-fopenmp",
                "-shared",
                "-fPIC",
                str(Path(__file__).with_name("machine.cpp")),
                "-o",
                str(path),
            ],
            check=True,
        )
        library = ctypes.CDLL(str(path))
    library.multiply_add.restype = ctypes.c_int64
    return library


def seconds_to_gather(num_rows: int, channels: int, index: Tensor) -> float:
    """Return the fewest seconds in which this machine reads rows of a float32 table in a given order.

    Args:
        num_rows, channels: the size of the table.
        index: rows to read, int64.
    """
    table, firsts = torch.ones(num_rows, channels), torch.arange(0, index.numel(), ROWS_PER_SUM)
    return min(
        seconds_of(lambda: embedding_bag(index, table, firsts, mode="sum")) for _ in range(30)
    )


def measure(function: Callable[[], object], rounds: int = 12) -> tuple[MachineLimits, float]:
    """Measure the limits of the machine and the seconds of a function in turn, and return the best of each.

    Other users of the machine slow down both. The best of many short rounds is what the machine can do without them.
    """
    library, threads = _library(), ctypes.c_int(torch.get_num_threads())
    memory = torch.ones(2**26)  # 256 MiB: far more than any cache
    numbers = torch.tensor([0.5, 0.5, 0.0])
    count, operations = ctypes.c_int64(2_000_000), []

    def multiply():
        operations.append(library.multiply_add(count, threads, ctypes.c_void_p(numbers.data_ptr())))

    moved, computed, ours = _best_of([memory.sum, multiply, function], rounds)
    return MachineLimits(4 * memory.numel() / moved, operations[0] / computed), ours


def measure_gpu(function: Callable[[], object], rounds: int = 12) -> tuple[MachineLimits, float]:
    """Do on a GPU what :func:`measure` does: its limits are those of a copy and of a product of float32 matrices."""
    memory, out = (torch.ones(2**28, device="cuda") for _ in range(2))  # 1 GiB each
    matrix = torch.rand(8192, 8192, device="cuda")

    def copy():
        out.copy_(memory)

    def multiply():
        torch.mm(matrix, matrix)

    moved, computed, ours = _best_of([copy, multiply, function], rounds)
    return MachineLimits(8 * memory.numel() / moved, 2 * len(matrix) ** 3 / computed), ours


def _best_of(functions: list[Callable[[], object]], rounds: int) -> list[float]:
    """Return the fewest seconds of a call of each function, called in turn."""
    best = [math.inf] * len(functions)
    for _ in range(rounds):
        for place, function in enumerate(functions):
            best[place] = min(best[place], *(seconds_of(function) for _ in range(5)))
    return best

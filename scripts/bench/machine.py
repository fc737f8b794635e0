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

from parallel_epochs.scripts.bench.measure import seconds_of


@dataclass
class Machine:
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
        subprocess.run(["c++", "-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC",
                        str(Path(__file__).with_name("machine.cpp")), "-o", str(path)], check=True)
        library = ctypes.CDLL(str(path))
    library.multiply_add.restype = ctypes.c_int64
    return library


def measure(function: Callable[[], object], rounds: int = 12) -> tuple[Machine, float]:
    """Measure the limits of the machine and the seconds of a function in turn, and return the best of each.

    Other users of the machine slow down both. The best of many short rounds is what the machine can do without them.
    """
    library, threads = _library(), ctypes.c_int(torch.get_num_threads())
    memory = torch.ones(2**26)  # 256 MiB: far more than any cache
    numbers = torch.tensor([0.5, 0.5, 0.0])
    count, operations = ctypes.c_int64(2_000_000), []

    def read():
        library.read_all(ctypes.c_void_p(memory.data_ptr()), ctypes.c_int64(memory.numel()), threads)

    def multiply():
        operations.append(library.multiply_add(count, threads, ctypes.c_void_p(numbers.data_ptr())))

    best = {read: math.inf, multiply: math.inf, function: math.inf}
    for _ in range(rounds):
        for each in best:
            for _ in range(5):
                best[each] = min(best[each], seconds_of(each))
    return Machine(4 * memory.numel() / best[read], operations[0] / best[multiply]), best[function]

"""What every benchmark needs: seconds, extra memory, equality before timing, one CSV row per measurement."""

import csv
import ctypes
import gc
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch_geometric
from torch import Tensor

from pipeline import cli
from pipeline.config import Config

STATUS = Path("/proc/self/status")


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def write_row(writer: csv.DictWriter | None, row: dict) -> csv.DictWriter:
    """Print a measurement with where it comes from; the first one prints the header too."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    row = {**row, "threads": torch.get_num_threads(), "machine": f"{platform.machine()} {_processor()}",
           "torch": torch.__version__, "pyg": torch_geometric.__version__, "commit": commit or "unknown"}
    if writer is None:
        writer = csv.DictWriter(sys.stdout, row)
        writer.writeheader()
    writer.writerow(row)
    sys.stdout.flush()
    return writer


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines()
              if line.startswith("model name")]
    return f"{models[0] if models else 'unknown'} x{len(models)}"


def seconds_of(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def side_by_side(theirs: Callable[[], object], ours: Callable[[], object], repeat: int, inner: int = 1) -> dict:
    """Time two functions in turn, after a call of each to warm up.

    Args:
        repeat: rounds; each gives one ratio.
        inner: calls of `ours` in a round, of which the median counts.

    Returns:
        Columns of a row: medians, smallest and largest seconds of both, and of their ratio.
    """
    theirs(), ours()
    rounds = []
    for round_ in range(repeat):
        a, b = seconds_of(theirs), statistics.median(seconds_of(ours) for _ in range(inner))
        rounds.append((a, b, a / b))
        say(f"round {round_ + 1}: PyG {a:.3f} s, ours {b:.4f} s, ratio {a / b:.1f}")
    columns = {}
    for name, values in zip(("pyg", "ours", "ratio"), zip(*rounds)):
        unit = "" if name == "ratio" else "_s"
        columns |= {f"{name}_{what.__name__}{unit}": round(what(values), 2 if name == "ratio" else 4)
                    for what in (statistics.median, min, max)}
    return columns


def spread_of(function: Callable[[], object], repeat: int) -> dict:
    """Columns of a row: median, smallest and largest seconds of a function."""
    seconds = [seconds_of(function) for _ in range(repeat)]
    say("seconds: " + ", ".join(f"{s:.2f}" for s in seconds))
    return {f"ours_{what.__name__}_s": round(what(seconds), 4) for what in (statistics.median, min, max)}


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def resident_mib(field: str = "VmRSS") -> float:
    """The process's resident memory now (VmRSS) or at its highest since the last reset (VmHWM)."""
    return int(re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text())[1]) / 2**10


def extra_mib(function: Callable[[], object]) -> float:
    """Most resident memory during a call beyond what was resident before it, in MiB; Linux only.

    The kernel's own high-water mark (VmHWM), reset for the call. What earlier calls freed goes back to the system
    first: memory that the allocator keeps for reuse would hide what the call takes.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident_mib()
    Path("/proc/self/clear_refs").write_text("5")
    function()
    return resident_mib("VmHWM") - before


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float,
                 scales: dict[str, float] | None = None) -> None:
    """Stop unless every tensor is within `tolerance` of the other side's, relative to its largest element.

    Args:
        ours: tensors by name.
        theirs: what they are compared with, in the same or a higher precision.
        tolerance: largest difference.
        scales: what the differences of some are relative to instead: for a sum whose terms cancel, the sum of their
            sizes. Terms are rounded, whatever is left of them.
    """
    for name, b in theirs.items():
        a = ours[name].reshape(b.shape).to(b.dtype)
        scale = b.abs().max().clamp(min=1e-30) if name not in (scales or {}) else scales[name]
        error = float((a - b).abs().max() / scale)
        say(f"{name}: relative difference {error:.1e}")
        if not error <= tolerance:
            raise SystemExit(f"{name} differs from PyG's by {error:.1e}, more than {tolerance:.0e}: nothing is timed")


def configure(*overrides: str) -> Config:
    """Compose the configuration that a command would train."""
    cli.register_schema()
    return cli.compose_config([*overrides])

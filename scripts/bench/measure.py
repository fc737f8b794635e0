"""Tools of all benchmarks: time, extra memory, comparison of outputs, one CSV row per measurement."""

import csv
import ctypes
import gc
import importlib
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch_geometric
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric import typing
from torch_geometric.data import Data

STATUS = Path("/proc/self/status")
_writer: csv.DictWriter | None = None  # that of the last row


def describe_extensions() -> str:
    """Say which of the packages with kernels for PyG are installed; PyG uses them without being asked."""
    found = []
    for module, is_used in (
        ("pyg_lib", typing.WITH_PYG_LIB),
        ("torch_scatter", typing.WITH_TORCH_SCATTER),
    ):
        version = (
            getattr(importlib.import_module(module), "__version__", "installed")
            if is_used
            else "not installed"
        )
        found.append(f"{module} {version}")
    return ", ".join(found)


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def write_row(row: dict) -> None:
    """Print a measurement with its machine, versions and commit, after a header if it has other columns than the last."""
    global _writer
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_initialized() else ""
    row = {
        **row,
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()} {_processor()}",
        "gpu": gpu,
        "torch": torch.__version__,
        "pyg": torch_geometric.__version__,
        "commit": commit or "unknown",
    }
    if _writer is None or set(_writer.fieldnames) != row.keys():
        _writer = csv.DictWriter(sys.stdout, row)
        _writer.writeheader()
    _writer.writerow(row)
    sys.stdout.flush()


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    models = [
        line.split(":", 1)[1].strip()
        for line in cpuinfo.read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{models[0] if models else 'unknown'} x{len(models)}"


def wait_for_gpu() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def seconds_of(function: Callable[[], object]) -> float:
    """Return the seconds of a call, with all work that it gave to a GPU."""
    wait_for_gpu()
    start = time.perf_counter()
    function()
    wait_for_gpu()
    return time.perf_counter() - start


def side_by_side(
    theirs: Callable[[], object],
    ours: Callable[[], object],
    repeat: int,
    inner: int = 1,
    *,
    peer: str = "pyg",
    others: tuple[str, ...] = ("ours", "ratio"),
) -> dict:
    """Time two functions in turn, after a warm-up call of each.

    Args:
        peer, others: names of the columns of `theirs`, of `ours` and of the ratio.
        repeat: number of rounds. Each gives one ratio.
        inner: number of calls of `ours` in a round; their median counts. On a GPU it is also the number of calls of
            `theirs`, as a call takes milliseconds there.

    Returns:
        Columns of a row: median, smallest and largest seconds of both functions, and the same of their ratio.
    """
    theirs(), ours()
    rounds = []
    for round_ in range(repeat):
        a = statistics.median(
            seconds_of(theirs) for _ in range(inner if torch.cuda.is_initialized() else 1)
        )
        if not torch.cuda.is_initialized():
            time.sleep(
                0.3
            )  # the peer's threads may wait for work in a busy loop for a fifth of a second
        b = statistics.median(seconds_of(ours) for _ in range(inner))
        rounds.append((a, b, a / b))
        say(
            f"round {round_ + 1}: {peer} {four_digits(a)} s, ours {four_digits(b)} s, ratio {a / b:.1f}"
        )
    return {
        name: value
        for column, values in zip((peer, *others), zip(*rounds))
        for name, value in _spread(column, values).items()
    }


def beside(
    peer: str,
    theirs: Callable[[], object] | None,
    ours: Callable[[], object],
    repeat: int,
    inner: int,
) -> dict:
    """Time a further peer as :func:`side_by_side` does; empty columns where there is none."""
    others = f"ours_beside_{peer}", f"{peer}_ratio"
    if theirs is None:
        return {name: "" for column in (peer, *others) for name in _spread(column, [0])}
    return side_by_side(theirs, ours, repeat, inner, peer=peer, others=others)


def _spread(column: str, values: Sequence[float]) -> dict:
    unit = "" if column.endswith("ratio") else "_s"
    return {
        f"{column}_{what.__name__}{unit}": four_digits(what(values))
        for what in (statistics.median, min, max)
    }


def spread_of(function: Callable[[], object], repeat: int) -> dict:
    """Return columns of a row with the median, smallest and largest seconds of a function."""
    seconds = [seconds_of(function) for _ in range(repeat)]
    say("seconds: " + ", ".join(f"{s:.2f}" for s in seconds))
    return _spread("ours", seconds)


def four_digits(value: float) -> float:
    """Round to four digits, whether a call takes minutes or microseconds."""
    return float(f"{value:.4g}")


def extra_mib(function: Callable[[], object]) -> float:
    """Return the peak of memory during a call, minus the memory before the call, in MiB (Linux only).

    On a GPU it is the memory of tensors there. Otherwise it is the resident memory: its peak is the kernel's high-water
    mark (VmHWM), which is reset before the call. Freed memory is first returned to the system, because memory that the
    allocator reuses would hide the memory of the call.
    """
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 2**20
        function()
        return torch.cuda.max_memory_allocated() / 2**20 - before
    ctypes.CDLL(None).malloc_trim(0)
    before = _resident_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    function()
    return _resident_mib("VmHWM") - before


def _resident_mib(field: str) -> float:
    return int(re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text())[1]) / 2**10


def extra_of_both(theirs: Callable[[], object], ours: Callable[[], object]) -> dict[str, float]:
    """Return the columns of a row with the extra memory of two functions, see :func:`extra_mib`."""
    theirs_mib, ours_mib = (round(extra_mib(function), 1) for function in (theirs, ours))
    say(f"extra memory: pyg {theirs_mib:.1f} MiB, ours {ours_mib:.1f} MiB")
    return {
        "pyg_extra_mib": theirs_mib,
        "ours_extra_mib": ours_mib,
        "extra_ratio": round(theirs_mib / max(ours_mib, 0.1), 1),
    }


def backward(out: Tensor, leaves: dict[str, Tensor], gradient: Tensor) -> dict[str, Tensor]:
    """Return an output and the gradients of its leaves, by their names."""
    gradients = torch.autograd.grad(out, list(leaves.values()), gradient)
    return {"out": out.detach(), **dict(zip(leaves, gradients, strict=True))}


def make_step(model: torch.nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """Return a function that takes a step of Adam on a loss."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def assert_close(
    ours: dict[str, Tensor],
    theirs: dict[str, Tensor],
    tolerance: float,
    scales: dict[str, float] | None = None,
) -> None:
    """Stop unless all tensors differ from the expected ones by at most `tolerance`.

    Args:
        ours: tensors by name.
        theirs: expected tensors by name, in the same or a higher precision.
        tolerance: largest difference, relative to the largest element of the expected tensor.
        scales: divisors of the differences of some tensors, in place of the largest element. For a sum whose terms
            cancel, this is the sum of the absolute terms, which are what is rounded.
    """
    for name, b in theirs.items():
        a = ours[name].reshape(b.shape).to(b.dtype)
        scale = b.abs().max().clamp(min=1e-30) if name not in (scales or {}) else scales[name]
        error = float((a - b).abs().max() / scale)
        say(f"{name}: relative difference {error:.1e}")
        if not error <= tolerance:
            raise SystemExit(
                f"{name} differs from PyG's by {error:.1e}, more than {tolerance:.0e}: nothing is timed"
            )


def assert_same_model(
    ours: torch.nn.Module, theirs: torch.nn.Module, x: Tensor, data: Data, shared: Sequence[str]
) -> None:
    """Stop unless two models that share layers agree without dropout, as both would draw other masks.

    Args:
        data: the edges, their features and the labels.
        shared: names of the layers whose gradients are compared beside the logits.
    """
    sides = []
    for side, edge_index in ((ours, data.edge_index), (theirs, data.edge_index.as_tensor())):
        side.eval().zero_grad()
        logits = side(x, edge_index, data.edge_attr)
        # Reentrant checkpointing works with backward() alone.
        binary_cross_entropy_with_logits(logits, data.y).backward()
        sides.append(
            {
                "logits": logits.detach(),
                **{name: getattr(side, name).weight.grad for name in shared},
            }
        )
        side.train()
    assert_close(*sides, tolerance=1e-3)

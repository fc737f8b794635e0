"""How much memory this process may have. Nothing here imports torch."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def machine_memory() -> int:
    """Return the bytes of memory and swap that this process may have: those of the machine, or of its control group."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") + _swap(), *_limits_of_groups()]
    return min(limits)


def format_bytes(size: float) -> str:
    """Format a number of bytes with three digits."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.0f} EB" if size < 1e6 else f"{size:.0e} EB"


def _swap() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("SwapTotal:"):
                return int(line.split()[1]) * 1024
    return 0


def _limits_of_groups() -> Iterator[int]:
    """Go through the limits of the control groups that this process is in, of both versions of them."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        root, file = (("/sys/fs/cgroup", "memory.max") if controllers == "" else
                      ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"))
        if controllers not in ("", "memory"):
            continue
        for folder in (PurePosixPath(group), *PurePosixPath(group).parents):
            with contextlib.suppress(OSError, ValueError):  # "max" is no number
                yield int(Path(f"{root}{folder}", file).read_text())

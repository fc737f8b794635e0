"""Finds how much memory this process may use. Nothing here imports torch."""

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def machine_memory() -> int:
    """Return the bytes of memory and swap that this process may use, by the machine and by its control groups."""
    limits = [
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") + _swap(),
        *_limits_of_groups(),
    ]
    return min(limits)


def format_bytes(size: float) -> str:
    """Format a number of bytes with three digits."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if size < 999.5:
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
    """Yield the limits of the control groups of this process, of version 1 and version 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        root, file = (
            ("/sys/fs/cgroup", "memory.max")
            if controllers == ""
            else ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        )
        if controllers not in ("", "memory"):
            continue
        for folder in (PurePosixPath(group), *PurePosixPath(group).parents):
            with contextlib.suppress(OSError, ValueError):  # "max" is no number
                yield int(Path(f"{root}{folder}", file).read_text())


def parse_bytes(text: str) -> int:
    """Read a size such as 12GB, 900MB or 1.5GiB.

    Raises:
        ValueError: the text is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kKMGTP])(i?))?B", text.strip())
    if match is None or not float(match[1]):
        raise ValueError(
            f"{text} is not a size; give a number and B, kB, MB, GB or TB, or KiB, MiB, GiB or TiB, such "
            "as 12GB"
        )
    power = " kmgtp".index((match[2] or " ").lower())
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def resident_bytes(besides: str = os.devnull) -> int:
    """Return the resident memory of this process in bytes, without memory-mapped files in a folder and below.

    Where the system does not tell, return the peak so far.
    """
    folder, size, counts = os.path.realpath(besides) + os.sep, 0, True
    try:
        with open("/proc/self/smaps") as maps:
            for line in maps:
                name, *rest = line.split(None, 5)
                if not name.endswith(":"):  # "from-to permissions offset device inode path"
                    counts = not rest[-1].startswith(folder)
                elif name == "Rss:" and counts:
                    size += 1024 * int(rest[0])
        return size
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

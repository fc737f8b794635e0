"""Finds how much memory this process may use. Nothing here imports torch."""

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

# Values of the last of a page's eight bytes in /proc/self/pagemap, if the page is resident.
RESIDENT = bytes(range(128, 256))


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


def _count_resident(pagemap: BinaryIO, first: int, last: int) -> int:
    """Count the resident ones of some pages: each has eight bytes in the file, and their last bit tells."""
    found = 0
    pagemap.seek(8 * first)
    while first < last and (entries := pagemap.read(min(8 * (last - first), 1 << 20))):
        first += len(entries) // 8
        high = entries[7::8]
        found += len(high) - len(high.translate(None, delete=RESIDENT))
    return found


def resident_bytes(besides: str) -> int:
    """Return the resident memory of this process in bytes, without memory-mapped files in a folder and below.

    Where the system does not tell, return the peak so far.
    """
    folder, page = os.path.realpath(besides) + os.sep, resource.getpagesize()
    try:
        with (
            open("/proc/self/maps") as maps,
            open("/proc/self/pagemap", "rb", buffering=0) as pagemap,
        ):
            num_pages = int(Path("/proc/self/statm").read_text().split()[1])
            for line in maps:  # "from-to permissions offset device inode path"
                span, *_, path = line.rstrip("\n").split(None, 5)
                if path.startswith(folder):
                    num_pages -= _count_resident(
                        pagemap, *(int(address, 16) // page for address in span.split("-"))
                    )
        return num_pages * page
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

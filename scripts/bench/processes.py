"""Memory, open files and threads of a command with all its processes (Linux only)."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Held:
    """The resources of all processes of a command at one moment.

    Attributes:
        pss_kib: proportional set size in KiB, that is resident memory with shared pages counted once.
        anonymous_kib: the part of it that belongs to no file, in KiB.
        num_files: number of open file descriptors.
        num_threads: number of threads.
    """

    pss_kib: int
    anonymous_kib: int
    num_files: int
    num_threads: int


def watch(command: list[str], *, every: float = 0.2) -> Iterator[Held]:
    """Run a command with one OpenMP thread per process, and yield its resources every few seconds until it ends.

    Raises:
        SystemExit: the command failed.
    """
    with subprocess.Popen(
        command, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        while process.poll() is None:
            held = [_held(pid) for pid in descendants(process.pid)]
            yield Held(*(sum(numbers) for numbers in zip(*held)))
            time.sleep(every)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")


def peak_of(command: list[str], *, every: float) -> tuple[int, int]:
    """Run a command as :func:`watch` does, and return the largest `pss_kib` and `anonymous_kib` that were seen."""
    held = list(watch(command, every=every))
    return max((each.pss_kib for each in held), default=0), max(
        (each.anonymous_kib for each in held), default=0
    )


def children(pid: int) -> list[int]:
    """List the processes that a process has started."""
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """List a process and all its descendants."""
    return [pid] + [descendant for child in children(pid) for descendant in descendants(child)]


def _held(pid: int) -> tuple[int, int, int, int]:
    """Return the numbers of :class:`Held` for a process, or zeros if it has just ended."""
    folder = Path("/proc", str(pid))
    try:
        found = dict(
            re.findall(
                r"^(Pss\w*):\s+(\d+) kB", (folder / "smaps_rollup").read_text(), re.MULTILINE
            )
        )
        num_files, num_threads = (len(list((folder / part).iterdir())) for part in ("fd", "task"))
        return int(found.get("Pss", 0)), int(found.get("Pss_Anon", 0)), num_files, num_threads
    except OSError:
        return 0, 0, 0, 0

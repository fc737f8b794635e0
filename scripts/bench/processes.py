"""What a command and all its processes hold: memory, open files, threads; Linux only."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.strikes import children


@dataclass(frozen=True)
class Held:
    """What the processes of a command hold at one moment.

    Attributes:
        pss_kib: proportional set size in KiB: resident memory, shared pages counted once.
        anonymous_kib: of these, what lies in no file.
        num_files: open file descriptors.
        num_threads: threads.
    """

    pss_kib: int
    anonymous_kib: int
    num_files: int
    num_threads: int


def watch(command: list[str], *, every: float = 0.2) -> Iterator[Held]:
    """Run a command with one OpenMP thread a process and yield what it holds, every so many seconds, until it ends.

    Raises:
        SystemExit: the command failed.
    """
    with subprocess.Popen(command, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        while process.poll() is None:
            held = [_held(pid) for pid in descendants(process.pid)]
            yield Held(*(sum(numbers) for numbers in zip(*held)))
            time.sleep(every)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")


def descendants(pid: int) -> list[int]:
    """List a process and all that came of it."""
    return [pid] + [descendant for child in children(pid) for descendant in descendants(child)]


def _held(pid: int) -> tuple[int, int, int, int]:
    """PSS in KiB, all and anonymous, open files and threads of a process; zeros of one that has just ended."""
    folder = Path("/proc", str(pid))
    try:
        found = dict(re.findall(r"^(Pss\w*):\s+(\d+) kB", (folder / "smaps_rollup").read_text(), re.MULTILINE))
        num_files, num_threads = (len(list((folder / part).iterdir())) for part in ("fd", "task"))
        return int(found.get("Pss", 0)), int(found.get("Pss_Anon", 0)), num_files, num_threads
    except OSError:
        return 0, 0, 0, 0

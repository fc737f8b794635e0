"""The state of a run: running, finished, stopped, or ended by an error."""

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path

from parallel_epochs.scripts.report.words import duration

TAIL = 1 << 16  # bytes at the end of the log that are searched for an error


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
        name: the state in a word or two.
        kind: running, finished, stopped or failed.
        text: the state as a sentence, without subject and full stop.
    """

    name: str
    kind: str
    text: str


def state_of(folder: Path, rounds: list[dict], summary: dict, num_epochs: int | None) -> RunState:
    """Find the state of a run from its directory.

    Args:
        num_epochs: configured number of epochs.
    """
    done = rounds[-1].get("epochs") if rounds else 0
    progress = (
        f"{done:,} of {num_epochs:,} epochs"
        if done is not None and num_epochs
        else f"{len(rounds):,} rounds"
    )
    if is_going_on(folder):
        return RunState(
            "running",
            "running",
            f"still running: {progress} so far{_time_left(rounds, num_epochs)}",
        )
    # A run that was resumed and has not ended again still has its old summary.
    if summary and summary.get("data_epochs") in (None, done):
        early = num_epochs and done is not None and done < num_epochs
        return RunState(
            "finished", "finished", f"finished {'early, ' if early else ''}after {progress}"
        )
    if error := last_error(folder):
        diverged = re.search(r"(loss|gradient norm) is -?(nan|inf)", error)
        return RunState(
            "diverged" if diverged else "failed",
            "failed",
            f"{'diverged' if diverged else 'ended by an error'} after {progress}: {error}",
        )
    return RunState("stopped", "stopped", f"stopped after {progress}")


def is_going_on(folder: Path) -> bool:
    """Tell whether a process holds the lock of the directory or, for a component, of its parent."""
    return any(
        _is_locked(path)
        for path in ([folder, folder.parent] if folder.name.startswith("component_") else [folder])
    )


def _is_locked(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        fd = os.open(folder / ".lock", os.O_RDONLY | os.O_NONBLOCK)  # does not wait if it is a pipe
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released at once
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False


def last_error(folder: Path) -> str | None:
    """Return the error in the log that ended the run after its last start, or None."""
    logs = sorted(
        (path for path in folder.glob("*.log") if path.is_file()),
        key=lambda path: path.stat().st_mtime,
    )
    if not logs:
        return None
    error = None
    with open(logs[-1], "rb") as file:
        file.seek(max(0, logs[-1].stat().st_size - TAIL))
        for line in file.read().decode(errors="replace").splitlines():
            if match := re.match(r"\S+ \S+ (INFO|ERROR) (.*)", line):
                level, message = match.groups()
                if level == "ERROR":
                    error = message.removeprefix("error: ")
                elif re.match(
                    r"epoch +\d|partition: ", message
                ):  # the run went on after an older error
                    error = None
    return error


def _time_left(rounds: list[dict], num_epochs: int | None) -> str:
    timed = [r for r in rounds if r.get("wall_seconds") and r.get("epochs")]
    if not timed or not num_epochs:
        return ""
    return f", about {duration((num_epochs / timed[-1]['epochs'] - 1) * timed[-1]['wall_seconds'])} left"

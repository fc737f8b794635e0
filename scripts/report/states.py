"""How a run stands: going on, finished, stopped, or ended by an error."""

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path

from scripts.report.words import duration

TAIL = 1 << 16  # bytes of the log that are searched for what ended a run


@dataclass(frozen=True)
class State:
    """How a run stands.

    Attributes:
        name: in a word or two.
        kind: running, finished, stopped or failed.
        text: the same as a sentence without its full stop.
    """

    name: str
    kind: str
    text: str


def state_of(folder: Path, rounds: list[dict], summary: dict, num_epochs: int | None) -> State:
    """Tell how a run stands from what its directory holds.

    Args:
        num_epochs: passes over the graph that are asked for.
    """
    done = rounds[-1].get("epochs") if rounds else 0
    progress = f"{done:,} of {num_epochs:,} epochs" if done is not None and num_epochs else f"{len(rounds):,} rounds"
    if is_going_on(folder):
        return State("running", "running", f"still running: {progress} so far{_time_left(rounds, num_epochs)}")
    # A run that was continued and has not ended again has the summary of before.
    if summary and summary.get("data_epochs") in (None, done):
        early = num_epochs and done is not None and done < num_epochs
        return State("finished", "finished", f"finished {'early, ' if early else ''}after {progress}")
    if error := last_error(folder):
        diverged = re.search(r"(loss|gradient norm) is -?(nan|inf)", error)
        return State("diverged" if diverged else "failed", "failed",
                     f"{'diverged' if diverged else 'ended by an error'} after {progress}: {error}")
    return State("stopped", "stopped", f"stopped after {progress}")


def is_going_on(folder: Path) -> bool:
    """Tell whether a process holds the directory, or the one that trains it as one of several components."""
    return any(_is_locked(path) for path in ([folder, folder.parent] if folder.name.startswith("component_")
                                             else [folder]))


def _is_locked(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        fd = os.open(folder / ".lock", os.O_RDONLY | os.O_NONBLOCK)  # a pipe is not waited for
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go of at once
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False


def last_error(folder: Path) -> str | None:
    """Return the error that ended the last start of a run, from its log."""
    logs = sorted((path for path in folder.glob("*.log") if path.is_file()), key=lambda path: path.stat().st_mtime)
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
                elif re.match(r"epoch +\d|partition: ", message):  # it went on after an older error
                    error = None
    return error


def _time_left(rounds: list[dict], num_epochs: int | None) -> str:
    timed = [r for r in rounds if r.get("wall_seconds") and r.get("epochs")]
    if not timed or not num_epochs:
        return ""
    return f", about {duration((num_epochs / timed[-1]['epochs'] - 1) * timed[-1]['wall_seconds'])} left"

"""Tells the caller of a training of each round, whatever process trains, and stops it if the caller wishes."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import Stopped
from parallel_epochs.pipeline.run.stop import StopRequest

OnRound = Callable[[Mapping[str, Any]], object]
# Seconds between two looks at the records.
PAUSE = 0.05
# Name of the thread that calls the function.
THREAD = "on_round"


@contextlib.contextmanager
def told(folder: Path, on_round: OnRound | None, stop: StopRequest) -> Iterator[None]:
    """Call a function with the record of each round that ends in the meantime, in a thread of this process.

    Args:
        folder: the run directory, whose ``metrics.jsonl`` the first rank writes.
        on_round: takes a record that cannot be changed. What it raises is raised when the run has stopped.
        stop: is asked if it returns False.

    Raises:
        Stopped: it returned False, and the run has stopped with a checkpoint.
    """
    if on_round is None:
        yield
        return
    path, seen, ended, failures = (
        folder / "metrics.jsonl",
        set[bytes](),
        threading.Event(),
        list[BaseException](),
    )
    seen.update(_lines(path))

    def tell_new() -> bool:
        for line in _lines(path):
            if line in seen:
                continue
            seen.add(line)
            record = json.loads(line)
            if record.get("kind") == "round":
                answer = on_round(MappingProxyType(record))
                if isinstance(answer, (bool, np.bool_)) and not answer:
                    return False
        return True

    def work() -> None:
        try:
            while not ended.wait(PAUSE):
                if not tell_new():
                    raise Stopped(
                        stop.ask(),
                        'on_round returned False; the run has a checkpoint, and resume="auto" '
                        "with the same folder goes on",
                    )
            tell_new()
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            failures.append(error)
            stop.ask()

    thread, was_stopped = threading.Thread(target=work, name=THREAD, daemon=True), False
    thread.start()
    try:
        yield
    except Stopped:
        was_stopped = bool(failures)
        if not was_stopped:
            raise
    finally:
        ended.set()
        thread.join()
    if failures and (was_stopped or not isinstance(failures[0], Stopped)):
        raise failures[0]


def _lines(path: Path) -> list[bytes]:
    """Return the lines of a file that are whole; none if there is no file."""
    return files.read_bytes(path).split(b"\n")[:-1] if files.is_there(path) else []

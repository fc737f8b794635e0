"""The journal of a study: what a killed writer left of it is mended, and what is damaged or foreign is refused."""

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from parallel_epochs.pipeline.run import files

if TYPE_CHECKING:
    from optuna.storages import JournalStorage

log = logging.getLogger(__name__)

# Errors that Optuna raises for records that it has not written.
UNREADABLE = (LookupError, TypeError, AttributeError, AssertionError, RecursionError)
WAY_OUT = "Restore the file from a copy, or choose another folder for a new study"


def mend_journal(path: Path) -> None:
    """Complete or leave out a last line that a kill cut short. Nobody else may write to the journal meanwhile.

    Raises:
        ValueError: the journal is damaged elsewhere, or empty beside trials; it is left as it is.
        FileError: it cannot be read or written.
    """
    content = files.read_bytes(path) if files.is_there(path) else b""
    trial = next(iter(sorted(path.parent.glob("trial_*"))), None)
    if not content and trial is not None:
        raise ValueError(
            f"{path} is {'empty' if path.exists() else 'missing'}, but {trial} exists. {WAY_OUT}"
        )
    *lines, last = content.split(b"\n")
    whole = not last or _is_record(last)
    for number, line in enumerate(lines if lines or whole else [last], start=1):
        if not _is_record(line):
            raise ValueError(
                f"{path} is damaged: line {number} is not a record of a study. {WAY_OUT}"
            )
    if not last:
        return
    kept = content + b"\n" if whole else content[: -len(last)]
    files.write_atomically(path, lambda file: file.write(kept))
    if not whole:
        log.warning("%s ended in the middle of a line, which is left out", path)


def _is_record(line: bytes) -> bool:
    """Tell whether a line is a record of Optuna's."""
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(record, dict)
        and type(record.get("op_code")) is int
        and isinstance(record.get("worker_id"), str)
    )


@contextlib.contextmanager
def readable_journal(path: Path) -> Iterator[None]:
    """Turn an error of Optuna's about the records of a journal into one of the file.

    Raises:
        ValueError: names the file.
    """
    try:
        yield
    except UNREADABLE as error:
        import optuna

        raise ValueError(
            f"{path} is damaged, or another version of Optuna than {optuna.__version__} wrote it "
            f"({type(error).__name__}). {WAY_OUT}"
        ) from error


def check_is_ours(path: Path, storage: "JournalStorage", known_options: set[str]) -> None:
    """Refuse a journal of studies that `pipeline.tune` has not begun.

    Args:
        known_options: names of the keys that a study remembers.

    Raises:
        ValueError: names the file, and what it holds.
    """
    studies = storage.get_all_studies()
    if not studies:
        return
    study = studies[0]
    if (
        len(studies) > 1
        or study.study_name != "study"
        or [way.name for way in study.directions] != ["MAXIMIZE"]
    ):
        raise ValueError(
            f"{path} holds {', '.join(ascii(study.study_name) for study in studies)}, which is not a "
            "study of pipeline.tune. Choose another folder"
        )
    search, options = (study.user_attrs.get(name, {}) for name in ("search", "options"))
    search = search or {"fixed": [], "space": {}}
    known = (
        isinstance(search, dict)
        and search.keys() == {"fixed", "space"}
        and isinstance(search["space"], dict)
    )
    if (
        not known
        or not all(isinstance(text, str) for text in [*search["fixed"], *search["space"].values()])
        or not {*options} <= known_options
    ):
        raise ValueError(
            f"{path} does not describe its search in the format of this version. {WAY_OUT}"
        )


class JournalLock:
    """Optuna's lock of its journal by the system's own, which a killed process does not leave behind."""

    def __init__(self, folder: Path):
        self._path, self._held = folder / ".journal", contextlib.ExitStack()

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._held.enter_context(hold(self._path, wait=True))
        return True

    def release(self) -> None:
        """Let go of it."""
        self._held.close()


@contextlib.contextmanager
def hold(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder with :func:`pipeline.run.files.lock`. With `wait`, wait until no other process holds the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(files.lock(folder))
                break
            except ValueError:
                if not wait:
                    raise
                time.sleep(0.02)
        yield

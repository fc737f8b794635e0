"""Files that are whole or not there: written beside, synced, renamed."""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold a directory for this process; the system lets go of it however the process ends.

    Raises:
        ValueError: another process holds it.
    """
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is in use by another process") from None
        yield


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Call `write(file)` on a temporary file beside `path`, sync it to the disk, and rename it."""
    remove_stale(path)
    with _locked_temporary(path) as file:
        temporary = Path(file.name)
        try:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def temporary_beside(path: Path) -> Path:
    """Name a temporary file for `path` as no other process does, on this machine or on another that shares the disk."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def _locked_temporary(path: Path) -> BinaryIO:
    """Open a new temporary file and lock it, which tells others that its writer lives."""
    while True:
        file = open(temporary_beside(path), "xb")  # noqa: SIM115 - the caller closes it
        fcntl.flock(file, fcntl.LOCK_EX)
        # Between the two lines it was not locked, and another process may have taken it for a stale one.
        if os.path.exists(file.name):
            return file
        file.close()


def remove_stale(path: Path) -> None:
    """Delete the temporary files of `path` that killed processes left.

    A living writer holds a lock on its file; that is seen by every machine and container that shares the disk, which
    its process number is not.
    """
    for temporary in path.parent.glob(f".{path.name}.*.tmp"):
        with contextlib.suppress(FileNotFoundError), open(temporary, "rb") as file:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names of a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: dict) -> None:
    """Write a JSON file atomically; what JSON cannot say is null."""
    write_text(path, json.dumps(without_nan(value), indent=2) + "\n")


def without_nan(value: Any) -> Any:
    """Replace every NaN and infinity in nested dicts by None: a metric that is undefined is null in JSON."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def file_digest(file: BinaryIO) -> str:
    """Compute BLAKE2b of the rest of a file opened in binary mode, read in blocks."""
    blake = hashlib.blake2b(digest_size=16)
    for block in iter(lambda: file.read(1 << 24), b""):
        blake.update(block)
    return blake.hexdigest()

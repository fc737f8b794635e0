"""Files that are whole or not there: written beside, synced, renamed; their content is checked when read."""

import contextlib
import fcntl
import hashlib
import logging
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

log = logging.getLogger(__name__)

# What torch.load raises on a file with some of its bytes changed.
UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
              pickle.UnpicklingError, zipfile.BadZipFile)


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


def digest(state: object) -> str:
    """SHA-256 of a nested structure of dicts, lists, tensors and plain values: names and bytes, in order."""
    sha = hashlib.sha256()

    def update(value: object) -> None:
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous()
            sha.update(f"{value.dtype}{list(value.shape)}".encode())
            sha.update(value.flatten().view(torch.uint8).numpy())
        elif isinstance(value, dict):
            for key, item in value.items():
                sha.update(f"{key!r}:".encode())
                update(item)
        elif isinstance(value, (list, tuple)):
            sha.update(f"[{len(value)}".encode())
            for item in value:
                update(item)
        else:
            sha.update(repr(value).encode())

    update(state)
    return sha.hexdigest()


def file_digest(file) -> str:
    """BLAKE2b of the rest of a file opened in binary mode, read in blocks."""
    blake = hashlib.blake2b(digest_size=16)
    for block in iter(lambda: file.read(1 << 24), b""):
        blake.update(block)
    return blake.hexdigest()


def save(path: Path, state: dict) -> None:
    """Write `state` with its digest; at any moment `path` holds the old content or the new.

    The result loads with ``torch.load(path, weights_only=True)``.
    """
    write_atomically(path, lambda file: torch.save({**state, "sha256": digest(state)}, file))


def write_atomically(path: Path, write) -> None:
    """Call `write(file)` on a temporary file beside `path`, sync it to the disk, and rename it."""
    _remove_stale(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def _remove_stale(path: Path) -> None:
    """Delete what killed processes left of this file."""
    for temporary in path.parent.glob(f".{path.name}.*.tmp"):
        pid = temporary.name.removeprefix(f".{path.name}.").removesuffix(".tmp")
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc").exists():
            temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names of a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def load(path: Path, *, mmap: bool = False, verify: bool = True) -> dict:
    """Read what :func:`save` wrote.

    Args:
        mmap: leave the tensors in the file and let the system page them in.
        verify: compare the content with its digest.

    Raises:
        ValueError: the file is missing, truncated, or its content does not have the digest it was saved with.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        expected = state.pop("sha256")
    except UNREADABLE as error:
        raise ValueError(f"{path} is damaged: it cannot be read ({type(error).__name__})") from error
    if verify and digest(state) != expected:
        raise ValueError(f"{path} is damaged: its content does not have the checksum it was saved with")
    return state


def save_last(folder: Path, state: dict) -> None:
    """Save ``last.pt``, keeping the one before as ``previous.pt``."""
    last = folder / "last.pt"
    if last.exists():
        _remove_stale(folder / "previous.pt")
        link = folder / f".previous.pt.{os.getpid()}.tmp"
        link.unlink(missing_ok=True)
        os.link(last, link)
        os.replace(link, folder / "previous.pt")
    save(last, state)


def load_last(folder: Path) -> dict | None:
    """Load ``last.pt``, or the one before if that is damaged, or nothing if there is neither.

    Raises:
        ValueError: there are checkpoints, and none is whole.
    """
    errors = []
    for name in ("last.pt", "previous.pt"):
        if not (folder / name).exists():
            continue
        try:
            state = load(folder / name)
        except ValueError as error:
            errors.append(str(error))
            continue
        if errors:
            log.warning("%s; falling back to %s of epoch %d", errors[0], folder / name, state["epoch"] + 1)
            # Or the next save would keep the damaged one as the previous.
            os.replace(folder / name, folder / "last.pt")
        return state
    if errors:
        raise ValueError("; ".join(errors) + ": no checkpoint is left to resume from, start a new run")
    return None

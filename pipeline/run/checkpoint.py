"""Checkpoints: nested dicts of tensors and plain values in a file, with a checksum of their content."""

import hashlib
import io
import logging
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from pipeline.run import files
from pipeline.run.errors import DamagedFile, FileError

log = logging.getLogger(__name__)

# What torch.load raises on a file with some of its bytes changed.
UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
              pickle.UnpicklingError, zipfile.BadZipFile)

# Checkpoints of so many bytes are mapped into memory rather than read beside what they are copied to.
LARGE = 1 << 26


def digest(state: object) -> str:
    """Compute SHA-256 of a nested structure of dicts, lists, tensors and plain values: names and bytes, in order."""
    sha = hashlib.sha256()

    def update(value: object) -> None:
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous()
            sha.update(f"{value.dtype}{list(value.shape)}".encode())
            sha.update(value.flatten().view(torch.uint8).numpy().data)
        elif isinstance(value, dict):
            for key, item in value.items():
                sha.update(f"{key!r}:".encode())
                update(item)
        elif isinstance(value, (list, tuple)):
            sha.update(f"[{len(value)}".encode())
            for item in value:
                update(item)
        else:
            sha.update(f"{value!r};".encode())

    update(state)
    return sha.hexdigest()


def save(path: Path, state: dict, *, keep_as: Path | None = None) -> None:
    """Write `state` with its digest; at any moment `path` holds the old content or the new.

    The result loads with ``torch.load(path, weights_only=True)``.

    Args:
        keep_as: another name for the old content.
    """
    files.write_atomically(path, lambda file: torch.save({**state, "sha256": digest(state)}, file), keep_as=keep_as)


def load(path: Path, *, mmap: bool = False, verify: bool = True) -> dict:
    """Read what :func:`save` wrote.

    Args:
        mmap: leave the tensors in the file and let the system page them in.
        verify: compare the content with its digest.

    Raises:
        ValueError: there is no such file.
        DamagedFile: it is truncated, or its content does not have the digest it was saved with.
        FileError: it cannot be read now; its content may be whole.
    """
    if not files.is_there(path):
        raise ValueError(f"{path} does not exist")
    state = _map(path) if mmap else _parse(path, files.read_bytes(path))
    expected = state.pop("sha256")
    if verify and digest(state) != expected:
        raise DamagedFile(f"{path} is damaged: its content does not have the checksum it was saved with")
    return state


def _map(path: Path) -> dict:
    """Load a file whose tensors stay in it; if that fails, its content tells whether the file is at fault."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        state["sha256"]
    except UNREADABLE as error:
        state = _parse(path, files.read_bytes(path))
        log.warning("%s cannot be mapped into memory (%s): it was read, and is not shared with other processes", path,
                    str(error).partition("\n")[0])
    return state


def _parse(path: Path, content: bytes) -> dict:
    """Load the content of a file; what fails now is the content's fault, or there is no memory."""
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        state["sha256"]
    except (MemoryError, *UNREADABLE) as error:
        # As torch's allocator says it: a damaged size asks for much memory too.
        if isinstance(error, MemoryError) or "memory" in str(error) and _has_checksums_of_zip(content):
            raise FileError(f"{path} cannot be read: no memory for its {files.format_bytes(len(content))}") from error
        raise DamagedFile(f"{path} is damaged: it cannot be read ({type(error).__name__})") from error
    return state


def _has_checksums_of_zip(content: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except Exception:  # whatever a damaged archive makes of the reader
        return False


def keep(path: Path, build: Callable[[], dict], *, again: str, mmap: bool = True, verify: bool = True) -> dict:
    """Return what a file of a cache holds; it is built first if it is not there.

    Args:
        build: makes the content.
        again: for the warning if the file is damaged: what is done then.
        mmap: leave the tensors in the file, whose memory processes share.
        verify: compare the content with its digest.

    Raises:
        FileError: the file cannot be read or written.
    """
    if files.is_there(path):
        try:
            return load(path, mmap=mmap, verify=verify)
        except DamagedFile as error:
            log.warning("%s; %s", error, again)
    with files.naming(path.parent, "made"):
        path.parent.mkdir(parents=True, exist_ok=True)
    save(path, build())
    return load(path, mmap=mmap, verify=False)


def save_last(folder: Path, state: dict) -> None:
    """Save ``last.pt``, keeping the one before as ``previous.pt``.

    Raises:
        FileError: it cannot be written; those of before are there still.
    """
    # Not before the new one is written and on the disk: two names of one file are one checkpoint.
    save(folder / "last.pt", state, keep_as=folder / "previous.pt")


def load_last(folder: Path) -> dict | None:
    """Load ``last.pt``, or the one before if that is damaged, or nothing if there is neither.

    A damaged one is kept as ``last.pt.damaged``. One that cannot be read now is left alone, as it may be whole.

    Raises:
        DamagedFile: there are checkpoints, and none is whole.
        FileError: a checkpoint cannot be read.
    """
    errors = []
    for path in (folder / "last.pt", folder / "previous.pt"):
        if not files.is_there(path):
            continue
        try:
            state = load(path, mmap=path.stat().st_size >= LARGE)
        except DamagedFile as error:
            errors.append(str(error))
            continue
        if errors:
            aside = files.keep_aside(folder / "last.pt")
            log.warning("%s and kept as %s; falling back to %s of round %s", errors[0], aside.name, path,
                        state.get("round"))
            # Or the next save would keep the damaged one as the previous.
            os.replace(path, folder / "last.pt")
        return state
    if errors:
        raise DamagedFile("; ".join(errors) + ": no checkpoint is left to resume from, start a new run")
    return None

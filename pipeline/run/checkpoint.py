"""Checkpoints: nested dicts of tensors and plain values in a file, with a checksum of their content."""

import hashlib
import logging
import os
import pickle
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from pipeline.run import files

log = logging.getLogger(__name__)

# What torch.load raises on a file with some of its bytes changed.
UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
              pickle.UnpicklingError, zipfile.BadZipFile)


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


def save(path: Path, state: dict) -> None:
    """Write `state` with its digest; at any moment `path` holds the old content or the new.

    The result loads with ``torch.load(path, weights_only=True)``.
    """
    files.write_atomically(path, lambda file: torch.save({**state, "sha256": digest(state)}, file))


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
    last, previous = folder / "last.pt", folder / "previous.pt"
    if last.exists():
        files.remove_stale(previous)
        link = files.temporary_beside(previous)
        os.link(last, link)
        os.replace(link, previous)
        # A save that was killed here has given the file both names, and then the system renames nothing.
        link.unlink(missing_ok=True)
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
            log.warning("%s; falling back to %s of round %s", errors[0], folder / name, state.get("round"))
            # Or the next save would keep the damaged one as the previous.
            os.replace(folder / name, folder / "last.pt")
        return state
    if errors:
        raise ValueError("; ".join(errors) + ": no checkpoint is left to resume from, start a new run")
    return None

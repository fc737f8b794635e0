"""Stores: a folder of arrays and a manifest, written once, opened in milliseconds, shared by processes."""

import contextlib
import errno
import hashlib
import json
import logging
import math
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.run import files, pulse
from parallel_epochs.pipeline.run.errors import DamagedFile, FileError, InUse

log = logging.getLogger(__name__)

# Raise it when a store that was written before can no longer be read.
VERSION = 1
MANIFEST, JOURNAL = "manifest.json", "journal.json"
# Rows that are copied at a time.
COPIED = 1 << 18

# Linux' MAP_NORESERVE, which Python's module names from 3.13 on.
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0

Shape = tuple[int, ...]


class ArrayFile:
    """An array in a file, written piece by piece.

    Args:
        path: the file; one that is there is written anew.

    Raises:
        FileError: the disk has no room for it, or it cannot be written.
    """

    def __init__(self, path: Path, shape: Shape, dtype: torch.dtype):
        self.path, self.shape, self.dtype = path, shape, dtype
        self.size = math.prod(shape) * dtype.itemsize
        with files.naming(path, "written", size=lambda: self.size):
            path.unlink(
                missing_ok=True
            )  # never written to: it may be a link to an array of another store
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                if self.size:  # what does not fit is said now, not after hours
                    os.posix_fallocate(self._fd, 0, self.size)
            except OSError:
                os.close(self._fd)
                raise

    def write(self, first: int, values: np.ndarray) -> None:
        """Write some elements, counted from the beginning of the flat array.

        Args:
            first: the number of the first of them.
            values: of the array's dtype.
        """
        assert values.dtype == torch.empty(0, dtype=self.dtype).numpy().dtype, (
            values.dtype,
            self.dtype,
        )
        at = first * self.dtype.itemsize
        assert at + values.nbytes <= self.size
        with files.naming(self.path, "written", size=lambda: self.size):
            files.write_at(self._fd, values, at)

    def finish(self) -> dict:
        """Bring the file to the disk and close it.

        Returns:
            What the manifest says of it: dtype, shape, size in bytes, time of the last change, and BLAKE2b.
        """
        with files.naming(self.path, "written", size=lambda: self.size):
            os.fsync(self._fd)
            changed = os.fstat(self._fd).st_mtime_ns
            self.close()
            with files.open_file(self.path) as file:
                digest = files.file_digest(file)
        return {
            "dtype": str(self.dtype).removeprefix("torch."),
            "shape": list(self.shape),
            "size": self.size,
            "changed_ns": changed,
            "blake2b": digest,
        }

    def close(self) -> None:
        """Close the file, whatever became of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class StoreWriter:
    """Writes a store beside its place, and gives it its name when all of it is on the disk.

    Arrays are written in groups. A group that is complete is in a journal: a writer that comes after one that was
    killed, for the same store, finds it done. Other files may be kept in :attr:`folder` meanwhile, under names that
    begin with "work-"; they are deleted at the end.

    Args:
        path: the folder of the store.
        key: what the store is made of, a digest; arrays that were written for another are written anew, and without a
            key all are.

    Attributes:
        folder: where it is written, ``path`` with ".part".

    Raises:
        InUse: another process writes this store.
        FileError: the folder cannot be made.
    """

    def __init__(self, path: Path, key: str | None = None):
        self.path, self.folder, self._key = path, path.with_name(f"{path.name}.part"), key
        self._exit = contextlib.ExitStack()
        with files.naming(self.folder, "made"):
            path.parent.mkdir(parents=True, exist_ok=True)
        files.own_folder(self.folder)
        try:
            self._exit.enter_context(files.lock(self.folder))
        except FileError as error:
            if error.errno != errno.ENOENT:
                raise
            raise InUse(f"another process has just written {path}") from None
        if not self.folder.is_dir():
            raise InUse(f"another process has just written {path}")
        for left in self.folder.glob("work-*"):
            if left.is_symlink():  # in a cache of somebody else's it may name a file of this user's
                left.unlink()
        self._arrays = self._read_journal()

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, *exc: object) -> None:
        self._exit.close()

    def _read_journal(self) -> dict[str, dict]:
        for name in (
            JOURNAL,
            MANIFEST,
        ):  # the latter of one that was killed before it gave the store its name
            if not files.is_there(self.folder / name):
                continue
            try:
                journal = files.read_json(self.folder / name)
                if self._key is not None and journal["key"] == self._key:
                    # Arrays that were truncated or written to since are written anew.
                    return {
                        array: entry
                        for array, entry in journal["arrays"].items()
                        if _is_unchanged(self.folder / f"{array}.bin", entry)
                    }
            except (DamagedFile, KeyError, AttributeError):
                log.warning("%s is damaged; the arrays are written anew", self.folder / name)
        self._remove_work()
        files.write_json(self.folder / JOURNAL, {"key": self._key, "arrays": {}})
        return {}

    def _remove_work(self) -> None:
        for left in self.folder.glob("work-*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    def has(self, *names: str) -> bool:
        """Tell whether these arrays are complete, perhaps by a writer that was killed later."""
        return all(name in self._arrays for name in names)

    def entry(self, name: str) -> dict:
        """Return what the manifest will say of a complete array: dtype, shape and more."""
        return self._arrays[name]

    @contextlib.contextmanager
    def write(self, **arrays: tuple[Shape, torch.dtype]) -> Iterator[dict[str, ArrayFile]]:
        """Open the files of a group of arrays, each with its shape and dtype; they are complete at the block's end.

        Raises:
            FileError: the disk has no room for them, or they cannot be written.
        """
        with contextlib.ExitStack() as stack:
            opened = {}
            for name, (shape, dtype) in arrays.items():
                opened[name] = ArrayFile(self.folder / f"{name}.bin", shape, dtype)
                stack.callback(opened[name].close)
            yield opened
            self._arrays |= {name: file.finish() for name, file in opened.items()}
        files.write_json(self.folder / JOURNAL, {"key": self._key, "arrays": self._arrays})

    def put(self, name: str, values: Tensor) -> None:
        """Write an array that is in memory, unless it is complete."""
        if not self.has(name):
            with self.write(**{name: (tuple(values.shape), values.dtype)}) as arrays:
                arrays[name].write(0, values.contiguous().reshape(-1).numpy())

    def adopt(self, name: str, path: Path, entry: dict) -> None:
        """Take an array of another store: by a link to its file, or a copy where the file system has no such links.

        Args:
            entry: what the manifest of that store says of it.

        Raises:
            FileError: the file cannot be read, or there is no room for a copy.
        """
        if self.has(name):
            return
        own = self.folder / f"{name}.bin"
        with files.naming(own, "written", size=lambda: entry["size"]):
            own.unlink(missing_ok=True)
            try:
                os.link(path, own)
            except OSError:
                shutil.copy2(path, own)  # with its time, which the manifest has
        self._arrays[name] = entry

    def finish(self, values: Mapping[str, object]) -> None:
        """Write the manifest, and give the store its name; one that has it already makes room.

        Args:
            values: what JSON can say, kept beside the arrays.
        """
        with files.naming(self.folder, "written"):
            self._remove_work()
            (self.folder / JOURNAL).unlink(missing_ok=True)
        # Last: a folder with a manifest is whole.
        files.write_json(
            self.folder / MANIFEST,
            {"version": VERSION, "key": self._key, "arrays": self._arrays, "values": dict(values)},
        )
        with files.naming(self.path, "written"):
            if self.path.exists():
                aside = self.path.with_name(f"{self.path.name}.old")
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(self.path, aside)
                os.rename(self.folder, self.path)
                shutil.rmtree(aside, ignore_errors=True)
            else:
                os.rename(self.folder, self.path)
            files.sync_folder(self.path.parent)


def is_store(path: Path) -> bool:
    """Tell whether there is a complete store.

    Raises:
        FileError: the system does not tell.
    """
    return path.is_dir() and files.is_there(path / MANIFEST)


def open_store(path: Path, *, verify: bool = True) -> tuple[dict[str, Tensor], dict]:
    """Open a store. Its arrays stay in their files, and the system pages them in; processes share the memory.

    Args:
        verify: compare the content of files that were changed since the store was written, by their time, with their
            digests. Their sizes are compared in any case.

    Returns:
        The arrays by name, not to be written to; and the values.

    Raises:
        ValueError: there is no store.
        DamagedFile: it is damaged; the message names the file.
        FileError: it cannot be read.
    """
    if not is_store(path):
        raise ValueError(f"{path} holds no store: there is no {MANIFEST} in it")
    manifest = files.read_json(path / MANIFEST)
    try:
        version, arrays, values = manifest["version"], manifest["arrays"], manifest["values"]
        if version != VERSION:
            raise ValueError(
                f"{path} was written in version {version!r:.40} of stores, and this program reads "
                f"{VERSION}"
            )
        if not isinstance(values, dict):
            raise TypeError(f"values are {values!r:.40}")
        if strange := [
            name for name in (*arrays, *values) if not name.isidentifier() or name == "edge_index"
        ]:
            raise DamagedFile(
                f"{path / MANIFEST} is damaged: {strange[0]!r} is not the name of an array or a value"
            )
        if twice := next((name for name in values if name in arrays), None):
            raise DamagedFile(f"{path / MANIFEST} is damaged: {twice} is both an array and a value")
        tensors = {
            name: _open_array(path / f"{name}.bin", entry, verify) for name, entry in arrays.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(f"{path / MANIFEST} is damaged: {error!r}") from None
    return tensors, values


def _open_array(path: Path, entry: dict, verify: bool) -> Tensor:
    dtype, shape, size = getattr(torch, entry["dtype"]), tuple(entry["shape"]), entry["size"]
    if not isinstance(dtype, torch.dtype) or not all(
        type(count) is int and count >= 0 for count in (*shape, size)
    ):
        raise DamagedFile(
            f"{path.parent / MANIFEST} is damaged: {path.name} has the dtype {entry['dtype']}, the shape "
            f"{list(shape)} and the size {size}"
        )
    if not files.is_there(path):
        raise DamagedFile(f"{path} is missing: {path.parent} is damaged")
    if not path.resolve().is_relative_to(path.parent.resolve()):
        raise DamagedFile(
            f"{path} is a link to {path.resolve()}, outside of the store: put the file itself there"
        )
    with files.naming(path, "read"):
        found = path.stat()
        if found.st_size != size or size != math.prod(shape) * dtype.itemsize:
            raise DamagedFile(
                f"{path} is damaged: it has {found.st_size:,} bytes, the manifest says {size:,}"
            )
        if verify and found.st_mtime_ns != entry["changed_ns"]:
            log.info("%s was changed or copied since it was written: comparing its checksum", path)
            with files.open_file(path) as file:
                if files.file_digest(file) != entry["blake2b"]:
                    raise DamagedFile(
                        f"{path} is damaged: its content does not have the checksum it was written with"
                    )
    return (
        torch.frombuffer(map_file(path, size), dtype=dtype).view(shape)
        if size
        else torch.empty(shape, dtype=dtype)
    )


def map_file(path: Path, size: int) -> mmap.mmap:
    """Map a file into memory: who writes there writes to a page of his own, and not to the file.

    No memory is set aside for such pages, or a file larger than memory could not be mapped.
    """
    with files.naming(path, "mapped into memory"), files.open_file(path) as file:
        return mmap.mmap(
            file.fileno(),
            size,
            flags=mmap.MAP_PRIVATE | NO_RESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )


def _is_unchanged(path: Path, entry: dict) -> bool:
    try:
        found = path.stat()
        return (found.st_size, found.st_mtime_ns) == (entry["size"], entry["changed_ns"])
    except (OSError, KeyError, TypeError):
        return False


def write_rows(writer: StoreWriter, name: str, values: Tensor, rows: Tensor) -> None:
    """Write some rows of a matrix as an array, some at a time, unless it is complete.

    Args:
        rows: their numbers, int64 [num_rows].
    """
    if writer.has(name):
        return
    channels = values.size(1)
    with writer.write(**{name: ((len(rows), channels), values.dtype)}) as arrays:
        for first in range(0, len(rows), COPIED):
            own = values.index_select(0, rows[first : first + COPIED])
            arrays[name].write(first * channels, own.reshape(-1).numpy())
            pulse.renew()


def check_once(path: Path, names: Iterable[str], check: Callable[[], object]) -> None:
    """Call a check of arrays of a store, unless this user has called it before on this machine for the same files."""
    record = _record_of(path, names)
    if os.path.exists(record):  # False where the system does not tell
        return
    check()
    with contextlib.suppress(
        OSError
    ):  # without a place to note it, they are checked again the next time
        record.parent.mkdir(parents=True, exist_ok=True)
        record.touch()


def _record_of(path: Path, names: Iterable[str]) -> Path:
    """Return the file that tells this user, on this machine, that some arrays of a store have been checked."""
    found = [
        (path / f"{name}.bin").stat() for name in names if files.is_there(path / f"{name}.bin")
    ]
    # Whoever changes a file in place can put the time of the change back, but not that of its inode.
    known = [
        [
            os.uname().nodename,
            file.st_dev,
            file.st_ino,
            file.st_size,
            file.st_mtime_ns,
            file.st_ctime_ns,
        ]
        for file in found
    ]
    digest = hashlib.blake2b(json.dumps(known).encode(), digest_size=16).hexdigest()
    return files.user_records() / "stores" / digest

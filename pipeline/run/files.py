"""Files that are whole or not there: written beside, synced, renamed. Every error names the file."""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from pipeline.run.errors import DamagedFile, FileError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def naming(path: Path, doing: str, *, size: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Turn what the system says about a file into an error that names it.

    Args:
        doing: what cannot be done to the file: "read", "written".
        size: bytes that were to be written, if that is known when it fails.

    Raises:
        FileError: in place of any other OSError and MemoryError.
    """
    try:
        yield
    except FileError:
        raise
    except (OSError, MemoryError) as error:
        number = error.errno if isinstance(error, OSError) else errno.ENOMEM
        if number in NO_SPACE:
            raise FileError(_no_space(path, number, size()), number) from error
        reason = getattr(error, "strerror", None) or str(error) or "no memory"
        raise FileError(f"{path} cannot be {doing}: {reason}", number) from error


def _no_space(path: Path, number: int, size: int) -> str:
    if number == errno.EFBIG:
        return f"{path} would be larger than the disk or your limit on files (ulimit -f) allows"
    needs = f" for the {format_bytes(size)} of {path.name}" if size else f" for {path.name}"
    if number == errno.EDQUOT:
        return f"{path.parent}: your disk quota leaves no space{needs}; delete something, or choose another directory"
    with contextlib.suppress(OSError):
        needs += f", {format_bytes(shutil.disk_usage(path.parent).free)} are free"
    return f"{path.parent} has no space left{needs}; delete something, or choose another directory"


def format_bytes(size: int) -> str:
    """Write a number of bytes for people."""
    if size < 1024:
        return f"{size} bytes"
    power = min(int(math.log(size, 1024)), 4)
    return f"{size / 1024**power:.1f} {'KMGT'[power - 1]}iB"


def is_there(path: Path) -> bool:
    """Tell whether there is a file; opening a pipe would wait, and replacing a device would destroy it.

    Raises:
        FileError: there is something else, or the system does not tell.
    """
    with naming(path, "read"):
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
    if stat.S_ISREG(mode):
        return True
    kinds = {stat.S_IFDIR: "directory", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    raise FileError(f"{path} is a {kinds.get(stat.S_IFMT(mode), 'device')}, not a file")


def read_bytes(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        ValueError: there is none.
        FileError: it cannot be read.
    """
    if not is_there(path):
        raise ValueError(f"{path} does not exist")
    with naming(path, "read"):
        return path.read_bytes()


def read_text(path: Path) -> str:
    """Read a text file; raises as :func:`read_bytes`, and DamagedFile if it is no text."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise DamagedFile(f"{path} is damaged: it is no text") from None


def read_json(path: Path) -> dict:
    """Read a JSON file that holds an object; raises as :func:`read_bytes`, and DamagedFile if it holds none."""
    text = read_text(path)
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        what = f"it is no JSON, {error}" if text.strip() else "it is empty"
        raise DamagedFile(f"{path} is damaged: {what}") from None
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} is damaged: it holds no JSON object")
    return value


def keep_aside(path: Path) -> Path:
    """Rename a damaged file, for who wants to look at it; one that was kept before makes room."""
    aside = path.with_name(f"{path.name}.damaged")
    with naming(path, "renamed"):
        os.replace(path, aside)
    return aside


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold a directory for this process; the system lets go of it however the process ends.

    Raises:
        ValueError: another process holds it.
        FileError: it cannot be written to.
    """
    path = folder / ".lock"
    is_there(path)
    with contextlib.ExitStack() as stack:
        with naming(path, "locked"):
            file = stack.enter_context(open(path, "w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{folder} is in use by another process") from None
        yield


class _Sink:
    """Takes what is written to a file; the first failure is raised in the end, as C++ that writes here would turn it
    into an error of its own (torch.save).
    """

    def __init__(self, file: BinaryIO):
        self.size, self._file, self._error = 0, file, cast(OSError | None, None)

    def write(self, data: bytes) -> int:
        size = memoryview(data).nbytes
        self.size += size
        self._try(lambda: self._file.write(data))
        return size

    def flush(self) -> None:
        self._try(self._file.flush)

    def _try(self, function: Callable[[], object]) -> None:
        if self._error is None:
            try:
                function()
            except OSError as error:
                self._error = error

    def finish(self) -> None:
        """Bring everything to the disk, or say what failed."""
        self.flush()
        if self._error is not None:
            raise self._error
        os.fsync(self._file.fileno())


def write_atomically(path: Path, write: Callable[[BinaryIO], object], *,
                     keep_as: Path | None = None) -> None:
    """Call `write(file)` on a temporary file beside `path`, sync it to the disk, and rename it.

    Args:
        keep_as: another name for the file that was there before, given to it when the new one is ready.

    Raises:
        FileError: it cannot be written; what was there before is there still, and nothing else.
    """
    is_there(path)
    size = 0
    with naming(path, "written", size=lambda: size):
        remove_stale(path)
        file = _locked_temporary(path)
        temporary, sink = Path(file.name), _Sink(file)
        try:
            write(cast(BinaryIO, sink))
            sink.finish()
            if keep_as is not None and is_there(path):
                _link(path, keep_as)
            os.replace(temporary, path)
        finally:
            size = sink.size
            temporary.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # what is left to write is what failed before
                file.close()
        sync_folder(path.parent)


def _link(path: Path, other: Path) -> None:
    """Give a file another name too, in place of the file that had it."""
    with naming(other, "written"):
        remove_stale(other)
        link = _temporary_beside(other)
        os.link(path, link)
        os.replace(link, other)
        # A save that was killed here has given the file both names, and then the system renames nothing.
        link.unlink(missing_ok=True)


def _temporary_beside(path: Path) -> Path:
    """Name a temporary file for `path` as no other process does, on this machine or on another that shares the disk."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def _locked_temporary(path: Path) -> BinaryIO:
    """Open a new temporary file and lock it, which tells others that its writer lives."""
    while True:
        file = open(_temporary_beside(path), "xb")  # noqa: SIM115 - the caller closes it
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
        # One that has gone meanwhile, is locked, or belongs to another user.
        with contextlib.suppress(OSError), open(temporary, "rb") as file:
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
    """Compute BLAKE2b of the rest of a file opened in binary mode, read in blocks.

    Raises:
        FileError: it cannot be read.
    """
    blake = hashlib.blake2b(digest_size=16)
    with naming(Path(file.name), "read"):
        for block in iter(lambda: file.read(1 << 24), b""):
            blake.update(block)
    return blake.hexdigest()


def write_at(fd: int, values: np.ndarray, at: int) -> int:
    """Write all bytes of an array at a place of a file; returns where they end.

    Raises:
        OSError: they cannot be written.
    """
    content = _bytes_of(np.ascontiguousarray(values))
    while content:
        written = os.pwrite(fd, content, at)
        content, at = content[written:], at + written
    return at


def read_at(fd: int, dtype: np.dtype, shape: tuple[int, ...], at: int, out: np.ndarray | None = None) -> np.ndarray:
    """Read an array from a place of a file.

    Args:
        out: memory for it, at least so many bytes, uint8; its own if not given.

    Raises:
        OSError: it cannot be read, or the file ends before.
    """
    size = dtype.itemsize * math.prod(shape)
    values = np.empty(shape, dtype) if out is None else out[:size].view(dtype).reshape(shape)
    content = _bytes_of(values)
    while content:
        count = os.preadv(fd, [content], at)
        if not count:
            raise OSError(errno.EIO, "it ends too early; was it truncated while it was in use?")
        content, at = content[count:], at + count
    return values


def _bytes_of(values: np.ndarray) -> memoryview:
    """Return the memory of a contiguous array."""
    return values.reshape(-1).view(np.uint8).data if values.size else memoryview(b"")

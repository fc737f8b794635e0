"""Reads and writes files atomically: a new file is written beside the old one, synced and renamed.

Every error names the file.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import io
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from parallel_epochs.pipeline.run import limits
from parallel_epochs.pipeline.run.errors import DamagedFile, FileError, InUse
from parallel_epochs.pipeline.run.memory import format_bytes

if TYPE_CHECKING:
    import numpy as np

# The random part of the name of a temporary file has so many bytes.
RANDOM_BYTES = 8
# Outputs of the command in hand.
_noting: set[Path] = set()


def user_records() -> Path:
    """Return the folder of this user's small records.

    Without a home folder it is a path where none can be made: a relative one would lie in any folder.
    """
    cache = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(os.devnull if cache.startswith("~") else cache) / "parallel-epochs"


def note_when_written(path: Path) -> None:
    """Let :func:`write_atomically` note that this user's commands wrote a file, which later ones may replace."""
    _noting.add(path)


def is_noted(path: Path) -> bool:
    """Tell whether a command of this user wrote a file, and nobody has changed it since."""
    with contextlib.suppress(OSError):
        return _note_of(path).read_text() == _stamp(path)
    return False


def _note_of(path: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()
    return user_records() / "outputs" / digest


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"


@contextlib.contextmanager
def naming(path: Path, doing: str, *, size: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Turn an error of the system into one that names the file.

    Args:
        doing: the participle of the message "FILE cannot be ...", such as "read" or "written".
        size: returns the number of bytes to write, if it is known when writing fails.

    Raises:
        FileError: in place of any other OSError or MemoryError.
    """
    try:
        yield
    except FileError:
        raise
    except (OSError, MemoryError) as error:
        number = error.errno if isinstance(error, OSError) else errno.ENOMEM
        if number == errno.ENOSPC:
            raise FileError(_no_space(path, size()), number) from error
        reason = getattr(error, "strerror", None) or str(error) or "no memory"
        raise FileError(f"{path} cannot be {doing}: {reason}", number) from error


def _no_space(path: Path, size: int) -> str:
    needs = f" for the {format_bytes(size)} of {path.name}" if size else f" for {path.name}"
    with contextlib.suppress(OSError):
        needs += f", {format_bytes(shutil.disk_usage(path.parent).free)} are free"
    return f"{path.parent} has no space left{needs}; delete something, or choose another directory"


def is_there(path: Path) -> bool:
    """Tell whether a file exists.

    Anything else at that path is refused: opening a pipe would wait, and replacing a device would destroy it.

    Raises:
        FileError: the path is not a file, or the system does not tell.
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


@contextlib.contextmanager
def open_file(path: Path, buffering: int = -1) -> Iterator[BinaryIO]:
    """Open a file that somebody wrote, for reading in binary mode.

    Args:
        buffering: as of :func:`open`.

    Raises:
        ValueError: the file does not exist.
        FileError: it cannot be read, or is none; see :func:`is_there`.
    """
    if not is_there(path):
        raise ValueError(f"{path} does not exist")
    with naming(path, "read"), open(path, "rb", buffering) as file:
        yield cast(BinaryIO, file)


def read_bytes(path: Path) -> bytes:
    """Read a whole file; raises what :func:`open_file` raises."""
    if not is_there(path):
        raise ValueError(f"{path} does not exist")
    with naming(path, "read"):
        return path.read_bytes()


def read_text(path: Path) -> str:
    """Read a text file.

    Raises what :func:`read_bytes` raises, a ValueError for more bytes than the limit, and DamagedFile if the content is
    not text.
    """
    if is_there(path):
        limits.check_size(f"{path} has", path.stat().st_size, limits.TEXT)
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise DamagedFile(f"{path} is damaged: it is not a text file") from None


def read_json(path: Path) -> dict:
    """Read a JSON object from a file. Raises what :func:`read_bytes` raises, and DamagedFile if there is none."""
    text = read_text(path)
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        what = f"it is not JSON ({error})" if text.strip() else "it is empty"
        raise DamagedFile(f"{path} is damaged: {what}") from None
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} is damaged: it does not hold a JSON object")
    return value


def keep_aside(path: Path) -> Path:
    """Rename a damaged file to ``NAME.damaged``, so that the user can look at it, and replace an older such file."""
    aside = path.with_name(f"{path.name}.damaged")
    with naming(path, "renamed"):
        os.replace(path, aside)
    return aside


def own_file(path: str, flags: int) -> int:
    """Open a file to write to, for `opener` of :func:`open`: a link in somebody's folder may name another's file.

    Raises:
        FileError: the path is a link.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileError(
                f"{path} is a symbolic link, which is not written to: delete it", error.errno
            ) from None
        raise


def own_folder(folder: Path) -> None:
    """Make a folder to write to, or find it; a link in somebody's folder may name another's.

    Raises:
        FileError: the path is a link, or no folder can be made there.
    """
    with naming(folder, "made"):
        folder.mkdir(exist_ok=True)
    if folder.is_symlink():
        raise FileError(
            f"{folder} is a symbolic link to {folder.resolve()}, and nothing is written through it. Put a "
            "folder in its place",
            errno.ELOOP,
        )


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a directory for this process. The system releases the lock however the process ends.

    Raises:
        InUse: another process holds the lock.
        FileError: the directory cannot be written to.
    """
    path = folder / ".lock"
    is_there(path)
    with contextlib.ExitStack() as stack:
        with naming(path, "locked"):
            file = stack.enter_context(open(path, "a", opener=own_file))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUse(f"{folder} is in use by another process") from None
        yield


class _Sink:
    """A file object that raises the first failure to write only at the end.

    torch.save writes from C++, which would turn the failure into an error of its own.
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
        """Flush everything to the disk, or raise the first failure."""
        self.flush()
        if self._error is not None:
            raise self._error
        os.fsync(self._file.fileno())


def write_atomically(
    path: Path, write: Callable[[BinaryIO], object], *, keep_as: Path | None = None
) -> None:
    """Call `write(file)` on a temporary file beside `path`, sync it to the disk, and rename it.

    Args:
        keep_as: a second path for the old file, which gets it as soon as the new file is complete.

    Raises:
        FileError: the file cannot be written. The old file is still there, and no temporary file is.
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
                link(path, keep_as)
            os.replace(temporary, path)
        finally:
            size = sink.size
            temporary.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # what is left to write is what failed before
                file.close()
        sync_folder(path.parent)
    if path in _noting:
        with contextlib.suppress(OSError):
            note = _note_of(path)
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(_stamp(path))


def link(path: Path, other: Path) -> None:
    """Give a file a second path, and replace the file that was there.

    Raises:
        FileError: it cannot be given.
    """
    with naming(other, "written"):
        remove_stale(other)
        temporary = _temporary_beside(other)
        os.link(path, temporary)
        os.replace(temporary, other)
        # A save that was killed here has given the file both names, and then the system renames nothing.
        temporary.unlink(missing_ok=True)


def _temporary_beside(path: Path) -> Path:
    """Return a temporary name for `path` that no other process chooses, on any machine that shares the disk."""
    return path.with_name(f".{path.name}.{secrets.token_hex(RANDOM_BYTES)}.tmp")


def _locked_temporary(path: Path) -> BinaryIO:
    """Open a new temporary file and lock it. The lock tells other processes that its writer is alive."""
    while True:
        file = open(_temporary_beside(path), "xb")  # noqa: SIM115 - the caller closes it
        fcntl.flock(file, fcntl.LOCK_EX)
        # Between the two lines it was not locked, and another process may have taken it for a stale one.
        if os.path.exists(file.name):
            return file
        file.close()


def remove_stale(path: Path) -> None:
    """Delete the temporary files of `path` that killed processes left behind.

    A living writer holds a lock on its file. Every machine and container that shares the disk sees the lock, while
    process numbers mean nothing outside of their own machine.
    """
    random = "[0-9a-f]" * 2 * RANDOM_BYTES
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.{random}.tmp"):
        # One that has gone meanwhile, is locked, or belongs to another user.
        with contextlib.suppress(OSError), open(temporary, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: dict) -> None:
    """Write a JSON file atomically, with null for NaN and infinity."""
    write_text(path, json.dumps(without_nan(value), indent=2) + "\n")


def without_nan(value: object) -> Any:
    """Replace every NaN and infinity in nested dicts by None, as JSON has neither."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def file_digest(file: BinaryIO) -> str:
    """Compute BLAKE2b of the rest of a file that is open in binary mode, block by block.

    Raises:
        FileError: it cannot be read.
    """
    with naming(Path(file.name), "read"):
        reader = cast(io.BufferedReader, file)
        return hashlib.file_digest(reader, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def write_at(fd: int, values: "np.ndarray", at: int) -> int:
    """Write an array to a file at a byte offset. Return the offset of its end.

    Raises:
        OSError: they cannot be written.
    """
    import numpy as np  # here, since --help and a refused command import this module and need no arrays

    content = _bytes_of(np.ascontiguousarray(values))
    while content:
        written = os.pwrite(fd, content, at)
        content, at = content[written:], at + written
    return at


def read_at(fd: int, values: "np.ndarray", at: int) -> None:
    """Fill a contiguous array from a file at a byte offset.

    Raises:
        OSError: the file cannot be read, or it ends before the array does.
    """
    content = _bytes_of(values)
    while content:
        count = os.preadv(fd, [content], at)
        if not count:
            raise OSError(errno.EIO, "it ends too early; was it truncated while it was in use?")
        content, at = content[count:], at + count


def _bytes_of(values: "np.ndarray") -> memoryview:
    """Return the memory of a contiguous array."""
    return values.reshape(-1).view("uint8").data if values.size else memoryview(b"")


def check_output(name: str, path: Path) -> None:
    """Refuse a file that cannot be written, before the work whose result it shall hold.

    Raises:
        ValueError: names the argument and the path.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{name}={path} is not a file: give the name of a file")
    if not path.parent.is_dir():
        raise ValueError(f"{name}={path}: the directory {path.parent} does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{name}={path} cannot be written")


def check_folder(name: str, path: Path) -> None:
    """Refuse a folder that cannot be made, because a part of its path is a file.

    Raises:
        ValueError: names the argument and the file.
    """
    existing = next((folder for folder in (path, *path.parents) if folder.exists()), path)
    if existing.exists() and not existing.is_dir():
        raise ValueError(f"{name}={path}: {existing} is not a directory")

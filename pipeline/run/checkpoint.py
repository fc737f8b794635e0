"""Reads and writes checkpoints: nested dicts of tensors and plain values, with a checksum of their content."""

import contextlib
import hashlib
import io
import logging
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import torch
from torch import Tensor

from parallel_epochs.pipeline.run import files, limits
from parallel_epochs.pipeline.run.errors import DamagedFile, FileError
from parallel_epochs.pipeline.run.memory import format_bytes

log = logging.getLogger(__name__)

# The errors that torch.load raises for a file with changed bytes.
UNREADABLE = (
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)

# How files begin that torch.save has not written.
FORMATS = {
    b"PK": "a zip archive",
    b"\x1f\x8b": "a gzip file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    b"\x93NUMPY": "a numpy array",
    b"\x89HDF": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"\x80": "a pickle",
}
# Checkpoints of this size and larger are memory-mapped, so that their content is not in memory twice.
LARGE = 1 << 26

# The function by which torch checks the sparse tensors that it loaded.
_VALIDATE = "_validate_loaded_sparse_tensors"
_validate = getattr(torch._utils, _VALIDATE, None)


class Content(dict):
    """The content of a file by keys. A missing key raises an error that blames the file.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path, values: dict):
        super().__init__(values)
        self.path = path

    def __missing__(self, key: object) -> NoReturn:
        raise DamagedFile(f"{self.path} is damaged: it has no {key}")


@contextlib.contextmanager
def fitting(content: dict) -> Iterator[None]:
    """Go on from the content of a checkpoint.

    Raises:
        DamagedFile: it does not fit what is to be restored.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        if "out of memory" in str(error):
            raise
        path = content.path if isinstance(content, Content) else "the checkpoint"
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise DamagedFile(
            f"{path} is damaged, or of another run: its content does not fit ({reason})"
        ) from error


def digest(state: object) -> str:
    """Compute SHA-256 over the names and bytes of nested dicts, lists, tensors and plain values, in order."""
    sha = hashlib.sha256()

    def update(value: object) -> None:
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous()
            sha.update(f"{value.dtype}{list(value.shape)}".encode())
            flat = value.flatten()
            if flat.numel() < 2:  # of any stride, which torch.save keeps
                flat = flat.clone(memory_format=torch.contiguous_format)
            sha.update(flat.view(torch.uint8).numpy().data)
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
    """Write `state` with its digest. At any moment `path` holds either the old content or the new.

    The result loads with ``torch.load(path, weights_only=True)``.

    Args:
        keep_as: a second path that keeps the old content.
    """
    files.write_atomically(
        path, lambda file: torch.save({**state, "sha256": digest(state)}, file), keep_as=keep_as
    )


def load(path: Path, *, mmap: bool | None = False, verify: bool = True) -> Content:
    """Read what :func:`save` wrote.

    Args:
        mmap: leave the tensors in the file and let the system page them in. None: if the file is large.
        verify: compare the content with its digest.

    Returns:
        The values; one that is missing raises DamagedFile.

    Raises:
        ValueError: the file does not exist.
        DamagedFile: the file is truncated, or its content does not have the digest it was saved with.
        FileError: the file cannot be read now, but its content may be intact.
    """
    if not files.is_there(path):
        raise ValueError(f"{path} does not exist")
    limits.check_zip(path)
    if mmap is None:
        mmap = path.stat().st_size >= LARGE
    state = _map(path) if mmap else _parse(path, files.read_bytes(path))
    check_expanded(str(path), state)
    expected = state.pop("sha256")
    try:
        is_damaged = verify and digest(state) != expected
    except (
        RuntimeError
    ):  # of tensors of a layout, or of values of a depth, that nothing here writes
        is_damaged = True
    if is_damaged:
        raise DamagedFile(
            f"{path} is damaged: its content does not have the checksum it was saved with"
        )
    return Content(path, state)


def load_safely(file: IO[bytes] | Path, *, mmap: bool | None = None) -> Any:
    """Load what torch.save wrote into this machine's memory, without running code of the file.

    torch 2.14 and newer check every sparse tensor that they load. An index that is expanded would be read for days
    before :func:`check_expanded` saw it. So that check is left out: who reads sparse tensors checks them.
    """
    if _validate:
        waiting = getattr(
            torch._utils,
            "_get_sparse_tensors_to_validate",  # of torch 2.15
            lambda: getattr(torch._utils, "_sparse_tensors_to_validate"),  # noqa: B009
        )
        setattr(torch._utils, _VALIDATE, lambda *_, **__: waiting().clear())
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    finally:
        if _validate:
            setattr(torch._utils, _VALIDATE, _validate)


def _map(path: Path) -> dict:
    """Memory-map a checkpoint. If that fails, read the whole file, which tells whether its content is damaged."""
    try:
        state = load_safely(path, mmap=True)
        state["sha256"]
    except UNREADABLE as error:
        state = _parse(path, files.read_bytes(path))
        log.warning(
            "%s cannot be memory-mapped (%s). It was read instead, so each process holds its own copy",
            path,
            str(error).partition("\n")[0],
        )
    return state


def _parse(path: Path, content: bytes) -> dict:
    """Load the content of a file. A failure means that the content is damaged, or that there is not enough memory."""
    try:
        state = load_safely(io.BytesIO(content))
        state["sha256"]
    except (MemoryError, *UNREADABLE) as error:
        # torch's allocator speaks of memory, also when a damaged size asks for too much of it.
        if (
            isinstance(error, MemoryError)
            or "memory" in str(error)
            and _has_checksums_of_zip(content)
        ):
            raise FileError(
                f"{path} cannot be read: there is not enough memory for its "
                f"{format_bytes(len(content))}"
            ) from error
        raise DamagedFile(
            f"{path} is damaged: it cannot be read ({type(error).__name__})"
        ) from error
    return state


def _has_checksums_of_zip(content: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except Exception:  # a damaged archive may raise anything
        return False


def read_tensors(path: Path, name: str) -> object:
    """Read tensors that a user saved with torch.save.

    Args:
        name: of the file, for messages.

    Raises:
        ValueError: there is no such file, or it holds something else.
        FileError: it cannot be read.
    """
    content = files.read_bytes(path)
    limits.check_zip(path)
    try:
        tensors = load_safely(io.BytesIO(content))
    except UNREADABLE as error:
        raise ValueError(
            f"{name} holds no tensors that torch.save wrote: {explain_content(path)}"
        ) from error
    check_expanded(name, tensors)
    return tensors


def check_expanded(name: str, content: object) -> None:
    """Refuse tensors that are much larger than what a file holds of them, as `expand` makes them, before they are used.

    Args:
        name: of the file, for messages.
        content: as ``torch.load`` returns it.

    Raises:
        ValueError: names the largest of them, and the environment variable that raises the limit.
    """
    sizes = {
        key: (tensor.numel() * tensor.element_size(), tensor)
        for key, tensor in _tensors_of(content)
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()
    }
    if not sizes:
        return
    key, (size, largest) = max(sizes.items(), key=lambda item: item[1][0])
    limits.check_size(
        f"{name}: {key} has the shape {list(largest.shape)}, which takes {format_bytes(size)}, although "
        f"the file holds {format_bytes(largest.untyped_storage().nbytes())} of it: its expanded tensors "
        "take",
        sum(size for size, _ in sizes.values()),
        limits.UNPACKED,
        limits.limit_in_memory(),
    )


def _tensors_of(content: object, key: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the dense tensors in nested dicts, lists, graphs and sparse tensors, each with its place."""
    if isinstance(content, Tensor) and content.layout == torch.strided:
        yield key or "the tensor", content
    elif isinstance(content, Tensor) and content.layout == torch.sparse_coo:
        yield from _tensors_of(
            {"indices()": content._indices(), "values()": content._values()}, key
        )
    elif isinstance(content, Tensor):
        yield from _tensors_of({"values()": content.values()}, key)
    elif isinstance(content, (list, tuple)):
        for place, value in enumerate(content):
            yield from _tensors_of(value, f"{key}[{place}]")
    else:
        if hasattr(content, "to_dict") and not isinstance(
            content, type
        ):  # PyG saves the class of its graphs, too
            content = content.to_dict()
        for name, value in content.items() if isinstance(content, dict) else ():
            yield from _tensors_of(value, f"{key}.{name}" if key else str(name))


def explain_content(path: Path) -> str:
    """Say what a file is that torch.load does not read."""
    with files.open_file(path) as file:
        start = file.read(1024)
    if not start:
        return "it is empty"
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                return "it is a TorchScript module"
            if any(name.endswith("/data.pkl") for name in archive.namelist()):
                return "it is damaged"
    elif start.startswith(b"PK"):
        return "it is damaged or cut short"
    if start[257:262] == b"ustar":
        return "it is a tar archive"
    for magic, name in FORMATS.items():
        if start.startswith(magic):
            return f"it is {name}"
    return "it is text" if start.isascii() and b"\0" not in start else "it cannot be read"


def keep(
    path: Path,
    build: Callable[[], dict],
    *,
    again: str,
    mmap: bool = True,
    verify: bool = True,
    check: Callable[[Path, dict], object] = lambda path, content: None,
) -> Content:
    """Return the content of a cached file. Build it first if the file does not exist or is damaged.

    Args:
        build: makes the content.
        again: what the warning about a damaged file says is done next.
        mmap: memory-map the file, so that processes share its memory.
        verify: compare the content with its digest, and check it.
        check: raises a DamagedFile for content that cannot be what was built.

    Raises:
        FileError: the file cannot be read or written.
    """
    if files.is_there(path):
        try:
            content = load(path, mmap=mmap, verify=verify)
            if verify:
                check(path, content)
            return content
        except DamagedFile as error:
            log.warning("%s; %s", error, again)
    with files.naming(path.parent, "made"):
        path.parent.mkdir(parents=True, exist_ok=True)
    save(path, build())
    return load(path, mmap=mmap, verify=False)


def save_last(folder: Path, state: dict) -> None:
    """Save ``last.pt``, and keep the checkpoint before it as ``previous.pt``.

    Raises:
        FileError: it cannot be written. The earlier checkpoints are still there.
    """
    # Not before the new one is written and on the disk: two names of one file are one checkpoint.
    save(folder / "last.pt", state, keep_as=folder / "previous.pt")


def load_last(folder: Path) -> Content | None:
    """Load ``last.pt``, or ``previous.pt`` if that is damaged. Return None if there is neither.

    A damaged checkpoint is kept as ``last.pt.damaged``. One that cannot be read now is left alone, as it may be intact.

    Raises:
        DamagedFile: there are checkpoints, and all of them are damaged.
        FileError: a checkpoint cannot be read.
    """
    errors = []
    for path in (folder / "last.pt", folder / "previous.pt"):
        if not files.is_there(path):
            continue
        try:
            state = load(path, mmap=None)
        except DamagedFile as error:
            errors.append(str(error))
            continue
        if errors:
            aside = files.keep_aside(folder / "last.pt")
            log.warning(
                "%s and kept as %s; falling back to %s of round %s",
                errors[0],
                aside.name,
                path,
                state.get("round"),
            )
            # Otherwise the next save would keep the damaged one as previous.pt.
            os.replace(path, folder / "last.pt")
        return state
    if errors:
        raise DamagedFile(
            "; ".join(errors) + ": no checkpoint is left to resume from. Start a new run"
        )
    return None

"""Decides whether a command may write a file, before the work whose result the file shall hold.

A file that the command reads, or that belongs to a run, a study, a store or a cache, is never replaced. Another file is
replaced if its header shows that the same command wrote it, or if the user asks for it.
"""

import csv
import fnmatch
import json
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.files import naming

# Meanings of the names of a header, by its kind.
KINDS = {
    "columns": "a table with the columns",
    "keys": "a file with the keys",
    "files": "a zip archive of",
}
# Bytes in which a header is looked for.
HEAD_BYTES = 1 << 16
# A file of JSON that is longer than this is described by its first bytes.
JSON_BYTES = 1 << 24
# A folder with a config.yaml and one of these holds a run.
RUN_NAMES = ("checkpoints", "metrics.jsonl", "summary.json")
CACHED = re.compile(r"[0-9a-f]{16,}")
CACHE_FOLDERS = ("graphs", "partitions")


@dataclass(frozen=True)
class Header:
    """The content of a file, as its beginning tells it.

    Attributes:
        kind: "columns" of a table, "keys" of a torch.save or JSON file, "files" of another zip archive, "lines" of any
            other text, or "bytes".
        names: the columns, the keys, the files or the first two lines.
        start: the first bytes.
    """

    kind: str
    names: tuple[str, ...]
    start: bytes

    def describe(self) -> str:
        """Say what the file is."""
        if self.kind in KINDS:
            what = KINDS[self.kind]
            shown = ", ".join(ascii(name)[1:-1][:40] for name in self.names[:5])
            return f"{what} {shown}{', ...' * (len(self.names) > 5)}"
        if self.kind == "lines":
            return f"a text that begins with {self.names[0].strip()[:40]!a}"
        return f"a binary file that begins with {ascii(self.start[:8])[1:]}"


def nothing(header: Header) -> bool:
    """Tell that the command has written no such file."""
    return False


def check(
    name: str,
    path: Path,
    *,
    ours: Callable[[Header], bool] = nothing,
    reads: Iterable[tuple[str, Path]] = (),
    cache: Path | None = None,
    overwrite: bool = False,
    way_out: str = "overwrite=true",
) -> None:
    """Refuse a file that cannot be written or must not be replaced.

    Args:
        name: the argument that names the file.
        ours: tells by the header of a file whether this command writes such files.
        reads: files, folders and patterns that the command reads, each with the argument that names it.
        cache: the folder of prepared graphs.
        overwrite: whether the user allows to replace any other file.
        way_out: how the user allows it.

    Raises:
        ValueError: names the argument, the file, and what it is.
    """
    files.check_output(name, path)
    reads = list(reads)
    if read := next((f"{key}={source}" for key, source in reads if is_read(source, path)), None):
        raise ValueError(
            f"{name}={path} is a file that this command reads ({read}). Give another name"
        )
    if not path.exists():
        return
    header = read_header(path)
    if ours(header):
        return
    folders = [
        (f"the folder {source} that this command reads", source)
        for _, source in reads
        if source.is_dir()
    ]
    if cache is not None:
        folders.append((f"the cache {cache}", cache))
    if owner := find_owner(path) or next(
        (owner for owner, folder in folders if is_inside(path, folder)), None
    ):
        raise ValueError(
            f"{name}={path} belongs to {owner}, and no command replaces such a file. Give another name"
        )
    if not overwrite and path.stat().st_size:
        raise ValueError(
            f"{name}={path} exists, and this command did not write it: it is {header.describe()}. Give "
            f"another name, or {way_out} to replace it"
        )


def check_distinct(written: Iterable[tuple[str, Path]]) -> None:
    """Refuse two arguments that name the same file to write.

    Raises:
        ValueError: names both.
    """
    seen: dict[str, str] = {}
    for name, path in written:
        if other := seen.get(
            real := os.path.realpath(path)
        ):  # Path.resolve() fails for links in a circle
            raise ValueError(
                f"{name}={path} and {other} name the same file. Give one of them another name"
            )
        seen[real] = f"{name}={path}"


def is_read(source: Path, path: Path) -> bool:
    """Tell whether a path is a file that is read, by any of its names, or fits the pattern of files that are read."""
    if source.is_file():
        return path.exists() and os.path.samefile(source, path)
    return (
        fnmatch.fnmatch(path.name, source.name) and path.parent.resolve() == source.parent.resolve()
    )


def is_inside(path: Path, folder: Path) -> bool:
    """Tell whether a file lies in a folder, by its name or by what its name links to."""
    return any(place.is_relative_to(folder.resolve()) for place in _places(path))


def find_owner(path: Path) -> str | None:
    """Name the run, the study, the store or the cache that a file belongs to; none if it belongs to none."""
    for place in _places(path):
        for folder in place.parents[:2]:
            if is_run(folder):
                return f"the run {folder}"
            if (folder / "manifest.json").is_file():
                return f"the store {folder}"
        if (place.parent / "study.journal").is_file() or (place.parent / "multirun.yaml").is_file():
            return f"the runs in {place.parent}"
        if CACHED.search(place.name) and {folder.name for folder in place.parents[:2]} & {
            *CACHE_FOLDERS
        }:
            return f"the cache {place.parent}"
    return None


def is_run(folder: Path) -> bool:
    """Tell whether a folder holds a run."""
    return (folder / "config.yaml").is_file() and any(
        (folder / name).exists() for name in RUN_NAMES
    )


def _places(path: Path) -> tuple[Path, Path]:
    """Return where a file lies by its name, and where by what the name links to."""
    return path.parent.resolve() / path.name, path.resolve()


def read_header(path: Path) -> Header:
    """Read what the beginning of a file tells of its content.

    Raises:
        FileError: it cannot be read.
    """
    with naming(path, "read"), open(path, "rb") as file:
        start = file.read(HEAD_BYTES)
    if start.startswith(b"PAR1"):
        return _parquet_header(path, start)
    if start.startswith(b"PK\x03\x04"):
        return _torch_header(path, start)
    text = _unzip(start) if start.startswith(b"\x1f\x8b") else start
    if b"\0" in text or not text:
        return Header("bytes", (), start)
    decoded = text.decode("utf-8", errors="replace")
    if keys := _json_keys(path, decoded):
        return Header("keys", keys, start)
    first, *others = decoded.splitlines() or [""]
    for separator in "\t,":
        if separator in first and (
            cells := next(csv.reader([first[:HEAD_BYTES]], delimiter=separator), [])
        ):
            return Header("columns", tuple(cells), start)
    return Header("lines", (first, *others[:1]), start)


def _parquet_header(path: Path, start: bytes) -> Header:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:  # who cannot write such a table has not written this one
        return Header("bytes", (), start)
    try:
        return Header("columns", tuple(parquet.read_schema(path).names), start)
    except (ArrowException, OSError):
        return Header("bytes", (), start)


def _torch_header(path: Path, start: bytes) -> Header:
    # imports torch, which takes seconds, and is needed for such files alone
    from parallel_epochs.pipeline.run.checkpoint import UNREADABLE, load_safely

    try:
        value = load_safely(path, mmap=True)
    except UNREADABLE:
        return _archive_header(path, start)
    is_dict = isinstance(value, dict) and all(isinstance(key, str) for key in value)
    return Header("keys", tuple(value), start) if is_dict else Header("bytes", (), start)


def _archive_header(path: Path, start: bytes) -> Header:
    try:
        with zipfile.ZipFile(path) as archive:
            return Header("files", tuple(archive.namelist()), start)
    except (zipfile.BadZipFile, OSError):
        return Header("bytes", (), start)


def _json_keys(path: Path, start: str) -> tuple[str, ...]:
    """Return the keys of a JSON object, or of the first object of a list that has one in each line; else none."""
    if start.startswith("[\n{"):
        text = start.splitlines()[1].rstrip(",")
    elif start.startswith("{") and path.stat().st_size <= JSON_BYTES:
        text = path.read_text(errors="replace")
    else:
        return ()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(value) if isinstance(value, dict) else ()


def _unzip(start: bytes) -> bytes:
    """Decompress what the first bytes of a .gz file hold."""
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(start, HEAD_BYTES)
    except zlib.error:
        return b""

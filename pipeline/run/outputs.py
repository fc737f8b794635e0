"""Decides whether a command may write a file, before the work whose result the file shall hold.

A file that the command reads, or that belongs to a run, a study, a store or a cache, is never replaced. Another file is
replaced if its header shows that the same command wrote it, or if the user asks for it.
"""

import contextlib
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

# Bytes in which a header is looked for.
HEAD_BYTES = 1 << 16
# A folder with a config.yaml and one of these holds a run.
RUN_NAMES = ("checkpoints", "metrics.jsonl", "summary.json")
CACHED = re.compile(r"[0-9a-f]{16,}")
CACHE_FOLDERS = {"graphs", "partitions"}
# Files, folders and patterns that a command reads, each with the argument that names it.
Sources = Iterable[tuple[str, Path]]


@dataclass(frozen=True)
class Header:
    """The content of a file, as its beginning tells it.

    Attributes:
        kind: "columns" of a table, "keys" of a torch.save file or of the first object in a list of JSON, "files" of
            another zip archive, "lines" of any other text, or "bytes".
        names: the columns, the keys, the files or the first two lines.
        start: the first bytes.
    """

    kind: str
    names: tuple[str, ...]
    start: bytes


def check(
    name: str,
    path: Path,
    *,
    ours: Callable[[Header], bool] = lambda header: False,
    reads: Sources = (),
    cache: Path | None = None,
    overwrite: bool = False,
    way_out: str = "overwrite=true",
) -> None:
    """Refuse a file that cannot be written or must not be replaced.

    Args:
        name: the argument that names the file.
        ours: tells by the header of a file whether this command writes such files.
        reads: what the command reads.
        cache: the folder of prepared graphs.
        overwrite: whether the user allows to replace any other file.
        way_out: how the user allows it.

    Raises:
        ValueError: names the argument and the file.
    """
    files.check_output(name, path)
    reads = list(reads)
    check_unread(name, path, reads)
    if not path.exists() or ours(read_header(path)):
        return
    folders = [(f"the folder {source} that this command reads", source) for _, source in reads]
    if cache is not None:
        folders.append((f"the cache {cache}", cache))
    if owner := find_owner(path, folders):
        raise ValueError(
            f"{name}={path} belongs to {owner}, and no command replaces such a file. Give another name"
        )
    if not overwrite and path.stat().st_size:
        raise ValueError(
            f"{name}={path} exists, and this command did not write it. Give another name, or {way_out} "
            "to replace it"
        )


def check_unread(name: str, path: Path, reads: Sources) -> None:
    """Refuse to write a file that is read, by any of its names, or that fits a pattern of files that are read.

    Raises:
        ValueError: names both arguments.
    """
    for key, source in reads:
        if source.is_file():
            is_read = path.exists() and os.path.samefile(source, path)
        else:
            is_read = (
                fnmatch.fnmatch(path.name, source.name)
                and path.parent.resolve() == source.parent.resolve()
            )
        if is_read:
            raise ValueError(
                f"{name}={path} is a file that this command reads ({key}={source}). Give another name"
            )


def check_distinct(written: Sources) -> None:
    """Refuse two arguments that name the same file to write.

    Raises:
        ValueError: names both.
    """
    seen: dict[str, str] = {}
    for name, path in written:
        real = os.path.realpath(path)  # Path.resolve() fails for links in a circle
        if real in seen:
            raise ValueError(
                f"{name}={path} and {seen[real]} name the same file. Give one of them another name"
            )
        seen[real] = f"{name}={path}"


def find_owner(path: Path, folders: Sources = ()) -> str | None:
    """Name the run, the study, the store or the cache that a file belongs to; none if it belongs to none.

    Args:
        folders: others that own what lies in them, each with its name.
    """
    # Where the file lies by its name, and by what the name links to.
    for place in (path.parent.resolve() / path.name, path.resolve()):
        for folder in place.parents[:2]:
            if is_run(folder):
                return f"the run {folder}"
            if (folder / "manifest.json").is_file():
                return f"the store {folder}"
        if any((place.parent / name).is_file() for name in ("study.journal", "multirun.yaml")):
            return f"the runs in {place.parent}"
        if CACHED.search(place.name) and CACHE_FOLDERS & {each.name for each in place.parents[:2]}:
            return f"the cache {place.parent}"
        for owner, folder in folders:
            if folder.is_dir() and place.is_relative_to(folder.resolve()):
                return owner
    return None


def is_run(folder: Path) -> bool:
    """Tell whether a folder holds a run."""
    return (folder / "config.yaml").is_file() and any(
        (folder / name).exists() for name in RUN_NAMES
    )


def read_header(path: Path) -> Header:
    """Read what the beginning of a file tells of its content.

    Raises:
        FileError: it cannot be read.
    """
    with naming(path, "read"), open(path, "rb") as file:
        start = file.read(HEAD_BYTES)
    if start.startswith((b"PAR1", b"PK\x03\x04")):
        kind, names = _names_within(path, is_zip=start.startswith(b"PK"))
        return Header(kind, tuple(names), start)
    text = start
    if start.startswith(b"\x1f\x8b"):
        text = b""
        with contextlib.suppress(zlib.error):
            text = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(start, HEAD_BYTES)
    if b"\0" in text or not text:
        return Header("bytes", (), start)
    first, *others = text.decode("utf-8", errors="replace").splitlines() or [""]
    if first == "[" and others:
        with contextlib.suppress(ValueError, RecursionError):
            return Header("keys", tuple(json.loads(others[0].rstrip(","))), start)
    for separator in "\t,":
        if separator in first:
            cells = next(csv.reader([first[:HEAD_BYTES]], delimiter=separator), [])
            return Header("columns", tuple(cells), start)
    return Header("lines", (first, *others[:1]), start)


def _names_within(path: Path, *, is_zip: bool) -> tuple[str, Iterable[str]]:
    """Return the kind of a Parquet file or of a zip archive, and what names it holds."""
    with contextlib.suppress(Exception):  # it may be damaged, and the packages may be missing
        if not is_zip:
            from pyarrow import parquet

            return "columns", parquet.read_schema(path).names
        # imports torch, which takes seconds, and is needed for such files alone
        from parallel_epochs.pipeline.run.checkpoint import load_safely

        value = load_safely(path, mmap=True)
        is_dict = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        return ("keys", value) if is_dict else ("bytes", ())
    with contextlib.suppress(zipfile.BadZipFile, OSError), zipfile.ZipFile(path) as archive:
        return "files", archive.namelist()
    return "bytes", ()

"""Decides whether a command may write a file, before the work whose result the file shall hold.

A file that the command reads, or that belongs to a run, a study, a store or a cache, is never replaced. Another file is
replaced if a command of this user wrote it and nobody has changed it since, or if the user asks for it.
"""

import fnmatch
import os
import re
from collections.abc import Iterable
from pathlib import Path

from parallel_epochs.pipeline.run import files

# A folder with a config.yaml and one of these holds a run.
RUN_NAMES = ("checkpoints", "metrics.jsonl", "summary.json")
CACHED = re.compile(r"[0-9a-f]{16,}")
CACHE_FOLDERS = {"graphs", "partitions"}
# Files, folders and patterns that a command reads, each with the argument that names it.
Sources = Iterable[tuple[str, Path]]


def check(
    name: str,
    path: Path,
    *,
    ours: bool = False,
    reads: Sources = (),
    cache: Path | None = None,
    overwrite: bool = False,
    way_out: str = "overwrite=true",
) -> None:
    """Refuse a file that cannot be written or must not be replaced.

    Args:
        name: the argument that names the file.
        ours: whether the file is one that this command writes, whoever wrote it.
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
    files.note_when_written(path)
    if not path.exists() or ours or files.is_noted(path):
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

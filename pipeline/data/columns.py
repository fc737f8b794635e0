"""Tables of text as people have them: columns separated by tabs, commas or blanks, in files that may be zipped."""

import bz2
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pandas as pd

from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import FileError

# What opens a zipped file, by the end of its name and by its first bytes.
OPENERS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz"}
BLANKS = r"\s+"


@contextlib.contextmanager
def open_unzipped(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, and unzip what is read if it is zipped.

    Raises:
        ValueError: it is damaged or cut short, then or while it is read.
        FileError: it cannot be read.
    """
    with files.naming(path, "read"), open(path, "rb") as file, unzip(file, str(path)) as opened:
        yield opened


@contextlib.contextmanager
def unzip(file: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """Unzip an open file if it is zipped; see :func:`open_unzipped`.

    Args:
        name: of the file, for messages.
    """
    start = file.read(6)
    file.seek(0)
    kind = next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), Path(name).suffix)
    try:
        yield OPENERS[kind](file) if kind in OPENERS else file
    except FileError:
        raise
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if getattr(error, "errno", None) is not None:  # of the system; of what unzips it has none
            raise
        raise ValueError(f"{name} is damaged or cut short: {error}") from None


def read_bytes(path: Path) -> bytes:
    """Read all of a file, unzipped; raises as :func:`open_unzipped`."""
    with open_unzipped(path) as file:
        return file.read()


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text, without blanks at their ends; raises as :func:`open_unzipped`."""
    with open_unzipped(path) as file, io.TextIOWrapper(file, "utf-8", errors="replace") as text:
        return [line.strip() for line in text]


def find_head(file: IO[bytes], comments: tuple[str, ...] = ()) -> tuple[str, int]:
    """Find the first line that is neither blank nor a comment.

    Args:
        file: which is at its beginning, also afterwards.
        comments: what comments begin with.

    Returns:
        The line, empty if there is none; and the number of lines before it.
    """
    text, found, num_before = io.TextIOWrapper(file, "utf-8", errors="replace"), "", 0
    for line in text:
        if line.strip() and not line.lstrip().startswith(comments):
            found = line.rstrip("\n")
            break
        num_before += 1
    text.detach()
    file.seek(0)
    return found, num_before


def choose_separator(line: str, least: int = 1) -> str:
    """Choose what separates the columns of a line: a tab or a comma that is there often enough, or blanks."""
    return next((mark for mark in ("\t", ",") if line.strip().count(mark) >= least), BLANKS)


def read_table(file: IO[bytes], name: str, separator: str, **options) -> pd.DataFrame:
    """Read a table of text with pandas.

    Args:
        name: of the file, for messages.
        options: of :func:`pandas.read_csv`.

    Raises:
        ValueError: it is none; the message begins with its name.
    """
    try:
        return pd.read_csv(file, sep=separator, encoding_errors="replace", **options)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        reason = str(error).strip().splitlines()[0].removeprefix("Error tokenizing data. C error: ")
        raise ValueError(f"{name} is no table: {reason}") from None

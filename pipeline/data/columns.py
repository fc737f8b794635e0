"""Tables of text as people have them: columns separated by tabs, commas or blanks, in files that may be zipped."""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import FileError

if TYPE_CHECKING:
    import pandas as pd

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
    """Read the lines of a text, without blanks at their ends.

    Raises:
        ValueError: it is not UTF-8, or as :func:`open_unzipped`.
        FileError: it cannot be read.
    """
    with open_unzipped(path) as file, as_text(file, str(path)) as text:
        return [line.strip() for line in text]


@contextlib.contextmanager
def as_text(file: IO[bytes], name: str, newline: str | None = None) -> Iterator[io.TextIOWrapper]:
    """Read a file as text, UTF-8 with or without a byte order mark; the file stays open.

    Args:
        name: of the file, for messages.
        newline: as of :func:`open`.

    Raises:
        ValueError: it is not UTF-8, then or while it is read.
    """
    text = io.TextIOWrapper(file, "utf-8-sig", newline=newline)  # type: ignore[type-var]
    try:
        yield text
    except UnicodeDecodeError:
        raise ValueError(_explain_encoding(text.detach(), name)) from None
    text.detach()


def _explain_encoding(file: IO[bytes], name: str) -> str:
    """Say which line of a file is not UTF-8, and how to convert the file."""
    file.seek(0)
    start = file.read(4)
    wide = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    file.seek(0)
    for number, line in enumerate(file, start=1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            excerpt = line[max(error.start - 30, 0):error.start + 10].strip().decode("ascii", "backslashreplace")
            return (f"{name}: line {number} is not UTF-8 text: byte 0x{line[error.start]:02x} in '{excerpt}'. Convert "
                    f"the file, for example by iconv -f {'UTF-16' if wide else 'LATIN1'} -t UTF-8")
    return f"{name} is not UTF-8 text. Convert it, for example by iconv -f LATIN1 -t UTF-8"


def find_head(file: IO[bytes], name: str, comments: tuple[str, ...] = ()) -> tuple[str, int]:
    """Find the first line that is neither blank nor a comment.

    Args:
        file: which is at its beginning, also afterwards.
        name: of the file, for messages.
        comments: what comments begin with.

    Returns:
        The line, empty if there is none; and the number of lines before it.

    Raises:
        ValueError: what is read is not UTF-8.
    """
    found, num_before = "", 0
    with as_text(file, name) as text:
        for line in text:
            if line.strip() and not line.lstrip().startswith(comments):
                found = line.rstrip("\n")
                break
            num_before += 1
    file.seek(0)
    return found, num_before


def choose_separator(line: str, least: int = 1) -> str:
    """Choose what separates the columns of a line: a tab or a comma that is there often enough, or blanks."""
    return next((mark for mark in ("\t", ",") if line.strip().count(mark) >= least), BLANKS)


def read_table(file: IO[bytes], name: str, separator: str, **options) -> "pd.DataFrame":
    """Read a table of text with pandas.

    Args:
        name: of the file, for messages.
        options: of :func:`pandas.read_csv`.

    Raises:
        ValueError: it is none; the message begins with its name.
    """
    import pandas as pd

    try:
        return pd.read_csv(file, sep=separator, **options)
    except UnicodeDecodeError:
        raise ValueError(_explain_encoding(file, name)) from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        reason = str(error).strip().splitlines()[0].removeprefix("Error tokenizing data. C error: ")
        raise ValueError(f"{name} is no table: {reason}") from None

"""Tables of text as people have them: columns separated by tabs, commas or blanks, in files that may be zipped."""

import bz2
import codecs
import contextlib
import csv
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from parallel_epochs.pipeline.run import files, limits
from parallel_epochs.pipeline.run.errors import FileError

if TYPE_CHECKING:
    import pandas as pd

# Functions that open a zipped file, by the end of its name and by its first bytes.
OPENERS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz"}


class Unzipped(io.RawIOBase):
    """A file that is unzipped while it is read, up to a limit.

    Args:
        file: what unzips.
        name: of the file, for messages.
        bound: the largest number of bytes to unzip.
    """

    def __init__(self, file: IO[bytes], name: str, bound: int):
        self._file, self._name, self._bound = file, name, bound

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place; to go forward is to unzip what lies between."""
        return self._check(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        """Read bytes.

        Raises:
            ValueError: the file unzips to more than the limit.
        """
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        self._check(self._file.tell())
        return len(content)

    def _check(self, place: int) -> int:
        limits.check_size(f"{self._name} unpacks to", place, limits.UNPACKED, self._bound)
        return place


@contextlib.contextmanager
def open_unzipped(path: Path, bound: int | None = None) -> Iterator[IO[bytes]]:
    """Open a file for reading, and unzip what is read if it is zipped.

    Args:
        bound: the largest number of bytes to unzip. Default: what may go into memory.

    Raises:
        ValueError: it is damaged or cut short, or unzips to more bytes than that, then or while it is read.
        FileError: it cannot be read.
    """
    with files.open_file(path) as file, unzip(file, str(path), bound) as opened:
        yield opened


@contextlib.contextmanager
def unzip(file: IO[bytes], name: str, bound: int | None = None) -> Iterator[IO[bytes]]:
    """Unzip an open file if it is zipped; see :func:`open_unzipped`.

    Args:
        name: of the file, for messages.
    """
    start = file.read(6)
    file.seek(0)
    kind = next(
        (kind for magic, kind in MAGIC.items() if start.startswith(magic)), Path(name).suffix
    )
    try:
        if kind not in OPENERS:
            yield file
        else:
            bound = limits.limit_in_memory() if bound is None else bound
            yield io.BufferedReader(Unzipped(OPENERS[kind](file), name, bound))
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
def as_text(
    file: IO[bytes], name: str, newline: str | None = None, encoding: str = "utf-8-sig"
) -> Iterator[io.TextIOWrapper]:
    """Read a file as text, UTF-8 with or without a byte order mark; the file stays open.

    Args:
        name: of the file, for messages.
        newline, encoding: as of :func:`open`.

    Raises:
        ValueError: it is not UTF-8, then or while it is read.
    """
    text = io.TextIOWrapper(file, encoding, newline=newline)  # type: ignore[type-var]
    try:
        yield text
    except UnicodeDecodeError:
        raise ValueError(_explain_encoding(text.detach(), name)) from None
    text.detach()


def lines_of(text: io.TextIOWrapper, name: str) -> Iterator[str]:
    """Read a text by its lines.

    Raises:
        ValueError: a line is longer than the limit.
    """
    longest = limits.limit(limits.LINE)
    for number, line in enumerate(iter(lambda: text.readline(longest + 1), ""), start=1):
        limits.check_size(f"{name}: line {number} has", len(line), limits.LINE)
        yield line


def _explain_encoding(file: IO[bytes], name: str) -> str:
    """Say which line of a file is not UTF-8, and how to convert the file."""
    file.seek(0)
    wide = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    file.seek(0)
    where = ""
    for number, line in enumerate(file, start=1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            excerpt = line[max(error.start - 30, 0) : error.start + 10].strip()
            text = excerpt.decode("ascii", "backslashreplace")
            where = f": line {number} has the byte 0x{line[error.start]:02x} in '{text}'"
            break
    return (
        f"{name} is not UTF-8 text{where}. Unpack it if it is packed, or convert it, for example by "
        f"iconv -f {'UTF-16' if wide else 'LATIN1'} -t UTF-8"
    )


def find_head(file: IO[bytes], name: str, comments: tuple[str, ...] = ()) -> tuple[str, int]:
    """Find the first line that is neither blank nor a comment.

    Args:
        file: which is at its beginning, also afterwards.
        name: of the file, for messages.
        comments: what comments begin with.

    Returns:
        The line, empty if there is none; and the number of lines before it.

    Raises:
        ValueError: what is read is not UTF-8, or a line is longer than the limit.
    """
    found, num_before = "", 0
    with as_text(file, name) as text:
        for line in lines_of(text, name):
            if line.strip() and not line.lstrip().startswith(comments):
                found = line.rstrip("\n")
                break
            num_before += 1
    file.seek(0)
    return found, num_before


def read_names(path: Path) -> list[str]:
    """Read the names of the columns of a table of text separated by commas, its first line.

    Raises:
        ValueError: there is none, or it names a column twice, or as :func:`find_head` and :func:`open_unzipped`.
    """
    with open_unzipped(path) as file:
        names = next(csv.reader([find_head(file, str(path))[0]]), [])
    if not names:
        raise ValueError(f"{path} is empty: its first line is to name the columns")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(
            f"{path}: the first line names the column {twice!r} twice; it is to name each column once"
        )
    return names


def read_table(file: IO[bytes], name: str, separator: str, **options: object) -> "pd.DataFrame":
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
        raise ValueError(f"{name} is not a table: {reason}") from None

"""Tables of text without a schema: what separates their columns, whether cells are quoted, which other format it is."""

import csv
import io
import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from parallel_epochs.pipeline.data.columns import find_head, read_lines, read_table

if TYPE_CHECKING:
    import pandas as pd

COMMENTS = ("#", "%")
# Before the first row a per cent sign begins a comment, too; after it a node may be called so.
COMMENT = re.compile(rb"^[ \t]*#[^\r\n]*", re.MULTILINE)
HEAD_COMMENT = re.compile(rb"^[ \t]*[#%][^\r\n]*", re.MULTILINE)
LINE_END = re.compile(rb"\r\n?|\n")
BLANKS = r"\s+"
# A cell that a writer of CSV quoted.
QUOTED = re.compile(r'(^|[\t,; ])"(?:[^"]|"")*"(?=[\t,; ]|$)')
# How other formats begin, and what they are.
FORMATS = {
    rb"\s*(<\?xml|<graphml|<gexf|<!doctype|<html)": "XML or HTML",
    rb"\s*(?:(?:creator|version|comment)\b[^\n]*\n\s*)*graph\s*\[": "GML",
    rb"\s*\*(vertices|network)\b": "a Pajek file",
    rb"\s*(strict\s+)?(di)?graph\b[^\n]*\{": "DOT of Graphviz",
    rb"[^\n]*\n?#\s*GMT [^\n]*\n": "an adjacency list of networkx",
    rb"\s*(\{\s*(\"|\})|\[\s*[\[{])": "JSON",
    rb"(#[^\n]*\n|\s)*\S+[ \t,;]+\S+[ \t,;]+\{(\}|['\"]\w+['\"]:)": "an edge list of networkx with dicts",
    rb"\s*(@(prefix|base)\b|<[^>\n]*>\s+<[^>\n]*>\s)": "RDF",
    rb"%%MatrixMarket": "a MatrixMarket file, which scipy.io.mmread reads",
    rb"PAR1": "a Parquet file, which data=tables reads",
    rb"SQLite format 3": "a SQLite file",
    rb"PK\x03\x04": "a zip archive, or a table of a spreadsheet",
}
RAGGED = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


@dataclass(frozen=True)
class Dialect:
    """How a table is written.

    Attributes:
        separator: of the columns: a tab, a comma, a semicolon, or a regular expression for blanks.
        quoted: whether every cell with a quotation mark is quoted as a writer of CSV does it.
        num_before: lines before the first row.
    """

    separator: str
    quoted: bool
    num_before: int


def choose_separator(lines: list[str], least: int = 1) -> str:
    """Choose what separates the columns of lines: a tab or a comma that is in the first often enough, or blanks; or a
    semicolon that all have equally often, while blanks would not make two or three columns of each line.
    """
    plain = [QUOTED.sub(r"\1x", line.strip()) for line in lines]
    if mark := next((mark for mark in ("\t", ",") if plain[0].count(mark) >= least), None):
        return mark
    marks = {line.count(";") for line in plain}
    words = {len(re.sub(r"\s*;\s*", ";", line).split()) for line in plain}
    if len(words) == 1 and least < max(words) <= 3 and (least == 1 or len(lines) > 1):
        return BLANKS
    fits = len(marks) == 1 and (
        marks == {least} or min(marks) > least and (len(words) > 1 or max(words) <= least)
    )
    return ";" if fits else BLANKS


def sniff(
    content: bytes, name: str, *, comments: tuple[str, ...] = (), least: int = 1
) -> Dialect | None:
    """Find out how a table is written; None if it has no rows.

    Args:
        name: of the file, for messages.
        comments: what comments before the first row begin with.
        least: separators that a line has at least.

    Raises:
        ValueError: it is of another format, which the message names, or no UTF-8.
    """
    _refuse_format(content, name)
    head, num_before = find_head(io.BytesIO(content), name, comments)
    if not head:
        return None
    start = content[: 1 << 14].decode(errors="replace").splitlines()
    lines = start[num_before : -1 if len(content) > 1 << 14 else None]
    separator = choose_separator([line for line in lines[:100] if line.strip()] or [head], least)
    return Dialect(separator, _is_quoted(content, separator), num_before)


def _is_quoted(content: bytes, separator: str) -> bool:
    """Tell whether a table has quoted cells, and no other quotation mark than in them.

    Between tabs or blanks, marks that nothing asks for belong to the names, as of literals in RDF: Paris label "Paris".
    """
    if b'"' not in content:
        return False
    mark = rb"[ \t]" if separator == BLANKS else re.escape(separator.encode())
    # Without possessive repetition, one open mark takes memory for each character behind it.
    cell = re.compile(
        rb'(^|%b) *+"([^"]*+(?:""[^"]*+)*+)"(?= *+(?:%b|\r?$))' % (mark, mark), re.MULTILINE
    )
    rest = cell.sub(rb"\1", content)
    if separator in (",", ";") or b'"' in rest:
        return b'"' not in rest
    dividing = re.compile(mark + rb'|[\r\n"]')
    # R quotes every text, and no number.
    is_all = not rest.translate(None, b"\t \r\n0123456789.+-eE")
    return is_all or any(dividing.search(found[2]) for found in cell.finditer(content))


def is_number(text: object) -> bool:
    """Tell whether Python reads a text as a number."""
    try:
        float(str(text))
    except ValueError:
        return False
    return True


def strip_comments(content: bytes, num_before: int) -> bytes:
    """Make lines empty that are comments.

    Args:
        num_before: lines before the first row.
    """
    ends = islice(LINE_END.finditer(content), num_before)
    place = max((end.end() for end in ends), default=0)
    return HEAD_COMMENT.sub(b"", content[:place]) + COMMENT.sub(b"", content[place:])


def _refuse_format(content: bytes, name: str) -> None:
    """Refuse what is no table but another format of graphs."""
    start = content[: 1 << 14].removeprefix(b"\xef\xbb\xbf")
    flags = re.IGNORECASE | re.DOTALL
    kinds = (kind for begins, kind in FORMATS.items() if re.match(begins, start, flags))
    kind, first = next(kinds, None), start.partition(b"\n")[0]
    if kind is not None and (b"\0" in start or first.count(b"\t") not in (1, 2)):
        raise ValueError(
            f"{name} is {kind}, and not a table of text. Read it by networkx and give the graph to "
            "parallel_epochs.train, or write a table with a line for each edge or triple"
        )


def read_texts(content: bytes, name: str, dialect: Dialect, **options: object) -> "pd.DataFrame":
    """Read cells as texts, without blanks around them; "" is an empty cell, and NaN one that a line does not have.

    Args:
        name: of the file, for messages.
        options: of :func:`pandas.read_csv`.

    Raises:
        ValueError: lines have several lengths, or it is no UTF-8.
    """
    table = read_table(
        io.BytesIO(content),
        name,
        dialect.separator,
        header=None,
        skiprows=dialect.num_before,
        dtype=str,
        skipinitialspace=True,
        keep_default_na=False,
        quoting=csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE,
        **options,
    )
    return table if dialect.separator == BLANKS else table.apply(lambda column: column.str.rstrip())


def read_rows(path: Path, names: Collection[str]) -> list[tuple[int, list[str]]]:
    """Read rows of an id and labels, separated by what makes the most of the ids known: a tab, a comma, a semicolon or
    blanks. A cell is a list of labels if commas divide it, which separate no cells, or if it holds whole numbers alone.

    Args:
        names: the ids that are known.

    Returns:
        The number of the line, the id and the labels of each row that is no comment and not empty.

    Raises:
        ValueError: it is no UTF-8.
    """
    lines = {
        number: line
        for number, line in enumerate(read_lines(path), start=1)
        if line and not line.startswith(COMMENTS)
    }
    ways = [[_split_row(line, mark) for line in lines.values()] for mark in ("\t", ",", ";", " ")]
    known = [sum(row[0] in names for row in rows) for rows in ways]
    # Where no id is known, the separator of the most cells.
    counts = known if any(known) else [sum(map(len, rows)) for rows in ways]
    return list(zip(lines, ways[counts.index(max(counts))], strict=True))


def _split_row(line: str, mark: str) -> list[str]:
    text = line.replace("\t", " ") if mark == " " else line
    reader = csv.reader([text], delimiter=mark, skipinitialspace=True)
    first, *cells = [cell.strip() for cell in next(reader)]
    dividing = "\n" if mark == "," else ","
    parts = [part.strip() for cell in cells for part in cell.split(dividing)]
    labels = (
        part.split() if part.replace(" ", "").isdecimal() else [part] for part in parts if part
    )
    return [first, *(label for several in labels for label in several)]

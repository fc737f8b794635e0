"""Tables of text without a schema: what separates their columns, whether cells are quoted, which other format it is."""

import csv
import io
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from parallel_epochs.pipeline.data.columns import as_text, find_head, read_bytes, read_table

if TYPE_CHECKING:
    import pandas as pd

COMMENTS = ("#", "%")
# Before the first row a per cent sign begins a comment, too; after it a node may be called so.
COMMENT = re.compile(rb"^[ \t]*#[^\r\n]*", re.MULTILINE)
HEAD_COMMENT = re.compile(rb"^[ \t]*[#%][^\r\n]*", re.MULTILINE)
LINE_END = re.compile(rb"\r\n?|\n")
NUMBER = re.compile(rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|-?inf", re.IGNORECASE)
BLANKS = r"\s+"
# A cell that a writer of CSV quoted.
QUOTED = re.compile(r'(^|[\t,; ])"(?:[^"]|"")*"(?=[\t,; ]|$)')
MATRIX_MARKET = b"%%MatrixMarket"
# How other formats begin, what they are, and what reads them.
FORMATS = [
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), name, mend)
    for pattern, name, mend in (
        (
            rb"\s*(<\?xml|<graphml|<gexf|<!doctype|<html)",
            "XML or HTML",
            "networkx.read_graphml or read_gexf",
        ),
        (
            rb"\s*(?:(?:creator|version|comment)\b[^\n]*\n\s*)*graph\s*\[",
            "GML",
            "networkx.read_gml",
        ),
        (rb"\s*\*(vertices|network)\b", "a Pajek file", "networkx.read_pajek"),
        (rb"\s*(strict\s+)?(di)?graph\b[^\n]*\{", "DOT of Graphviz", "networkx.nx_pydot.read_dot"),
        (
            rb"\s*(>>)?(graph6|sparse6|digraph6)<<",
            "graph6 or sparse6",
            "networkx.read_graph6 or read_sparse6",
        ),
        (rb"\s*LEDA\.GRAPH", "LEDA", "networkx.read_leda"),
        (rb"\s*nodedef>", "GDF", ""),
        (rb"\s*dl\s+n\s*=", "DL of UCINET", ""),
        (rb"(c[^\n]*\n)*p\s+(edge|col|sp|max)\s+\d+\s+\d+\s*\n", "a DIMACS file", ""),
        (rb"[^\n]*\n?#\s*GMT [^\n]*\n", "an adjacency list of networkx", "networkx.read_adjlist"),
        (rb"\s*(\{\s*(\"|\})|\[\s*[\[{])", "JSON", "networkx.node_link_graph"),
        (
            rb"(#[^\n]*\n|\s)*\S+[ \t,;]+\S+[ \t,;]+\{(\}|['\"]\w+['\"]:)",
            "an edge list of networkx with dicts",
            "networkx.read_edgelist",
        ),
        (rb"\s*@(prefix|base)\b", "Turtle", "rdflib"),
        (
            rb"(#[^\n]*\n|\s)*(<[^>\n]*>|_:\S+)\s+<[^>\n]*>\s+[^\n]*\.\s*(\n|$)",
            "N-Triples",
            "rdflib",
        ),
        (rb"PAR1", "a Parquet file", "data=tables"),
        (rb"\x89HDF", "an HDF5 file", ""),
        (rb"SQLite format 3", "a SQLite file", "data=tables"),
        (rb"PK\x03\x04", "a zip archive, or a table of a spreadsheet", ""),
        (rb"\x80[\x02-\x05]", "a pickle", ""),
    )
]
# The numbers of nodes and of edges, and perhaps whether lines hold weights.
METIS_HEAD = re.compile(
    rb"(?:[ \t]*%[^\n]*\n)*[ \t]*(\d{1,12})[ \t]+(\d{1,12})(?:[ \t]+(0{1,3}|0{0,2}1))?[ \t]*(?:\r?\n|$)"
)
STATEMENT = re.compile(rb"[\s>\"]\.\s*$")
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
    marks, words = (
        {line.count(";") for line in plain},
        {len(re.sub(r"\s*;\s*", ";", line).split()) for line in plain},
    )
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
    refuse_format(content, name)
    head, num_before = find_head(io.BytesIO(content), name, comments)
    if not head:
        return None
    lines = (
        content[: 1 << 14]
        .decode(errors="replace")
        .splitlines()[num_before : -1 if len(content) > 1 << 14 else None]
    )
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
    return _needs_quotes(cell, content, mark) or _quotes_texts(rest, content, mark)


def _needs_quotes(cell: re.Pattern[bytes], content: bytes, mark: bytes) -> bool:
    """Tell whether a quoted cell holds a mark or what separates cells or lines, or each has blanks around or is empty."""
    dividing, each = re.compile(mark + rb'|[\r\n"]'), True
    for found in cell.finditer(content):
        inner = found[2]
        if dividing.search(inner):
            return True
        each = each and (inner != inner.strip() or not inner)
    return each


def _quotes_texts(rest: bytes, content: bytes, mark: bytes) -> bool:
    """Tell whether what is left beside the quoted cells are numbers, and perhaps a header."""
    rest, content = (
        HEAD_COMMENT.sub(b"", text).lstrip(b"\xef\xbb\xbf\r\n") for text in (rest, content)
    )
    first, _, others = content.partition(b"\n")
    if b'"' not in first:
        rest = others and rest.partition(b"\n")[2]
    cells = re.compile(rb"(?:(?!%b)[^\r\n])++" % mark)
    return all(
        NUMBER.fullmatch(text) for found in cells.finditer(rest) if (text := found[0].strip())
    )


def is_number(text: object) -> bool:
    """Tell whether Python reads a text as a number."""
    try:
        float(str(text))
    except ValueError:
        return False
    return True


def strip_comments(content: bytes, num_before: int) -> tuple[bytes, int]:
    """Make lines empty that are comments; returns their number, too.

    Args:
        num_before: lines before the first row.
    """
    ends = islice(LINE_END.finditer(content), num_before)
    place = max((end.end() for end in ends), default=0)
    head, num_head = HEAD_COMMENT.subn(b"", content[:place])
    rows, num_rows = COMMENT.subn(b"", content[place:])
    return head + rows, num_head + num_rows


def refuse_format(content: bytes, name: str) -> None:
    """Refuse what is no table but another format of graphs.

    Raises:
        ValueError: names the format, and what reads it.
    """
    start = content[: 1 << 14].removeprefix(b"\xef\xbb\xbf")
    found = next(
        ((kind, reader) for pattern, kind, reader in FORMATS if pattern.match(start)), None
    )
    if found is not None and _has_cells(start):
        return
    if start.startswith(MATRIX_MARKET):
        found = "a MatrixMarket file", "data=edges"
    elif found is None and _is_metis(content):
        found = "a METIS graph, whose lines are the neighbours of a node", ""
    if found is not None:
        kind, reader = found
        if name.endswith(".zip") and start.startswith(b"PK"):
            raise ValueError(f"{name} is a zip archive: unpack it")
        mend = (
            f"Read it by {reader}, give the graph to parallel_epochs.train, or"
            if reader.startswith("networkx")
            else f"Read it by {reader}, or"
            if reader
            else "To read it,"
        )
        raise ValueError(
            f"{name} is {kind}, and not a table of text. {mend} write a table with a line for each edge "
            "or triple"
        )


def _is_metis(content: bytes) -> bool:
    """Tell whether the first line holds the numbers of nodes and of edges, and each node has a line of neighbours."""
    found = METIS_HEAD.match(content)
    if found is None:
        return False
    num_nodes, num_edges, step = (
        int(found[1]),
        int(found[2]),
        2 if found[3] and int(found[3]) else 1,
    )
    if content.count(b"\n", found.end()) < num_nodes - 1:
        return False
    body = [
        line for line in content[found.end() :].splitlines() if not line.lstrip().startswith(b"%")
    ]
    while len(body) > num_nodes and not body[-1].strip():
        body.pop()
    rows = [line.split() for line in body]
    if not len(rows) == num_nodes > 0 or sum(map(len, rows)) != 2 * step * num_edges:
        return False
    names = [str(number).encode() for number in range(1, num_nodes + 1)]
    links = {
        (name, *row[place : place + step])
        for name, row in zip(names, rows, strict=True)
        for place in range(0, len(row), step)
    }
    return all(
        source != target and (target, source, *weight) in links for source, target, *weight in links
    )


def _has_cells(start: bytes) -> bool:
    """Tell whether the first lines are two or three cells between tabs, and no statements that end in a full stop."""
    if b"\0" in start:
        return False
    lines = [
        line
        for line in start.splitlines()[: 20 if len(start) < 1 << 14 else -1][:20]
        if line.strip() and not line.lstrip().startswith((b"#", b"%"))
    ]
    return (
        bool(lines)
        and all(line.strip(b" ").count(b"\t") in (1, 2) for line in lines)
        and not all(STATEMENT.search(line) for line in lines)
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
        quoting=0 if dialect.quoted else 3,
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
        ValueError: it is of another format, or no UTF-8.
    """
    content = read_bytes(path)
    if (dialect := sniff(content, str(path), comments=COMMENTS)) is None:
        return []
    with as_text(io.BytesIO(strip_comments(content, dialect.num_before)[0]), str(path)) as file:
        text = file.read()
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    found = [
        dict(_split_rows(text, mark, _is_quoted(content, mark), dialect.num_before))
        for mark in ("\t", ",", ";", BLANKS)
        if mark == BLANKS or mark in text
    ]
    found.sort(key=lambda rows: -sum(cells[0] in names for cells in rows.values()))
    # A line that the best one does not divide may be separated by another.
    return [
        (number, next((rows[number] for rows in found if len(rows.get(number, ())) > 1), cells))
        for number, cells in found[0].items()
    ]


def _split_rows(
    text: str, mark: str, quoted: bool, num_before: int
) -> Iterator[tuple[int, list[str]]]:
    lines = io.StringIO(text.replace("\t", " ") if mark == BLANKS else text, newline="")
    reader = csv.reader(
        lines,
        delimiter=" " if mark == BLANKS else mark,
        skipinitialspace=True,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
    )
    for row in reader:
        first, *cells = [cell.strip() for cell in row] or [""]
        parts = [
            part.strip() for cell in cells for part in ([cell] if mark == "," else cell.split(","))
        ]
        labels = [
            label
            for part in parts
            for label in (part.split() if part.replace(" ", "").isdecimal() else [part])
        ]
        if reader.line_num > num_before and (first or labels):
            yield reader.line_num, [first, *(label for label in labels if label)]

"""Guesses a schema from a folder of tables: kinds of columns, columns of ids, and columns that name rows of others."""

import codecs
import functools
import itertools
import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from parallel_epochs.pipeline.data.columns import open_unzipped
from parallel_epochs.pipeline.data.tables import heads
from parallel_epochs.pipeline.data.tables.source import Source, cast_time, is_nested, open_source
from parallel_epochs.pipeline.data.tables.sql import Database, literal, quote
from parallel_epochs.pipeline.names import SPLIT_NAMES
from parallel_epochs.pipeline.run.words import count, listed

# The end of the name of a column of ids, and names of the ends of edges.
ID = re.compile(r"(?:[_\s-]|^|(?<=[a-z])(?=[A-Z]))(?i:ids?|keys?|codes?|uuid|ref|nr|no)$")
ENDS = re.compile(
    r"source|target|src|dst|from|to|head|tail|parent|child|sender|receiver", re.IGNORECASE
)
FILLERS = {"table", "tbl", "dim", "fact", "dataset", "data"}
# Parts of the cells: different ones in a column of ids; known ids in a column with a name that is alike, or is not.
UNIQUE, ALIKE, OTHERS = 0.95, 0.5, 0.9
MOST_CATEGORIES, FEWEST_WORDS = 256, 2.5
# Rows, about, that choose how numbers and dates are written.
SAMPLE = 10_000
# More whole numbers than these are values to predict, and no classes.
MOST_CLASSES = 50
KINDS = {
    "features": "numbers",
    "dates": "dates",
    "categories": "few different values",
    "text": "prose",
    "text_chars": "names",
    "text_tags": "tags",
}


# How numbers and dates may be written, beside the usual way.
NUMBERS: list[dict[str, str]] = [
    {},
    {"thousands": ","},
    {"decimal_separator": ","},
    {"decimal_separator": ",", "thousands": "."},
    {"thousands": "'"},
    {"decimal_separator": ",", "thousands": " "},
]
DATES: list[dict[str, str]] = [
    {},
    *({"dateformat": form} for form in ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y")),
]
# The fields of a column, behind its name: which key reads it, whether it has few different values, whether all cells are
# whole numbers, and what these cells are. An amount is a number or money with marks between its digits. A number that
# begins with 0 is a code.
COUNTS = rf"""SELECT CASE
    WHEN filled = 0 THEN 'is empty'
    WHEN different = 1 THEN 'has the same value in every row'
    WHEN numbers = filled AND codes = 0 THEN 'features'
    WHEN dates = filled THEN 'dates'
    WHEN amounts = filled AND amount <> '' THEN 'holds numbers such as ' || amount ||
        '. They are read if all columns write numbers alike, without other signs'
    WHEN tagged * 4 > filled THEN 'text_tags'
    WHEN words >= {FEWEST_WORDS} THEN 'text'
    WHEN is_few THEN 'categories'
    WHEN codes > 0 THEN 'text_tags'
    WHEN different <= {UNIQUE} * filled THEN 'text_chars'
    ELSE 'has another value in almost every row' END,
    is_few, filled > 0 AND whole = filled, filled, different, is_text, filled = whole,
    coalesce(least, 0) >= 0 AND coalesce(most, 0) > 100 * greatest(coalesce(middle, 0), 1),
    filled > 0 AND (whole = filled OR is_text AND words < {FEWEST_WORDS}), filled > 0 AND splits = filled
FROM (SELECT *, (numbers < filled OR codes > 0) AND dates < filled AS is_text,
    different <= least({MOST_CATEGORIES}, greatest({{num_rows}} // 4, 2)) AS is_few
FROM (SELECT count(c) AS filled, count(DISTINCT c) AS different, count(*) FILTER (isfinite(x)) AS numbers,
    count(*) FILTER (regexp_full_match(c, '[-+]?[0-9]{{{{1,18}}}}')) AS whole,
    count(d) AS dates, count(*) FILTER (regexp_full_match(c, '0[0-9]+')) AS codes,
    count(*) FILTER (lower(trim(c)) IN ({", ".join(map(literal, SPLIT_NAMES))})) AS splits,
    count(*) FILTER (contains(c, '|')) AS tagged,
    avg(len(string_split_regex(trim(c), '\s+'))) AS words, min(x) AS least, median(x) AS middle, max(x) AS most,
    count(*) FILTER (regexp_full_match(trim(c),
        '[-+]?[$€£]?\s?[0-9]+([.,][0-9]{{{{3}}}})*([.,][0-9]+)?\s?[$€£]?')) AS amounts,
    min(c) FILTER (x IS NULL) AS amount
FROM (SELECT {{cell}} AS c, {{number}} AS x, {{date}} AS d FROM {{table}})))"""


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        kind: the key that reads it, as KINDS has them; or a sentence that says why nothing does.
        filled, distinct: its cells that are not empty, and different ones.
        is_text, is_whole: whether some are no numbers, or all are whole numbers.
        is_skewed: whether the largest number is over 100 times the median, and none is negative.
        may_be_id: whether its cells could be ids: whole numbers, or texts of few words.
        is_split: whether its cells are names of splits.
    """

    name: str
    kind: str
    filled: int
    distinct: int
    is_text: bool
    is_whole: bool
    is_skewed: bool
    may_be_id: bool
    is_split: bool


@dataclass
class Table:
    """A table.

    Attributes:
        file: its name in the folder.
        csv: how it is written, where this is not the usual way.
        id: the column of its ids; none if there is none.
        links: the columns that name rows of others: each with the table, and the part of its values that is there.
    """

    name: str
    file: str
    num_rows: int
    columns: dict[str, Column]
    csv: dict[str, str]
    id: str | None = None
    links: dict[str, tuple[str, float]] = field(default_factory=dict)

    @property
    def noun(self) -> str:
        """Return what one row is, as its name says it: customer for dim_customers."""
        return _singular(
            "_".join(word for word in re.split(r"[\W_]+", self.name.lower()) if word not in FILLERS)
        )

    def is_meant(self, column: str) -> bool:
        """Tell whether the name of a column is that of this table, as in customer_id or customerid."""
        return _noun(column) in (self.noun, f"{self.noun}id")

    def choose_id(self) -> str | None:
        """Choose the column of ids by its name and its values: each row has another one."""
        ranks = {"": 0}
        for place, column in enumerate(self.columns.values()):
            if (
                column.may_be_id
                and column.filled == self.num_rows
                and not ENDS.fullmatch(column.name)
                and (column.distinct >= UNIQUE * self.num_rows)
            ):
                is_first = place == 0 and column.distinct == self.num_rows
                ranks[column.name] = (
                    3
                    if self.is_meant(column.name) or not _noun(column.name)
                    else (2 if ID.search(column.name) else column.is_text or is_first)
                )
        best = max(ranks, key=lambda name: ranks[name])
        return best or None

    def likeness(self, column: Column) -> int:
        """Tell how much the name of a column says that it holds ids of this table, from 0 (nothing) to 3 (all)."""
        noun = _noun(column.name)
        if self.id is None or not column.may_be_id:
            return 0
        if self.is_meant(column.name):
            return 3
        if noun and (
            column.name.lower() == self.id.lower()
            or noun.endswith(f"_{self.noun}")
            or self.noun.endswith(f"_{noun}")
        ):
            return 2
        return int(column.is_text or ENDS.fullmatch(ID.sub("", column.name)) is not None)


@dataclass
class Guess:
    """A guess of what the tables of a folder are.

    Attributes:
        schema: in YAML, with comments.
        labels: columns that may be labels, as TABLE.COLUMN, those with few different values first.
        keys: of the configuration, which the schema needs.
    """

    schema: str
    labels: list[str]
    keys: dict[str, str]


def guess(folder: str | Path, label: str | None) -> Guess:
    """Guess what the tables in a folder are.

    Args:
        folder: with files of CSV, TSV or Parquet, one table each.
        label: TABLE.COLUMN of the labels; none without labels.

    Raises:
        ValueError: there are no tables, no table names rows of another, a column fits several tables, or the label is
            not there. The message names the candidates.
    """
    folder = Path(folder).expanduser()
    paths = heads.members(folder) if folder.is_dir() else []
    if not paths:
        raise ValueError(
            f"{folder} is not a folder with tables: files that end in {', '.join(heads.SUFFIXES)}"
        )
    if twice := [
        path.name for path in paths if [_stem(other) for other in paths].count(_stem(path)) > 1
    ]:
        raise ValueError(f"{folder}: {listed(twice)} are tables of the same name. Keep one of them")
    stamp = tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    tables = _read(stamp)
    if not any(table.links for table in tables):
        raise ValueError(
            f"{folder}: no column names rows of another table, and a graph needs edges. Columns of ids "
            f"are {', '.join(f'{table.name}.{table.id}' for table in tables if table.id) or 'none'}. Ids must be "
            "written alike: 007 and 7 are two"
        )
    known = {
        f"{table.name}.{column.name}": (table, column)
        for table in tables
        for column in table.columns.values()
        if column.name != table.id and column.name not in table.links
    }
    labels = sorted(
        (name for name, (_, own) in known.items() if own.kind in ("categories", "features")),
        key=lambda name: known[name][1].distinct,
    )
    if label is not None and label not in known:
        raise ValueError(
            f"label={label} is no column to predict; choose TABLE.COLUMN, as in {', '.join(labels)}"
        )
    own, column = known[label] if label is not None else (None, None)
    if own is not None and own.id is None and len(own.links) != 2:
        raise ValueError(
            f"label={label}: {own.file} has no column of ids that names each row once, and is no table of "
            "edges with two ends. Add a column of ids"
        )
    text, repeats = _write(folder, tables, own, column)
    values = column is not None and column.is_whole and column.distinct > MOST_CLASSES
    needed = {"task": "edge"} if own is not None and own.id is None else {}
    return Guess(
        text,
        labels,
        needed
        | ({"data.metric": "rmse"} if values else {})
        | ({"data.duplicates": "first"} if repeats else {}),
    )


@functools.lru_cache(maxsize=4)
def _read(stamp: tuple[tuple[Path, int, int], ...]) -> list[Table]:
    """Read the tables. The stamp of the files, their sizes and times, says whether they are those of before."""
    with (
        tempfile.TemporaryDirectory() as work,
        Database(Path(work), [part for path, *_ in stamp for part in heads.members(path)]) as db,
    ):
        tables = [_profile(db, place, path) for place, (path, *_) in enumerate(stamp)]
        for table in tables:
            table.id = table.choose_id()
        for are_ids in (True, False):
            for place, table in enumerate(tables):
                for column in table.columns.values():
                    if (column.name == table.id) == are_ids:
                        _link(db, tables, place, column)
    for table in tables:
        if table.id in table.links and len(table.columns) == 2:  # a tag of each item, say
            table.id = None
    return tables


def _profile(db: Database, place: int, path: Path) -> Table:
    """Count the cells of a table, which the database keeps as texts."""
    csv = _sniff(heads.members(path))
    source = open_source(db, f"table {path.name}", path, csv)
    lists = [name for name, kind in source.columns.items() if is_nested(kind)]
    cells = [
        f"{'NULL' if name in lists else source.text(name)} AS {quote(name)}"
        for name in source.columns
    ]
    db.stage(f"t{place}", f"SELECT {', '.join(cells)} FROM {source.relation}", "reading the tables")
    ((num_rows,),) = db.execute(f"SELECT count(*) FROM t{place}", "counting rows")
    columns = {}
    texts = replace(source, columns=dict.fromkeys(source.columns, "VARCHAR"))
    if source.csv is csv:  # a file of text
        for read, ways in ((_number, NUMBERS), (_date, DATES)):
            texts.csv = csv = csv | _choose(texts, f"t{place}", num_rows, read, ways)
    for name in source.columns:
        query = COUNTS.format(
            cell=quote(name),
            table=f"t{place}",
            num_rows=num_rows,
            number=_number(texts, name),
            date=_date(texts, name),
        )
        (found,) = db.execute(query, "counting cells")
        kind, is_few, is_id, *counts = found
        if name in lists:
            kind = "holds lists"
        elif is_id and ID.search(name):
            kind = "categories" if is_few else "holds ids of no table that is here"
        columns[name] = Column(name, kind, *counts)
    return Table(_stem(path), path.name, num_rows, columns, csv)


def _number(source: Source, column: str) -> str:
    return source.number("features", column)


def _date(source: Source, column: str) -> str:
    return cast_time(source.dated(column))


def _choose(
    source: Source,
    table: str,
    num_rows: int,
    read: Callable[[Source, str], str],
    ways: list[dict[str, str]],
) -> dict[str, str]:
    """Choose the way of writing by which the most columns are read in every cell, the first of equal ones.

    All rows read no more columns than some of them do, so that few ways are tried with all.
    """

    def num_read(way: dict[str, str], step: int = 1) -> int:
        own = replace(source, csv=way)
        cells = " + ".join(
            f"(count({quote(name)}) > 0 AND count({read(own, name)}) = count({quote(name)}))::INTEGER"
            for name in source.columns
        )
        return source.db.execute(f"SELECT {cells} FROM {table} WHERE rowid % {step} = 0")[0][0]

    found = [num_read(way, num_rows // SAMPLE + 1) for way in ways]
    for way, num in zip(ways, found, strict=True):
        if num == max(found) and (not num or num_read(way) == num):
            return way
    return max(ways, key=num_read)


def _sniff(paths: list[Path]) -> dict[str, str]:
    """Find out what separates the columns of files of text, and whether they are UTF-8."""
    csv = dict[str, str]()
    for path in paths if paths[0].suffix != ".parquet" else ():
        decoder = codecs.getincrementaldecoder("utf-8")()
        with open_unzipped(path) as file:
            head = file.readline(1 << 16)
            try:
                for part in itertools.chain([head], iter(lambda: file.read(1 << 20), b"")):
                    decoder.decode(part)
            except UnicodeDecodeError:
                csv["encoding"] = "latin-1"
        line = head.decode("latin-1")
        mark = max(heads.MARKS, key=line.count)
        if heads.separator_of(path, {}) not in line and mark in line:
            csv["delim"] = mark
    return csv


def _link(db: Database, tables: list[Table], place: int, column: Column) -> None:
    """Find the table whose rows a column names, by its name and its values.

    Args:
        place: of the column's table.

    Raises:
        ValueError: it fits several tables; names them.
    """
    table, found = tables[place], dict[str, tuple[int, float]]()
    parts = {
        other.name for other in tables if other.id in other.links
    }  # their ids are another table's
    for number, other in enumerate(tables):
        is_own = column.name == table.id and (
            other is table
            or table.is_meant(column.name)
            or not _noun(column.name)
            or table.name in (name for name, _ in other.links.values())
            or len(other.columns) < len(table.columns)
        )
        likeness = other.likeness(column)
        if is_own or not likeness:
            continue
        known, num = _count_known(
            db, f"t{place}", quote(column.name), f"t{number}", quote(str(other.id))
        )
        least = 1.0 if column.name == table.id else ALIKE if likeness > 1 else OTHERS
        if num and known >= least * num:
            found[other.name] = likeness, known / num
    best = [name for name, (likeness, _) in found.items() if likeness == max(found.values())[0]]
    best = [name for name in best if name not in parts] or best
    if len(best) > 1:
        raise ValueError(
            f"{table.file}: the values of {column.name} are ids of {listed(best)}. Give the column a name "
            f"that says which, as {best[0]}_id does"
        )
    if best:
        table.links[column.name] = best[0], found[best[0]][1]


def _count_known(db: Database, table: str, column: str, other: str, ids: str) -> tuple[int, int]:
    """Count the different values of a column that another holds, and all of them."""
    ((known, num),) = db.execute(
        f"SELECT count(b.id), count(*) FROM (SELECT DISTINCT {column} AS id FROM {table} WHERE {column} IS NOT NULL) a "
        f"LEFT JOIN (SELECT DISTINCT {ids} AS id FROM {other}) b USING (id)",
        "comparing ids",
    )
    return known, num


def _write(
    folder: Path, tables: list[Table], own: Table | None, label: Column | None
) -> tuple[str, bool]:
    """Write the schema, and tell whether a column of ids names some rows twice.

    Args:
        own: the table of the label.
    """
    named = {name for table in tables for name, _ in table.links.values()}
    notes, nodes, edges, repeats = list[str](), ["nodes:"], ["edges:"], False
    for table in tables:
        ends = [(column, *found) for column, found in table.links.items()]
        if (
            len(ends) == 1 and table.id is None
        ):  # the other end may be values that no table describes
            other = next(
                (
                    own
                    for own in table.columns.values()
                    if own.name not in table.links
                    and own.may_be_id
                    and 1 < own.distinct <= table.num_rows / 2
                ),
                None,
            )
            if other is not None:
                ends.append((other.name, ID.sub("", other.name) or table.name, 1.0))
                nodes.append(
                    f"  {_name(ends[1][1])}: {{}}  # the values of {_escape(other.name)} in "
                    f"{_escape(table.file)}"
                )
        start = [f"    path: {_name(table.file)}"]
        if table.csv:
            start.append(f"    csv: {json.dumps(table.csv)}  # how the file is written")
        if len(ends) == 2 and table.name not in named and (table.id is None or table is not own):
            edges += [
                f"  {_name(table.name)}:",
                *start,
                *map(_write_end, ("source", "target"), *zip(*ends)),
                *_write_columns(table, {name for name, *_ in ends}, own, label, is_edges=True),
            ]
        elif table.id is None or not ends and table.name not in named:
            why = (
                "has no column of ids that names each row once"
                if table.id is None
                else "is linked to no table"
            )
            notes.append(f"# {_escape(table.file)} is left out: it {why}.")
        else:
            num_ids = table.columns[table.id].distinct
            repeats |= num_ids < table.num_rows
            nodes += [
                f"  {_name(table.name)}:",
                *start,
                f"    id: {_name(table.id)}  # {num_ids:,} different ones in "
                f"{count(table.num_rows, 'row')}"
                + "; data.duplicates=first keeps the first row of each"
                * (num_ids < table.num_rows),
                *_write_columns(table, {table.id, *table.links}, own, label, is_edges=False),
            ]
            for end in ends:
                edges += [
                    f"  {_name(f'{table.name}_{end[0]}')}:",
                    *start,
                    _write_end("source", table.id, table.name, 1.0),
                    _write_end("target", *end),
                ]
    return "\n".join(
        [
            f"# A guess of parallel-epochs init from the tables in {_escape(folder.absolute().name)}. "
            "Correct what is wrong.",
            "# docs/tables.md and docs/typed.md describe the keys.",
            *notes,
            *nodes,
            *edges,
            "",
        ]
    ), repeats


def _write_columns(
    table: Table, ids: set[str], own: Table | None, label: Column | None, *, is_edges: bool
) -> list[str]:
    """Write the keys of a table's columns but for those of ids."""
    found, left, has_label = dict[str, list[str]](), [], table is own and label is not None
    readable = (
        {"features", "dates", *(("categories", "text") if has_label else ())}
        if is_edges
        else KINDS.keys()
    )
    splits = [
        name for name, own in table.columns.items() if own.is_split and name.lower() == "split"
    ]
    if not has_label and not (is_edges and label is None):
        splits = []
    for column in table.columns.values():
        if column.name in ids or has_label and column is label or column.name in splits:
            continue
        why = (
            "has the name of the label"
            if label is not None and column.name == label.name
            else (
                "has a name with ${, which a schema cannot hold"
                if "${" in column.name
                else "names edges"
                if column.name == table.id
                else column.kind
                if column.kind not in KINDS
                else f"holds {KINDS[column.kind]}, which edges do not read"
                if column.kind not in readable
                else ""
            )
        )
        found.setdefault("left" if why else column.kind, []).append(column.name)
        left += [f"    # {_escape(column.name)} is left out: it {why}"] * bool(why)
    lines = [f"    {key}: {_list(found[key])}  # {KINDS[key]}" for key in KINDS if key in found]
    if skewed := [name for name in found.get("features", []) if table.columns[name].is_skewed]:
        lines.append(
            f"    log1p: {_list(skewed)}  # the largest value is over 100 times the median"
        )
    lines += ["    standardize: true"] * ("features" in found or "dates" in found)
    if has_label and label is not None:
        lines.append(
            f"    label: {_name(label.name)}  # {label.distinct:,} different ones in "
            f"{count(label.filled, 'row')} of {table.num_rows:,}"
        )
    lines += [f"    split_column: {_name(name)}  # train, valid and test" for name in splits[:1]]
    if is_edges and len(found.get("dates", [])) == 1:
        lines.append(f"    time: {_name(found['dates'][0])}  # for task=link data.split=time")
    return lines + left


def _write_end(end: str, column: str, kind: str, share: float) -> str:
    known = (
        ""
        if share == 1
        else f"  # {100 * share:.4g} % of its values are ids there; other rows are left out"
    )
    return f"    {end}: {{type: {_name(kind)}, column: {_name(column)}}}{known}"


def _name(text: str) -> str:
    """Write a name in YAML, quoted where YAML would read something else."""
    is_plain = re.fullmatch(
        r"[A-Za-z_][\w.-]*( [\w.-]+)*", text, re.ASCII
    ) and text.lower() not in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    return text if is_plain else _escape(json.dumps(text, ensure_ascii=False))


def _escape(text: str) -> str:
    """Write a text in one line of YAML, which may be a comment."""
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in text)


def _list(names: list[str]) -> str:
    return f"[{', '.join(map(_name, names))}]"


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[0]


def _singular(noun: str) -> str:
    return re.sub(r"(ies|y|sses|ss|es|e|s)$", "", noun)


def _noun(column: str) -> str:
    """Return what a column of ids names: customer for customer_id or customerId, nothing for id."""
    return _singular(ID.sub("", column).lower())

"""Files of tables, and the names of their columns, which are checked before torch or DuckDB is imported."""

import csv
from collections.abc import Iterable
from pathlib import Path

from parallel_epochs.pipeline.data.columns import as_text, lines_of, open_unzipped
from parallel_epochs.pipeline.run import limits

SEPARATORS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")


def check(key: str, path: Path, named: list[tuple[str, str]]) -> None:
    """Refuse columns that a table does not have. Those of DuckDB and SQLite files are looked at when they are read.

    Args:
        key: of the table, "data.nodes" or "data.edges".
        named: the columns that are read, each with the key that names it.

    Raises:
        ValueError: names the key, the table and the columns that it has.
    """
    paths = members(path)
    if len(paths) == 1 and not paths[0].name.endswith(SUFFIXES):
        return
    first = expand(key, path)[0]
    columns = _parquet_columns(first) if first.suffix == ".parquet" else read_head(first, separator_of(first))
    for option, column in named:
        require(option, column, str(path), columns)


def require(key: str, column: str, name: str, columns: Iterable[str]) -> None:
    """Refuse a column that a table does not have.

    Args:
        key: which names the column.
        name: of the table.
        columns: that it has.

    Raises:
        ValueError: names the key, and the columns that are there.
    """
    if column not in columns:
        raise ValueError(f"{key}={column}: {name} has no such column; there are {', '.join(columns)}")


def _parquet_columns(path: Path) -> list[str]:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.read_schema(path).names
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} is no Parquet file that can be read: {error}") from None


def members(path: Path) -> list[Path]:
    """Return the files that a path means, in the order of their names."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    return [path] if path.exists() else sorted(path.parent.glob(path.name))


def expand(key: str, path: Path) -> list[Path]:
    """Return the files that a path means, which are all of one kind.

    Raises:
        ValueError: there is none, or there are several kinds.
    """
    paths = members(path)
    if not paths:
        raise ValueError(f"{key}.path={path} holds no table: there is no file that ends in {', '.join(SUFFIXES)}")
    kinds = {_suffix(path) for path in paths}
    if len(kinds) > 1:
        raise ValueError(f"{key}.path={path} holds files of several kinds, {' and '.join(sorted(kinds))}: give a "
                         f"pattern, as in {path / '*'}{sorted(kinds)[0]}")
    return paths


def _suffix(path: Path) -> str:
    return next((suffix for suffix in reversed(SUFFIXES) if path.name.endswith(suffix)), path.suffix)


def separator_of(path: Path) -> str:
    """Return what separates the columns of a table of text."""
    return SEPARATORS[path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix]


def read_head(path: Path, separator: str) -> list[str]:
    """Read the names of the columns of a table of text, its first line.

    Raises:
        ValueError: it is no text of UTF-8, or the line names no columns, or one of them twice.
    """
    try:
        with open_unzipped(path) as file, as_text(file, str(path), newline="") as text:
            names = next(csv.reader(lines_of(text, str(path)), delimiter=separator), [])
    except csv.Error as error:
        raise ValueError(f"{path} is no table of text: {error}") from None
    limits.check_columns(str(path), len(names))
    if not names:
        raise ValueError(f"{path} is empty: its first line is to name the columns")
    if len(set(names)) < len(names) or "" in names:
        wrong = next(name for name in names if name == "" or names.count(name) > 1)
        raise ValueError(f"{path}: the first line names the column {wrong!r} " + (
            "twice" if wrong else "without a name") + "; it is to name each column once")
    return names

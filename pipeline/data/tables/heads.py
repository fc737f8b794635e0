"""Files of tables, and the names of their columns, which are checked before torch is imported."""

from collections.abc import Iterable, Mapping
from csv import Error, reader
from pathlib import Path

from parallel_epochs.pipeline.data.columns import as_text, lines_of, open_unzipped
from parallel_epochs.pipeline.run import files, limits

# One of these separates columns.
MARKS = (",", ";", "\t", "|")
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")


def check(
    key: str,
    path: Path,
    named: list[tuple[str, str]],
    csv: Mapping[str, str] | None = None,
) -> None:
    """Refuse columns that a table does not have.

    Args:
        key: of the table, "data.nodes" or "data.edges".
        named: the columns that are read, each with the key that names it.
        csv: how a file of text is written.

    Raises:
        ValueError: names the key, the table and the columns that it has.
    """
    first = expand(key, path)[0]
    if first.suffix == ".parquet":
        columns = _parquet_columns(first)
    else:
        columns = read_head(first, csv or {})
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
        raise ValueError(
            f"{key}={column}: {name} has no such column; there are {', '.join(columns)}"
        )


def _parquet_columns(path: Path) -> list[str]:
    import pyarrow
    from pyarrow import parquet

    try:
        with files.open_file(path) as file:
            names = parquet.read_schema(file).names
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} is no Parquet file that can be read: {error}") from None
    _check_names(path, names)
    return names


def members(path: Path) -> list[Path]:
    """Return the files that a path means, in the order of their names."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    return [path] if path.exists() else sorted(path.parent.glob(path.name))


def expand(key: str, path: Path) -> list[Path]:
    """Return the files that a path means, which are all of one kind.

    Raises:
        ValueError: there is none, there are several kinds, or the kind is unknown.
    """
    paths = members(path)
    if not paths:
        raise ValueError(
            f"{path} holds no table: there is no file that ends in {', '.join(SUFFIXES)} ({key})"
        )
    if not paths[0].name.endswith(SUFFIXES):
        raise ValueError(
            f"{paths[0]} is no table that can be read: its name ends in none of {', '.join(SUFFIXES)}. Write "
            f"the tables of a database as files of Parquet ({key})"
        )
    kinds = {next(filter(path.name.endswith, SUFFIXES), path.suffix) for path in paths}
    if len(kinds) > 1:
        raise ValueError(
            f"{key}.path={path} holds files of several kinds, {' and '.join(sorted(kinds))}: give a "
            f"pattern, as in {path / '*'}{sorted(kinds)[0]}"
        )
    return paths


def separator_of(path: Path, csv: Mapping[str, str]) -> str:
    """Return what separates the columns of a table of text."""
    return csv.get("delim", "\t" if ".tsv" in path.suffixes[-2:] else ",")


def read_head(path: Path, csv: Mapping[str, str]) -> list[str]:
    """Read the names of the columns of a table of text, its first line.

    Args:
        csv: how it is written.

    Raises:
        ValueError: it is no text, or the line names no columns, or one of them twice.
    """
    separator, encoding = separator_of(path, csv), csv.get("encoding", "utf-8-sig")
    try:
        with (
            open_unzipped(path) as file,
            as_text(file, str(path), newline="", encoding=encoding) as text,
        ):
            names = next(reader(lines_of(text, str(path)), delimiter=separator), [])
    except (Error, TypeError, LookupError) as error:
        raise ValueError(f"{path} is no table of text: {error}") from None
    if not names:
        raise ValueError(f"{path} is empty: its first line is to name the columns")
    _check_names(path, names)
    return names


def _check_names(path: Path, names: list[str]) -> None:
    """Refuse names of columns that DuckDB would not tell apart, or that nobody can name."""
    limits.check_columns(str(path), len(names))
    if len(names) == 1 and (mark := next((mark for mark in MARKS if mark in names[0]), None)):
        raise ValueError(
            f"{path}: the first line is {names[0][:60]!r}, one column. If {mark!r} separates columns, say "
            f"so by the key csv of the table: csv={{delim: {mark!r}}}"
        )
    if "" in names:
        raise ValueError(
            f"{path}: the first line names the column '' without a name; it is to name each column once"
        )
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise ValueError(
                f"{path}: the columns {other!r} and {name!r} differ only by case, and data=tables reads "
                "them as one: rename one of them"
            )
    if len(seen) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"{path}: the first line names the column {twice!r} twice; it is to name each column once"
        )


def is_there(path: Path) -> bool:
    """Return whether a path is a file or a folder, or a pattern such as part-*.parquet that matches a file."""
    return path.exists() or any(path.parent.glob(path.name))

"""Tables in DuckDB and SQLite files, which others may have written: their names and columns. Nothing imports torch."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parallel_epochs.pipeline.run import files

SQLITE, DUCKDB = b"SQLite format 3\0", b"DUCK"
# A view or a default value in somebody's database can then read no other file and reach no network.
CLOSED: dict[str, Any] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


def kind_of(path: Path) -> str | None:
    """Return "SQLite" or "DuckDB", by how a file begins; None if it is no database.

    Raises:
        ValueError: there is no such file.
        FileError: it cannot be read, or is no file.
    """
    with files.open_file(path) as file:
        start = file.read(16)
    return "SQLite" if start == SQLITE else "DuckDB" if start[8:12] == DUCKDB else None


def columns_of(key: str, path: Path, table: str) -> list[str]:
    """Return the columns of a table.

    Args:
        key: of the table, "data.nodes" or "data.edges".
        path: of the database.

    Raises:
        ValueError: there is no such table, it is a view, or the file cannot be read.
    """
    kinds, columns = (_read_sqlite if kind_of(path) == "SQLite" else _read_duckdb)(path, table)
    if table not in kinds:
        there = ", ".join(sorted(name for name, kind in kinds.items() if kind != "view")) or "none"
        raise ValueError(f"{key}.table={table}: {path} has no such table; there are {there}")
    if kinds[table] == "view":
        raise ValueError(
            f"{key}.table={table}: this is a view of {path}. A view can read other files or yield rows "
            f"without end, so only tables are read: save its rows by CREATE TABLE rows_of_{table} AS "
            f"SELECT * FROM {table}"
        )
    return columns


def _read_sqlite(path: Path, table: str) -> tuple[dict[str, str], list[str]]:
    with open_sqlite(path) as connection:
        kinds = dict(
            connection.execute(
                "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"
            )
        )
        if kinds.get(table) != "table":
            return kinds, []
        return kinds, [
            row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", [table])
        ]


def _read_duckdb(path: Path, table: str) -> tuple[dict[str, str], list[str]]:
    import duckdb

    try:
        with duckdb.connect(
            str(path), read_only=True, config={**CLOSED, "threads": 1}
        ) as connection:
            kinds = connection.execute(
                "SELECT table_name, lower(split_part(table_type, ' ', -1)) FROM "
                "information_schema.tables WHERE table_schema = 'main'"
            ).fetchall()
            columns = connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = "
                "'main' AND table_name = ? ORDER BY ordinal_position",
                [table],
            ).fetchall()
    except duckdb.Error as error:
        raise ValueError(
            f"{path} cannot be read: {str(error).strip().partition(chr(10))[0]}"
        ) from None
    return dict(kinds), [row[0] for row in columns]


@contextlib.contextmanager
def open_sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a SQLite file for reading alone.

    Raises:
        ValueError: it cannot be read, then or later.
    """
    # In a URI ?, # and % in a file's name mean something else.
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        for setting in (
            "trusted_schema = off",
            "cell_size_check = on",
            "mmap_size = 0",
        ):  # as of an untrusted file
            connection.execute(f"PRAGMA {setting}")
        yield connection
    except sqlite3.Error as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    finally:
        connection.close()

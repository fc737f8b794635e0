"""DuckDB under a memory limit: stages that a killed process does not lose, queries that a signal can end."""

import contextlib
import logging
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import torch

from parallel_epochs.pipeline.run import limits, pulse
from parallel_epochs.pipeline.run.errors import FileError
from parallel_epochs.pipeline.run.memory import format_bytes

log = logging.getLogger(__name__)

# Seconds between two looks at whether a query has ended, and signs of life.
PERIOD = 0.05
WHOLE_NUMBER = "[+-]?[0-9]{1,18}"
# Rows of a batch that is streamed.
BATCH = 1 << 20


class Database:
    """A database in a file, whose stages are tables that are there wholly or not at all.

    Queries read and write the files that are given here and no others, load no extensions and reach no network.

    Args:
        folder: holds the file and what does not fit into memory, under names that begin with "work-".
        paths: the files that queries may read or write.

    Raises:
        FileError: it cannot be made.
    """

    def __init__(self, folder: Path, paths: Iterable[Path] = ()):
        self.folder = folder
        path, spill = folder / "work-tables.duckdb", folder / "work-spill"
        shutil.rmtree(spill, ignore_errors=True)  # of a process that was killed
        settings: dict[str, Any] = {
            "memory_limit": f"{limits.limit(limits.TABLES)}B",
            "threads": torch.get_num_threads(),
            "temp_directory": str(spill),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        }
        try:
            self._connection = _connect(path, settings)
        except duckdb.Error as error:
            log.warning(
                "%s cannot be opened (%s): reading the tables again", path, _first_line(error)
            )
            for left in (path, path.with_name(f"{path.name}.wal")):
                left.unlink(missing_ok=True)
            self._connection = _connect(path, settings)
        with contextlib.suppress(
            duckdb.InvalidInputException
        ):  # a notebook without ipywidgets, where there is none
            self._connection.execute("SET enable_progress_bar = false")
        self._connection.execute(
            "SET TimeZone = 'UTC'"
        )  # in which times with a zone are written; not the machine's
        # A path with a wildcard is looked up as a pattern before it is read.
        allowed = {form for path in paths for form in (str(path.absolute()), pattern_of(path))}
        self._connection.execute(
            f"SET allowed_paths = [{', '.join(map(literal, sorted(allowed)))}]"
        )
        self._connection.execute("SET enable_external_access = false")

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *exc: object) -> None:
        self._connection.close()

    def execute(self, sql: str, doing: str = "reading the tables") -> list[tuple]:
        """Run a query and return its rows. A signal to stop ends it.

        Args:
            doing: for errors and signs of life.

        Raises:
            ValueError: a table cannot be read.
            FileError: the disk has no room, or the memory limit is too low.
        """
        done, outcome = threading.Event(), dict[str, Any]()

        def run() -> None:
            try:
                outcome["rows"] = self._connection.execute(sql).fetchall()
            except BaseException as error:
                outcome["error"] = error
            finally:
                done.set()

        thread = threading.Thread(target=run, name="query", daemon=True)
        thread.start()
        try:
            while not done.wait(PERIOD):
                pulse.beat(doing, pulse.State.LONG)
        except BaseException:  # a request to stop
            while not done.wait(PERIOD):
                self._connection.interrupt()
            raise
        finally:
            thread.join()
        if error := outcome.get("error"):
            with self._explaining(doing):
                raise error
        return outcome["rows"]

    def stage(self, name: str, sql: str, doing: str, *, ordered: bool = True) -> None:
        """Make a table of a query, unless it is there.

        Args:
            ordered: keep the order of rows; without, less memory is needed.
        """
        if self.has(name):
            return
        start = time.perf_counter()
        self.execute(f"SET preserve_insertion_order = {str(ordered).lower()}")
        try:
            self.execute(f"CREATE TABLE {name} AS {sql}", doing)
        finally:
            self.execute("SET preserve_insertion_order = true")
        log.debug("tables: %s took %.1f s", doing, time.perf_counter() - start)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Give tables that are made in the block a name space of their own, in which they are looked for first."""
        self.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
        self.execute(f"SET schema = {name}")
        try:
            yield
        finally:
            self.execute("SET schema = main")

    def has(self, name: str) -> bool:
        """Tell whether a stage is complete."""
        return bool(
            self.execute(
                f"SELECT 1 FROM duckdb_tables() "
                f"WHERE database_name = current_database() AND schema_name = current_schema() "
                f"AND table_name = '{name}'"
            )
        )

    def order_of(self, table: str, column: str) -> str:
        """Write SQL for the order of names: that of numbers where all of them are, else that of texts."""
        (others,) = self.execute(
            f"SELECT count(*) FILTER (NOT regexp_full_match({column}, '{WHOLE_NUMBER}')), "
            f"count(*) FILTER (coalesce(NOT isfinite(TRY_CAST({column} AS DOUBLE)), true)) FROM {table}"
        )
        kind = "BIGINT" if others[0] == 0 else "DOUBLE" if others[1] == 0 else "VARCHAR"
        return f"{column}::{kind}, {column}"

    def column(self, sql: str, table: str = "nodes") -> np.ndarray:
        """Read a number of each row of a table, in the order of its column ``number``."""
        parts = self.stream(f"SELECT {sql} AS own FROM {table} ORDER BY number")
        return np.concatenate([part["own"] for part in parts])

    def columns(self, relation: str) -> dict[str, str]:
        """Return the columns of what can stand behind FROM, with their types."""
        return {row[0]: row[1] for row in self.execute(f"DESCRIBE SELECT * FROM {relation}")}

    def fill(self, name: str, rows: pa.Table) -> None:
        """Make a table of rows in memory, unless it is there."""
        if not self.has(name):
            with self._explaining("reading the tables"):
                self._connection.register("rows_in_memory", rows)
                self._connection.execute(f"CREATE TABLE {name} AS SELECT * FROM rows_in_memory")
                self._connection.unregister("rows_in_memory")

    def fill_names(self, table: str, names: Mapping[str, int], number: str = "number") -> None:
        """Make a table of names, ``name``, and of their numbers, unless it is there."""
        columns = [pa.array(names.keys(), pa.string()), pa.array(names.values(), pa.int32())]
        self.fill(table, pa.table(columns, names=["name", number]))

    def stream(
        self, sql: str, doing: str = "reading the tables"
    ) -> Iterator[dict[str, np.ndarray]]:
        """Go through the rows of a query in order, a batch of columns at a time; none of them may be NULL."""
        with self._explaining(doing):
            for batch in self._connection.sql(sql).to_arrow_reader(BATCH):
                pulse.beat(doing, pulse.State.LONG)
                if batch.num_rows:
                    yield {
                        name: column.to_numpy()
                        for name, column in zip(batch.schema.names, batch.columns)
                    }

    def fetch(self, sql: str) -> pa.Table:
        """Return the rows of a query that fit into memory."""
        with self._explaining("reading the tables"):
            return self._connection.sql(sql).to_arrow_table()

    @contextlib.contextmanager
    def _explaining(self, doing: str) -> Iterator[None]:
        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise FileError(
                f"{doing}: the limit {limits.TABLES} is too low, or {self.folder} has no space left for what does "
                f"not fit ({format_bytes(shutil.disk_usage(self.folder).free)} are free): "
                f"{_first_line(error)}"
            ) from error
        except duckdb.Error as error:
            # If the disk has no room for a commit, DuckDB says that the transaction failed, and why in its text.
            if "No space left on device" in str(error):
                raise FileError(
                    f"{doing}: {self.folder} has no space left: {_first_line(error)}"
                ) from error
            if isinstance(error, duckdb.IOException):
                raise FileError(f"{doing} in {self.folder}: {_first_line(error)}") from error
            raise ValueError(_explain(error)) from error


def _connect(path: Path, settings: dict[str, Any]) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(str(path), config=settings)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _explain(error: duckdb.Error) -> str:
    """Say in one line what DuckDB says of a table in many."""
    text = str(error)
    file = re.search(r"\n  file = (.*)", text)
    if found := re.search(r'Failed to read file "(.*?)": (.*)', text):
        return f"{found[1]} is damaged: {found[2]}. Write or copy the file again"
    if file and "state machine" in text:
        return f"{file[1]}: some lines end in LF and others in CRLF. Give all the same end: sed -i 's/\\r$//' FILE"
    if found := re.search(r"CSV Error on Line: (\d+)", text):
        lines = [
            line for line in text.splitlines()[1:] if line and not line.startswith("Original Line")
        ]
        reason = lines[0] if lines else _first_line(error)
        if reason.startswith("Invalid unicode"):
            reason = "it is not UTF-8 text. Say so by the key csv of the table, as in csv={encoding: latin-1}"
        if long := re.match(r"Maximum line size of (\d+) bytes", reason):
            reason = f"it has more than {format_bytes(int(long[1]))}. If that is right, raise the limit {limits.LINE}"
        return f"{file[1] if file else 'the table'}: line {found[1]}: {reason}"
    return f"{file[1]}: {_first_line(error)}" if file else _first_line(error)


def quote(name: str) -> str:
    """Write a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def pattern_of(path: Path) -> str:
    """Write the pattern that DuckDB takes for this one file, whatever wildcards its name holds."""
    return re.sub(r"([*?[])", r"[\1]", str(path.absolute()))


def literal(text: str) -> str:
    """Write a text for SQL."""
    return "'" + text.replace("'", "''") + "'"


def blocks(num_rows: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut rows into blocks of a size: the first of each, and the one behind its last."""
    for first in range(0, num_rows, size):
        yield first, min(first + size, num_rows)

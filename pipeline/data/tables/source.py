"""Tables in files, as DuckDB reads them: their formats, the values of their cells, and the first row that is wrong."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from parallel_epochs.pipeline.data.check import LARGEST_WHOLE, ROUNDED
from parallel_epochs.pipeline.data.columns import open_unzipped
from parallel_epochs.pipeline.data.tables import heads
from parallel_epochs.pipeline.data.tables.heads import (
    expand,
    read_head,
    separator_of,
)
from parallel_epochs.pipeline.data.tables.sql import Database, literal, pattern_of, quote
from parallel_epochs.pipeline.names import SPLIT_NAMES, SPLITS
from parallel_epochs.pipeline.run import limits

log = logging.getLogger(__name__)

FLOATS = ("FLOAT", "DOUBLE")
NUMBERS = re.compile("U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|BOOLEAN|DECIMAL|FLOAT|DOUBLE")
# Words that are the labels 0 and 1 of a binary task.
BINARY = {"no": 0, "yes": 1, "false": 0, "true": 1, "n": 0, "y": 1, "f": 0, "t": 1}
# The largest number of float32; what training computes in.
LARGEST = "3.4028234663852886e38"
# A time of day with an offset or the name of a zone behind it.
ZONED = r":[0-9]{2}(\.[0-9]+)?\s*([zZ]|[+-][0-9:]+|[A-Za-z_]+(/[A-Za-z_+-]+)*)$"
# Bytes of a text file that DuckDB reads at a time, by default; a line must fit.
USUAL_BUFFER = 1 << 25


@dataclass
class Source:
    """A table.

    Attributes:
        db: in which it is opened.
        key: of the configuration, "data.nodes" or "data.edges".
        name: for messages.
        relation: what stands behind FROM for all of it, in order.
        parts: the same for each of its files, with its name.
        columns: their types.
        csv: how its files of text are written.
    """

    db: Database
    key: str
    name: str
    relation: str
    parts: list[tuple[str, str]]
    columns: dict[str, str]
    csv: Mapping[str, str] = field(default_factory=dict)

    def with_rows(self, column: str) -> "Source":
        """Return the same table with a column that holds the number of each row, from 1."""
        return replace(
            self,
            columns=self.columns | {column: "BIGINT"},
            relation=(f"(SELECT *, row_number() OVER () AS {quote(column)} FROM {self.relation})"),
        )

    def text(self, column: str) -> str:
        """Write SQL for a cell as text, NULL where it is empty; a whole number of a float column has no point."""
        name, kind = quote(column), self.columns[column]
        if kind == "VARCHAR":
            return f"nullif({name}, '')"
        if kind in FLOATS:
            return (
                f"CASE WHEN isnan({name}) THEN NULL WHEN {name} = floor({name}) AND abs({name}) < 1e18 "
                f"THEN {name}::BIGINT::VARCHAR ELSE {name}::VARCHAR END"
            )
        return f"{name}::VARCHAR"

    def plain(self, column: str) -> str:
        """Write SQL for a cell as text, in which a number has digits and a decimal point alone."""
        text = self.text(column)
        marks = self.csv.get("thousands", ""), self.csv.get("decimal_separator", ".")
        if marks == ("", ".") or self.columns[column] != "VARCHAR":
            return text
        thousands, point = map(re.escape, marks)
        form = (
            rf"[-+]?([0-9]+|[0-9]{{1,3}}({thousands}[0-9]{{3}})+)({point}[0-9]*)?([eE][-+]?[0-9]+)?"
        )
        digits = f"replace(replace({text}, {literal(marks[0])}, ''), {literal(marks[1])}, '.')"
        return (
            f"CASE WHEN regexp_full_match(trim({text}), {literal(form)}) THEN {digits} "
            f"WHEN TRY_CAST({text} AS DOUBLE) IS NULL THEN {text} END"
        )

    def dated(self, column: str) -> str:
        """Write SQL for a cell as text, in which a date has the form 2024-05-31."""
        text, form = self.text(column), literal(self.csv.get("dateformat", ""))
        if form == "''" or self.columns[column] != "VARCHAR":
            return text
        forms = f"[{form}, {form} || ' %H:%M', {form} || ' %H:%M:%S']"
        return f"coalesce(try_strptime({text}, {forms})::VARCHAR, {text})"

    def refuse_rounded(self, key: str, column: str) -> None:
        """Refuse ids that are whole numbers of a column of floats which holds no others there."""
        name = quote(column)
        if self.columns[column] in FLOATS and (
            found := self.find_row(f"abs({name}) >= {1 << 53} AND isfinite({name})", name)
        ):
            raise ValueError(
                f"{found[0]}: row {found[1]}, column {column} holds the id {found[2][0]:.0f} as a floating-point "
                f"number, which is exact up to 2^53 alone: other ids may have been rounded to it ({key}). "
                "Write ids as whole numbers or texts; one empty cell makes pandas write floats"
            )

    def number(self, option: str, column: str) -> str:
        """Write SQL for a cell as a number that float32 can hold, NULL where it is none.

        Raises:
            ValueError: the column is of a type that is no number.
        """
        name, kind = quote(column), self.columns[column]
        if kind == "FLOAT":
            value = name
        elif kind == "VARCHAR":
            # For a bare column, the reader of CSV files would do the cast itself, and fail.
            value = f"TRY_CAST({self.plain(column)} AS DOUBLE)"
            if option == "label":
                value = cast_label(self.plain(column))
        elif NUMBERS.match(kind):
            value = f"{name}::DOUBLE"
        else:
            dates = ""
            if kind.startswith(("DATE", "TIMESTAMP")):
                dates = f". Give dates as {self.key}.dates"
            raise ValueError(
                f"{self.key}.{option}={column}: the column of {self.name} is {kind}, which is not a "
                f"number{dates}"
            )
        return f"CASE WHEN abs({value}) <= {LARGEST} THEN {value} END"

    def time(
        self,
        column: str,
        option: str,
        *,
        may_be_empty: bool,
        is_feature: bool = False,
    ) -> str:
        """Write SQL for a cell as a time: a number, or of a date the seconds since 1970, in UTC where it has no zone.

        Args:
            option: the key that names the column, for messages.
            is_feature: whether all of them are to be dates, as they become features.

        Raises:
            ValueError: the times are neither all numbers nor all dates; names the file and the row.
        """
        text = self.dated(column)
        number, date = (cast_time(text, kind) for kind in ("DOUBLE", "TIMESTAMPTZ"))
        known = [f"coalesce(isfinite({value}), false)" for value in (number, date)]
        (filled,) = self.db.execute(
            f"SELECT count(*), count(*) FILTER ({known[0]}), count(*) FILTER ({known[1]}), count(*) "
            f"FILTER (NOT regexp_matches({text}, '{ZONED}')) FROM {self.relation} "
            f"WHERE {text} IS NOT NULL",
            "reading times",
        )
        are_numbers = not is_feature and (
            filled[1] == filled[0] or filled[1] > 0 and not may_be_empty
        )
        kinds, mend = "times are numbers in every row, or dates", "leave it out"
        if is_feature:
            kinds = "cells are empty, or dates"
            mend = f"give a column of numbers as one of {self.key}.features"
        elif option != "data.label_table":
            mend += ", or set data.split=random"
        self.refuse(
            column,
            f"NOT {known[0 if are_numbers else 1]}{f' AND {text} IS NOT NULL' if may_be_empty else ''}",
            f", which is not a {'number' if are_numbers else 'date'}",
            f"; {kinds} such as 2024-05-31 or 2024-05-31 18:00+02:00 in every row ({option}). Correct the row, "
            f"say how dates are written, as by {self.key}.csv={{dateformat: '%d/%m/%Y'}}, "
            f"or {mend}",
        )
        if not are_numbers and filled[0]:
            log.info(
                "%s: the times in %s are compared as instants; %s of %s have no zone and count as UTC",
                self.name,
                column,
                f"{filled[3]:,}",
                f"{filled[0]:,}",
            )
        return number if are_numbers else f"epoch({date})"

    def split(self, column: str, key: str, cell: str | None = None) -> str:
        """Write SQL for the number of the split that a cell names, 0 to 2; 3 for an empty one.

        Args:
            key: that names the column, for messages.
            cell: SQL for the cell, where it is read from another table.

        Raises:
            ValueError: a cell names no split.
        """
        known = ", ".join(f"'{name}'" for name in SPLIT_NAMES)
        self.refuse(
            column,
            f"lower(trim({self.text(column)})) NOT IN ({known})",
            mend=f"; a cell of the split is train, valid, test or empty ({key})",
        )
        whens = " ".join(
            f"WHEN '{name}' THEN {SPLITS.index(split)}" for name, split in SPLIT_NAMES.items()
        )
        return f"CASE lower(trim({cell or self.text(column)})) {whens} ELSE 3 END"

    def group(self, column: str) -> str:
        """Write SQL for a cell that names a group.

        Raises:
            ValueError: a cell is empty.
        """
        mend = "; every row needs a group (data.split_by)"
        self.refuse(column, f"{self.text(column)} IS NULL", mend=mend)
        return self.text(column)

    def require(self, key: str, column: str) -> None:
        """Refuse a column that is not there, or whose cells are lists or structures.

        Raises:
            ValueError: names the key and the table.
        """
        heads.require(key, column, self.name, self.columns)
        if is_nested(kind := self.columns[column]):
            raise ValueError(
                f"{key}={column}: the column of {self.name} is {kind}, and a cell must be one text, "
                "number or date. Write such a column as text, or as several columns"
            )

    def find_row(self, condition: str, *values: str) -> tuple[str, int, tuple] | None:
        """Find the first row that fulfils a condition: the file, the number of the row from 1, and some values."""
        chosen = ", ".join(values) or "NULL"
        for part, name in self.parts:
            rows = self.db.execute(
                f'SELECT "#row", {chosen} FROM (SELECT row_number() OVER () AS "#row", * FROM {part}) '
                f'WHERE {condition} ORDER BY "#row" LIMIT 1'
            )
            if rows:
                return name, rows[0][0], rows[0][1:]
        return None

    def refuse(self, column: str, condition: str, wrong: str = "", mend: str = "") -> None:
        """Refuse a column if a row fulfils a condition.

        Args:
            wrong: what is wrong with the cell of such a row, if it is not empty.
            mend: what is said behind.

        Raises:
            ValueError: names the file and the first such row.
        """
        if found := self.find_row(condition, self.text(column)):
            name, row, (text,) = found
            said = "is empty" if text is None else f"holds {text!r}{wrong}"
            raise ValueError(f"{name}: row {row}, column {column} {said}{mend}")

    def refuse_wrong_numbers(self, option: str, columns: list[str]) -> None:
        """Refuse a cell that is neither a number nor empty; nan counts as empty.

        Raises:
            ValueError: names the file, the column and the first such row.
        """
        mend = (
            f" ({self.key}.{option}). Say how numbers are written, as by {self.key}.csv={{thousands: ',', "
            "decimal_separator: '.'}, if it is one"
        )
        if option == "features":
            mend += f". Correct it, or give a column of dates as one of {self.key}.dates"
            if self.key == "data.nodes":
                mend += ", of words as one of data.nodes.categories or data.nodes.text"
        wrong = ", which is not a finite number of float32"
        for column in columns:
            text = self.text(column)
            condition = f"{self.number(option, column)} IS NULL AND {text} IS NOT NULL AND lower(trim({text})) <> 'nan'"
            self.refuse(column, condition, wrong, mend)

    def warn_rounded(self, table: str, columns: dict[str, str], mend: str) -> None:
        """Say in the log which columns hold whole numbers that float32 rounds.

        Args:
            table: a stage with the numbers.
            columns: SQL for a number of it, and the name of the column.
        """
        lost = [
            f"FILTER (abs({number}) > {LARGEST_WHOLE} AND {number} = floor({number}) AND "
            f"{number}::FLOAT <> {number})"
            for number in columns
        ]
        chosen = [
            f"count(*) {which}, min({number}) {which}" for number, which in zip(columns, lost)
        ]
        (counts,) = (
            self.db.execute(f"SELECT {', '.join(chosen)} FROM {table}", "reading numbers")
            if columns
            else [()]
        )
        for column, count, first in zip(columns.values(), counts[::2], counts[1::2]):
            if count:
                log.warning(
                    ROUNDED,
                    f"{self.name}: column {column}",
                    f"{count:,}",
                    f"{first:,.0f}",
                    f"{float(np.float32(first)):,.0f}",
                    mend,
                )

    def refuse_values(self, option: str, columns: list[str], condition: str, reason: str) -> None:
        """Refuse numbers for which a condition holds.

        Args:
            condition: SQL that follows the number.
            reason: why they are refused, the end of the message.

        Raises:
            ValueError: names the file, the column and the first such row.
        """
        for column in columns:
            self.refuse(column, f"{self.number(option, column)} {condition}", reason)


def is_nested(kind: str) -> bool:
    """Tell whether cells of a type of DuckDB are lists or structures."""
    return kind.startswith(("STRUCT", "MAP", "UNION")) or kind.endswith("]")


def cast_label(text: str) -> str:
    """Write SQL that makes a number of a text, also of the words for 0 and 1; NULL where it is none."""
    words = " ".join(f"WHEN '{word}' THEN {number}" for word, number in BINARY.items())
    return f"coalesce(TRY_CAST({text} AS DOUBLE), CASE lower(trim({text})) {words} END)"


def cast_time(text: str, kind: str = "TIMESTAMPTZ") -> str:
    """Write SQL that makes a time of a text, NULL where it is none.

    DuckDB reads no offset behind a blank, and drops every offset where it makes a time without a zone.
    """
    return f"TRY_CAST(regexp_replace({text}, '\\s+([+-][0-9:]+)$', '\\1') AS {kind})"


def open_source(db: Database, key: str, path: Path, csv: Mapping[str, str]) -> Source:
    """Open a table that :func:`heads.check` has seen: one file, a folder of files, or those that a pattern means.

    Args:
        key: of the configuration, "data.nodes" or "data.edges".
        csv: how a file of text is written.

    Raises:
        ValueError: it is none of a format that is known; the message names the file.
    """
    paths = expand(key, path)
    if paths[0].suffix == ".parquet":
        csv = {}
    parts = [(_relation([path], csv), str(path)) for path in paths]
    columns = [db.columns(part) for part, _ in parts]
    limits.check_columns(str(path), max(map(len, columns)))
    for (_, name), other in zip(parts, columns):
        if other != columns[0]:
            raise ValueError(
                f"{name} has the columns {', '.join(other)}, and {parts[0][1]} has "
                f"{', '.join(columns[0])}: the files of a table must have the same columns and types"
            )
    return Source(db, key, str(path), _relation(paths, csv), parts, columns[0], csv)


def _relation(paths: list[Path], csv: Mapping[str, str]) -> str:
    """Write what stands behind FROM for files of one kind. Cells of text files are texts: nothing is guessed."""
    names, first = f"[{', '.join(literal(pattern_of(path)) for path in paths)}]", paths[0]
    if first.suffix == ".parquet":
        return f"read_parquet({names})"
    separator, longest = separator_of(first, csv), limits.limit(limits.LINE)
    head = read_head(first, csv)
    columns = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in head)
    ends = ""
    if any(
        "\n" in name for name in head
    ):  # DuckDB would take it for the end of a row, and find no row
        with open_unzipped(first) as file:
            line = r"\r\n" if b"\r\n" in file.read(1 << 16) else r"\n"
        ends = f", new_line={literal(line)}"
    return (
        f"read_csv({names}, columns={{{columns}}}, auto_detect=false, header=true, delim={literal(separator)}, "
        f"quote='\"', escape='\"'{ends}, max_line_size={longest}, encoding={literal(csv.get('encoding', 'utf-8'))}, "
        f"buffer_size={max(longest, USUAL_BUFFER)}, compression='{'gzip' if first.suffix == '.gz' else 'none'}')"
    )

"""Rows that the tables of a training did not have, encoded as it encoded its own, without reading a table.

The numbers are those of the SQL that reads tables, to the last bit: cells in the plain form of a number or a date are
cast here, and DuckDB casts all others.
"""

import datetime
import math
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import duckdb
import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from parallel_epochs.pipeline.data.tables import nodes as tables_nodes, reading
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.data.tables.fitted import unpack
from parallel_epochs.pipeline.data.tables.sorted_edges import merge_new
from parallel_epochs.pipeline.data.tables.source import LARGEST, cast_time
from parallel_epochs.pipeline.data.tables.text import ID_SEPARATOR
from parallel_epochs.pipeline.data.tables.values import DAY, KNOWN, Values

Row = Mapping[str, Any]
Texts = dict[str, list[str | None]]
PLAIN_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE]-?[0-9]+)?")
PLAIN_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
EPOCH = datetime.date(1970, 1, 1).toordinal()
# Features of a date besides its age, by the number of the day in the week and of the month in the year.
WAVES = [
    [wave(2 * math.pi * (place / size)) for place in range(size) for wave in (math.sin, math.cos)]
    for size in (7, 12)
]


class Casts:
    """Casts texts as the reader of tables does, with a database in memory for those of an odd form."""

    def __init__(self) -> None:
        self._open: list[duckdb.DuckDBPyConnection] = []
        weakref.finalize(
            self, self._open.clear
        )  # DuckDB complains of a database that is open when Python ends

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a connection to the database that no other thread has."""
        if not self._open:
            database = duckdb.connect(
                ":memory:",
                config={
                    "threads": 1,
                    "autoinstall_known_extensions": False,
                    "autoload_known_extensions": False,
                    "python_enable_replacements": False,
                },
            )
            database.execute("SET GLOBAL TimeZone = 'UTC'; SET enable_external_access = false")
            self._open.append(database)
        return self._open[0].cursor()

    def numbers(self, texts: Sequence[str | None]) -> Float[np.ndarray, " num_texts"]:
        """Cast texts to numbers that float32 can hold; NaN where they are none."""
        found = self._cast(texts, _plain_number, "TRY_CAST(cell AS DOUBLE)")
        found[~(np.abs(found) <= float(LARGEST))] = math.nan
        return found

    def times(self, texts: Sequence[str | None]) -> Float[np.ndarray, " num_texts"]:
        """Cast texts to seconds since 1970 in UTC; NaN where they are no dates."""
        return self._cast(texts, _plain_date, f"epoch({cast_time('cell')})")

    def _cast(
        self, texts: Sequence[str | None], plain: Callable[[str], float | None], sql: str
    ) -> np.ndarray:
        found, odd = np.full(len(texts), math.nan), []
        for place, text in enumerate(texts):
            if text is not None and (value := plain(text)) is not None:
                found[place] = value
            elif text is not None:
                odd.append(place)
        if odd:
            cells = (
                self._cursor()
                .execute(
                    f"SELECT {sql} FROM (SELECT unnest(?::VARCHAR[]) AS cell)",
                    [[texts[place] for place in odd]],
                )
                .fetchall()
            )
            found[odd] = [math.nan if cell is None else cell for (cell,) in cells]
        return found


class Encoder:
    """Encodes new rows and edges by what a training learned of its tables.

    Args:
        config: of one table of nodes and one of edges.
        packed: what was learned, see :class:`pipeline.data.tables.fitted.Fitted`.
        has_terms: whether linear models read the terms of texts.
    """

    def __init__(
        self, config: TablesConfig, packed: UInt8[Tensor, " num_bytes"], *, has_terms: bool
    ):
        self._config, self._fitted, self._casts = config, (fitted := unpack(packed)), Casts()
        columns, num_texts = fitted.columns, len(config.text_columns())
        self._nodes, self._edges = (reading.values_of(config, what) for what in ("nodes", "edges"))
        self._texts = reading.texts_of(
            config, are_words="names" in columns.kinds, num_ids=2 * (len(columns.texts) > num_texts)
        )
        reading.restore(self._texts, columns)
        self._seen = tables_nodes.features_of(self._texts)
        self._terms = tables_nodes.frequent_terms(self._texts)[0] if has_terms else None
        self._categories = [dict(zip(names, range(len(names)))) for names in columns.categories]
        self._relations = dict(zip(fitted.relations, range(len(fitted.relations))))
        self._are_numbers = [
            bool(pd.to_numeric(pd.Series(names, dtype=object), errors="coerce").notna().all())
            for names in columns.categories
        ]

    def describe(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Say of each column of "rows" and "edges" what its cells are: their kind, and categories that are known."""
        nodes, edges = self._config.nodes, self._config.edges
        rows = {
            nodes.id: _kind("id"),
            **_kinds_of(self._nodes),
            **{name: _kind("text") for name, _ in self._config.text_columns()},
            **{
                name: _kind("category", known)
                for name, known in zip(nodes.categories, self._categories)
            },
        }
        relation = (
            {} if edges.relation is None else {edges.relation: _kind("relation", self._relations)}
        )
        return {
            "rows": rows,
            "edges": {
                edges.source: _kind("id"),
                edges.target: _kind("id"),
                **relation,
                **_kinds_of(self._edges),
            },
        }

    @staticmethod
    def texts(rows: Sequence[Row], name: str) -> list[str | None]:
        """Write the cells of a column as a file of text would hold them, whatever they are; none for empty ones."""
        found = []
        for row in rows:
            cell = row[name]
            if isinstance(cell, bool):
                cell = str(cell).lower()
            elif isinstance(cell, float) and cell.is_integer():
                cell = int(cell)
            found.append(None if cell is None else str(cell) or None)
        return found

    def rows(
        self, rows: Sequence[Row], ends: Sequence[Sequence[str]]
    ) -> tuple[Tensor, sp.csr_array | None]:
        """Compute the features of new rows.

        Args:
            ends: ids of the sources and of the targets of new edges.

        Returns:
            Features [num_rows, num_channels], float32; and TF-IDF of the terms that linear models read, if they do.

        Raises:
            ValueError: names the row and the column that is wrong.
        """
        columns, texts = (
            self._fitted.columns,
            [self.texts(rows, name) for name, _ in self._config.text_columns()],
        )
        ids = [str(id) for id in self.texts(rows, self._config.nodes.id)]
        given = [[text or "" for text in column] for column in texts] + [
            _linked(ids, own, other) for own, other in (ends, ends[::-1]) if self._terms is not None
        ]
        seen = [text.transform(given[text.place]) for text in self._seen if columns.scores is None]
        if columns.scores is not None:
            weights = [text.weigh(given[text.place]) for text in self._seen]
            seen = [columns.scores.transform(0, sp.csr_array(sp.hstack(weights, format="csr")))]
        cells = self._cells("rows", rows, self._nodes)
        numbers = np.empty((len(rows), self._nodes.num_features([])))
        for place, first in enumerate(self._nodes.first_features[:-1]):
            for number, feature in enumerate(
                _unfitted(self._nodes, place, cells[place], columns.latest), first
            ):
                numbers[:, number] = feature
        found = tables_nodes.join_features(
            self._nodes,
            columns,
            tables_nodes.bend(self._nodes, numbers, columns.quantiles),
            [*seen, self._one_hot(rows)],
        )
        return torch.from_numpy(found), None if self._terms is None else sp.csr_array(
            sp.hstack([text.weigh(given[text.place]) for text in self._texts], format="csr")
        )[:, self._terms]

    def edges(
        self, rows: Sequence[Row], ends: Int[np.ndarray, "2 num_rows"], new: range
    ) -> tuple[Int[Tensor, "2 num_edges"], Tensor | None]:
        """Sort new edges by destination, then source, as the training sorted its own, with their features.

        Args:
            ends: numbers of the nodes, int64.
            new: those of the new rows, behind all others.

        Raises:
            ValueError: names the edge and the column that is wrong.
        """
        values, fitted, config = self._edges, self._fitted, self._config
        cells, columns = self._cells("edges", rows, values), {"s": ends[0], "t": ends[1]}
        features = [
            feature
            for place in range(len(cells))
            for feature in self._of_edges(place, cells[place])
        ]
        features += [np.isnan(cells[place]).astype(np.float64) for place in fitted.flagged]
        columns |= {f"v{place}": np.nan_to_num(feature) for place, feature in enumerate(features)}
        if config.edges.relation is not None:
            columns["r"] = self._numbers_of(
                rows, "edges", config.edges.relation, self._relations, "a relation"
            )
        src, dst, attr = merge_new(
            columns,
            sum(option == "weight" for option, _ in values.columns),
            len(self._relations) * (1 + config.edges.directed_relations),
            both=config.to_undirected,
            directed_relations=config.edges.directed_relations,
            loops_of=new if config.add_self_loops else range(0),
        )
        return torch.from_numpy(np.stack([src, dst])), None if attr is None else torch.from_numpy(
            attr
        )

    def _cells(self, what: str, rows: Sequence[Row], values: Values) -> list[np.ndarray]:
        """Cast the cells of columns of numbers and of dates; NaN where they are empty."""
        found, largest = [], float(LARGEST)
        for option, name in values.columns:
            given = [int(row[name]) if isinstance(row[name], bool) else row[name] for row in rows]
            if (
                option != "dates"
                and given
                and all(type(cell) is float and abs(cell) <= largest for cell in given)
            ):
                texts, cells = cast(list[Any], given), np.array(given)
            else:
                texts = cast(list[Any], self.texts([{name: cell} for cell in given], name))
                cells = (self._casts.times if option == "dates" else self._casts.numbers)(texts)
            for place in np.flatnonzero(np.isnan(cells)):
                text = texts[place]
                if text is not None and (option == "dates" or text.strip(" ").lower() != "nan"):
                    raise ValueError(
                        f"{what}[{place}]: the cell of {name} holds {text!r:.100}, which is not a "
                        + ("date" if option == "dates" else "finite number of float32")
                    )
                if values.empty == "error":
                    raise ValueError(
                        f"{what}[{place}]: the cell of {name} is empty, and the run has data.empty=error"
                    )
            if (
                option == "features"
                and name in values.log1p
                and (low := np.flatnonzero(cells <= -1)).size
            ):
                raise ValueError(
                    f"{what}[{low[0]}]: the cell of {name} holds {texts[low[0]]}, but its logarithm needs "
                    "values above -1"
                )
            found.append(cells)
        return found

    def _of_edges(self, place: int, cells: np.ndarray) -> list[np.ndarray]:
        """Compute what :meth:`Values.of_edges` has SQL for."""
        (option, name), values, fitted = self._edges.columns[place], self._edges, self._fitted
        if option == "features" and name in values.log1p:
            cells = np.array([math.log(1 + cell) for cell in cells.tolist()])
        value, *more = _unfitted(values, place, cells, fitted.latest)
        if values.is_standardized(option):
            value = (value - fitted.mean[place]) / fitted.std[place]
            value = np.where(value == 0, KNOWN, value)
        return [value, *more]

    def _one_hot(self, rows: Sequence[Row]) -> Float[np.ndarray, "num_rows num_categories"]:
        found = [np.empty((len(rows), 0), np.float32)]
        for name, known, are_numbers in zip(
            self._config.nodes.categories, self._categories, self._are_numbers
        ):
            numbers = self._numbers_of(
                rows, "rows", name, known, "a category", are_numbers=are_numbers
            )
            if self._nodes.empty == "error" and (numbers < 0).any():
                raise ValueError(
                    f"rows[{numbers.argmin()}]: the cell of {name} is empty, and the run has "
                    "data.empty=error"
                )
            found.append((numbers[:, None] == np.arange(len(known))).astype(np.float32))
        return np.concatenate(found, axis=1)

    def _numbers_of(
        self,
        rows: Sequence[Row],
        what: str,
        name: str,
        known: Mapping[str, int],
        kind: str,
        *,
        are_numbers: bool = False,
    ) -> Int[np.ndarray, " num_rows"]:
        """Number the cells of a column of names as the training did, -1 where they are empty; nan is no number."""
        found = np.full(len(rows), -1)
        for place, text in enumerate(self.texts(rows, name)):
            if (
                text is None
                or text not in known
                and are_numbers
                and text.strip(" ").lower() == "nan"
            ):
                continue
            if text not in known:
                raise ValueError(
                    f"{what}[{place}]: the cell of {name} holds {text!r:.100}, {kind} that the training "
                    f"did not see; it saw {len(known):,}, such as {', '.join(map(repr, [*known][:3]))}"
                )
            found[place] = known[text]
        return found


def _unfitted(
    values: Values, place: int, cells: np.ndarray, latest: np.ndarray
) -> list[np.ndarray]:
    """Compute what :meth:`Values.unfitted` has SQL for."""
    return (
        features_of_date(cells, latest[place]) if values.columns[place][0] == "dates" else [cells]
    )


def features_of_date(
    seconds: Float[np.ndarray, " num_rows"], latest: float
) -> list[Float[np.ndarray, " num_rows"]]:
    """Compute the age of dates in days, and sine and cosine of their places in the week and in the year."""
    known = np.nan_to_num(seconds)
    months = (
        np.rint(known * 1e6).astype("datetime64[us]").astype("datetime64[M]").astype(np.int64) % 12
    )
    days = (np.floor(known / DAY).astype(np.int64) + 3) % 7
    waves = [
        np.array(each)[2 * number + wave]
        for each, number in zip(WAVES, (days, months))
        for wave in (0, 1)
    ]
    return [
        (latest - seconds) / DAY,
        *(np.where(np.isnan(seconds), np.nan, wave) for wave in waves),
    ]


def _linked(ids: Sequence[str], own: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return for each row the ids at the other ends of its edges, as a text of a column of such ids."""
    found: dict[str, set[str]] = {id: set() for id in ids}
    for one, end in zip(own, other):
        if one in found:
            found[one].add(end)
    return [ID_SEPARATOR.join(sorted(linked)) for linked in found.values()]


def _plain_number(text: str) -> float | None:
    return float(text) if PLAIN_NUMBER.fullmatch(text) else None


def _plain_date(text: str) -> float | None:
    if (found := PLAIN_DATE.fullmatch(text)) is None:
        return None
    try:
        return float((datetime.date(*map(int, found.groups())).toordinal() - EPOCH) * DAY)
    except ValueError:  # no day of the calendar
        return math.nan


def _kind(kind: str, known: Mapping[str, int] | None = None) -> dict[str, Any]:
    return {"x-kind": kind, **({} if known is None else {"x-known": list(known)})}


def _kinds_of(values: Values) -> dict[str, dict[str, Any]]:
    return {
        name: _kind("date" if option == "dates" else "number") for option, name in values.columns
    }

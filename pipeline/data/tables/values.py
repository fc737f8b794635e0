"""Columns of numbers and of dates: the features that they become, and what these are scaled by."""

import itertools
import logging
import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from parallel_epochs.pipeline.data.tables.fitted import Fitted
from parallel_epochs.pipeline.data.tables.schema import EdgeTable, NodeTable
from parallel_epochs.pipeline.data.tables.source import Source
from parallel_epochs.pipeline.data.tables.sql import Database, literal
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# The rows of a joined table that become edges.
JOINED = "joined WHERE s IS NOT NULL AND t IS NOT NULL"
# Smallest deviation that a column is divided by.
LEAST = 1e-6
# Stands for 0 in a standardised column of edges where the cell is not empty.
KNOWN = 1e-30
DAY = 86_400
# The year 2200: later dates are rather marks for none, such as 9999-12-31.
FAR = 7_258_118_400
# SQL of what a date becomes besides its age, given seconds since 1970 in UTC: its place in the week, which begins on
# Monday, and that of its month in the year, each as sine and cosine.
PLACES = (
    f"(((floor({{0}} / {DAY})::BIGINT + 3) % 7 + 7) % 7) / 7",
    "(month(make_timestamp(({0} * 1e6)::BIGINT)) - 1) / 12",
)
CYCLES = [f"{wave}(2 * pi() * ({place}))" for place in PLACES for wave in ("sin", "cos")]


@dataclass(frozen=True)
class Values:
    """The columns of numbers and of dates of a table of nodes or of edges.

    Attributes:
        columns: each with the key that names it: "weight", "features" or "dates".
        log1p: those of the features whose log(1 + x) is taken.
        standardize: bring every feature, and the age of every date, to mean 0 and variance 1. An empty cell is 0, or
            the mean of a column that is standardised.
    """

    columns: list[tuple[str, str]]
    log1p: list[str]
    standardize: bool

    @property
    def first_features(self) -> list[int]:
        """The number of the first feature of each column, and behind them that of all features."""
        widths = [1 + len(CYCLES) * (option == "dates") for option, _ in self.columns]
        return [0, *itertools.accumulate(widths)]

    @property
    def num_features(self) -> int:
        """The number of features."""
        return self.first_features[-1]

    def is_standardized(self, option: str) -> bool:
        """Tell whether columns of a key are brought to mean 0 and variance 1."""
        return self.standardize and option != "weight"

    def unscaled(self) -> list[tuple[int, str]]:
        """Return the places and names of numbers that become float32 as they are."""
        return [
            (place, name)
            for place, (option, name) in enumerate(self.columns)
            if option != "dates"
            and not self.is_standardized(option)
            and (option == "weight" or name not in self.log1p)
        ]

    def cells(self, source: Source) -> list[str]:
        """Write SQL of the cells of each column: numbers, and of dates the seconds since 1970 in UTC."""
        return [
            source.number(option, name)
            if option != "dates"
            else source.time(name, f"{source.key}.dates", may_be_empty=True, is_feature=True)
            for option, name in self.columns
        ]

    def report(self, source: Source, missing: list[int]) -> list[str]:
        """Say what becomes of the empty cells of each column, and refuse values that have no logarithm.

        Args:
            missing: number of empty cells of each column.
        """
        notes = []
        for (option, name), num in zip(self.columns, missing):
            if not num:
                continue
            if option != "dates":  # which :meth:`Source.time` has checked
                source.refuse_wrong_numbers(option, [name])
            filled = "the mean" if self.is_standardized(option) else "zeros"
            notes.append(f"{count(num, 'empty cell')} in {name}, taken for {filled}")
        source.refuse_values(
            "features",
            self.log1p,
            "<= -1",
            f", but {source.key}.log1p needs values above -1: "
            f"correct the value, or remove the column from {source.key}.log1p",
        )
        return notes

    def unfitted(self, place: int, cell: str, latest: float) -> list[str]:
        """Write SQL of the features of a column before they are scaled.

        Args:
            cell: SQL of a cell.
            latest: time of the dates of this column in the training.
        """
        if self.columns[place][0] != "dates":
            return [cell]
        return [f"({_number(latest)} - {cell}) / {DAY}", *(cycle.format(cell) for cycle in CYCLES)]

    def of_edges(self, fitted: Fitted) -> list[str]:
        """Write SQL of each feature of a joined edge; an empty cell is 0, which is the mean of a standardised column."""
        found = []
        for place, (option, _) in enumerate(self.columns):
            value, *more = self._of_edge(place, fitted)
            if self.is_standardized(option):
                value = f"nullif((({value}) - {_number(fitted.mean[place])}) / {_number(fitted.std[place])}, 0)"
                value = f"coalesce({value}, CASE WHEN v{place} IS NOT NULL THEN {KNOWN} END)"
            found += [f"coalesce({feature}, 0)" for feature in (value, *more)]
        return found

    def fit_edges(self, source: Source, fitted: Fitted, until: float | None = None) -> Fitted:
        """Learn of the joined edges the latest time of each column of dates, and the scale of each column.

        Args:
            source: the table.
            fitted: is completed.
            until: only edges from before this time tell of it; none: all of them do.
        """
        size, joined = len(self.columns), JOINED
        if until is not None:
            joined += f" AND w < {_number(until)}"
        fitted.latest, fitted.mean, fitted.std = np.zeros(size), np.zeros(size), np.ones(size)
        for place, (option, column) in enumerate(self.columns):
            if option == "dates":
                ((latest,),) = source.db.execute(f"SELECT max(v{place}) FROM {joined}")
                fitted.latest[place] = describe_dates(source.name, column, latest)
            if self.is_standardized(option):
                fitted.mean[place], fitted.std[place] = _moments(
                    source.db,
                    f"SELECT ({self._of_edge(place, fitted)[0]})::DOUBLE AS x FROM {joined} AND v{place} NOTNULL",
                )
        return fitted

    def refit_edges(
        self, features: Float[np.ndarray, "num_edges num_features"], fitted: Fitted
    ) -> None:
        """Scale features of the edges that training sees by what these tell, and not by what all edges told.

        Args:
            features: of this table, float32; they are changed in place.
            fitted: what :meth:`fit_edges` returned; it is changed to what gives the new features.
        """
        ends = itertools.pairwise(self.first_features)
        for place, ((option, name), (first, end)) in enumerate(zip(self.columns, ends)):
            column = features[:, first]
            known = features[:, first + 1 : end].any(1) if option == "dates" else column != 0
            values = column[known].astype(np.float64)
            if len(values) and self.is_standardized(option):
                mean, std = values.mean(), values.std()
                std = std if std > LEAST else 1.0
                column[known] = (values - mean) / std
                fitted.mean[place] += fitted.std[place] * mean
                fitted.std[place] *= std
            elif len(values) and option == "dates":
                column[known] = values - values.min()
                fitted.latest[place] -= DAY * values.min()
                describe_dates("edges of the training", name, fitted.latest[place])

    def _of_edge(self, place: int, fitted: Fitted) -> list[str]:
        option, name = self.columns[place]
        is_log = option == "features" and name in self.log1p
        return self.unfitted(
            place,
            f"ln(1 + v{place})" if is_log else f"v{place}",
            fitted.latest[place] if option == "dates" else 0,
        )


def values_of(table: NodeTable | EdgeTable) -> Values:
    """Return the columns of numbers and of dates of a table."""
    columns = table.columns
    return Values(columns.value_columns(), columns.log1p, columns.standardize)


def describe_dates(table: str, column: str, latest: float | None) -> float:
    """Log what a column of dates becomes; returns its latest time in training, 0 where it holds no date."""
    if latest is None:
        log.warning(
            "%s: column %s holds no date, and its features are the same in every row. Leave it out",
            table,
            column,
        )
        return 0.0
    if latest >= FAR:
        log.warning(
            "%s: the latest time of column %s in training is in the year %s. If it stands for no date, leave "
            "such cells empty: the days before the latest time are a feature",
            table,
            column,
            str(np.datetime64(int(latest), "s"))[:-15],
        )
    log.info(
        "%s: %s becomes the days before %s UTC, the latest time in training, and sine and cosine of the day of "
        "the week and of the month",
        table,
        column,
        str(np.datetime64(int(latest), "s")).replace("T", " "),
    )
    return latest


def _moments(db: Database, sql: str) -> tuple[float, float]:
    """Compute mean and standard deviation of a column ``x``. The order of its rows, which differs, changes no bit."""

    def total(of: str) -> float:
        parts = db.stream(f"SELECT {of} AS x FROM ({sql})", "scaling the features of edges")
        return math.fsum(itertools.chain.from_iterable(part["x"].tolist() for part in parts))

    num = max(db.execute(f"SELECT count(*) FROM ({sql})")[0][0], 1)
    mean = total("x") / num
    return mean, max(math.sqrt(total(f"(x - {_number(mean)}) ** 2") / num), LEAST)


def _number(value: float) -> str:
    """Write a number for SQL with all of its digits."""
    return f"{literal(repr(float(value)))}::DOUBLE"

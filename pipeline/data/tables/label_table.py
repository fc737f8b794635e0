"""A label table of a schema: what its rows are called, and what is summarised for each of them."""

import re
from dataclasses import dataclass, field

# The type of the rows, the relation from a row to its entity, named as that from a labelled edge to its source, and the
# columns of the name and the time of a row.
TYPE, RELATION, ROWS, TIME = "label", "label_source", "#label", "#time"
# The column of the time for which an entity exists, where its table has a column of times.
AGE = "time since start"
# Seconds of the units of spans of time. A span without a unit is a number, as times are.
SECONDS = {"": 1, "s": 1, "h": 3_600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True)
class Events:
    """A table of edges with times, whose edges at an entity are summarised.

    Attributes:
        table: name of the table.
        end: of the entity, "source" or "target".
        name: in the names of columns.
        numbers: columns of numbers, each with the key that names it.
    """

    table: str
    end: str
    name: str
    numbers: list[tuple[str, str]] = field(default_factory=list)

    def columns(self, span: str | None) -> list[str]:
        """Return the names of the columns of its summaries, in the order in which they are computed."""
        within = [""] if span is None else ["", f" in {span}", f" in 3 x {span}"]
        found = [f"{self.name}: count{each}" for each in within]
        found += [f"{self.name}: time since {which}" for which in ("last", "first")]
        found += [f"{self.name}: count in each {span}"] * (span is not None)
        for _, column in self.numbers:
            found += [f"{self.name}: last {column}"]
            found += [
                f"{self.name}: {what} {column}{each}" for each in within for what in ("sum", "mean")
            ]
        return found


@dataclass(frozen=True)
class RowTable:
    """The label table of a schema.

    Attributes:
        entity: type of the nodes that rows ask about.
        events: what is summarised for each row.
        span: of time after which labels are known, as it is given; none if it is not known.
        length: its seconds, or its number; 0 without one.
        has_age: whether entities have a time since which they exist.
        labels: the table of edges whose events are counted, and the end of the entity; none for a table of its own.
    """

    entity: str
    events: list[Events]
    span: str | None
    length: float
    has_age: bool
    labels: tuple[str, str] | None

    def columns(self) -> list[str]:
        """Return the names of all summaries."""
        return [AGE] * self.has_age + [
            name for events in self.events for name in events.columns(self.span)
        ]

    def logarithms(self) -> list[str]:
        """Return the names of those of which the logarithm is read: counts and times."""
        return [
            name
            for name in self.columns()
            if name.partition(": ")[2].startswith(("count", "time")) or name == AGE
        ]

    def check_span(self, are_dates: bool) -> None:
        """Refuse a span with a unit where times are numbers, and one without where they are dates."""
        if self.span is not None and self.span[-1].isalpha() != are_dates:
            kind, mend = ("dates", "a unit, as in 30d") if are_dates else ("numbers", "no unit")
            key = "data.rows.within" if self.labels is None else "data.events.within"
            raise ValueError(f"{key}={self.span} does not fit times that are {kind}. Give {mend}")


def length_of(key: str, span: str) -> float:
    """Return the seconds of a span of time, or its number where it has no unit.

    Args:
        key: that gives it, for messages.

    Raises:
        ValueError: it is none, or 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([shdw]?)", span)
    if not found or not float(found[1]):
        raise ValueError(
            f"{key}={span} is no span of time. Write it as 30d, 12h or 4w, or as a number where times are "
            "numbers"
        )
    return float(found[1]) * SECONDS[found[2]]

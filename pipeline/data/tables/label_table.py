"""A label table of a schema: what its rows are called, and what is summarised for each of them."""

from dataclasses import dataclass, field

from parallel_epochs.pipeline.data.tables.spans import Span

# The type of the rows, the relation from a row to its entity, named as that from a labelled edge to its source, and the
# columns of the name and the time of a row.
TYPE, RELATION, ROWS, TIME = "label", "label_source", "#label", "#time"
# The column of the time for which an entity exists, where its table has a column of times.
AGE = "time since start"


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

    def columns(self, spans: list[Span]) -> list[str]:
        """Return the names of the columns of its summaries, in the order in which they are computed."""
        within = ["", *(f" in {span}" for span in spans)]
        found = [f"{self.name}: count{each}" for each in within]
        found += [f"{self.name}: time since {which}" for which in ("last", "first")]
        found += [f"{self.name}: count in each {span}" for span in spans[:1]]
        for _, column in self.numbers:
            found += [f"{self.name}: last {column}"]
            found += [f"{self.name}: {what} {column}{each}" for each in within for what in ("sum", "mean")]
        return found


@dataclass(frozen=True)
class RowTable:
    """The label table of a schema.

    Attributes:
        entity: type of the nodes that rows ask about.
        events: what is summarised for each row.
        spans: of the summaries that do not reach back to the beginning.
        has_age: whether entities have a time since which they exist.
        labels: the table of edges whose events are counted, and the end of the entity; none for a table of its own.
    """

    entity: str
    events: list[Events]
    spans: list[Span]
    has_age: bool
    labels: tuple[str, str] | None

    def columns(self) -> list[str]:
        """Return the names of all summaries."""
        return [AGE] * self.has_age + [name for events in self.events for name in events.columns(self.spans)]

    def logarithms(self) -> list[str]:
        """Return the names of those of which the logarithm is read: counts and times."""
        return [name for name in self.columns() if name.partition(": ")[2].startswith(("count", "time")) or name == AGE]

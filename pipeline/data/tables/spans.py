"""Spans of time, such as 30d."""

import re
from dataclasses import dataclass

SECONDS = {"": 1, "s": 1, "h": 3_600, "d": 86_400, "w": 604_800}
FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([shdw]?)")


@dataclass(frozen=True)
class Span:
    """A span of time.

    Attributes:
        number: of units.
        unit: "s", "h", "d" or "w"; "" in the unit of times that are numbers.
        key: that gives it, for messages.
    """

    number: float
    unit: str
    key: str

    @classmethod
    def read(cls, key: str, text: str) -> "Span":
        """Read a span.

        Raises:
            ValueError: it is none, or 0.
        """
        found = FORM.fullmatch(text.strip())
        if not found or not float(found[1]):
            raise ValueError(f"{key}={text} is no span of time. Write it as 30d, 12h or 4w, or as a number where times "
                             "are numbers")
        return cls(float(found[1]), found[2], key)

    def times(self, factor: int) -> "Span":
        """Return a multiple of it."""
        return Span(self.number * factor, self.unit, self.key)

    @property
    def length(self) -> float:
        """Its seconds, or its number where times are numbers."""
        return self.number * SECONDS[self.unit]

    def check(self, are_dates: bool) -> None:
        """Refuse a span with a unit where times are numbers, and one without where they are dates.

        Raises:
            ValueError: names the key.
        """
        if bool(self.unit) != are_dates:
            kind, mend = ("dates", "a unit, as in 30d") if are_dates else ("numbers", "no unit")
            raise ValueError(f"{self.key}={self} does not fit times that are {kind}. Give {mend}")

    def __str__(self) -> str:
        return f"{self.number:g}{self.unit}"

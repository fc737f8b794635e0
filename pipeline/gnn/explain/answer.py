"""An explanation of one prediction, as a person reads it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from parallel_epochs.pipeline.run import tables

# The completeness check allows such a part of the difference, and of 1.
TOLERANCE, LEAST_GAP = 0.02, 0.01
# Rows of each part that a person is shown.
SHOWN = 10


@dataclass(frozen=True)
class Explanation:
    """The columns, neighbours and edges that carry a prediction.

    Shares are parts of the score, which is the log odds of a class or binary task, or a value in its own unit. A
    `share` is one of integrated gradients (https://arxiv.org/abs/1703.01365): all of them add up to the difference
    between the score and that of a baseline, where every column has its mean. A `drop` is what the score loses when a
    neighbour or an edge is taken out of the graph and the rest is predicted again.

    Attributes:
        id: of what is predicted.
        label: the class or task whose score is explained; none of single values.
        unit: of the score.
        prediction: the probability, or the value.
        score, baseline: of the prediction, and with every column at its mean.
        columns: ``column``, ``value`` and ``share`` of the columns of the node, or of all nodes of a graph.
        neighbours: ``id``, ``type``, ``hops``, ``relation``, ``label``, ``share`` of all its columns, ``drop``,
            ``prediction`` without it, and ``columns``, the three largest of them.
        edges: ``source``, ``target``, ``relation``, ``hops``, ``drop`` and ``prediction`` without it.
        base: ``method``, ``part`` of the mixture and ``share`` of the simple method; empty without one.
        totals: the sums of the shares of all columns of the node, of all neighbours and of the method.
        without: the prediction without all of the edges that are named; none without edges.
        notes: what the reader has to know.
    """

    id: str
    label: str | None
    unit: str
    prediction: float
    score: float
    baseline: float
    columns: pd.DataFrame
    neighbours: pd.DataFrame
    edges: pd.DataFrame
    base: dict[str, Any]
    totals: dict[str, float]
    without: float | None
    notes: list[str] = field(default_factory=list)

    @property
    def gap(self) -> float:
        """The sum of all shares minus the difference that they should add up to."""
        return sum(self.totals.values()) - (self.score - self.baseline)

    @property
    def is_complete(self) -> bool:
        """Tell whether the shares add up to the difference, within 2 % of it or .01, whichever is more."""
        return abs(self.gap) <= max(TOLERANCE * abs(self.score - self.baseline), LEAST_GAP)

    @property
    def summary(self) -> str:
        """One line on the prediction, and one on the sum of the shares."""
        what = "" if self.label is None else f" {self.label}:"
        parts = ", ".join(f"{name} {value:+.3f}" for name, value in self.totals.items())
        check = "complete" if self.is_complete else "NOT complete"
        return (
            f"{self.id}:{what} {self.prediction:.4g}\n{self.unit} {self.score:+.3f}, at the means of all columns "
            f"{self.baseline:+.3f}. Shares: {parts}; {check}: their sum misses the difference by {self.gap:+.4f}, "
            f"and {max(TOLERANCE * abs(self.score - self.baseline), LEAST_GAP):.4f} is allowed. "
            "A share or a drop above 0 raises the score, one below 0 lowers it"
        )

    def __str__(self) -> str:
        parts = [self.summary]
        for name, table in self._parts():
            if len(table):
                plain = {"prediction": "{:.4f}".format} if "prediction" in table else {}
                parts.append(
                    f"{name}\n"
                    + table.head(SHOWN).to_string(
                        index=False, float_format="{:+.4f}".format, formatters=plain
                    )
                )
        if self.without is not None:
            parts.append(f"without the {len(self.edges)} edges together: {self.without:.4g}")
        return "\n\n".join([*parts, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        plain = {
            name: value for name, value in vars(self).items() if not isinstance(value, pd.DataFrame)
        }
        found = {
            name: [
                {key: None if value != value else value for key, value in row.items()}
                for row in table.to_dict("records")
            ]
            for name, table in self._parts()
        }
        return {**plain, **found, "gap": self.gap, "is_complete": self.is_complete}

    def table(self) -> pd.DataFrame:
        """Return all parts in one table, with the column ``part`` in front."""
        base = pd.DataFrame(
            [{"column": self.base["method"], "share": self.base["share"]}] if self.base else []
        )
        named = [(name, table) for name, table in [*self._parts(), ("base", base)] if len(table)]
        return (
            pd.concat(
                [table.assign(part=name, of=self.id) for name, table in named], ignore_index=True
            ).pipe(lambda found: found[["of", "part", *found.columns.drop(["of", "part"])]])
            if named
            else pd.DataFrame({"of": [], "part": []})
        )

    def write(self, path: str | Path) -> None:
        """Write :meth:`table` to a file."""
        found = self.table()
        tables.write(Path(path), [{name: found[name].to_numpy() for name in found.columns}])

    def _parts(self) -> list[tuple[str, pd.DataFrame]]:
        return [("columns", self.columns), ("neighbours", self.neighbours), ("edges", self.edges)]

"""Tables of predictions: columns that are made some rows at a time, and their writer."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from parallel_epochs.pipeline.run import tables
from parallel_epochs.pipeline.run.progress import Bar
from parallel_epochs.pipeline.run.tables import Columns

log = logging.getLogger(__name__)

# Cells of a table that are made at a time.
MAX_CELLS = 2**21
# Name of the numbers of a table and their computation from rows, by the kind of the labels.
SCORES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "classes": ("probability", lambda rows: rows.double().softmax(1).float()),
    "binary tasks": ("probability", lambda rows: rows.double().sigmoid().float()),
    "real values": ("value", lambda rows: rows),
}


@dataclass(frozen=True)
class Table:
    """A table whose columns are made some rows at a time.

    Attributes:
        content: what the rows hold, for the log, as in "the predictions of 10 nodes".
        num_rows: number of rows.
        width: number of the numbers in a row, which bounds how many rows are made at a time.
        columns: makes the columns of a slice of the rows.
    """

    content: str
    num_rows: int
    width: int
    columns: Callable[[slice], Columns]

    def write(self, path: str) -> None:
        """Write the table; what was there before is replaced when the new one is complete.

        Raises:
            FileError: the table cannot be written.
        """
        tables.write(Path(path), self._parts())
        log.info("wrote %s to %s", self.content, path)

    def frame(self) -> pd.DataFrame:
        """Return the table in memory."""
        return pd.DataFrame(self.columns(slice(0, self.num_rows)))

    def _parts(self) -> Iterator[Columns]:
        size = max(1, MAX_CELLS // (self.width + 3))
        parts = range(0, self.num_rows, size)
        with Bar("writing", len(parts), "parts of a table") as bar:
            for first in parts:
                yield self.columns(slice(first, min(first + size, self.num_rows)))
                bar.advance()


def label_columns(
    kind: str,
    rows: Tensor,
    labels: list[str] | None,
    chosen: str = "all",
    thresholds: Tensor | None = None,
) -> Columns:
    """Make the columns that say which labels some rows predict.

    Scores are computed in float64 and rounded to float32: in float32 the last bit depends on the memory layout of the
    rows, on their number and on the processor's vectors.

    Args:
        kind: of the labels, as in :data:`pipeline.metrics.KINDS`. It says what the rows are: logits of classes, logits
            of binary tasks, or values.
        rows: [num_rows, out_channels]
        labels: names of the columns of `rows`; none where they have numbers.
        chosen: which columns classes have, as the key ``columns`` says.
        thresholds: logits above which binary tasks are positive; none without columns of 0 and 1.
    """
    name, score = SCORES[kind]
    names = range(rows.size(1)) if labels is None else labels
    scores, are_classes = score(rows), SCORES[kind] is SCORES["classes"]
    found: Columns = {}
    if chosen == "top3":
        best = rows.argsort(dim=1, descending=True, stable=True)[
            :, :3
        ]  # of equal ones the first, as argmax
        values = scores.gather(1, best)
        for place, (one, value) in enumerate(zip(best.unbind(1), values.unbind(1), strict=True), 1):
            found |= {f"class_{place}": _name(one, labels), f"{name}_{place}": value.numpy()}
        return found
    if are_classes:
        found = {"class": _name(rows.argmax(1), labels)} | found
    if chosen == "class":
        return found | {name: scores.amax(1).numpy()}
    found |= {
        f"{name}_{label}": column.numpy()
        for label, column in zip(names, scores.unbind(1), strict=True)
    }
    return (
        found
        if thresholds is None
        else found
        | {
            f"predicted_{label}": column.numpy()
            for label, column in zip(
                names, (rows.double() > thresholds).to(torch.int8).unbind(1), strict=True
            )
        }
    )


def _name(classes: Tensor, labels: list[str] | None) -> np.ndarray:
    """Return classes by their names if they have some, otherwise by their numbers."""
    return classes.numpy() if labels is None else np.array(labels, object)[classes.numpy()]

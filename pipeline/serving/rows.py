"""Rows of a table as JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from fastapi import HTTPException

# Rows of a table whose JSON is kept, at most.
MOST_KEPT = 1 << 16


class Rows:
    """The rows of a table, each of which becomes an object of JSON when it is first asked for.

    Args:
        table: its columns are the names in the objects.
        ids: of the rows, unless they have none.
    """

    def __init__(
        self, table: pd.DataFrame | Mapping[str, np.ndarray], ids: np.ndarray | None = None
    ):
        self._columns = {str(name): np.asarray(table[name]) for name in table}
        self.ids = np.empty(0, object) if ids is None else ids.astype(str).astype(object)
        self._places = dict(zip(self.ids, range(len(self.ids))))
        self._encode = lru_cache(MOST_KEPT)(self._encode_row)

    def find(self, ids: Sequence[str]) -> list[bytes]:
        """Return the objects of some rows.

        Raises:
            HTTPException: an id is unknown, or several rows have it.
        """
        if unknown := [one for one in ids if one not in self._places]:
            raise HTTPException(
                404,
                f"ids: nothing has the id {unknown[0]!r:.100}; there are {len(self.ids):,}, such as "
                f"{', '.join(self.ids[:3])}",
            )
        if len(self._places) < len(self.ids):
            raise HTTPException(
                404,
                f"ids: {len(self.ids) - len(self._places):,} ids of this run occur twice, so that an id "
                "names no row",
            )
        return [self._encode(self._places[one]) for one in ids]

    def all(self) -> list[bytes]:
        """Return the objects of all rows."""
        return [self._encode_row(row) for row in range(len(next(iter(self._columns.values()))))]

    def _encode_row(self, row: int) -> bytes:
        return encode({name: column[row] for name, column in self._columns.items()})


def encode(row: Mapping[str, Any]) -> bytes:
    """Write an object of JSON. Its digits are enough to read the same numbers again; NaN becomes null."""
    cells = {name: _plain(cell) for name, cell in row.items()}
    return json.dumps(cells, default=_plain, separators=(",", ":")).encode()


def _plain(cell: Any) -> Any:
    """Return a cell as Python has it."""
    if isinstance(cell, np.ndarray):
        return [_plain(part) for part in cell]
    if isinstance(cell, np.float32):
        cell = float(f"{cell:.9g}")
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell if isinstance(cell, (str, int, float, list, dict)) or cell is None else str(cell)

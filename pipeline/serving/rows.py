"""Rows of a table as JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

# Bytes of JSON that the known rows of a model keep, at most.
MOST_KEPT = 1 << 28


class Refused(ValueError):
    """A request that is answered by another status than 400.

    Args:
        status: of the answer.
        message: says why, in one line.
        is_read: whether the body of the request was read; the connection is closed otherwise.
    """

    def __init__(self, status: int, message: str, *, is_read: bool = True):
        super().__init__(message)
        self.status, self.is_read = status, is_read


class Rows:
    """The rows of a table, each of which becomes an object of JSON when it is first asked for.

    Args:
        table: its columns are the names in the objects.
        ids: of the rows, unless they have none.
    """

    def __init__(
        self, table: pd.DataFrame | Mapping[str, np.ndarray], ids: np.ndarray | None = None
    ):
        columns = (
            {name: table[name].to_numpy() for name in table}
            if isinstance(table, pd.DataFrame)
            else table
        )
        self._columns = list(columns.values())
        self._writers = [_writer_of(column) for column in self._columns]
        names = [json.dumps(str(name)).replace("%", "%%") for name in columns]
        forms = [f"{name}:{form}" for name, (form, _) in zip(names, self._writers)]
        self._form = f"{{{','.join(forms)}}}"
        self.ids = np.empty(0, object) if ids is None else ids.astype(str).astype(object)
        self._places = dict(zip(self.ids, range(len(self.ids))))
        self._kept, self._size = dict[str, bytes](), 0
        self._num_rows = (
            len(table) if isinstance(table, pd.DataFrame) else len(next(iter(table.values())))
        )

    def __len__(self) -> int:
        return self._num_rows

    def find(self, ids: Sequence[str]) -> list[bytes]:
        """Return the objects of some rows.

        Raises:
            Refused: an id is unknown, or several rows have it.
        """
        return [self._kept.get(one) or self._keep(one) for one in ids]

    def all(self) -> list[bytes]:
        """Return the objects of all rows."""
        return [self._encode(row) for row in range(len(self))]

    def _keep(self, one: str) -> bytes:
        if (place := self._places.get(one)) is None:
            raise Refused(
                404,
                f"ids: nothing has the id {one!r:.100}; there are {len(self.ids):,}, such as "
                f"{', '.join(self.ids[:3])}",
            )
        if len(self._places) < len(self.ids):
            raise Refused(
                404,
                f"ids: {len(self.ids) - len(self._places):,} ids of this run occur twice, so that an id "
                "names no row",
            )
        found = self._encode(place)
        if self._size < MOST_KEPT:
            self._kept[one], self._size = found, self._size + len(found)
        return found

    def _encode(self, row: int) -> bytes:
        cells = [
            column[row] if write is None else write(column[row])
            for column, (_, write) in zip(self._columns, self._writers)
        ]
        return (self._form % tuple(cells)).encode()


def _writer_of(column: np.ndarray) -> tuple[str, Callable[[Any], str] | None]:
    """Choose the form of the cells of a column, and what writes a cell as a text, if that has to be.

    Digits are enough to read the same number again.
    """
    if column.ndim > 1:
        form, write = _writer_of(column.reshape(-1))
        return (
            "%s",
            lambda cells: (
                f"[{','.join([form % cell if write is None else write(cell) for cell in cells])}]"
            ),
        )
    if column.dtype.kind in "iu":
        return "%d", None
    if column.dtype.kind == "b":
        return "%s", lambda cell: str(cell).lower()
    if column.dtype.kind == "f":
        form = "%.9g" if column.dtype.itemsize <= 4 else "%.17g"
        return (
            (form, None)
            if np.isfinite(column).all()
            else ("%s", lambda cell: form % cell if np.isfinite(cell) else "null")
        )
    return "%s", lambda cell: json.dumps(cell, default=str)

"""The columns that rows must have which the tables of a training did not hold, and the cells of such rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from torch import Tensor

from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.data.tables.fitted import unpack

Row = Mapping[str, Any]
Columns = dict[str, dict[str, Any]]


def describe(config: TablesConfig, packed: Tensor) -> dict[str, Columns]:
    """Say of each column of "rows" and "edges" what its cells are: their kind, and categories that are known.

    Args:
        config: of one table of nodes and one of edges.
        packed: what was learned, see :class:`pipeline.data.tables.fitted.Fitted`.
    """
    of_nodes, of_edges = unpack(packed)[0]
    nodes = next(iter(config.tables.nodes.values())).columns
    edges = next(iter(config.tables.edges.values())).columns
    values: list[Columns] = [
        {
            name: {"x-kind": "date" if option == "dates" else "number"}
            for option, name in columns.value_columns()
        }
        for columns in (nodes, edges)
    ]
    rows: Columns = {str(nodes.id): {"x-kind": "id"}} | values[0]
    rows |= {name: {"x-kind": "text"} for name, _ in nodes.text_columns()}
    for name, known in zip(nodes.categories, of_nodes.columns.categories, strict=True):
        rows[name] = {"x-kind": "category", "x-known": list(known)}
    found: Columns = {name: {"x-kind": "id"} for name in (edges.source, edges.target)}
    if edges.relation is not None:
        found[edges.relation] = {"x-kind": "relation", "x-known": list(of_edges.relations)}
    return {"rows": rows, "edges": found | values[1]}


def check(what: str, rows: Sequence[Row], columns: Columns) -> None:
    """Refuse rows that lack columns, have others, or hold cells that are no single values.

    Raises:
        ValueError: names the row and what is wrong with it.
    """
    for number, row in enumerate(rows):
        place = f"{what}[{number}]"
        if not isinstance(row, Mapping):
            raise ValueError(f"{place} must be an object with the columns {', '.join(columns)}")
        if missing := [name for name in columns if name not in row]:
            raise ValueError(
                f"{place} lacks {', '.join(map(repr, missing))}; write null for an empty cell"
            )
        for name, cell in row.items():
            if name not in columns:
                raise ValueError(
                    f"{place} has the column {name!r:.100}, which the model does not read; it reads "
                    f"{', '.join(columns)}"
                )
            if cell is not None and type(cell) not in (str, int, float, bool):
                raise ValueError(
                    f"{place}: the cell of {name} must be a text, a number or null, and is {cell!r:.50}"
                )
            if type(cell) is str and any(
                letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in cell
            ):
                raise ValueError(f"{place}: the cell of {name} holds a letter that no text has")


def to_table(rows: Sequence[Row], columns: Columns) -> pd.DataFrame:
    """Write cells as a file of text would hold them."""
    found = {}
    for name, column in columns.items():
        cells = [row[name] for row in rows]
        if column["x-kind"] == "number":
            cells = [int(cell) if isinstance(cell, bool) else cell for cell in cells]
        found[name] = pd.array([text_of(cell) for cell in cells], "string")
    return pd.DataFrame(found)


def text_of(cell: Any) -> str | None:
    """Write a cell as a file of text would hold it; none for an empty one."""
    if isinstance(cell, bool):
        cell = str(cell).lower()
    elif isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return None if cell is None else str(cell) or None

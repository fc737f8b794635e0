"""The ids of nodes that a user reads and writes: names, or numbers where there are none."""

import logging
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.columns import open_unzipped
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.run import files, tables
from parallel_epochs.pipeline.run.errors import one_line

log = logging.getLogger(__name__)

ID = "id"


def read_texts(key: str, path: str, columns: Sequence[str]) -> pd.DataFrame:
    """Read columns of a table as texts, "" where a cell is empty.

    Args:
        key: names the table in messages, as in "output_nodes=ids.csv".

    Raises:
        ValueError: there is no such table or column, or it has no rows.
    """
    name = key.partition("=")[0]
    ending = tables.format_of(name, path)
    if not files.is_there(Path(path)):
        raise ValueError(f"{key} does not exist")
    try:
        if ending == ".parquet":
            table = pd.read_parquet(path)
        else:
            with open_unzipped(Path(path)) as file:
                table = pd.read_csv(
                    file, sep=tables.SEPARATORS[ending], dtype=str, keep_default_na=False
                )
    except (ValueError, OSError, EOFError, zlib.error) as error:  # what they raise of another file
        raise ValueError(f"{key} is not a readable table {ending}: {one_line(error)}") from None
    for column in columns:
        if column not in table:
            raise ValueError(
                f"{key} has the columns {', '.join(map(str, table.columns))}, but none called {column}"
            )
    if not len(table):
        raise ValueError(f"{key} has a header, but no rows")
    return pd.DataFrame(
        {
            column: table[column].astype(object).where(table[column].notna(), "").map(str)
            for column in columns
        }
    )


def read_ids(path: str, name: str = "output_nodes") -> list[str]:
    """Read the column ``id`` of a table.

    Args:
        name: of the key that names the table, for messages.

    Raises:
        ValueError: there is no such table or column, it has no rows, or one of them has no id, or that of another.
    """
    key = f"{name}={path}"
    ids = read_texts(key, path, [ID])[ID]
    if (empty := ids == "").any():
        raise ValueError(f"{key}: row {int(np.argmax(empty)) + 1} below the header has no {ID}")
    if (again := ids.duplicated()).any():
        row = int(np.argmax(again))
        first = int(np.argmax(ids == ids.iloc[row]))
        raise ValueError(
            f"{key}: row {row + 1} below the header has the {ID} {ids.iloc[row]!r} of row {first + 1}: "
            "give each once"
        )
    return ids.tolist()


def look_up(wanted: Sequence[str], ids: np.ndarray) -> np.ndarray:
    """Return the places of ids among those of all nodes, int64; -1 for an id that no node has."""
    return pd.Index([str(id_) for id_ in ids.tolist()]).get_indexer(pd.Index(wanted, dtype=object))


def find_nodes(
    wanted: list[str],
    ids: np.ndarray,
    path: str | None,
    *,
    name: str = "output_nodes",
    whose: str = "the run",
) -> np.ndarray:
    """Look nodes up by their ids.

    Args:
        ids: of all nodes.
        path: of the table that lists the wanted ones, for messages.
        name: of the key that names the table, for messages.
        whose: nodes these are, for messages.

    Raises:
        ValueError: names the first id that no node has.
    """
    places = look_up(wanted, ids)
    unknown = places < 0
    if unknown.any():
        row, key = int(np.argmax(unknown)), name if path is None else f"{name}={path}"
        raise ValueError(
            f"{key}: no node has the {ID} {wanted[row]!r} of row {row + 1}; the {len(ids):,} nodes of "
            f"{whose} are called {', '.join(map(str, ids[:3]))}, ..."
        )
    return places


def ids_of(data: Data, n_id: Tensor | None) -> np.ndarray:
    """Return the ids of nodes: their names, as text, or their numbers, int64, where they have none.

    Args:
        data: all of the graph.
        n_id: the nodes, where these are not all; none for all.
    """
    numbers = np.arange(data.num_nodes) if n_id is None else n_id.numpy()
    return np.array(unpack_names(data), object)[numbers] if "names" in data else numbers

"""Tables of predictions: a row a node or a graph, with its id, its split, what is predicted, and the scores."""

import logging
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.columns import open_unzipped
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.metrics import check_finite
from parallel_epochs.pipeline.names import MASKS, SPLITS
from parallel_epochs.pipeline.run import files, tables
from parallel_epochs.pipeline.run.errors import one_line
from parallel_epochs.pipeline.run.progress import Bar
from parallel_epochs.pipeline.run.tables import Columns

log = logging.getLogger(__name__)

ID = "id"
# Cells of a table that are made at a time.
MAX_CELLS = 2**21


@dataclass(frozen=True)
class Predictions:
    """What a model has predicted of nodes, or of graphs.

    Attributes:
        kind: of the labels, as in :data:`pipeline.metrics.KINDS`. It says what the rows are: logits of classes, logits
            of binary tasks, or values.
        rows: [num_nodes, out_channels]
        embeddings: [num_nodes, channels], or none.
        ids: of the nodes, text or int64 [num_nodes].
        splits: "train", "valid", "test" or "none" for each node [num_nodes].
        labels: names of the columns of `rows`; none where they have numbers.
        unit: what has a row.
        smoothed: smoothed numbers of every class, as `rows`; none without them.
        has_labels: whether the table holds what is predicted; not for nodes of a type without labels.
        types: of the nodes, text [num_nodes]; none where the table holds nodes of one type.
    """

    kind: str
    rows: Tensor
    embeddings: Tensor | None
    ids: np.ndarray
    splits: np.ndarray
    labels: list[str] | None
    unit: str = "nodes"
    smoothed: Tensor | None = None
    has_labels: bool = True
    types: np.ndarray | None = None


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
                table = pd.read_csv(file, sep=tables.SEPARATORS[ending], dtype=str, keep_default_na=False)
    except (ValueError, OSError, EOFError, zlib.error) as error:  # what they raise of another file
        raise ValueError(f"{key} is not a readable table {ending}: {one_line(error)}") from None
    for column in columns:
        if column not in table:
            raise ValueError(f"{key} has the columns {', '.join(map(str, table.columns))}, but none called {column}")
    if not len(table):
        raise ValueError(f"{key} has a header, but no rows")
    return pd.DataFrame({column: table[column].astype(object).where(table[column].notna(), "").map(str)
                         for column in columns})


def read_ids(path: str) -> list[str]:
    """Read the column ``id`` of a table.

    Raises:
        ValueError: there is no such table or column, it has no rows, or one of them has no id, or that of another.
    """
    key = f"output_nodes={path}"
    ids = read_texts(key, path, [ID])[ID]
    if (empty := ids == "").any():
        raise ValueError(f"{key}: row {int(np.argmax(empty)) + 1} below the header has no {ID}")
    if (again := ids.duplicated()).any():
        row = int(np.argmax(again))
        first = int(np.argmax(ids == ids.iloc[row]))
        raise ValueError(f"{key}: row {row + 1} below the header has the {ID} {ids.iloc[row]!r} of row {first + 1}: "
                         "give each once")
    return ids.tolist()


def find_nodes(wanted: list[str], ids: np.ndarray, path: str | None) -> np.ndarray:
    """Look nodes up by their ids.

    Args:
        ids: of all nodes.
        path: of the table that lists the wanted ones, for messages.

    Returns:
        The places of the wanted ones among all, int64.

    Raises:
        ValueError: names the first id that no node has.
    """
    if ids.dtype.kind == "i":  # without a text for each of millions
        numbers = [int(text) for text in wanted if text.isdecimal() and len(text) < 19]
        place = {str(ids[number]): number for number in np.flatnonzero(np.isin(ids, numbers)).tolist()}
    else:
        known = set(wanted)
        place = {text: number for number, id_ in enumerate(ids.tolist()) if (text := str(id_)) in known}
    for row, id_ in enumerate(wanted, start=1):
        if id_ not in place:
            raise ValueError(f"output_nodes={path}: no node has the {ID} {id_!r} of row {row}; the {len(ids):,} "
                             f"nodes of the run are called {', '.join(map(str, ids[:3]))}, ...")
    return np.array([place[id_] for id_ in wanted], dtype=np.int64)


def ids_of(data: Data, n_id: Tensor | None) -> np.ndarray:
    """Return the ids of nodes: their names, as text, or their numbers, int64, where they have none.

    Args:
        data: all of the graph.
        n_id: the nodes, where these are not all; none for all.
    """
    numbers = np.arange(data.num_nodes) if n_id is None else n_id.numpy()
    return np.array(unpack_names(data), object)[numbers] if "names" in data else numbers


def splits_of(data: Data, chosen: np.ndarray | None = None) -> np.ndarray:
    """Return the split of each node, or of each graph, as text; "none" for those of no split.

    Args:
        chosen: the places of some of them; none for all.
    """
    masks = [data[mask] if chosen is None else data[mask][torch.from_numpy(chosen)] for mask in MASKS]
    number = torch.full((len(masks[0]),), len(SPLITS), dtype=torch.uint8)
    for split, mask in enumerate(masks):
        number[mask] = split
    return np.array([*SPLITS, "none"], object)[number.numpy()]


def labels_of(data: Data, num_columns: int) -> list[str] | None:
    """Return the names of the classes or tasks; none where they have numbers."""
    if "label_names" not in data:
        return None
    return unpack_names(data, "label_names")[:num_columns]  # behind them may be classes that no split has


def save(path: str, predictions: Predictions, nodes: np.ndarray | None) -> None:
    """Write a table of predictions; what was there before is replaced when the new one is complete.

    Args:
        nodes: places of the rows to write, in this order; none for all.

    Raises:
        FloatingPointError: a prediction is not finite.
        FileError: the table cannot be written.
    """
    check_finite(predictions.rows, "no table is written")
    nodes = np.arange(len(predictions.ids)) if nodes is None else nodes
    tables.write(Path(path), _batches(predictions, nodes))
    width = 0 if predictions.embeddings is None else predictions.embeddings.size(1)
    log.info("wrote the predictions of %s %s%s to %s", f"{len(nodes):,}", predictions.unit,
             f", with embeddings of {width} numbers," * bool(width), path)


def _batches(predictions: Predictions, nodes: np.ndarray) -> Iterator[Columns]:
    """Cut a table into parts of a bounded size."""
    width = predictions.rows.size(1) + (0 if predictions.embeddings is None else predictions.embeddings.size(1))
    size = max(1, MAX_CELLS // (width + 3))
    parts = range(0, len(nodes), size)
    with Bar("writing", len(parts), "parts of a table") as bar:
        for first in parts:
            yield _columns(predictions, nodes[first:first + size])
            bar.advance()


def _columns(predictions: Predictions, nodes: np.ndarray) -> Columns:
    """Make the columns of some rows: texts, numbers [num_rows], and ``embedding`` [num_rows, channels].

    Scores are computed in float64 and rounded to float32: in float32 the last bit depends on the memory layout of the
    rows, on their number and on the processor's vectors.
    """
    rows, labels = predictions.rows[torch.from_numpy(nodes)], predictions.labels
    names = range(rows.size(1)) if labels is None else labels
    columns = {ID: predictions.ids[nodes], "split": predictions.splits[nodes]}
    if predictions.types is not None:
        columns = {"type": predictions.types[nodes], **columns}
    embeddings = {} if predictions.embeddings is None else {
        "embedding": predictions.embeddings[torch.from_numpy(nodes)].numpy()}
    if not predictions.has_labels:
        return columns | embeddings
    if predictions.kind == "classes":
        columns["class"] = _name_classes(rows, labels)
        if predictions.smoothed is not None:
            columns["smoothed_class"] = _name_classes(predictions.smoothed[torch.from_numpy(nodes)], labels)
        kind, scores = "probability", rows.double().softmax(1).float()
    elif predictions.kind == "real values":
        kind, scores = "value", rows
    else:
        kind, scores = "score", rows.double().sigmoid().float()
    columns |= {f"{kind}_{name}": column.numpy() for name, column in zip(names, scores.unbind(1), strict=True)}
    return columns | embeddings


def _name_classes(rows: Tensor, labels: list[str] | None) -> np.ndarray:
    """Return the likeliest class of each row, by its name if it has one."""
    best = rows.argmax(1).numpy()
    return best if labels is None else np.array(labels, object)[best]

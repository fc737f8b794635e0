"""Tables of pairs of nodes: those whose links a user asks for, and the probability of each."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.node_names import suggest_name
from parallel_epochs.pipeline.data.typed import schema_of
from parallel_epochs.pipeline.data.typed_links import LinkRelation
from parallel_epochs.pipeline.gnn import prediction_table
from parallel_epochs.pipeline.gnn.prediction_table import read_texts
from parallel_epochs.pipeline.graph.pairs import check_pairs, read_pairs as read_tensor
from parallel_epochs.pipeline.names import PAIR_COLUMNS
from parallel_epochs.pipeline.run import tables
from parallel_epochs.pipeline.run.tables import Columns

log = logging.getLogger(__name__)

# Rows that are made at a time.
BLOCK = 1 << 19


@dataclass(frozen=True)
class PairPredictions:
    """What a model has predicted of pairs of nodes.

    Attributes:
        ids: of all nodes, text or int64 [num_nodes].
        pairs: numbers of nodes [num_pairs, 2], int64.
        logits: [num_pairs]
        is_link: whether each pair is a link that was hidden, or was drawn among those without a link; none where
            nobody knows [num_pairs].
    """

    ids: np.ndarray
    pairs: Int[Tensor, "num_pairs 2"]
    logits: Float[Tensor, " num_pairs"]
    is_link: Tensor | None


def read_pairs(path: str, *, has_types: bool = False) -> Tensor | pd.DataFrame:
    """Read pairs of nodes: a table with the columns source and target, or a tensor that torch.save wrote.

    Args:
        has_types: whether two nodes of different types may have the same id.

    Returns:
        The tensor, or the two columns of the table, as texts.

    Raises:
        ValueError: there is no such file or column, a table without rows, a row without an id, or one with a node
            twice.
    """
    if not path.endswith(tables.FORMATS):
        return read_tensor(Path(path))
    key, (source, target) = f"pairs={path}", PAIR_COLUMNS
    table = read_texts(key, path, PAIR_COLUMNS)
    for column in PAIR_COLUMNS:
        if (empty := table[column] == "").any():
            raise ValueError(f"{key}: row {int(np.argmax(empty)) + 1} below the header has no {column}")
    if not has_types:
        _refuse_loops(table, (table[source] == table[target]).to_numpy(), path)
    return table


def _refuse_loops(table: pd.DataFrame, same: np.ndarray, path: str) -> None:
    """Refuse rows that pair a node with itself."""
    if same.any():
        row = int(np.argmax(same))
        raise ValueError(f"pairs={path}: row {row + 1} below the header pairs {table.iloc[row, 0]!r} with itself; "
                         "a link is between two different nodes")


def ids_of(data: Data) -> np.ndarray:
    """Return the ids of the nodes of a graph with pairs: their names, or numbers where they have none.

    The numbers are those within the type of a node, of a graph with several types.
    """
    schema = schema_of(data)
    if schema is None or "names" in data:
        return prediction_table.ids_of(data, None)
    return np.concatenate([np.arange(num_nodes) for num_nodes in schema.counts])


def number_ends(pairs: Tensor, own: LinkRelation) -> Int[Tensor, "num_pairs 2"]:
    """Find the nodes of pairs that hold the numbers of source and target within their types.

    Raises:
        ValueError: they are no integers of shape [num_pairs, 2], or name no nodes of these types.
    """
    check_pairs(pairs, max(len(own.source), len(own.target)))
    for what, column, nodes in zip(PAIR_COLUMNS, pairs.unbind(1), (own.source, own.target), strict=True):
        if len(pairs) and int(column.max()) >= len(nodes):
            raise ValueError(f"pairs name node {int(column.max())} as {what} of {own.name}; the nodes of its type are "
                             f"0 to {len(nodes) - 1}")
    return pairs.long() + first_nodes(own)


def first_nodes(own: LinkRelation) -> Int[Tensor, " 2"]:
    """Return the first node of the type of the sources, and of that of the targets, of a relation."""
    return torch.tensor([own.source.start, own.target.start])


def number_typed_pairs(table: pd.DataFrame, ids: np.ndarray, path: str,
                       own: LinkRelation) -> Int[Tensor, "num_pairs 2"]:
    """Find the nodes that a table of pairs of a relation names: ids are unique within a type only.

    Args:
        ids: of all nodes.

    Raises:
        ValueError: see :func:`number_pairs`; or a row pairs a node with itself.
    """
    columns = [number_pairs(table[[name]], ids[nodes.start:nodes.stop], path, f"the type of the {name}s of {own.name}")
               for name, nodes in zip(PAIR_COLUMNS, (own.source, own.target), strict=True)]
    pairs = torch.cat(columns, dim=1) + first_nodes(own)
    _refuse_loops(table, (pairs[:, 0] == pairs[:, 1]).numpy(), path)
    return pairs


def number_pairs(table: pd.DataFrame, ids: np.ndarray, path: str,
                 whose: str = "the run") -> Int[Tensor, "num_pairs num_columns"]:
    """Find the nodes that a table of pairs names.

    Args:
        table: as :func:`read_pairs` returns it.
        ids: of all nodes.
        path: of the table, for messages.
        whose: nodes these are, for messages.

    Raises:
        ValueError: names the first id that no node has, and one that looks alike.
    """
    place = {str(id_): number for number, id_ in enumerate(ids.tolist())}
    numbers = table.apply(lambda column: column.map(place))
    unknown = numbers.isna().to_numpy()
    if unknown.any():
        row = int(np.argmax(unknown.any(1)))
        name = table.iloc[row, int(np.argmax(unknown[row]))]
        rows = int(unknown.any(1).sum())
        more = f"; {rows:,} rows name such nodes" if rows > 1 else ""
        raise ValueError(f"pairs={path}: row {row + 1} below the header names {name!r}, which is not one of the "
                         f"{len(ids):,} nodes of {whose}{suggest_name(name, place)}{more}")
    return torch.from_numpy(numbers.to_numpy(np.int64, copy=True))


def save(path: str, predictions: PairPredictions) -> None:
    """Write a table with a row for each pair: source, target, whether it is a link, if that is known, and the score.

    The score is the probability of a link among pairs of which every second one is a link, as in training.

    Raises:
        FileError: the table cannot be written; what was there before is there still.
    """
    tables.write(Path(path), _batches(predictions))
    log.info("wrote the probabilities of %s pairs to %s", f"{len(predictions.pairs):,}", path)


def _batches(predictions: PairPredictions) -> Iterator[Columns]:
    for first in range(0, len(predictions.pairs), BLOCK):
        rows = slice(first, first + BLOCK)
        sources, targets = predictions.ids[predictions.pairs[rows].numpy()].T
        columns = dict(zip(PAIR_COLUMNS, (sources, targets), strict=True))
        if predictions.is_link is not None:
            columns["link"] = predictions.is_link[rows].numpy().astype(np.int64)
        yield columns | {"score": predictions.logits[rows].double().sigmoid().float().numpy()}

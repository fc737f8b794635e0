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

from parallel_epochs.pipeline.data.node_names import suggest_name
from parallel_epochs.pipeline.gnn.prediction_table import read_texts
from parallel_epochs.pipeline.graph.pairs import read_pairs as read_tensor
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


def read_pairs(path: str) -> Tensor | pd.DataFrame:
    """Read pairs of nodes: a table with the columns source and target, or a tensor that torch.save wrote.

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
    if (same := table[source] == table[target]).any():
        row = int(np.argmax(same))
        raise ValueError(f"{key}: row {row + 1} below the header pairs {table[source].iloc[row]!r} with itself; a link "
                         "is between two different nodes")
    return table


def number_pairs(table: pd.DataFrame, ids: np.ndarray, path: str) -> Int[Tensor, "num_pairs 2"]:
    """Find the nodes that a table of pairs names.

    Args:
        table: as :func:`read_pairs` returns it.
        ids: of all nodes.
        path: of the table, for messages.

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
                         f"{len(ids):,} nodes of the run{suggest_name(name, place)}{more}")
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

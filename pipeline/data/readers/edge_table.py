"""Tables of edges and labels as people have them: ids of any kind, two or three columns; MATLAB files and arrays."""

import logging
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.io
import scipy.sparse as sp
import torch
from torch import Tensor

from parallel_epochs.models.edge_index import INT32_END
from parallel_epochs.pipeline.data.check import as_float32, check_numbering
from parallel_epochs.pipeline.data.columns import read_bytes
from parallel_epochs.pipeline.data.config import EdgesConfig
from parallel_epochs.pipeline.data.content import hash_parts
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.node_names import number_names, pack_names
from parallel_epochs.pipeline.data.sniffer import (
    COMMENTS,
    RAGGED,
    is_number,
    read_rows,
    read_texts,
    sniff,
    strip_comments,
)
from parallel_epochs.pipeline.data.splits import divide, shuffle
from parallel_epochs.pipeline.names import MASKS
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# Names of the columns of the two ids in a header, which two ids hardly have.
HEADERS = {
    ("head", "tail"),
    ("subject", "object"),
    ("fromnodeid", "tonodeid"),
    *(
        (f"{first}{end}", f"{second}{end}")
        for end in ("", "_id", "_node")
        for first, second in (("source", "target"), ("from", "to"), ("src", "dst"))
    ),
    *(
        (f"{stem}{first}", f"{stem}{first + 1}")
        for stem in ("id", "id_", "node", "node_", "protein")
        for first in (0, 1)
    ),
}
ADJACENCY = "An adjacency list has lines of several lengths: networkx.read_adjlist reads it"
WEIGHTS = ("weight", "weights", "w", "value")
SMALLEST, LARGEST = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)

# Errors of files that scipy cannot read.
UNREADABLE = (
    ValueError,
    OverflowError,
    NotImplementedError,
    OSError,
    EOFError,
    LookupError,
    TypeError,
    zipfile.BadZipFile,
    zlib.error,
)

# Source and target of each edge, the weights if there are any, and the names of the nodes.
Edges = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]


def hash_content(path: str, labels: str | None) -> str:
    """Compute a digest of the tables."""
    return hash_parts(Path(table) for table in (path, labels) if table is not None)


def read(config: EdgesConfig) -> Graph:
    """Read a graph: edges that are there several times become one, with the sum of their weights.

    Returns:
        ``edge_index``; ``edge_attr`` [num_edges, 1], the weights, if there are any; ``y`` [num_nodes, num_labels], 1
        for the labels of a node, NaN for nodes without any, and the masks of a random split, if there are labels;
        ``names`` and ``label_names``, see :func:`pipeline.data.node_names.pack_names`. Of an array the edges alone.

    Raises:
        ValueError: a table cannot be read; the message names the file and the line.
    """
    table, y = Path(config.path), None
    if table.suffix == ".npy":
        return _read_numbers(table)
    if table.suffix == ".mat":
        edges, y = _read_matlab(table)
    else:
        edges = _read_text(table)
    source, target, weight, names = edges
    edge_index, edge_attr = merge(source, target, weight, len(names), table)
    data = Graph(
        edge_index=edge_index, edge_attr=edge_attr, num_nodes=len(names), **pack_names(names)
    )
    if config.labels is not None:
        y, kinds = _read_labels(Path(config.labels), names)
        data.update(pack_names(kinds, "label_names"))
    if y is not None:
        data.y, data.metric = torch.from_numpy(y), "micro_f1"
        order = shuffle(~np.isnan(y).any(1), config.graph_seed)
        masks = divide(order, len(names), config.train_fraction, config.valid_fraction)
        data.update(dict(zip(MASKS, masks, strict=True)))
    return data


def _read_text(path: Path) -> Edges:
    """Read two or three columns of a text."""
    content = read_bytes(path)
    dialect = sniff(content, str(path), comments=COMMENTS)
    if dialect is None:
        raise ValueError(f"{path} holds no rows")
    # A comment begins a line; pandas would begin one within an id. Empty lines stay, which its messages count.
    content = strip_comments(content, dialect.num_before)
    try:
        table = read_texts(content, str(path), dialect)
    except ValueError as error:
        more = f". {ADJACENCY}" if RAGGED.search(str(error)) else ""
        raise ValueError(f"{error}{more}") from None
    table = _leave_header(path, table)
    if table.shape[1] not in (2, 3):
        raise ValueError(
            f"{path} has {count(table.shape[1], 'column')}: a line holds two ids and optionally a weight, "
            "separated by blanks, tabs, commas or semicolons. More columns may be there if the first line "
            "calls two of them source and target"
        )
    _refuse_cells(path, table)
    weight = None if table.shape[1] == 2 else as_weights(path, table.iloc[:, 2])
    ids = pd.concat([table.iloc[:, 0], table.iloc[:, 1]], ignore_index=True)
    numbers, names = number_names(ids)
    return numbers[: len(table)], numbers[len(table) :], weight, names


def _leave_header(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Leave out a first line that names the columns, by its words or since numbers follow in place of texts, and choose
    the columns of the ids and the weight by its words, if it has some that are known.
    """
    names, rest = table.iloc[0].fillna("").tolist(), table.iloc[1:].reset_index(drop=True)
    lower = [name.lower() for name in names]
    ends = next((pair for pair in sorted(HEADERS) if set(pair) <= set(lower)), None)
    if ends is None and not any(_follow_numbers(table, columns) for columns in ([0, 1], [2])):
        return table
    log.info("%s: the first line is left out as a header: %s", path, " ".join(names))
    if rest.empty:
        raise ValueError(f"{path} holds no edges: its only line is a header")
    if ends is None:
        return rest
    chosen = [lower.index(end) for end in ends]
    weight = next((name for name in WEIGHTS if name in lower), None)
    if weight is not None:
        chosen.append(lower.index(weight))
    elif chosen == [0, 1] and len(names) == 3:
        chosen.append(2)
    log.info("%s: the columns are %s", path, ", ".join(names[place] for place in chosen))
    return rest[chosen].set_axis(range(len(chosen)), axis=1)


def _follow_numbers(table: pd.DataFrame, columns: list[int]) -> bool:
    """Tell whether columns hold numbers alone, but for texts in their first row."""
    first, rest = table.iloc[0].fillna(""), table.iloc[1:]
    if not len(rest) or columns[-1] >= table.shape[1] or any(map(is_number, first[columns])):
        return False
    # The first rows often tell, and all of many take long.
    return all(part[columns].map(is_number).all(axis=None) for part in (rest[:100], rest))


def as_weights(path: object, cells: pd.Series) -> np.ndarray:
    """Turn a column of weights into numbers that are not negative and that float32 can hold."""
    if pd.api.types.is_complex_dtype(cells):
        raise ValueError(f"{path} holds {cells.dtype}; weights are real numbers")
    weight = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64)
    row, why = _find_wrong(weight)
    if why:
        raise ValueError(f"{path}: edge {row + 1} has the weight {cells.iloc[row]!r}, which {why}")
    return weight


def _find_wrong(weight: np.ndarray) -> tuple[int, str]:
    """Return the place of the first wrong weight, and what is wrong with it; "" if all are right."""
    size = np.abs(weight)
    for wrong, why in (
        (~np.isfinite(weight), "is not a finite number"),
        (size > LARGEST, f"is outside of float32, which ends at {LARGEST:.2g}: scale all"),
        ((size > 0) & (size < SMALLEST), "float32 rounds to 0: scale all weights"),
        (weight < 0, "is negative; weights must not be"),
    ):
        if wrong.any():
            return int(wrong.argmax()), why
    return 0, ""


def _read_numbers(path: Path) -> Graph:
    """Read pairs of numbers of nodes, which stay in the file; numbers that no edge has are nodes too."""
    try:
        pairs = np.load(path, mmap_mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(
            f"{path} is not an array that numpy.save wrote: {str(error).strip()}"
        ) from None
    if not isinstance(pairs, np.ndarray):
        raise ValueError(f"{path} holds several arrays: save the edges by numpy.save")
    if pairs.dtype.kind not in "iu" or pairs.ndim != 2 or 2 not in pairs.shape:
        raise ValueError(
            f"{path} holds {pairs.dtype} {list(pairs.shape)}: edges are integers [num_edges, 2] or "
            "[2, num_edges], the numbers of nodes"
        )
    pairs = pairs.T if pairs.shape[0] != 2 else pairs
    if not pairs.size:
        raise ValueError(f"{path} holds no edges")
    low, high = int(pairs.min()), int(pairs.max())
    if low < 0 or high >= INT32_END - 1:
        raise ValueError(
            f"{path} names node {low if low < 0 else high:,}; nodes are numbered from 0, below 2**31 - 1"
        )
    check_numbering(str(path), high + 1, pairs.shape[1])
    return Graph(edge_index=torch.from_numpy(pairs.astype(np.int32)), num_nodes=high + 1)


def _refuse_cells(path: Path, table: pd.DataFrame) -> None:
    """Refuse an empty cell, one of several lines, and one that a quotation mark begins and none ends."""
    empty = ((table == "") | table.isna()).to_numpy()
    if empty.any():
        row, column = (int(place[0]) for place in empty.nonzero())
        raise ValueError(
            f"{path}: column {column + 1} of edge {row + 1} is empty: each line has {table.shape[1]} columns, "
            f"as the first has. {ADJACENCY}"
        )
    for column in table:
        wrong = table[column].str.fullmatch(r'(?s).*\n.*|"[^"]*')
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"{path}: edge {row + 1} holds {table[column].iloc[row][:40]!r}: close or double its "
                "quotation mark"
            )


def _read_labels(path: Path, names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read an id and its labels a line, separated as :func:`pipeline.data.sniffer.read_rows` tells; returns the labels
    of each node, and their names.
    """
    place = {name: number for number, name in enumerate(names)}
    found: list[tuple[int, str]] = []
    unknown: list[str] = []
    for number, (name, *labels) in read_rows(path, place):
        if not labels:
            raise ValueError(f"{path}: line {number} has no label: {name[:60]}")
        if name in place:
            found += [(place[name], label) for label in labels]
        else:
            unknown.append(name)
    if not found:
        first = f"; the first is {unknown[0]}" if unknown else ""
        raise ValueError(f"{path}: none of its ids is a node of the edges{first}")
    if unknown:
        log.warning(
            "%s: %s of its ids name no node of the edges and are left out; the first is %s",
            path,
            f"{len(unknown):,}",
            unknown[0],
        )
    kinds = sorted({label for _, label in found}, key=lambda label: (len(label), label))
    y = np.full((len(names), len(kinds)), np.nan, np.float32)
    column = {label: number for number, label in enumerate(kinds)}
    nodes = np.array([node for node, _ in found])
    y[nodes] = 0
    y[nodes, [column[label] for _, label in found]] = 1
    return y, np.array(kinds)


def _read_matlab(path: Path) -> tuple[Edges, np.ndarray | None]:
    """Read ``network``, a matrix of weights, and ``group``, labels of its nodes, as DeepWalk's authors keep them."""
    try:
        content = scipy.io.loadmat(path)
    except UNREADABLE as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path} is not a readable MATLAB file: {reason}") from None
    if "network" not in content:
        there = ", ".join(key for key in content if not key.startswith("__"))
        raise ValueError(f"{path} has no `network`; there is {there}")
    edges, group = as_edges(content["network"], f"{path}: network"), content.get("group")
    if group is None:
        return edges, None
    labels, num_nodes = np.asarray(group.todense() if sp.issparse(group) else group), len(edges[3])
    if labels.dtype.kind not in "biuf" or labels.ndim != 2 or len(labels) != num_nodes:
        raise ValueError(
            f"{path}: group holds {labels.dtype} {list(labels.shape)}; labels are 0 and 1, a row for each "
            f"of {num_nodes:,} nodes"
        )
    labels = labels.astype(np.float32)
    labels[labels.sum(1) == 0] = np.nan
    return edges, labels


def as_edges(matrix: Any, name: str) -> Edges:
    """Turn an adjacency matrix into edges, their weights if not all are 1, and names of the nodes: their numbers.

    Args:
        matrix: dense or sparse; what it stores of zeros is no edge.
        name: of the matrix, for messages.

    Raises:
        ValueError: it is not square, or does not hold finite numbers.
    """
    if not hasattr(matrix, "dtype") or matrix.dtype.kind not in "biuf":
        kind = getattr(matrix, "dtype", type(matrix).__name__)
        raise ValueError(f"{name} holds {kind}; weights are real numbers")
    network = sp.coo_array(matrix)
    if len(network.shape) != 2 or network.shape[0] != network.shape[1]:
        raise ValueError(f"{name} must be square, not {' x '.join(map(str, network.shape))}")
    if network.shape[0] >= INT32_END:
        raise ValueError(
            f"{name} has {network.shape[0]:,} nodes; at most {INT32_END - 1:,} can be numbered"
        )
    check_numbering(name, network.shape[0], network.nnz)
    network = sp.csr_array(network).tocoo()  # which adds up places that are there several times
    source, target = (place.astype(np.int64) for place in network.coords)
    weight = network.data.astype(np.float64)
    place, why = _find_wrong(weight)
    if why:
        raise ValueError(
            f"{name}: row {source[place]}, column {target[place]} holds {weight[place]:g}, which {why}"
        )
    if not (stored := weight != 0).all():
        num_zeros = int((~stored).sum())
        log.info("%s: %s stored zeros are not edges and are left out", name, f"{num_zeros:,}")
        source, target, weight = source[stored], target[stored], weight[stored]
    names = np.arange(network.shape[0]).astype(str)
    return source, target, None if (weight == 1).all() else weight, names


def merge(
    source: np.ndarray, target: np.ndarray, weight: np.ndarray | None, num_nodes: int, path: object
) -> tuple[Tensor, Tensor | None]:
    """Make edges that are there several times one."""
    values = np.ones(len(source)) if weight is None else weight
    merged = sp.coo_array((values, (source, target)), shape=(num_nodes, num_nodes)).tocsr().tocoo()
    if dropped := len(source) - merged.nnz:
        log.info(
            "%s: %s rows repeat an edge of another row and were merged with it%s",
            path,
            f"{dropped:,}",
            "" if weight is None else "; their weights were added",
        )
    edge_index = torch.from_numpy(np.stack(merged.coords).astype(np.int64))
    if weight is None:
        return edge_index, None
    return edge_index, as_float32(f"{path}: weights", torch.from_numpy(merged.data)).unsqueeze(1)

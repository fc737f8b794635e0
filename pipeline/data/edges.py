"""Tables of edges and labels as people have them: ids of any kind, two or three columns; a MATLAB file; an array."""

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.io
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.columns import choose_separator, find_head, open_unzipped, read_lines, read_table
from parallel_epochs.pipeline.data.content import hash_parts
from parallel_epochs.pipeline.data.node_names import number_names, pack_names
from parallel_epochs.pipeline.data.splits import divide, shuffle
from parallel_epochs.pipeline.names import MASKS

log = logging.getLogger(__name__)

COMMENTS = ("#", "%")


def hash_content(path: str, labels: str | None) -> str:
    """Compute a digest of the tables."""
    return hash_parts(Path(table) for table in (path, labels) if table is not None)


def read(path: str, labels: str | None, train_fraction: float, valid_fraction: float, graph_seed: int) -> Data:
    """Read a graph: edges that are there several times become one, with the sum of their weights.

    Returns:
        ``edge_index``; ``edge_attr`` [num_edges, 1], the weights, if there are any; ``y`` [num_nodes, num_labels], 1
        for the labels of a node, NaN for nodes without any, and the masks of a random split, if there are labels;
        ``names`` and ``label_names``, see :func:`pipeline.data.node_names.pack_names`. Of an array the edges alone.

    Raises:
        ValueError: a table cannot be read; the message names the file and the line.
    """
    table = Path(path)
    if table.suffix == ".npy":
        edge_index, num_nodes = _read_numbers(table)
        return Data(edge_index=edge_index, num_nodes=num_nodes)
    y, kinds = None, None
    if table.suffix == ".mat":
        source, target, weight, y, names = _read_matlab(table)
    else:
        source, target, weight, names = _read_edges(table)
        if labels is not None:
            y, kinds = _read_labels(Path(labels), names)
    num_nodes = len(names)
    edge_index, edge_attr = _merge(source, target, weight, num_nodes, table)
    data = Data(edge_index=edge_index, edge_attr=edge_attr, num_nodes=num_nodes, **pack_names(names))
    if y is not None:
        data.y, data.metric = torch.from_numpy(y), "micro_f1"
        if kinds is not None:
            data.update(pack_names(kinds, "label_names"))
        order = shuffle(~np.isnan(y).any(1), graph_seed)
        masks = divide(order, num_nodes, train_fraction, valid_fraction)
        data.update(dict(zip(MASKS, masks, strict=True)))
    return data


def _read_edges(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]:
    """Read two or three columns."""
    table = _read_columns(path)
    if table.shape[1] not in (2, 3):
        raise ValueError(f"{path} has {table.shape[1]} column{'s' if table.shape[1] > 1 else ''}: an edge is two ids, "
                         "and perhaps a weight, separated by blanks, tabs or commas")
    _refuse_empty(path, table)
    weight = None
    if table.shape[1] == 3:
        weight = pd.to_numeric(table.iloc[:, 2], errors="coerce").to_numpy(np.float64)
        if not np.isfinite(weight).all():
            row = int(np.flatnonzero(~np.isfinite(weight))[0])
            raise ValueError(f"{path}: edge {row + 1} has the weight {table.iloc[row, 2]!r}, which is no finite number")
    numbers, names = number_names(pd.concat([table.iloc[:, 0], table.iloc[:, 1]], ignore_index=True))
    return numbers[:len(table)], numbers[len(table):], weight, names


def _read_numbers(path: Path) -> tuple[Tensor, int]:
    """Read pairs of numbers of nodes, which stay in the file; numbers that no edge has are nodes too."""
    try:
        pairs = np.load(path, mmap_mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} is no array that numpy.save wrote: {str(error).strip()}") from None
    if not isinstance(pairs, np.ndarray) or pairs.dtype.kind not in "iu" or pairs.ndim != 2 or 2 not in pairs.shape:
        kind = f"{pairs.dtype} {list(pairs.shape)}" if isinstance(pairs, np.ndarray) else "several arrays"
        raise ValueError(f"{path} holds {kind}: edges are integers [num_edges, 2] or [2, num_edges], the numbers "
                         "of nodes")
    pairs = pairs.T if pairs.shape[0] != 2 else pairs
    if not pairs.size:
        raise ValueError(f"{path} holds no edges")
    low, high = int(pairs.min()), int(pairs.max())
    if low < 0 or high >= 2**31 - 1:
        raise ValueError(f"{path} names node {low if low < 0 else high:,}; nodes are numbered from 0, below 2**31 - 1")
    return torch.from_numpy(pairs.astype(np.int32)), high + 1


def _read_columns(path: Path) -> pd.DataFrame:
    """Read a table of texts without a head: blanks, tabs or commas between the columns; comments at its beginning and
    those that begin with # are left out.
    """
    with open_unzipped(path) as file:
        head, num_before = find_head(file, COMMENTS)
        if not head:
            raise ValueError(f"{path} holds no rows")
        return read_table(file, str(path), choose_separator(head), header=None, comment="#", skiprows=num_before,
                          dtype=str, skipinitialspace=True, keep_default_na=False)


def _refuse_empty(path: Path, table: pd.DataFrame) -> None:
    empty = (table == "").any(axis=1) | table.isna().any(axis=1)
    if empty.any():
        raise ValueError(f"{path}: row {int(np.flatnonzero(empty)[0]) + 1} has less than {table.shape[1]} columns")


def _read_labels(path: Path, names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read an id and its labels a line, separated by blanks, tabs or commas; returns the labels of each node, and their
    names.
    """
    place = {name: number for number, name in enumerate(names)}
    found: list[tuple[int, str]] = []
    unknown: list[str] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line or line.startswith(COMMENTS):
            continue
        name, *labels = line.replace(",", " ").split()
        if not labels:
            raise ValueError(f"{path}: line {number} has no label: {line[:60]}")
        if name in place:
            found += [(place[name], label) for label in labels]
        else:
            unknown.append(name)
    if not found:
        first = f"; the first is {unknown[0]}" if unknown else ""
        raise ValueError(f"{path}: none of its ids is a node of the edges{first}")
    if unknown:
        log.warning("%s: %s of its ids are no nodes of the edges and are left out, %s first", path,
                    f"{len(unknown):,}", unknown[0])
    kinds = sorted({label for _, label in found}, key=lambda label: (len(label), label))
    y = np.full((len(names), len(kinds)), np.nan, np.float32)
    column = {label: number for number, label in enumerate(kinds)}
    nodes = np.array([node for node, _ in found])
    y[nodes] = 0
    y[nodes, [column[label] for _, label in found]] = 1
    return y, np.array(kinds)


def _read_matlab(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray]:
    """Read ``network``, a matrix of weights, and ``group``, labels of its nodes, as DeepWalk's authors keep them."""
    try:
        content = scipy.io.loadmat(path)
    except (ValueError, NotImplementedError, OSError, TypeError) as error:
        raise ValueError(f"{path} is no MATLAB file that can be read: {error}") from None
    if "network" not in content:
        there = ", ".join(key for key in content if not key.startswith("__"))
        raise ValueError(f"{path} has no `network`; there is {there}")
    network = sp.coo_array(content["network"])
    if network.shape[0] != network.shape[1]:
        raise ValueError(f"{path}: network must be square, not {network.shape[0]} x {network.shape[1]}")
    labels = None
    if "group" in content:
        group = content["group"]
        labels = np.asarray(group.todense() if sp.issparse(group) else group, np.float32)
        if labels.ndim != 2 or len(labels) != network.shape[0]:
            raise ValueError(f"{path}: group has the shape {list(labels.shape)} for {network.shape[0]:,} nodes")
        labels[labels.sum(1) == 0] = np.nan
    weight = network.data.astype(np.float64)
    source, target = (place.astype(np.int64) for place in network.coords)
    return source, target, None if (weight == 1).all() else weight, labels, np.arange(network.shape[0])


def _merge(source: np.ndarray, target: np.ndarray, weight: np.ndarray | None, num_nodes: int,
           path: Path) -> tuple[Tensor, Tensor | None]:
    """Make edges that are there several times one."""
    if weight is not None and (weight < 0).any():
        edge = int(np.flatnonzero(weight < 0)[0])
        raise ValueError(f"{path}: edge {edge + 1} has the weight {weight[edge]:g}; weights must not be negative")
    matrix = sp.coo_array((np.ones(len(source)) if weight is None else weight, (source, target)),
                          shape=(num_nodes, num_nodes)).tocsr()
    merged = matrix.tocoo()
    if dropped := len(source) - merged.nnz:
        log.info("%s: %s rows repeat an edge of another row and were merged with it%s", path, f"{dropped:,}",
                 "" if weight is None else "; their weights were added")
    edge_index = torch.from_numpy(np.stack(merged.coords).astype(np.int64))
    return edge_index, None if weight is None else torch.from_numpy(merged.data.astype(np.float32)).unsqueeze(1)

"""The Open Graph Benchmark: its raw folders, its downloads, its metric, and what is odd about its package."""

import http.client
import io
import logging
import os
import shutil
import sys
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from parallel_epochs.pipeline.data.columns import find_head, open_unzipped, read_table
from parallel_epochs.pipeline.data.content import hash_named
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.readers.ogb_names import (
    OGB_GRAPH_NAMES,
    OGB_HETERO_NAMES,
    OGB_LINK_NAMES,
    OGB_NODE_NAMES,
)
from parallel_epochs.pipeline.names import MASKS, SPLITS
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.checkpoint import UNREADABLE, check_expanded, load_safely

# ogb asks the network for a newer version of itself when imported, from a thread that outlives the process' work.
sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]
import ogb.graphproppred  # noqa: E402
import ogb.linkproppred  # noqa: E402
import ogb.nodeproppred  # noqa: E402
from ogb.utils.features import get_atom_feature_dims, get_bond_feature_dims  # noqa: E402

log = logging.getLogger(__name__)

# Errors of a download that is not whole; the first is _fetch's own.
CUT_SHORT = (
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
)

# Metrics that OGB's Evaluator knows, and a dataset that it knows them by.
OFFICIAL = {"rocauc": "ogbn-proteins", "acc": "ogbn-arxiv"}


def evaluator(metric: str, num_tasks: int) -> ogb.nodeproppred.Evaluator:
    """OGB's Evaluator for "rocauc" (mean over tasks) or "acc", whatever the number of tasks."""
    out = ogb.nodeproppred.Evaluator(OFFICIAL[metric])
    out.num_tasks = num_tasks
    return out


def link_evaluator(metric: str) -> ogb.linkproppred.Evaluator:
    """OGB's Evaluator for "mrr", or "hits@K" of any K."""
    out = ogb.linkproppred.Evaluator("ogbl-citation2" if metric == "mrr" else "ogbl-collab")
    out.eval_metric = metric
    if metric != "mrr":
        out.K = int(metric.removeprefix("hits@"))
    return out


def meta(name: str) -> pd.Series:
    """A dataset in OGB's own table.

    Raises:
        ValueError: no dataset of OGB's is named so.
    """
    packages = {
        (*OGB_NODE_NAMES, *OGB_HETERO_NAMES): ogb.nodeproppred,
        OGB_GRAPH_NAMES: ogb.graphproppred,
        OGB_LINK_NAMES: ogb.linkproppred,
    }
    package = next((package for names, package in packages.items() if name in names), None)
    if package is None:
        raise ValueError(
            f"unknown dataset: data.name={name}; choose one of {', '.join(sum(packages, ()))}"
        )
    table = Path(package.__file__).with_name("master.csv")
    return pd.read_csv(table, index_col=0, keep_default_na=False)[name]


def download(name: str, root: str) -> None:
    """Fetch and unpack a node dataset; see :func:`fetch`."""
    fetch(name, root, _needed)


def fetch(name: str, root: str, needed: Callable[[Path, str], list[Path]]) -> None:
    """Fetch and unpack a dataset, without ogb's question whether to; an existing one is left alone.

    What arrives cut short or damaged is fetched once more. Nothing is left of a download that fails.

    Args:
        needed: returns the files of a dataset, given its folder and name, for the message without a network.

    Raises:
        ValueError: no network, or the dataset arrives damaged; the message says what else can be done.
        FileError: the folder cannot be written to.
    """
    folder = Path(root) / name.replace("-", "_")  # as ogb names it
    if folder.exists():
        return
    url, target = meta(name)["url"], Path(root) / f".{folder.name}.download"
    by_hand = (
        "Without a network here, unpack it elsewhere and set data.folder=DIR to the folder that holds "
        f"{', '.join(map(str, needed(Path(), name)))}"
    )
    with files.naming(target, "made"):
        target.mkdir(parents=True, exist_ok=True)
    with files.lock(target), files.naming(folder, "written"):
        try:
            for is_last in (False, True):
                log.info("%s: downloading %s", name, url)
                try:
                    _fetch(url, target / "archive.zip")
                    with zipfile.ZipFile(target / "archive.zip") as archive:
                        archive.extractall(target)
                    break
                except CUT_SHORT as error:
                    reason = f"what {url} sends is damaged or cut short ({error or type(error).__name__})"
                    if is_last:
                        raise ValueError(f"{name}: {reason}. Try again later. {by_hand}") from error
                    log.warning("%s: %s; downloading it again", name, reason)
            # The archive's own folder has another name; its renaming says that it was unpacked whole.
            os.rename(target / meta(name)["download_name"], folder)
        except urllib.error.URLError as error:
            reason = getattr(error.reason, "strerror", None) or str(error)
            raise ValueError(
                f"{name} cannot be downloaded from {url}: {reason}. {by_hand}"
            ) from error
        finally:
            shutil.rmtree(target, ignore_errors=True)


def _fetch(url: str, path: Path) -> None:
    """Copy what an address sends into a file.

    Raises:
        http.client.IncompleteRead: it ends before its stated length.
    """
    with urllib.request.urlopen(url, timeout=60) as response, open(path, "wb") as file:
        stated = int(response.headers.get("Content-Length", 0))
        with tqdm(
            total=stated or None, unit="B", unit_scale=True, leave=False, disable=None
        ) as bar:
            while block := response.read(1 << 20):
                file.write(block)
                bar.update(len(block))
        if file.tell() < stated:
            raise http.client.IncompleteRead(b"", stated - file.tell())


def _needed(folder: Path, name: str) -> list[Path]:
    """The files that a dataset must have by OGB's table, and those further ones that are read if they are there."""
    raw, info = folder / "raw", meta(name)
    unit = "graph" if name in OGB_GRAPH_NAMES else "node"
    stems = ["edge", "num-node-list", "num-edge-list"]
    stems += [] if name in OGB_LINK_NAMES else [f"{unit}-label"]
    for stem, needed in (
        ("node-feat", info["has_node_attr"] == "True"),
        ("edge-feat", info["has_edge_attr"] == "True" and name not in OGB_LINK_NAMES),
        ("node_species", False),
    ):
        if needed or (raw / f"{stem}.csv.gz").exists():
            stems.append(stem)
    return [raw / f"{stem}.csv.gz" for stem in stems] + split_files(folder, name)


def split_files(folder: Path, name: str) -> list[Path]:
    """Return the file of all splits if there is one, otherwise those of each split."""
    split = folder / "split" / meta(name)["split"]
    saved, ending = split / "split_dict.pt", "pt" if name in OGB_LINK_NAMES else "csv.gz"
    return [saved] if saved.exists() else [split / f"{part}.{ending}" for part in SPLITS]


def hash_content(directory: Path, name: str) -> str:
    """Compute a digest of the dataset's files.

    Raises:
        ValueError: a file is missing; the message names it.
    """
    return hash_named(map(require, _needed(directory, name)))


def require(path: Path) -> Path:
    """Return the path of a file of a dataset.

    Raises:
        ValueError: there is no such file.
    """
    if not path.is_file():
        raise ValueError(
            f"{path} is missing; data.folder must hold raw/ and split/ as OGB lays them out"
        )
    return path


def read(directory: Path, name: str) -> Graph:
    """Read a node dataset in OGB's raw CSV layout; nothing is written to the folder.

    Node and edge features, labels and species are taken as the files have them; whether each edge is stored once for
    both directions, the split's name and the metric come from OGB's table for `name`.

    Raises:
        ValueError: a file is missing, cut short, or does not fit the others; the message names it.
    """
    data, raw, info = read_graphs(directory, name), directory / "raw", meta(name)
    if len(data.pop("ptr")) != 2:
        raise ValueError(f"{raw}/num-node-list.csv.gz: a node dataset has one graph")
    if (path := raw / "node_species.csv.gz").exists():
        # Species are taxonomy numbers; what matters is which nodes share one.
        species = whole(path, read_numbers(path, data.num_nodes))
        data.species = torch.from_numpy(np.unique(species, return_inverse=True)[1].reshape(-1))
    add_masks(data, directory, name, data.num_nodes, "node")
    path = raw / "node-label.csv.gz"
    labels = read_numbers(path, data.num_nodes)
    in_split = torch.stack([data[mask] for mask in MASKS]).any(0).numpy()
    is_class = info["task type"] == "multiclass classification"
    data.y = torch.from_numpy(read_classes(path, labels, in_split) if is_class else labels).float()
    data.y = data.y.long() if is_class else data.y
    return data


def read_classes(path: Path, labels: np.ndarray, in_split: np.ndarray) -> np.ndarray:
    """Return classes as whole numbers. NaN stands for no class, of nodes that no split has."""
    unknown = np.isnan(labels).any(1) & ~in_split if labels.dtype.kind == "f" else ~in_split & False
    return whole(path, np.where(unknown[:, None], 0, labels))


def read_graphs(directory: Path, name: str) -> Graph:
    """Read the graphs of a folder as one union: edges, sizes, and features where there are files of them.

    Returns:
        ``edge_index``, ``ptr`` [num_graphs + 1], the ``metric`` of OGB's table, and perhaps ``x`` and ``edge_attr``, of
        molecules uint8.

    Raises:
        ValueError: as :func:`read`.
    """
    info, raw = meta(name), directory / "raw"
    log.info("data: reading the tables in %s", raw)
    nodes, edges = (raw / f"num-{unit}-list.csv.gz" for unit in ("node", "edge"))
    num_nodes, num_edges = (whole(path, read_numbers(path)).reshape(-1) for path in (nodes, edges))
    if len(num_nodes) != len(num_edges):
        raise ValueError(
            f"{nodes} has {len(num_nodes):,} graphs, but {edges.name} has {len(num_edges):,}"
        )
    for path, counts, least in ((nodes, num_nodes, 1), (edges, num_edges, 0)):
        if len(wrong := np.flatnonzero(counts < least)):
            raise ValueError(
                f"{path}: graph {wrong[0]} (from 0) has {counts[wrong[0]]} {path.name[4:8]}s; it needs "
                f"at least {least}: leave it out"
            )
    path, first = raw / "edge.csv.gz", np.concatenate([[0], np.cumsum(num_nodes)])
    ends = whole(path, read_numbers(path, int(num_edges.sum()), 2))
    outside = ((ends < 0) | (ends >= np.repeat(num_nodes, num_edges)[:, None])).any(1)
    if outside.any():
        row = int(outside.argmax())
        graph = int(np.searchsorted(np.cumsum(num_edges), row, side="right"))
        raise ValueError(
            f"{path}: row {row} (from 0) is {ends[row].tolist()}, and graph {graph} has the nodes 0 to "
            f"{num_nodes[graph] - 1}"
        )
    shifted = ends + np.repeat(first[:-1], num_edges)[:, None]
    edge_index = torch.from_numpy(np.ascontiguousarray(shifted.T))
    both = info["add_inverse_edge"] == "True"
    if both:
        edge_index = torch.stack([edge_index, edge_index.flip(0)], dim=2).reshape(2, -1)
    data = Graph(
        edge_index=edge_index,
        num_nodes=int(first[-1]),
        ptr=torch.from_numpy(first),
        metric=info["eval metric"],
    )
    molecule = info.get("data type") == "mol"
    if (path := raw / "node-feat.csv.gz").exists():
        data.x = _read_features(path, data.num_nodes, get_atom_feature_dims() if molecule else None)
    if (path := raw / "edge-feat.csv.gz").exists() and name not in OGB_LINK_NAMES:
        sizes = get_bond_feature_dims() if molecule else None
        data.edge_attr = _read_features(path, len(ends), sizes)
        data.edge_attr = data.edge_attr.repeat_interleave(2, dim=0) if both else data.edge_attr
    return data


def _read_features(path: Path, num_rows: int, sizes: list[int] | None) -> torch.Tensor:
    """Read features, or categories of so many values in each column."""
    if sizes is None:
        return torch.from_numpy(read_numbers(path, num_rows)).float()
    table = whole(path, read_numbers(path, num_rows, len(sizes)))
    outside = (table < 0) | (table >= sizes)
    if outside.any():
        row, column = (int(place[0]) for place in outside.nonzero())
        raise ValueError(
            f"{path}: row {row}, column {column} (from 0) holds {table[row, column]}; OGB's table of this "
            f"column has the categories 0 to {sizes[column] - 1}"
        )
    return torch.from_numpy(table.astype(np.uint8))


def read_numbers(path: Path, num_rows: int | None = None, columns: int | None = None) -> np.ndarray:
    """Read a table of numbers, of so many rows and columns if they are given, or raise a ValueError that names it."""
    with open_unzipped(require(path)) as file:
        if find_head(file, str(path))[0]:
            table = np.require(read_table(file, str(path), ",", header=None), requirements="W")
        elif num_rows == 0:
            table = np.empty((0, columns or 1), np.int64)
        else:
            raise ValueError(f"{path} is empty")
    if num_rows is not None and len(table) != num_rows:
        raise ValueError(f"{path} has {len(table):,} rows, and the lists of sizes say {num_rows:,}")
    if columns is not None and table.shape[1] != columns:
        raise ValueError(f"{path} has {table.shape[1]} columns, and must have {columns}")
    if not np.issubdtype(table.dtype, np.number):
        row, column, value = next(
            (row, column, value)
            for (row, column), value in np.ndenumerate(table)
            if isinstance(value, (str, bool, np.bool_)) or value >= 2**63
        )
        raise ValueError(
            f"{path}: row {row}, column {column} (from 0) holds {value}, which is not a number or does "
            "not fit"
        )
    return table


def whole(path: Path, table: np.ndarray) -> np.ndarray:
    """Return a table of numbers as int64, or raise a ValueError that names the file, the row and the value."""
    if table.dtype == np.uint64 or table.dtype.kind not in "iu":
        wrong = np.argwhere(~((np.abs(table) < 2**63) & (table == np.floor(table))))
        if len(wrong):
            place = tuple(wrong[0])
            raise ValueError(
                f"{path}: row {place[0]} (from 0) holds {table[place]:.17g}, which is not a whole number "
                "below 2^63"
            )
    return table.astype(np.int64)


def add_masks(data: Graph, folder: Path, name: str, num_rows: int, unit: str) -> None:
    """Read the numbers of the rows of each split, and give a graph the masks of these.

    Raises:
        ValueError: names the file.
    """
    paths = split_files(folder, name)
    if len(paths) == 1:
        parts = _read_saved_split(paths[0])
    else:
        parts = {part: read_nodes(path) for part, path in zip(SPLITS, paths)}
    for part, rows in parts.items():
        data[f"{part}_mask"] = as_mask(rows, num_rows, f"{paths[0].parent}: the {part} split", unit)


def as_mask(rows: np.ndarray, num_rows: int, origin: str, unit: str) -> torch.Tensor:
    """Turn numbers of nodes or graphs into a mask."""
    if len(wrong := rows[(rows < 0) | (rows >= num_rows)]):
        raise ValueError(f"{origin} names {unit} {wrong[0]}, and there are {num_rows:,} {unit}s")
    mask = torch.zeros(num_rows, dtype=torch.bool)
    mask[torch.from_numpy(rows)] = True
    return mask


def _read_saved_split(path: Path) -> dict[str, np.ndarray]:
    otherwise = f"not a split into {', '.join(SPLITS)}"
    saved = load_arrays(path, otherwise)
    try:
        parts = {part: np.asarray(saved[part]).reshape(-1) for part in SPLITS}
    except UNREADABLE as error:
        raise ValueError(f"{path} is damaged, or {otherwise} ({type(error).__name__})") from error
    return {
        part: whole(path, nodes) if nodes.size else nodes.astype(int)
        for part, nodes in parts.items()
    }


def read_nodes(path: Path) -> np.ndarray:
    """Read the numbers of the nodes of a split; a file may be empty."""
    with open_unzipped(require(path)) as file:
        is_empty = not find_head(file, str(path))[0]
    return whole(path, read_numbers(path, 0 if is_empty else None)).reshape(-1)


def load_arrays(path: Path, otherwise: str) -> Any:
    """Load what ogb saved by torch.save: tensors and numpy arrays, and no code.

    Args:
        otherwise: what the file may be if it is not damaged, for messages.
    """
    # Torch's safe loader has to be told about numpy arrays, under the names of numpy 1 and 2.
    reconstruct = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
    allowed: list[Any] = [
        np.ndarray,
        np.dtype,
        np.dtypes.Int64DType,
        np.dtypes.Int32DType,
        np.dtypes.Float64DType,
        np.dtypes.Float32DType,
        bytes,
        reconstruct,
        (reconstruct, "numpy.core.multiarray._reconstruct"),
    ]
    content = files.read_bytes(path)
    try:
        with torch.serialization.safe_globals(allowed):
            saved = load_safely(io.BytesIO(content))
    except UNREADABLE as error:
        raise ValueError(f"{path} is damaged, or {otherwise} ({type(error).__name__})") from error
    check_expanded(str(path), saved)
    return saved

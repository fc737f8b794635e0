"""The Open Graph Benchmark: its raw folders, its downloads, its metric, and what is odd about its package."""

import http.client
import logging
import os
import shutil
import sys
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path

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

# ogb asks the network for a newer version of itself when imported, from a thread that outlives the process' work.
sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]
import ogb.graphproppred  # noqa: E402
import ogb.linkproppred  # noqa: E402
import ogb.nodeproppred  # noqa: E402
from ogb.utils.features import get_atom_feature_dims, get_bond_feature_dims  # noqa: E402

log = logging.getLogger(__name__)

# Errors of a download without a network, or that is not whole.
DOWNLOAD_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
)


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
    """Fetch and unpack a dataset, without ogb's question whether to; an existing one is left alone.

    Nothing is left of a download that fails.

    Raises:
        ValueError: no network, or the dataset arrives damaged; the message says what else can be done.
        FileError: the folder cannot be written to.
    """
    folder = Path(root) / name.replace("-", "_")  # as ogb names it
    if folder.exists():
        return
    info, target = meta(name), Path(root) / f".{folder.name}.download"
    with files.naming(target, "made"):
        target.mkdir(parents=True, exist_ok=True)
    with files.lock(target), files.naming(folder, "written"):
        try:
            log.info("%s: downloading %s", name, info["url"])
            with urllib.request.urlopen(info["url"], timeout=60) as response:
                size = int(response.headers.get("Content-Length", 0)) or None
                with (
                    open(target / "archive.zip", "wb") as file,
                    tqdm.wrapattr(response, "read", total=size, leave=False, disable=None) as sent,
                ):
                    shutil.copyfileobj(sent, file)
            with zipfile.ZipFile(target / "archive.zip") as archive:
                archive.extractall(target)
            # The archive's own folder has another name; its renaming says that it was unpacked whole.
            os.rename(target / info["download_name"], folder)
        except DOWNLOAD_ERRORS as error:
            reason = getattr(getattr(error, "reason", None), "strerror", None) or str(error)
            raise ValueError(
                f"{name} cannot be downloaded from {info['url']}, or arrives damaged: {reason}. Try again later. "
                "Without a network here, unpack it elsewhere and set data.folder=DIR to the folder that holds raw/ "
                "and split/"
            ) from error
        finally:
            shutil.rmtree(target, ignore_errors=True)


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
    """Return the file of each split."""
    ending = "pt" if name in OGB_LINK_NAMES else "csv.gz"
    return [folder / "split" / meta(name)["split"] / f"{part}.{ending}" for part in SPLITS]


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
        species = read_whole(path, data.num_nodes)
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
    num_nodes, num_edges = (read_whole(path).reshape(-1) for path in (nodes, edges))
    if len(num_nodes) != len(num_edges):
        raise ValueError(
            f"{nodes} has {len(num_nodes):,} graphs, but {edges.name} has {len(num_edges):,}"
        )
    if (wrong := (num_nodes < 1) | (num_edges < 0)).any():
        raise ValueError(
            f"{raw}: graph {wrong.argmax()} (from 0) has no nodes, or less than no edge: leave it out"
        )
    path, first = raw / "edge.csv.gz", np.concatenate([[0], np.cumsum(num_nodes)])
    ends = read_whole(path, int(num_edges.sum()), 2)
    outside = ((ends < 0) | (ends >= np.repeat(num_nodes, num_edges)[:, None])).any(1)
    if outside.any():
        raise ValueError(
            f"{path}: row {outside.argmax()} (from 0) is {ends[outside.argmax()].tolist()}, which are no nodes "
            "of its graph"
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
    table = read_whole(path, num_rows, len(sizes))
    outside = (table < 0) | (table >= sizes)
    if outside.any():
        row, column = np.argwhere(outside)[0]
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
        else:
            table = np.empty((0, columns or 1), np.int64)
    for what, found, stated in zip(("rows", "columns"), table.shape, (num_rows, columns)):
        if stated is not None and found != stated:
            raise ValueError(f"{path} has {found:,} {what}, and must have {stated:,}")
    if not np.issubdtype(table.dtype, np.number):
        wrong = next(cell for cell in table.flat if isinstance(cell, (str, bool)) or cell >= 2**63)
        raise ValueError(f"{path} holds {wrong}, which is not a number or does not fit")
    return table


def read_whole(path: Path, num_rows: int | None = None, columns: int | None = None) -> np.ndarray:
    """Read a table of whole numbers, int64; see :func:`read_numbers`."""
    return whole(path, read_numbers(path, num_rows, columns))


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
    for mask, path in zip(MASKS, split_files(folder, name), strict=True):
        data[mask] = read_mask(path, num_rows, unit)


def read_mask(path: Path, num_rows: int, unit: str) -> torch.Tensor:
    """Read the numbers of the nodes or graphs of a split, perhaps none, as a mask."""
    rows = read_whole(path).reshape(-1)
    if len(wrong := rows[(rows < 0) | (rows >= num_rows)]):
        raise ValueError(f"{path} names {unit} {wrong[0]}, and there are {num_rows:,} {unit}s")
    mask = torch.zeros(num_rows, dtype=torch.bool)
    mask[torch.from_numpy(rows)] = True
    return mask

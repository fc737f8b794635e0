"""The Open Graph Benchmark: its raw folders, its downloads, its metric, and what is odd about its package."""

import contextlib
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
from collections.abc import Callable, Sequence
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
from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.checkpoint import UNREADABLE, check_expanded, load_safely

# ogb asks the network for a newer version of itself when imported, from a thread that outlives the process' work.
sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]
import ogb.graphproppred  # noqa: E402
import ogb.linkproppred  # noqa: E402
import ogb.nodeproppred  # noqa: E402
from ogb.io.read_graph_raw import read_csv_graph_raw  # noqa: E402

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

# Bytes of a table of whole numbers.
WHOLE_NUMBERS = b"0123456789-,\r\n \t"

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
    stems = [
        "edge",
        "num-node-list",
        "num-edge-list",
        "graph-label" if name in OGB_GRAPH_NAMES else "node-label",
    ]
    for stem, needed in (
        ("node-feat", info["has_node_attr"] == "True"),
        ("edge-feat", info["has_edge_attr"] == "True"),
        ("node_species", False),
    ):
        if needed or (raw / f"{stem}.csv.gz").exists():
            stems.append(stem)
    return [raw / f"{stem}.csv.gz" for stem in stems] + _split_files(folder, info["split"])


def _split_files(folder: Path, split: str) -> list[Path]:
    saved = folder / "split" / split / "split_dict.pt"
    if saved.exists():
        return [saved]
    return [folder / "split" / split / f"{part}.csv.gz" for part in SPLITS]


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
    """Read a dataset in OGB's raw CSV layout with OGB's own reader; nothing is written to the folder.

    Node and edge features, labels and species are taken as the files have them; whether each edge is stored once for
    both directions, the split's name and the metric come from OGB's table for `name`.

    Raises:
        ValueError: a file is missing, cut short, or does not fit the others; the message names it.
    """
    info = meta(name)
    raw = directory / "raw"
    log.info("data: reading the tables in %s", raw)
    check_rows(raw, {path.name: count_rows(path) for path in _needed(directory, name)})
    has_species = (raw / "node_species.csv.gz").exists()
    graph = read_graph(raw, name, ["node_species"] if has_species else [])
    num_nodes = graph["num_nodes"]

    path, splits = raw / "node-label.csv.gz", read_split(directory, info["split"])
    label = read_numbers(path)
    classify = info["task type"] == "multiclass classification"
    if classify:  # NaN stands for no class, of nodes that no split has
        unknown = np.isnan(label).any(1) if label.dtype.kind == "f" else np.zeros(len(label), bool)
        refused = unknown & np.isin(np.arange(len(label)), np.concatenate(list(splits.values())))
        label = whole(path, np.where((unknown & ~refused)[:, None], 0, label))
    data = Graph(
        edge_index=torch.from_numpy(graph["edge_index"]),
        num_nodes=num_nodes,
        metric=info["eval metric"],
        y=torch.from_numpy(label.astype(np.int64 if classify else np.float32)),
    )
    if graph["node_feat"] is not None:
        data.x = torch.from_numpy(graph["node_feat"]).float()
    if graph["edge_feat"] is not None:
        data.edge_attr = torch.from_numpy(graph["edge_feat"]).float()
    if has_species:
        # Species are taxonomy numbers; what matters is which nodes share one.
        species = whole(raw / "node_species.csv.gz", graph["node_species"])
        data.species = torch.from_numpy(np.unique(species, return_inverse=True)[1].reshape(-1))
    for part, nodes in splits.items():
        if nodes.size and not (0 <= nodes.min() and nodes.max() < num_nodes):
            raise ValueError(
                f"{directory / 'split' / info['split']}: node "
                f"{nodes.max() if nodes.min() >= 0 else nodes.min()} of the {part} split is not one of "
                f"{num_nodes:,} nodes"
            )
        data[f"{part}_mask"] = torch.zeros(num_nodes, dtype=torch.bool)
        data[f"{part}_mask"][torch.from_numpy(nodes)] = True
    return data


def read_graph(raw: Path, name: str, node_files: Sequence[str] = ()) -> dict:
    """Read the first graph of a folder with OGB's own reader, in silence.

    Args:
        name: of the dataset; OGB's table says whether each edge is stored once for both directions.
        node_files: the stems of further files with a row for each node.

    Raises:
        ValueError: the tables do not fit each other.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            graphs = read_csv_graph_raw(
                str(raw),
                add_inverse_edge=meta(name)["add_inverse_edge"] == "True",
                additional_node_files=list(node_files),
            )
    except (AssertionError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{raw} holds no OGB graph: {error or type(error).__name__}") from error
    return graphs[0]


def count_rows(path: Path) -> int | None:
    """Count the rows of a .csv.gz file; None for other files.

    It reads the file to its end, so that gzip compares the checksum and an error names the file.

    Raises:
        ValueError: it is damaged; or it is a table of edges and holds other than whole numbers, which OGB's reader
            would cut.
    """
    if require(path).suffix != ".gz":
        return None
    rows, last, are_whole = 0, b"\n", True
    with open_unzipped(path) as file:
        while block := file.read(1 << 24):
            rows, last = rows + block.count(b"\n"), block[-1:]
            are_whole = are_whole and not block.translate(None, WHOLE_NUMBERS)
    if path.name == "edge.csv.gz" and not are_whole:
        whole(path, read_numbers(path))
    return rows + (last != b"\n")


def check_rows(raw: Path, rows: dict[str, int | None]) -> None:
    """Compare the rows of tables with the numbers of nodes and edges that a folder states.

    Raises:
        ValueError: they differ, or the numbers cannot be read.
    """
    for unit, stems in (
        ("node", ("node-label", "node-feat", "node_species")),
        ("edge", ("edge", "edge-feat")),
    ):
        path = raw / f"num-{unit}-list.csv.gz"
        stated = int(whole(path, read_numbers(path))[0, 0])
        for stem in stems:
            found = rows.get(f"{stem}.csv.gz", stated)
            if found != stated:
                raise ValueError(
                    f"{raw / stem}.csv.gz has {found:,} rows, but num-{unit}-list.csv.gz says {stated:,}"
                )


def read_numbers(path: Path) -> np.ndarray:
    """Read a table of numbers, or raise a ValueError that names the file."""
    with open_unzipped(path) as file:
        if not find_head(file, str(path))[0]:
            raise ValueError(f"{path} is empty")
        table = read_table(file, str(path), ",", header=None).values
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
                f"{path}: row {place[0]} (from 0) holds {table[place]:.17g}, which is not a whole "
                f"number{' below 2^63' if np.isfinite(table[place]) and table[place] >= 2**63 else ''}"
            )
    return table.astype(np.int64)


def read_split(folder: Path, split: str) -> dict[str, np.ndarray]:
    """Read the numbers of the rows of each split, or raise a ValueError that names the file."""
    paths = _split_files(folder, split)
    if len(paths) == 1:
        return _read_saved_split(paths[0])
    return {part: _read_nodes(path) for part, path in zip(SPLITS, paths)}


def _read_saved_split(path: Path) -> dict[str, np.ndarray]:
    otherwise = f"not a split into {', '.join(SPLITS)}"
    saved = load_arrays(path, otherwise)
    try:
        parts = {part: np.asarray(saved[part]).reshape(-1) for part in SPLITS}
    except UNREADABLE as error:
        raise ValueError(f"{path} is damaged, or {otherwise} ({type(error).__name__})") from error
    for part, nodes in parts.items():
        if nodes.size and nodes.dtype.kind not in "iu":
            raise ValueError(
                f"{path}: {part} holds {nodes.dtype}; save the numbers of its rows as integers"
            )
    return {part: nodes.astype(np.int64) for part, nodes in parts.items()}


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


def _read_nodes(path: Path) -> np.ndarray:
    if count_rows(path) == 0:
        return np.empty(0, np.int64)
    return whole(path, read_numbers(path)).reshape(-1)

"""Graph datasets of the Open Graph Benchmark: many graphs, read as one disjoint union."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.readers import (
    ogb_node,
)  # before ogb itself, which it keeps from asking the network

import ogb.graphproppred  # isort: skip
from ogb.utils.features import get_atom_feature_dims, get_bond_feature_dims  # isort: skip

log = logging.getLogger(__name__)

# Metrics that OGB's Evaluator knows, and a dataset that it knows them by.
OFFICIAL = {"rocauc": "ogbg-molhiv", "ap": "ogbg-molpcba", "acc": "ogbg-ppa"}

hash_content, download = ogb_node.hash_content, ogb_node.download


def evaluator(metric: str, num_tasks: int) -> ogb.graphproppred.Evaluator:
    """OGB's Evaluator for "rocauc" or "ap" (means over tasks) or "acc", whatever the number of tasks."""
    out = ogb.graphproppred.Evaluator(OFFICIAL[metric])
    out.num_tasks = num_tasks
    return out


def read(directory: Path, name: str) -> Graph:
    """Read a dataset in OGB's raw CSV layout; nothing is written to the folder.

    Whether an edge is stored once for both directions, the split's name, the metric, and whether the features are
    OGB's categories of atoms and bonds come from OGB's tables for `name`.

    Returns:
        A union of the graphs: ``ptr`` [num_graphs + 1]; ``x`` and ``edge_attr`` as the files have them, of categories
        uint8, with ``x_tables`` and ``edge_tables``, the number of categories in each column; ``y`` and the masks with
        a row for each graph; ``metric``.

    Raises:
        ValueError: a file is missing, cut short, or does not fit the others, or a category is not in OGB's table; the
            message names it.
    """
    info, raw = ogb_node.meta(name), directory / "raw"
    log.info("data: reading the tables in %s", raw)
    num_nodes, num_edges = (
        _read_counts(raw / f"num-{unit}-list.csv.gz") for unit in ("node", "edge")
    )
    if len(num_nodes) != len(num_edges):
        raise ValueError(
            f"{raw}/num-node-list.csv.gz has {len(num_nodes):,} graphs, but num-edge-list.csv.gz has "
            f"{len(num_edges):,}"
        )
    if len(empty := np.flatnonzero(num_nodes == 0)):
        raise ValueError(
            f"{raw}/num-node-list.csv.gz: graph {empty[0]} (from 0) has no nodes. A graph may have no "
            "edges, but it needs at least one node: leave it out"
        )
    both = info["add_inverse_edge"] == "True"
    is_molecule = info["data type"] == "mol"
    first_node = np.concatenate([[0], np.cumsum(num_nodes)])
    data = Graph(
        edge_index=_read_edges(raw, num_nodes, num_edges, first_node, both),
        num_nodes=int(first_node[-1]),
        ptr=torch.from_numpy(first_node),
        metric=info["eval metric"],
    )
    if info["has_node_attr"] == "True":
        data.x = _read_features(
            raw / "node-feat.csv.gz", data.num_nodes, get_atom_feature_dims, is_molecule
        )
    if info["has_edge_attr"] == "True":
        attr = _read_features(
            raw / "edge-feat.csv.gz", int(num_edges.sum()), get_bond_feature_dims, is_molecule
        )
        data.edge_attr = attr.repeat_interleave(2, dim=0) if both else attr
    if is_molecule:
        data.x_tables, data.edge_tables = get_atom_feature_dims(), get_bond_feature_dims()
    _read_labels(
        data,
        raw / "graph-label.csv.gz",
        len(num_nodes),
        info["task type"] == "multiclass classification",
    )
    _read_masks(data, directory, info["split"], len(num_nodes))
    return data


def _read_counts(path: Path) -> np.ndarray:
    counts = ogb_node.whole(path, _read_table(path)).reshape(-1)
    if counts.min(initial=0) < 0:
        raise ValueError(
            f"{path}: row {int(counts.argmin())} (from 0) holds {counts.min()}, which is not a number of "
            "nodes or edges"
        )
    return counts


def _read_table(path: Path) -> np.ndarray:
    ogb_node.count_rows(path)  # which names a file that is cut short
    return ogb_node.read_numbers(path)


def _read_edges(
    raw: Path, num_nodes: np.ndarray, num_edges: np.ndarray, first_node: np.ndarray, both: bool
) -> torch.Tensor:
    path, total = raw / "edge.csv.gz", int(num_edges.sum())
    edges = ogb_node.whole(path, _read_table(path)) if total else np.empty((0, 2), np.int64)
    if edges.shape != (total, 2):
        raise ValueError(
            f"{path} holds a table of shape {list(edges.shape)}, but num-edge-list.csv.gz says {total:,} "
            "pairs of whole numbers"
        )
    outside = (edges < 0) | (edges >= np.repeat(num_nodes, num_edges)[:, None])
    if outside.any():
        row = int(outside.any(1).argmax())
        graph = int(np.searchsorted(np.cumsum(num_edges), row, side="right"))
        raise ValueError(
            f"{path}: row {row} (from 0) names node {edges[row][outside[row]][0]} of graph {graph}, which "
            f"has the nodes 0 to {num_nodes[graph] - 1}"
        )
    out = torch.from_numpy(
        np.ascontiguousarray((edges + np.repeat(first_node[:-1], num_edges)[:, None]).T)
    )
    return torch.stack([out, out.flip(0)], dim=2).reshape(2, -1) if both else out


def _read_features(
    path: Path, num_rows: int, dims: Callable[[], list[int]], is_molecule: bool
) -> torch.Tensor:
    table = (
        _read_table(path)
        if num_rows
        else np.empty((0, len(dims()) if is_molecule else 1), np.int64)
    )
    if len(table) != num_rows:
        raise ValueError(f"{path} has {len(table):,} rows, but the lists of sizes say {num_rows:,}")
    if not is_molecule:
        return torch.from_numpy(table.astype(np.float32))
    sizes = np.array(dims())
    if table.shape[1] != len(sizes):
        raise ValueError(
            f"{path} holds {table.shape[1]} columns, but OGB's molecules have {len(sizes)} columns of "
            "whole numbers"
        )
    table = ogb_node.whole(path, table)
    outside = (table < 0) | (table >= sizes)
    if outside.any():
        row, column = (int(place[0]) for place in outside.nonzero())
        raise ValueError(
            f"{path}: row {row}, column {column} (from 0) holds {table[row, column]}; OGB's table of this "
            f"column has the categories 0 to {sizes[column] - 1}"
        )
    return torch.from_numpy(table.astype(np.uint8))


def _read_labels(data: Graph, path: Path, num_graphs: int, classify: bool) -> None:
    label = _read_table(path)
    if len(label) != num_graphs:
        raise ValueError(f"{path} has {len(label):,} rows for {num_graphs:,} graphs")
    data.y = torch.from_numpy(ogb_node.whole(path, label) if classify else label.astype(np.float32))


def _read_masks(data: Graph, folder: Path, split: str, num_graphs: int) -> None:
    for part, graphs in ogb_node.read_split(folder, split).items():
        wrong = graphs[(graphs < 0) | (graphs >= num_graphs)]
        if len(wrong):
            raise ValueError(
                f"{folder / 'split' / split}: graph {wrong[0]} of the {part} split is not one of "
                f"{num_graphs:,} graphs"
            )
        data[f"{part}_mask"] = torch.zeros(num_graphs, dtype=torch.bool)
        data[f"{part}_mask"][torch.from_numpy(graphs)] = True

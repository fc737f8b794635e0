"""Counts of the edges of each relation: all of them, those within clusters, and which nodes have one."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.graph.partition import Partition, assignment
from parallel_epochs.pipeline.graph.reading import edge_blocks
from parallel_epochs.pipeline.metrics import KINDS
from parallel_epochs.pipeline.names import MAX_LABELS


def listed_types(data: Graph) -> GraphTypes | None:
    """Return the types of a graph with several, if its relations are so few that each has a line in the report."""
    types = data.types
    return (
        None
        if types.homogeneous or max(len(types.relations), len(types.names)) > MAX_LABELS
        else types
    )


def count_kept(data: Graph, partition: Partition) -> dict[str, list[int]]:
    """Count the edges of each relation of a typed graph, and those that lie within a cluster.

    Returns:
        ``edges`` and ``kept``, numbers of directed edges in the order of the relations.
    """
    part, num_relations = torch.from_numpy(assignment(partition)), len(data.types.relations)
    edges, kept = torch.zeros(2, num_relations, dtype=torch.int64)
    for src, dst, relation in _blocks(data):
        is_kept = part.index_select(0, src) == part.index_select(0, dst)
        edges += torch.bincount(relation, minlength=num_relations)
        kept += torch.bincount(relation[is_kept], minlength=num_relations)
    return {"edges": edges.tolist(), "kept": kept.tolist()}


class Neighbours:
    """Counts the edges of a typed graph once, and finds which of its nodes have a neighbour by which relation.

    Args:
        data: a graph with several types, in memory or in a store.
        nodes: numbers of the nodes that are asked about, int64.

    Attributes:
        num_edges: of each relation.
        found: whether each of the nodes is the destination of an edge of each relation.
    """

    def __init__(self, data: Graph, nodes: Int[Tensor, " num_nodes"]):
        num_relations = len(data.types.relations)
        place = torch.full((data.num_nodes,), len(nodes))
        place[nodes] = torch.arange(len(nodes))
        found, counts = (
            torch.zeros(len(nodes) + 1, num_relations, dtype=torch.bool),
            torch.zeros(num_relations, dtype=torch.int64),
        )
        for _, dst, relation in _blocks(data):
            counts += torch.bincount(relation, minlength=num_relations)
            found[place.index_select(0, dst), relation] = True
        self.found: Bool[Tensor, "num_nodes num_relations"] = found[:-1]
        self.num_edges: list[int] = counts.tolist()


def _blocks(data: Graph) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Read source, destination and relation of all edges, some at a time, as int64."""
    for first, ptr, src, attr in edge_blocks(data, features=True):
        dst = np.repeat(np.arange(first, first + len(ptr) - 1), np.diff(ptr))
        yield (
            torch.from_numpy(src.astype(np.int64)),
            torch.from_numpy(dst),
            torch.from_numpy(attr[:, 0]).long(),
        )


def describe_types(types: GraphTypes, found: Neighbours) -> dict[str, Any]:
    """Return the types of nodes and the relations for a file in JSON."""
    reverse = types.reverse
    return {
        "types": [
            {"name": name, "nodes": nodes, "columns": columns}
            for name, nodes, columns in zip(types.names, types.counts, types.widths, strict=True)
        ],
        "labelled": types.labelled,
        "relations": [
            {
                "source": source,
                "name": name,
                "target": target,
                "edges": found.num_edges[number],
                "is_reverse": number in reverse,
            }
            for number, (source, name, target) in enumerate(types.relations)
        ],
    }


def score_by_neighbours(
    types: GraphTypes, found: Neighbours, kind: str, metric: str, y: Tensor, rows: Tensor
) -> list[dict[str, Any]]:
    """Score the nodes that have a neighbour by each relation, and those that have none.

    Args:
        found: of the nodes that are scored.
        kind: of the labels, as in :data:`pipeline.metrics.KINDS`.
        metric: one of its metrics.
        y: labels of the nodes [num_nodes, num_columns].
        rows: their predictions [num_nodes, num_labels].

    Returns:
        For each relation that ends at the type with labels: its number, and ``with`` and ``without``, each with the
        number of ``rows`` and their ``score``, None where it is undefined.
    """
    score = functools.partial(_score, kind, metric)
    return [
        {
            "relation": number,
            "with": score(y, rows, found.found[:, number]),
            "without": score(y, rows, ~found.found[:, number]),
        }
        for number, (_, _, target) in enumerate(types.relations)
        if target == types.labelled
    ]


def _score(kind: str, metric: str, y: Tensor, rows: Tensor, chosen: Tensor) -> dict[str, Any]:
    num_rows = int(chosen.sum())
    value = KINDS[kind][metric](y[chosen], rows[chosen]) if num_rows else math.nan
    return {"rows": num_rows, "score": value if math.isfinite(value) else None}

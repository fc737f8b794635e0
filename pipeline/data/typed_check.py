"""Checks of the schema of a graph with several types of nodes that a user prepared, see :mod:`pipeline.data.typed`."""

from typing import Any

import torch
from torch import Tensor

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.data.typed import check_schema
from parallel_epochs.pipeline.names import MASKS

# Rows of an array on disk that are read at a time.
BLOCK = 1 << 20


def check_typed(data: Graph, *, verify: bool) -> None:
    """Refuse a schema that does not fit the arrays, and arrays that do not fit it.

    Args:
        data: a prepared graph, with ``num_categories``.
        verify: whether to read every row of ``x`` and of the edges, too.

    Raises:
        ValueError: names the field of the types, or the array.
    """
    types = data.types
    if not types.relations:
        raise ValueError("schema: relations is []; it must be a list of [source, name, target]")
    _check_counts(types, data)
    check_schema(types.names, types.relations)
    if data.get("edge_attr") is None or not data.edge_attr.size(1):
        raise ValueError("edge_attr must have the number of the relation in its first column, as there is a schema")
    if verify:
        _check_types(types, data)
        _check_relations(types, data)
    if "y" in data:
        _check_labelled(types, data)


def _check_counts(types: GraphTypes, data: Graph) -> None:
    """Refuse numbers of nodes and of columns that are not those of the arrays."""
    num_types = len(types.names)
    if data.num_categories != num_types:
        raise ValueError(f"num_categories is {data.num_categories}, and schema has {num_types} types")
    for name in ("counts", "widths"):
        if len(values := getattr(types, name)) != num_types:
            raise ValueError(f"schema: {name} has {len(values)} numbers for {num_types} types")
    if sum(types.counts) != data.num_nodes:
        raise ValueError(f"schema: the counts add up to {sum(types.counts):,}, and there are {data.num_nodes:,} nodes")
    if max(types.widths) > (num_columns := data.x.size(1) - num_types):
        raise ValueError(f"schema: widths has {max(types.widths)}, and x has {num_columns} columns without those of "
                         "the types")


def _check_types(types: GraphTypes, data: Graph) -> None:
    """Refuse nodes whose last columns of ``x`` are not their type as one-hot numbers."""
    for place, name in enumerate(types.names):
        expected = torch.zeros(len(types.names))
        expected[place] = 1
        nodes = types.nodes_of(name)
        for first in range(nodes.start, nodes.stop, BLOCK):
            wrong = (data.x[first:min(first + BLOCK, nodes.stop), -len(types.names):] != expected).any(1)
            if wrong.any():
                raise ValueError(f"x: the last {len(types.names)} columns of node {first + int(wrong.nonzero()[0])} "
                                 f"are not those of the type {name}, which it has by the counts of schema")


def _check_relations(types: GraphTypes, data: Graph) -> None:
    """Refuse edges whose relation is none of the schema, or has other types at its ends."""
    names = [(source, target) for source, _, target in types.relations]
    ranges = [[types.nodes_of(name) for name in ends] for ends in zip(*names, strict=True)]
    bounds = [(torch.tensor([nodes.start for nodes in ends]), torch.tensor([nodes.stop for nodes in ends]))
              for ends in ranges]
    edge_index: Tensor = data.edge_index.as_tensor()
    for first in range(0, edge_index.size(1), BLOCK):
        rows = slice(first, first + BLOCK)
        relation = data.edge_attr[rows, 0]
        # NaN is in no range.
        fits = (relation >= 0) & (relation < len(names)) & (relation == relation.trunc())
        if not fits.all():
            raise ValueError(f"edge_attr: edge {first + _first(~fits)} has the relation "
                             f"{float(relation[_first(~fits)]):g}; relations are whole numbers from 0 to "
                             f"{len(names) - 1}, as in schema")
        number = relation.long()
        for end, (start, stop) in zip(edge_index[:, rows], bounds, strict=True):
            fits &= (end >= start[number]) & (end < stop[number])
        if not fits.all():
            edge = _first(~fits)
            ends: list[Any] = edge_index[:, first + edge].tolist()
            raise ValueError(f"edge {first + edge} goes from node {ends[0]} to node {ends[1]}, and these have not the "
                             f"types of its relation, {'.'.join(types.relations[int(number[edge])])}")


def _first(wrong: Tensor) -> int:
    return int(wrong.nonzero()[0])


def _check_labelled(types: GraphTypes, data: Graph) -> None:
    """Refuse labels that are not of the type with labels."""
    if types.labelled is None:
        raise ValueError(f"schema: labelled is missing, and there are labels; choose one of {', '.join(types.names)}")
    nodes = types.nodes_of(types.labelled)
    for mask in MASKS:
        if data[mask][:nodes.start].any() or data[mask][nodes.stop:].any():
            raise ValueError(f"{mask} selects nodes of other types than {types.labelled}, the one with labels")

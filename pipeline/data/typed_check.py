"""Checks of the schema of a graph with several types of nodes that a user prepared, see :mod:`pipeline.data.typed`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.typed import SCHEMA, Schema, check_schema, schema_of
from parallel_epochs.pipeline.names import MASKS

# Rows of an array on disk that are read at a time.
BLOCK = 1 << 20


def check_typed(data: Data, *, verify: bool) -> None:
    """Refuse a schema that does not fit the arrays, and arrays that do not fit it.

    Args:
        data: a prepared graph, with ``num_categories``.
        verify: whether to read every row of ``x`` and of the edges, too.

    Raises:
        ValueError: names the field of the schema, or the array.
    """
    schema = _read(data[SCHEMA])
    _check_counts(schema, data)
    check_schema(schema.types, schema.relations)
    if data.get("edge_attr") is None or not data.edge_attr.size(1):
        raise ValueError("edge_attr must have the number of the relation in its first column, as there is a schema")
    if verify:
        _check_types(schema, data)
        _check_relations(schema, data)
    if "y" in data:
        _check_labelled(schema, data)


def _read(value: object) -> Schema:
    """Read the schema out of JSON."""
    fields = {field.name: field for field in dataclasses.fields(Schema)}
    needed = [name for name, field in fields.items()
              if field.default is field.default_factory is dataclasses.MISSING]
    if not isinstance(value, Mapping) or not set(needed) <= set(value) <= set(fields):
        found = ", ".join(map(str, value)) if isinstance(value, Mapping) else repr(value)
        raise ValueError(f"schema must have {', '.join(needed)}, and may have "
                         f"{', '.join(name for name in fields if name not in needed)}; it has {found or 'nothing'}")
    for name, kind, what in (("types", str, "names"), ("counts", int, "whole numbers from 0"),
                             ("widths", int, "whole numbers from 0"), ("averaged", str, "names")):
        if not _is_list(found := value.get(name, []), kind):
            raise ValueError(f"schema: {name} is {found!r}; it must be a list of {what}")
    relations = value["relations"]
    if not (isinstance(relations, list) and relations
            and all(_is_list(relation, str) and len(relation) == 3 for relation in relations)):
        raise ValueError(f"schema: relations is {relations!r}; it must be a list of [source, name, target]")
    types = value["types"]
    if not types or len(set(types)) < len(types):
        raise ValueError(f"schema: types is {types!r}; it must have names that differ")
    labelled = value.get("labelled")
    for name in [*value.get("averaged", []), *([] if labelled is None else [labelled])]:
        if name not in types:
            raise ValueError(f"schema: there is no type {name!r}; the types of nodes are {', '.join(types)}")
    return schema_of(Data(schema=dict(value)))


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(
        type(one) is kind and (not isinstance(one, int) or one >= 0) for one in value)


def _check_counts(schema: Schema, data: Data) -> None:
    """Refuse numbers of nodes and of columns that are not those of the arrays."""
    num_types = len(schema.types)
    if data.num_categories != num_types:
        raise ValueError(f"num_categories is {data.num_categories}, and schema has {num_types} types")
    for name in ("counts", "widths"):
        if len(values := getattr(schema, name)) != num_types:
            raise ValueError(f"schema: {name} has {len(values)} numbers for {num_types} types")
    if sum(schema.counts) != data.num_nodes:
        raise ValueError(f"schema: the counts add up to {sum(schema.counts):,}, and there are {data.num_nodes:,} nodes")
    if max(schema.widths) > (num_columns := data.x.size(1) - num_types):
        raise ValueError(f"schema: widths has {max(schema.widths)}, and x has {num_columns} columns without those of "
                         "the types")


def _check_types(schema: Schema, data: Data) -> None:
    """Refuse nodes whose last columns of ``x`` are not their type as one-hot numbers."""
    for place, name in enumerate(schema.types):
        expected = torch.zeros(len(schema.types))
        expected[place] = 1
        nodes = schema.nodes_of(name)
        for first in range(nodes.start, nodes.stop, BLOCK):
            wrong = (data.x[first:min(first + BLOCK, nodes.stop), -len(schema.types):] != expected).any(1)
            if wrong.any():
                raise ValueError(f"x: the last {len(schema.types)} columns of node {first + int(wrong.nonzero()[0])} "
                                 f"are not those of the type {name}, which it has by the counts of schema")


def _check_relations(schema: Schema, data: Data) -> None:
    """Refuse edges whose relation is none of the schema, or has other types at its ends."""
    names = [(source, target) for source, _, target in schema.relations]
    ranges = [[schema.nodes_of(name) for name in ends] for ends in zip(*names, strict=True)]
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
                             f"types of its relation, {'.'.join(schema.relations[int(number[edge])])}")


def _first(wrong: Tensor) -> int:
    return int(wrong.nonzero()[0])


def _check_labelled(schema: Schema, data: Data) -> None:
    """Refuse labels that are not of the type with labels."""
    if schema.labelled is None:
        raise ValueError(f"schema: labelled is missing, and there are labels; choose one of {', '.join(schema.types)}")
    nodes = schema.nodes_of(schema.labelled)
    for mask in MASKS:
        if data[mask][:nodes.start].any() or data[mask][nodes.stop:].any():
            raise ValueError(f"{mask} selects nodes of other types than {schema.labelled}, the one with labels")

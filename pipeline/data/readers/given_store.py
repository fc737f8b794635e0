"""Graphs in stores that users wrote."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parallel_epochs.pipeline.data import graph
from parallel_epochs.pipeline.data.check import FEW_NODES, SPARSE_NUMBERING
from parallel_epochs.pipeline.data.content import hash_file
from parallel_epochs.pipeline.data.graph import DataKind, Graph
from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.data.join_types import check_schema
from parallel_epochs.pipeline.graph import ranges, store
from parallel_epochs.pipeline.graph.structure import is_structure
from parallel_epochs.pipeline.metrics import CLASS_METRICS, LINK_METRICS, METRICS
from parallel_epochs.pipeline.names import MASKS, TEXT_SCORES
from parallel_epochs.pipeline.run import words
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.read_back import shown

FLOATS = (torch.float32,)
# Rows of an array on disk that are read at a time.
BLOCK = 1 << 20
# A component of a graph may have fewer nodes than the graph has classes.
FEW_CLASSES = 1_000_000
# Arrays of a union of many graphs.
UNION_KEYS = ("ptr", "by_source", "x_tables", "edge_tables")


def hash_content(path: str) -> str:
    """Compute a digest of the manifest, which holds those of the arrays."""
    return hash_file(Path(path) / store.MANIFEST)


def open_graph(path: Path, *, verify: bool = True) -> Graph:
    """Open the store; its edges are trusted to be sorted by destination, then source.

    Raises:
        ValueError: an array or a value is missing or does not fit the others.
        DamagedFile: an array is damaged.
    """
    data = graph.open_graph(path, verify=verify)
    labels = ("y", "metric", "out_channels", *MASKS)
    if not any(name in data for name in labels):  # a graph for task=link
        labels = ()
    missing = [name for name in ("x", *labels) if name not in data] + (
        ["edges"] if data.edge_index is None else []
    )
    if missing:
        raise ValueError(f"{path}: there is no {', '.join(missing)} in {store.MANIFEST}")
    if labels and not (isinstance(data.metric, str) and data.metric in METRICS):
        raise ValueError(
            f"{path}: the metric is {data.metric!r}; choose one of {', '.join(METRICS)}"
        )
    num_nodes, num_edges = data.edge_index.get_sparse_size(1), data.edge_index.size(1)
    data.num_nodes, data.num_categories = num_nodes, data.get("num_categories", 0)
    for name, rows in (
        *((name, num_nodes) for name in ("x", "y", *MASKS)),
        ("edge_attr", num_edges),
    ):
        if data.get(name) is not None and len(data[name]) != rows:
            raise ValueError(
                f"{path}: {name} has {len(data[name]):,} rows, but there are {rows:,} "
                f"{'edges' if name == 'edge_attr' else 'nodes'}"
            )
    try:
        _check_values(data, has_labels=bool(labels))
        if not data.types.homogeneous:
            check_typed(data, verify=verify)
    except ValueError as error:
        raise ValueError(f"{path / store.MANIFEST}: {error}") from None
    return data


def _check_values(data: Graph, *, has_labels: bool) -> None:
    """Refuse types, shapes and values that training would fail on.

    Raises:
        ValueError: names the array or the value.
    """
    arrays: list[tuple[str, int, tuple[torch.dtype, ...]]] = [
        ("x", 2, FLOATS),
        ("edge_attr", 2, FLOATS),
    ]
    if has_labels:
        arrays += [("y", 2, (*FLOATS, torch.int64)), *((name, 1, (torch.bool,)) for name in MASKS)]
    for name, dim, dtypes in arrays:
        value = data.get(name)
        if value is not None and not (
            isinstance(value, Tensor) and value.dim() == dim and value.dtype in dtypes
        ):
            found = (
                f"{value.dtype} of {list(value.shape)}"
                if isinstance(value, Tensor)
                else repr(value)
            )
            raise ValueError(
                f"{name} must have {words.count(dim, 'dimension')} of "
                f"{' or '.join(str(dtype).removeprefix('torch.') for dtype in dtypes)}, not {found}"
            )
    if strange := next((name for name in UNION_KEYS if name in data), None):
        raise ValueError(
            f"{strange} belongs to a store of many graphs, and data=store is one graph: leave it out"
        )
    for name in ranges.GRAPH_ARRAYS:
        if name in data and not isinstance(data[name], Tensor):
            raise ValueError(f"{name} is {data[name]!r}; it must be an array")
    _check_count("num_categories", data.num_categories, 0, data.x.size(1))
    if has_labels:
        classes = data.metric in CLASS_METRICS
        _check_count(
            "out_channels", data.out_channels, 1, len(data.y) if classes else data.y.size(1)
        )
        if TEXT_SCORES in data:
            _check_count(TEXT_SCORES, data[TEXT_SCORES], 0, data.x.size(1) - data.out_channels)
        if classes and data.y.size(1) != 1:
            raise ValueError(
                f"y must have one column of classes for the metric {data.metric}, not {data.y.size(1)}"
            )
        in_split = torch.stack([data[mask] for mask in MASKS]).any(0)
        if classes and len(used := data.y[in_split]):
            low, high = (int(bound) for bound in used.aminmax())
            if low < 0 or high >= data.out_channels:
                raise ValueError(
                    f"y holds the class {low if low < 0 else high}, and out_channels={data.out_channels} "
                    f"numbers them from 0 to {data.out_channels - 1}"
                )
    if "structure" in data and not is_structure(data.structure):
        raise ValueError(
            f"structure is {data.structure!r}; it must hold counts under the names of Structure"
        )


def _check_count(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= max(high, low):
        raise ValueError(f"{name} is {value!r}; it must be a whole number from {low} to {high:,}")


def check_prepared(path: Path, data: Graph) -> None:
    """Refuse values that the arrays of a graph contradict. They would end in a traceback, or in a huge allocation.

    Args:
        data: a graph whose values have the types of :data:`pipeline.data.cache.KEPT`.
    """
    metric, count_of = (
        data.get("metric"),
        {
            name: data.get(name, -1)
            for name in ("num_nodes", "num_relations", "num_categories", "out_channels")
        },
    )
    if data.kind is DataKind.TRIPLES:
        most = max(FEW_NODES, 2 * len(data.triples))
        fits = {name: 0 < count_of[name] <= most for name in ("num_nodes", "num_relations")}
    else:
        rows, columns = (*data.x.shape, -2)[:2] if "x" in data else (-2, -2)
        fits = {
            "num_nodes": count_of["num_nodes"] == rows,
            "num_categories": data.edge_index is None or 0 <= count_of["num_categories"] <= columns,
        }
    if data.kind is DataKind.PAIRS:
        fits["metric"] = metric in LINK_METRICS or str(metric).startswith("hits@")
    elif "y" in data:
        fits |= {mask: len(data.get(mask, ())) == len(data.y) for mask in MASKS} | {
            "metric": metric in METRICS
        }
        fits["out_channels"] = data.y.dim() == 2 and (
            count_of["out_channels"] == data.y.size(1)
            if metric not in CLASS_METRICS
            else int(data.y.max())
            < count_of["out_channels"]
            <= max(FEW_CLASSES, SPARSE_NUMBERING * len(data.y))
        )
    if "structure" in data:
        fits["structure"] = is_structure(data.structure) and [
            data.structure[name] for name in ("num_nodes", "num_edges")
        ] == [data.num_nodes, data.edge_index.size(1)]
    if wrong := next((name for name, is_right in fits.items() if not is_right), None):
        raise DamagedFile(
            f"{path} is damaged, or somebody changed it: {wrong} is {shown(data.get(wrong))}, which does "
            "not fit the arrays"
        )
    try:
        if not data.types.homogeneous:
            check_typed(data, verify=False)
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged, or somebody changed it: {error}") from None


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
        raise ValueError(
            "edge_attr must have the number of the relation in its first column, as there is a schema"
        )
    if verify:
        _check_types(types, data)
        _check_relations(types, data)
    if "y" in data:
        _check_labelled(types, data)


def _check_counts(types: GraphTypes, data: Graph) -> None:
    """Refuse numbers of nodes and of columns that are not those of the arrays."""
    num_types = len(types.names)
    if data.num_categories != num_types:
        raise ValueError(
            f"num_categories is {data.num_categories}, and schema has {num_types} types"
        )
    for name in ("counts", "widths"):
        if len(values := getattr(types, name)) != num_types:
            raise ValueError(f"schema: {name} has {len(values)} numbers for {num_types} types")
    if sum(types.counts) != data.num_nodes:
        raise ValueError(
            f"schema: the counts add up to {sum(types.counts):,}, and there are {data.num_nodes:,} nodes"
        )
    if max(types.widths) > (num_columns := data.x.size(1) - num_types):
        raise ValueError(
            f"schema: widths has {max(types.widths)}, and x has {num_columns} columns without those of "
            "the types"
        )


def _check_types(types: GraphTypes, data: Graph) -> None:
    """Refuse nodes whose last columns of ``x`` are not their type as one-hot numbers."""
    for place, name in enumerate(types.names):
        expected = torch.zeros(len(types.names))
        expected[place] = 1
        nodes = types.nodes_of(name)
        for first in range(nodes.start, nodes.stop, BLOCK):
            wrong = (
                data.x[first : min(first + BLOCK, nodes.stop), -len(types.names) :] != expected
            ).any(1)
            if wrong.any():
                raise ValueError(
                    f"x: the last {len(types.names)} columns of node {first + int(wrong.nonzero()[0])} "
                    f"are not those of the type {name}, which it has by the counts of schema"
                )


def _check_relations(types: GraphTypes, data: Graph) -> None:
    """Refuse edges whose relation is none of the schema, or has other types at its ends."""
    names = [(source, target) for source, _, target in types.relations]
    ranges = [[types.nodes_of(name) for name in ends] for ends in zip(*names, strict=True)]
    bounds = [
        (
            torch.tensor([nodes.start for nodes in ends]),
            torch.tensor([nodes.stop for nodes in ends]),
        )
        for ends in ranges
    ]
    edge_index: Tensor = data.edge_index.as_tensor()
    for first in range(0, edge_index.size(1), BLOCK):
        rows = slice(first, first + BLOCK)
        relation = data.edge_attr[rows, 0]
        # NaN is in no range.
        fits = (relation >= 0) & (relation < len(names)) & (relation == relation.trunc())
        if not fits.all():
            raise ValueError(
                f"edge_attr: edge {first + _first(~fits)} has the relation "
                f"{float(relation[_first(~fits)]):g}; relations are whole numbers from 0 to "
                f"{len(names) - 1}, as in schema"
            )
        number = relation.long()
        for end, (start, stop) in zip(edge_index[:, rows], bounds, strict=True):
            fits &= (end >= start[number]) & (end < stop[number])
        if not fits.all():
            edge = _first(~fits)
            ends: list[Any] = edge_index[:, first + edge].tolist()
            raise ValueError(
                f"edge {first + edge} goes from node {ends[0]} to node {ends[1]}, and these have not the "
                f"types of its relation, {'.'.join(types.relations[int(number[edge])])}"
            )


def _first(wrong: Tensor) -> int:
    return int(wrong.nonzero()[0])


def _check_labelled(types: GraphTypes, data: Graph) -> None:
    """Refuse labels that are not of the type with labels."""
    if types.labelled is None:
        raise ValueError(
            f"schema: labelled is missing, and there are labels; choose one of {', '.join(types.names)}"
        )
    nodes = types.nodes_of(types.labelled)
    for mask in MASKS:
        if data[mask][: nodes.start].any() or data[mask][nodes.stop :].any():
            raise ValueError(
                f"{mask} selects nodes of other types than {types.labelled}, the one with labels"
            )

"""Graphs in stores: those that users wrote, and checks of those that were prepared."""

from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Float32, Int64, Shaped, UInt8
from torch import Tensor

from parallel_epochs.pipeline.data import graph
from parallel_epochs.pipeline.data.check import FEW_NODES, SPARSE_NUMBERING
from parallel_epochs.pipeline.data.content import hash_file
from parallel_epochs.pipeline.data.degrees import DEGREE_MOMENTS
from parallel_epochs.pipeline.data.graph import DataKind, Graph
from parallel_epochs.pipeline.data.join_types import check_schema
from parallel_epochs.pipeline.graph import ranges, store
from parallel_epochs.pipeline.graph.structure import Structure
from parallel_epochs.pipeline.metrics import CLASS_METRICS, LINK_METRICS, METRICS
from parallel_epochs.pipeline.names import FIRST_SOURCE, MASKS, TEXT_SCORES
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.read_back import check_values, shown

# Types of the arrays and values of a prepared graph, as far as it has them.
KEPT = {
    "num_nodes": int,
    "num_categories": int,
    "num_relations": int,
    "x_source": str,
    "metric": str,
    TEXT_SCORES: int,
    "out_channels": int,
    "structure": dict[str, int],
    "x_tables": list[int],
    "edge_tables": list[int],
    FIRST_SOURCE: int,
    "x": Shaped[Tensor, "num_nodes columns"],
    "edge_attr": Shaped[Tensor, "num_edges edge_columns"],
    "y": Shaped[Tensor, "num_rows targets"],
    **{mask: Bool[Tensor, " num_rows"] for mask in MASKS},
    "fitted": UInt8[Tensor, "_"],
    DEGREE_MOMENTS: Float[Tensor, "2 _"],
}
# Those of a graph that a user wrote.
GIVEN = {
    **dict.fromkeys(ranges.GRAPH_ARRAYS, Tensor),
    "x": Float32[Tensor, "num_nodes columns"],
    "edge_attr": Float32[Tensor, "num_edges edge_columns"] | None,
    "y": Float32[Tensor, "num_nodes targets"] | Int64[Tensor, "num_nodes targets"],
    **{mask: Bool[Tensor, " num_nodes"] for mask in MASKS},
}
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
    missing = [name for name in ("x", *labels) if name not in data]
    missing += ["edges"] if data.edge_index is None else []
    if missing:
        raise ValueError(f"{path}: there is no {', '.join(missing)} in {store.MANIFEST}")
    if strange := next((name for name in UNION_KEYS if name in data), None):
        raise ValueError(
            f"{path / store.MANIFEST}: {strange} belongs to a store of many graphs, and data=store is one "
            "graph: leave it out"
        )
    data.num_nodes, data.num_categories = len(data.x), data.get("num_categories", 0)
    check_prepared(path / store.MANIFEST, data, KEPT | GIVEN, verify=verify)
    return data


def check_prepared(
    path: Path, data: Graph, types: dict[str, Any] = KEPT, *, verify: bool = False
) -> None:
    """Refuse values that the arrays of a graph contradict. They would end in a traceback, or in a huge allocation.

    Args:
        path: of the manifest, for messages.
        types: of its arrays and values.
        verify: whether to read every edge for its types, too.

    Raises:
        DamagedFile: names the value.
    """
    check_values(path, data.to_dict(), types)
    metric, size = data.get("metric"), {key: data.get(key, -1) for key in KEPT}
    if data.kind is DataKind.TRIPLES:
        most = max(FEW_NODES, 2 * len(data.triples))
        fits = {name: 0 < size[name] <= most for name in ("num_nodes", "num_relations")}
    else:
        rows, columns = data.x.shape if "x" in data else (-2, -2)
        fits = {"num_nodes": size["num_nodes"] == rows}
    if data.edge_index is not None:
        fits["edges"] = data.edge_index.get_sparse_size(1) == rows
        fits["num_categories"] = 0 <= size["num_categories"] <= columns
        attr = data.get("edge_attr")
        fits["edge_attr"] = attr is None or len(attr) == data.edge_index.size(1)
    if data.kind is DataKind.PAIRS:
        fits["metric"] = metric in LINK_METRICS or str(metric).startswith("hits@")
    elif "y" in data:
        fits |= {mask: len(data.get(mask, ())) == len(data.y) for mask in MASKS}
        fits["metric"] = metric in METRICS
        fits[TEXT_SCORES] = data.get(TEXT_SCORES, 0) <= columns
    if all(fits.values()) and "y" in data:
        fits["y"], fits["out_channels"] = _fit_labels(data)
    if "structure" in data:
        names = Structure.__dataclass_fields__.keys()
        fits["structure"] = data.structure.keys() == names and [
            data.structure[name] for name in ("num_nodes", "num_edges")
        ] == [data.num_nodes, data.edge_index.size(1)]
    if wrong := next((name for name, is_right in fits.items() if not is_right), None):
        raise DamagedFile(
            f"{path} is damaged, or somebody changed it: {wrong} is {shown(data.get(wrong))}, which does "
            "not fit the arrays"
        )
    try:
        if not data.types.homogeneous:
            check_typed(data, verify=verify)
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged, or somebody changed it: {error}") from None


def _fit_labels(data: Graph) -> tuple[bool, bool]:
    """Tell whether the labels in splits are those of their metric, and whether there are as many classes or columns."""
    stated = data.get("out_channels", -1)
    if data.metric not in CLASS_METRICS:
        return True, stated == data.y.size(1)
    used = data.y[torch.stack([data[mask] for mask in MASKS]).any(0)]
    low, high = (int(bound) for bound in used.aminmax()) if len(used) else (0, 0)
    most = max(FEW_CLASSES, SPARSE_NUMBERING * len(data.y))
    return data.y.size(1) == 1 and low >= 0, high < stated <= most


def check_typed(data: Graph, *, verify: bool) -> None:
    """Refuse a schema that does not fit the arrays, and arrays that do not fit it.

    Args:
        data: a prepared graph, with ``num_categories``.
        verify: whether to read every edge, too.

    Raises:
        ValueError: names the field of the types, or the array.
    """
    types, num_types = data.types, len(data.types.names)
    sizes = len(types.counts), len(types.widths), data.num_categories
    if set(sizes) != {num_types} or sum(types.counts) != data.num_nodes:
        raise ValueError(
            f"schema: there must be as many counts and widths as the {num_types} types, and the sum of counts "
            f"must be {data.num_nodes:,}"
        )
    if max(types.widths) > (num_columns := data.x.size(1) - num_types):
        raise ValueError(
            f"schema: widths has {max(types.widths)}, and x has {num_columns} columns without those of "
            "the types"
        )
    if not types.relations:
        raise ValueError("schema: relations is []; it must be a list of [source, name, target]")
    check_schema(types.names, types.relations)
    if data.get("edge_attr") is None or not data.edge_attr.size(1):
        raise ValueError(
            "edge_attr must have the number of the relation in its first column, as there is a schema"
        )
    if verify:
        _check_rows(data)
    if "y" not in data:
        return
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


def _check_rows(data: Graph) -> None:
    """Refuse edges whose relation is none of the schema, or has other types at its ends."""
    names, relations = data.types.names, data.types.relations
    bounds = torch.tensor(list(accumulate(data.types.counts)))
    ends = torch.tensor([[names.index(kind) for kind in own[::2]] for own in relations])
    edge_index: Tensor = data.edge_index.as_tensor()
    for first in range(0, edge_index.size(1), BLOCK):
        rows = slice(first, first + BLOCK)
        relation = data.edge_attr[rows, 0]
        kinds = torch.bucketize(edge_index[:, rows].contiguous(), bounds, right=True)
        number = relation.nan_to_num(-1).long().clamp(0, len(relations) - 1)
        wrong = ((relation != number) | (ends[number] != kinds.t()).any(1)).nonzero()
        if len(wrong):
            edge = int(wrong[0])
            raise ValueError(
                f"edge_attr: edge {first + edge} has the relation {float(relation[edge]):g}, which is none of "
                f"schema from {names[kinds[0, edge]]} to {names[kinds[1, edge]]}"
            )

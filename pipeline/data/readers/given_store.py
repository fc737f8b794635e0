"""Graphs in stores that users wrote."""

from pathlib import Path

import torch
from torch import Tensor

from parallel_epochs.pipeline.data import graph
from parallel_epochs.pipeline.data.content import hash_file
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.typed_check import check_typed
from parallel_epochs.pipeline.graph import ranges, store
from parallel_epochs.pipeline.graph.structure import is_structure
from parallel_epochs.pipeline.metrics import CLASS_METRICS, METRICS
from parallel_epochs.pipeline.names import MASKS, TEXT_SCORES
from parallel_epochs.pipeline.run import words

FLOATS = (torch.float32,)
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
    missing = [name for name in ("x", *labels) if name not in data] + (["edges"] if data.edge_index is None else [])
    if missing:
        raise ValueError(f"{path}: there is no {', '.join(missing)} in {store.MANIFEST}")
    if labels and not (isinstance(data.metric, str) and data.metric in METRICS):
        raise ValueError(f"{path}: the metric is {data.metric!r}; choose one of {', '.join(METRICS)}")
    num_nodes, num_edges = data.edge_index.get_sparse_size(1), data.edge_index.size(1)
    data.num_nodes, data.num_categories = num_nodes, data.get("num_categories", 0)
    for name, rows in (*((name, num_nodes) for name in ("x", "y", *MASKS)), ("edge_attr", num_edges)):
        if data.get(name) is not None and len(data[name]) != rows:
            raise ValueError(f"{path}: {name} has {len(data[name]):,} rows, but there are {rows:,} "
                             f"{'edges' if name == 'edge_attr' else 'nodes'}")
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
    arrays: list[tuple[str, int, tuple[torch.dtype, ...]]] = [("x", 2, FLOATS), ("edge_attr", 2, FLOATS)]
    if has_labels:
        arrays += [("y", 2, (*FLOATS, torch.int64)), *((name, 1, (torch.bool,)) for name in MASKS)]
    for name, dim, dtypes in arrays:
        value = data.get(name)
        if value is not None and not (isinstance(value, Tensor) and value.dim() == dim and value.dtype in dtypes):
            found = f"{value.dtype} of {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise ValueError(f"{name} must have {words.count(dim, 'dimension')} of "
                             f"{' or '.join(str(dtype).removeprefix('torch.') for dtype in dtypes)}, not {found}")
    if strange := next((name for name in UNION_KEYS if name in data), None):
        raise ValueError(f"{strange} belongs to a store of many graphs, and data=store is one graph: leave it out")
    for name in ranges.GRAPH_ARRAYS:
        if name in data and not isinstance(data[name], Tensor):
            raise ValueError(f"{name} is {data[name]!r}; it must be an array")
    _check_count("num_categories", data.num_categories, 0, data.x.size(1))
    if has_labels:
        classes = data.metric in CLASS_METRICS
        _check_count("out_channels", data.out_channels, 1, len(data.y) if classes else data.y.size(1))
        if TEXT_SCORES in data:
            _check_count(TEXT_SCORES, data[TEXT_SCORES], 0, data.x.size(1) - data.out_channels)
        if classes and data.y.size(1) != 1:
            raise ValueError(f"y must have one column of classes for the metric {data.metric}, not {data.y.size(1)}")
        in_split = torch.stack([data[mask] for mask in MASKS]).any(0)
        if classes and len(used := data.y[in_split]):
            low, high = (int(bound) for bound in used.aminmax())
            if low < 0 or high >= data.out_channels:
                raise ValueError(f"y holds the class {low if low < 0 else high}, and out_channels={data.out_channels} "
                                 f"numbers them from 0 to {data.out_channels - 1}")
    if "structure" in data and not is_structure(data.structure):
        raise ValueError(f"structure is {data.structure!r}; it must hold counts under the names of Structure")


def _check_count(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= max(high, low):
        raise ValueError(f"{name} is {value!r}; it must be a whole number from {low} to {high:,}")

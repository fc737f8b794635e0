"""Graphs in stores that users wrote."""

from pathlib import Path

from torch_geometric.data import Data

from parallel_epochs.pipeline.data.content import hash_file
from parallel_epochs.pipeline.graph import store
from parallel_epochs.pipeline.metrics import METRICS
from parallel_epochs.pipeline.names import MASKS


def hash_content(path: str) -> str:
    """Compute a digest of the manifest, which holds those of the arrays."""
    return hash_file(Path(path) / store.MANIFEST)


def open_graph(path: Path, *, verify: bool = True) -> Data:
    """Open the store; its edges are trusted to be sorted by destination, then source.

    Raises:
        ValueError: an array or a value is missing or does not fit the others.
        DamagedFile: an array is damaged.
    """
    data = store.open_graph(path, verify=verify)
    labels = ("y", "metric", "out_channels", *MASKS)
    if not any(name in data for name in labels):  # a graph for task=link
        labels = ()
    missing = [name for name in ("x", *labels) if name not in data]
    if missing:
        raise ValueError(f"{path}: there is no {', '.join(missing)} in {store.MANIFEST}")
    if labels and data.metric not in METRICS:
        raise ValueError(f"{path}: the metric is {data.metric!r}; choose one of {', '.join(METRICS)}")
    num_nodes, num_edges = data.edge_index.get_sparse_size(1), data.edge_index.size(1)
    data.num_nodes = num_nodes
    for name, rows in (*((name, num_nodes) for name in ("x", "y", *MASKS)), ("edge_attr", num_edges)):
        if data.get(name) is not None and len(data[name]) != rows:
            raise ValueError(f"{path}: {name} has {len(data[name]):,} rows, and there are {rows:,} "
                             f"{'edges' if name == 'edge_attr' else 'nodes'}")
    data.num_categories = data.get("num_categories", 0)
    return data

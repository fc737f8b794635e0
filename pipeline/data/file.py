"""Graphs that users saved themselves with torch.save."""

from pathlib import Path

import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage

from pipeline.data.config import FileConfig
from pipeline.graph.edges import plain_edges
from pipeline.metrics import CLASS_METRICS, METRICS
from pipeline.names import MASKS
from pipeline.run import files
from pipeline.run.checkpoint import UNREADABLE


def read(config: FileConfig) -> Data:
    """Read the file; see :func:`read_file`."""
    return read_file(Path(config.path))


def hash_content(config: FileConfig) -> str:
    """Compute a digest of the file.

    Raises:
        ValueError: there is no such file.
    """
    if not Path(config.path).is_file():
        raise ValueError(f"data.path={config.path} does not exist; save a torch_geometric Data there with torch.save")
    with open(config.path, "rb") as file:
        return files.file_digest(file)


def read_file(path: Path) -> Data:
    """Read a graph saved with torch.save as a ``Data``, or as a dict of its attributes.

    ``valid_mask`` may be called ``val_mask``. ``metric`` may be one of :mod:`pipeline.metrics`; without it, integer
    labels in one column mean accuracy.

    Raises:
        ValueError: not such a file, or an attribute is missing.
    """
    try:
        with torch.serialization.safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage, EdgeIndex]):
            saved = torch.load(path, weights_only=True)
    except UNREADABLE as error:
        raise ValueError(f"{path} is no saved torch_geometric Data: it cannot be read "
                         f"({type(error).__name__})") from error
    saved = saved if isinstance(saved, dict) else saved.to_dict()
    saved = {{"val_mask": "valid_mask"}.get(key, key): value for key, value in saved.items()}
    missing = [key for key in ("edge_index", "y", *MASKS) if saved.get(key) is None]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}")
    y = saved["y"]
    y = y.unsqueeze(1) if y.dim() == 1 else y
    metric = saved.get("metric", "rocauc" if y.size(1) > 1 or y.is_floating_point() else "acc")
    if metric not in METRICS:
        raise ValueError(f"{path} has the metric {metric!r}; choose {' or '.join(METRICS)}")
    classify = metric in CLASS_METRICS
    num_nodes = (saved["x"] if saved.get("x") is not None else saved["train_mask"]).size(0)
    keep = {key: saved[key] for key in ("x", "edge_attr", "species", *MASKS) if saved.get(key) is not None}
    if "edge_attr" in keep and keep["edge_attr"].dim() == 1:
        keep["edge_attr"] = keep["edge_attr"].unsqueeze(1)
    if "species" in keep:
        keep["species"] = keep["species"].reshape(-1)
    return Data(edge_index=plain_edges(saved["edge_index"]), y=y.long() if classify else y.float(),
                num_nodes=num_nodes, metric=metric, **keep)

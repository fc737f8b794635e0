"""Graphs that users saved themselves with torch.save."""

import logging
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

log = logging.getLogger(__name__)

USED = ("x", "edge_index", "edge_attr", "y", "species", "metric", "num_nodes", *MASKS)


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

    ``valid_mask`` may be called ``val_mask``, and without ``edge_attr`` the ``edge_weight`` is the edges' feature.
    A line of the log names the attributes that are not used. ``metric`` may be one of :mod:`pipeline.metrics`; without
    it, integer labels in one column mean accuracy.

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
    saved = {{"val_mask": "valid_mask"}.get(key, key): value for key, value in saved.items() if value is not None}
    if "edge_weight" in saved and "edge_attr" not in saved:
        saved["edge_attr"] = saved.pop("edge_weight")
    if unused := [key for key in saved if key not in USED]:
        log.info("%s: not used: %s", path, ", ".join(unused))
    missing = [key for key in ("edge_index", "y", *MASKS) if key not in saved]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}")
    y = saved["y"]
    y = y.unsqueeze(1) if y.dim() == 1 else y
    metric = saved.get("metric", "rocauc" if y.size(1) > 1 or y.is_floating_point() else "acc")
    if metric not in METRICS:
        raise ValueError(f"{path} has the metric {metric!r}; choose {' or '.join(METRICS)}")
    classify = metric in CLASS_METRICS
    num_nodes = (saved["x"] if "x" in saved else saved["train_mask"]).size(0)
    keep = {key: saved[key] for key in ("x", "edge_attr", "species", *MASKS) if key in saved}
    if "edge_attr" in keep and keep["edge_attr"].dim() == 1:
        keep["edge_attr"] = keep["edge_attr"].unsqueeze(1)
    if "species" in keep:
        keep["species"] = keep["species"].reshape(-1)
    return Data(edge_index=plain_edges(saved["edge_index"]), y=y.long() if classify else y.float(),
                num_nodes=num_nodes, metric=metric, **keep)

"""Many graphs in a folder of files, each saved by torch.save."""

import logging
import re
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pipeline.data import many
from pipeline.data.check import check_tensor
from pipeline.data.config import GraphFilesConfig
from pipeline.data.file import read_attributes
from pipeline.data.many import Graphs
from pipeline.data.ogb_node import hash_files
from pipeline.graph.edges import plain_edges
from pipeline.names import SPLITS

log = logging.getLogger(__name__)

USED = ("x", "edge_index", "edge_attr", "y", "num_nodes")
SUFFIXES = (".pt", ".pth")


def hash_content(config: GraphFilesConfig) -> str:
    """Compute a digest of the names and the content of all files."""
    config.check()
    return hash_files([path for paths in find_files(Path(config.folder)).values() for path in paths])


def read(config: GraphFilesConfig) -> Data:
    """Read a folder of graphs.

    Each file holds a ``Data`` or a dict with ``edge_index`` [2, num_edges]; ``y``, one or several labels of the graph;
    perhaps ``x`` [num_nodes, columns], ``edge_attr`` [num_edges, columns] and ``num_nodes``. Attributes are those of
    the first file; a line of the log names those that are not used.

    Returns:
        A union of the graphs, in the order of their names.

    Raises:
        ValueError: no graphs, or one that is not like the others; the message names the file.
    """
    config.check()
    many.check_metric(config.metric)
    splits = find_files(Path(config.folder))
    paths = [path for files in splits.values() for path in files]
    first = read_attributes(paths[0])
    if unused := [key for key in first if key not in USED]:
        log.info("%s and the others: not used: %s", paths[0], ", ".join(unused))
    graphs = many.read_in_parallel(partial(read_graph, like=_shape(read_graph(paths[0]))), paths, config.num_workers)
    if len(splits) > 1:
        masks = [np.repeat([split == name for split in splits], [len(files) for files in splits.values()])
                 for name in SPLITS]
    else:
        masks = many.random_masks(len(paths), config.train_fraction, config.valid_fraction, config.graph_seed)
    return many.as_union(graphs, metric=config.metric, masks=masks)


def find_files(folder: Path) -> dict[str, list[Path]]:
    """List the files of a folder by the split that they are in, under "" if it has none; numbers in names count.

    Raises:
        ValueError: there are none, or some lie beside the folders of splits.
    """
    def list_files(inside: Path) -> list[Path]:
        return sorted((path for path in inside.iterdir() if path.suffix in SUFFIXES), key=lambda path: (
            [(text, int(digits or 0)) for text, digits in re.findall(r"(\D+)(\d*)", f"_{path.name}")], path.name))

    beside, splits = list_files(folder), {split: folder / split for split in SPLITS if (folder / split).is_dir()}
    if beside and splits:
        raise ValueError(f"data.folder={folder} has {len(beside):,} files beside {', '.join(splits)}/: move them into "
                         "one of these")
    found = {split: list_files(inside) for split, inside in splits.items()} if splits else {"": beside}
    if splits and "train" not in splits:
        raise ValueError(f"data.folder={folder} has {', '.join(splits)}/, but no train/")
    if not next(iter(found.values())):
        raise ValueError(f"{folder / next(iter(found))} has no files *.pt: save each graph there by torch.save")
    return found


def read_graph(path: Path, like: dict[str, int] | None = None) -> Graphs:
    """Read one graph.

    Args:
        like: columns of each attribute, as of the first of the files.

    Raises:
        ValueError: no graph, or one of other attributes; the message begins with the path.
    """
    saved = read_attributes(path)
    try:
        graph = _as_graph(saved)
        if like is not None and _shape(graph) != like:
            raise ValueError(f"its columns are {_describe(_shape(graph))}, those of the first file {_describe(like)}")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return graph


def _as_graph(saved: dict) -> Graphs:
    if missing := [key for key in ("edge_index", "y") if key not in saved]:
        raise ValueError(f"no {', '.join(missing)}; there is {', '.join(saved) or 'nothing'}")
    tensors = {key: saved[key] for key in ("x", "edge_index", "edge_attr", "y") if key in saved}
    if isinstance(tensors["y"], (bool, int, float)) or isinstance(tensors["y"], Tensor) and tensors["y"].dim() == 0:
        tensors["y"] = torch.as_tensor(tensors["y"]).view(1)
    for key, value in tensors.items():
        check_tensor(key, value)
    edges, y = tensors["edge_index"], tensors["y"].detach().reshape(1, -1)
    if edges.dim() != 2 or edges.size(0) != 2 or edges.is_floating_point() or edges.dtype == torch.bool:
        raise ValueError(f"edge_index must be integers of shape [2, num_edges], not {edges.dtype} of "
                         f"{list(edges.shape)}")
    edges = plain_edges(edges)
    features = {key: _as_features(key, tensors[key]) for key in ("x", "edge_attr") if key in tensors}
    num_nodes = saved.get("num_nodes", len(features["x"]) if "x" in features else int(edges.max()) + 1)
    if isinstance(num_nodes, bool) or not isinstance(num_nodes, int) or num_nodes < 1:
        raise ValueError(f"num_nodes is {num_nodes!r}; a graph has at least one node")
    for key, rows, of in (("x", num_nodes, "nodes"), ("edge_attr", edges.size(1), "edges")):
        if key in features and len(features[key]) != rows:
            raise ValueError(f"{key} has {len(features[key]):,} rows for {rows:,} {of}")
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= num_nodes):
        wrong = int(edges.min()) if int(edges.min()) < 0 else int(edges.max())
        raise ValueError(f"edge_index is out of range: it names node {wrong}, the graph has nodes 0 to {num_nodes - 1}")
    return Graphs(np.array([num_nodes]), np.array([edges.size(1)]), edges.long().numpy(),
                  y=(y.float() if y.is_floating_point() else y.long()).numpy(), **features)


def _as_features(key: str, value: Tensor) -> np.ndarray:
    value = value.detach().float()
    value = value.unsqueeze(1) if value.dim() == 1 else value
    if value.dim() != 2 or not value.size(1):
        raise ValueError(f"{key} must have two dimensions and a column at least, not the shape {list(value.shape)}")
    if not bool(value.isfinite().all()):
        row, column = (int(place) for place in (~value.isfinite()).nonzero()[0])
        raise ValueError(f"{key} is not finite in float32: row {row}, column {column}")
    return value.numpy()


def _shape(graph: Graphs) -> dict[str, int]:
    return {key: value.shape[1] for key in ("x", "edge_attr", "y") if (value := getattr(graph, key)) is not None}


def _describe(shape: dict[str, int]) -> str:
    return ", ".join(f"{key} {columns}" for key, columns in shape.items())

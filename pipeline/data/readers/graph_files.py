"""Many graphs in a folder of files, each saved by torch.save."""

import logging
import re
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.check import as_float32, check, check_metric, check_tensor
from parallel_epochs.pipeline.data.config import GraphFilesConfig
from parallel_epochs.pipeline.data.content import hash_named
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.readers import many
from parallel_epochs.pipeline.data.readers.many import Graphs
from parallel_epochs.pipeline.data.readers.saved_graph import as_data, read_attributes
from parallel_epochs.pipeline.data.sparse import with_edges
from parallel_epochs.pipeline.names import SPLIT_NAMES, SPLITS

log = logging.getLogger(__name__)

USED = ("x", "edge_index", "adj_t", "edge_attr", "y", "num_nodes")
SUFFIXES = (".pt", ".pth")


def hash_content(config: GraphFilesConfig) -> str:
    """Compute a digest of the names and the content of all files."""
    return hash_named(_list_files(config))


def read(config: GraphFilesConfig, needs_labels: bool = True) -> Graph:
    """Read a folder of graphs.

    Each file holds a ``Data`` or a dict with ``edge_index`` [2, num_edges]; ``y``, one or several labels of the graph;
    perhaps ``x`` [num_nodes, columns], ``edge_attr`` [num_edges, columns] and ``num_nodes``. Attributes are those of
    the first file; a line of the log names those that are not used.

    Args:
        needs_labels: whether to read labels and splits, too.

    Returns:
        A union of the graphs, in the order of their names.

    Raises:
        ValueError: no graphs, or one that is not like the others; the message names the file.
    """
    check_metric(config.metric)
    splits, paths = find_files(Path(config.folder)), _list_files(config)
    if unused := [key for key in read_attributes(paths[0]) if key not in USED]:
        log.info("%s and the others: not used: %s", paths[0], ", ".join(unused))
    read_one = partial(read_graph, needs_labels=needs_labels)
    read_like = partial(read_one, like=_shape(read_one(paths[0])))
    graphs = many.read_in_parallel(read_like, paths)
    if not needs_labels:
        return many.as_union(graphs)
    if len(splits) > 1:
        split_of = np.repeat(list(splits), [len(files) for files in splits.values()])
        masks = [torch.from_numpy(split_of == name) for name in SPLITS]
    else:
        masks = many.divide_graphs(len(paths), config)
    return many.as_union(graphs, metric=config.metric, masks=masks)


def _list_files(config: GraphFilesConfig) -> list[Path]:
    return [path for paths in find_files(Path(config.folder)).values() for path in paths]


def name_graphs(config: GraphFilesConfig) -> list[str]:
    """Return the paths of the graphs' files in their folder, in the order of :func:`read`."""
    return [str(path.relative_to(config.folder)) for path in _list_files(config)]


def find_files(folder: Path) -> dict[str, list[Path]]:
    """List the files of each split, under "" if the folder has no splits. Numbers in names are sorted as numbers.

    Raises:
        ValueError: there are none, or files lie beside the folders of splits, or two folders are of one split.
    """

    def key_of(path: Path) -> tuple:
        parts = re.findall(r"(\D+)(\d*)", f"_{path.name}")
        return [(text, int(digits or 0)) for text, digits in parts], path.name

    def list_files(inside: Path) -> list[Path]:
        return sorted((path for path in inside.iterdir() if path.suffix in SUFFIXES), key=key_of)

    beside, splits = list_files(folder), dict[str, Path]()
    for inside in sorted(path for path in folder.iterdir() if path.is_dir()):
        if (split := SPLIT_NAMES.get(inside.name.lower())) is None:
            continue
        if split in splits:
            raise ValueError(
                f"data.folder={folder} has {splits[split].name}/ and {inside.name}/: leave one folder of "
                f"{split} graphs"
            )
        splits[split] = inside
    names = ", ".join(inside.name for inside in splits.values())
    if beside and splits:
        raise ValueError(
            f"data.folder={folder} has {len(beside):,} files next to {names}/: move them into one of these"
        )
    if splits and "train" not in splits:
        raise ValueError(f"data.folder={folder} has {names}/, but no train/")
    found = {split: list_files(splits[split]) for split in SPLITS if split in splits}
    found = found or {"": beside}
    if not next(iter(found.values())):
        raise ValueError(
            f"{splits.get('train', folder)} has no files *.pt: save each graph there by torch.save"
        )
    return found


def read_graph(
    path: Path, like: dict[str, int] | None = None, *, needs_labels: bool = True
) -> Graphs:
    """Read one graph.

    Args:
        like: columns of each attribute, as of the first of the files.
        needs_labels: whether to read the labels, too.

    Raises:
        ValueError: no graph, or one of other attributes; the message begins with the path.
    """
    saved = read_attributes(path)
    try:
        graph = _as_graph(saved, needs_labels)
        if like is not None and _shape(graph) != like:
            raise ValueError(
                f"its columns are {_describe(_shape(graph))}, but those of the first file are "
                f"{_describe(like)}"
            )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return graph


def _as_graph(saved: dict, needs_labels: bool) -> Graphs:
    saved = with_edges(saved, "a graph")
    needed = ("edge_index", *(["y"] if needs_labels else []))
    if missing := [key for key in needed if key not in saved]:
        raise ValueError(f"no {', '.join(missing)}; there is {', '.join(saved) or 'nothing'}")
    data = as_data({key: saved[key] for key in USED if key in saved and key != "y"})
    for key in ("x", "edge_attr"):
        value = data.get(key)
        if value is not None:
            value = value.to_dense()
            data[key] = as_float32(key, value.unsqueeze(1) if value.dim() == 1 else value)
    check(data)
    if not data.num_nodes:
        raise ValueError("a graph has at least one node")
    y = saved.get("y") if needs_labels else None
    if isinstance(y, (bool, int, float)):
        y = torch.as_tensor(y)
    if y is not None:
        y = y.reshape(1) if isinstance(y, Tensor) and not y.dim() else y
        check_tensor("y", y)
        y = y.detach().reshape(1, -1)
        y = (y.float() if y.is_floating_point() else y.long()).numpy()
    return Graphs(
        np.array([data.num_nodes]),
        np.array([data.edge_index.size(1)]),
        data.edge_index.long().numpy(),
        y=y,
        **{key: data[key].numpy() for key in ("x", "edge_attr") if data.get(key) is not None},
    )


def _shape(graph: Graphs) -> dict[str, int]:
    return {
        key: value.shape[1]
        for key in ("x", "edge_attr", "y")
        if (value := getattr(graph, key)) is not None
    }


def _describe(shape: dict[str, int]) -> str:
    return ", ".join(f"{key} {columns}" for key, columns in shape.items())

"""Node datasets of the Open Graph Benchmark with several types of nodes: the raw folder of ogbn-mag, and its split."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.columns import open_unzipped, read_table
from parallel_epochs.pipeline.data.content import hash_parts, label
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.join_types import NodesOfType, Relation, join_parts
from parallel_epochs.pipeline.data.readers import ogb_node
from parallel_epochs.pipeline.data.readers.hetero import choose_labelled
from parallel_epochs.pipeline.names import MASKS, SPLITS

log = logging.getLogger(__name__)


def hash_content(directory: Path, name: str) -> str:
    """Compute a digest of the dataset's files.

    Raises:
        ValueError: a file is missing; the message names it.
    """
    paths = [ogb_node.require(path) for path in needed(directory, name)]
    return hash_parts(label((str(path.relative_to(directory)), path) for path in paths))


def download(name: str, root: str) -> None:
    """Fetch and unpack a dataset; see :func:`ogb_node.fetch`."""
    ogb_node.fetch(name, root, needed)


def needed(folder: Path, name: str) -> list[Path]:
    """Return the files of a dataset: those that every such folder has, and those that these say it has, too."""
    raw, split = folder / "raw", _split_folder(folder, name)
    lists = [
        raw / "num-node-dict.csv.gz",
        raw / "triplet-type-list.csv.gz",
        raw / "nodetype-has-feat.csv.gz",
        raw / "nodetype-has-label.csv.gz",
        split / "nodetype-has-split.csv.gz",
    ]
    if not all(path.is_file() for path in lists):
        return lists
    relations = [
        raw / "relations" / "___".join(relation) / "edge.csv.gz" for relation in _relations(raw)
    ]
    features = [raw / "node-feat" / kind / "node-feat.csv.gz" for kind in _types_with(lists[2])]
    labels = [raw / "node-label" / kind / "node-label.csv.gz" for kind in _types_with(lists[3])]
    splits = [split / kind / f"{part}.csv.gz" for kind in _types_with(lists[4]) for part in SPLITS]
    return [*lists, *relations, *features, *labels, *splits]


def read(
    directory: Path,
    name: str,
    reverse_relations: bool = True,
    featureless: str = "mean",
    label_type: str | None = None,
) -> Graph:
    """Read a dataset in OGB's raw CSV layout; nothing is written to the folder.

    The types of nodes and the relations have the order of their names, as OGB's own reader gives them.

    Args:
        reverse_relations, featureless, label_type: see :func:`pipeline.data.readers.hetero.join_hetero`.

    Raises:
        ValueError: a file is missing, cut short, or does not fit the others; the message names it.
    """
    raw, info = directory / "raw", ogb_node.meta(name)
    log.info("data: reading the tables in %s", raw)
    counts = _read_head(raw / "num-node-dict.csv.gz")
    labelled = choose_labelled(
        _types_with(raw / "nodetype-has-label.csv.gz"), label_type, counts, str(directory)
    )
    featured = _types_with(raw / "nodetype-has-feat.csv.gz")
    parts = {}
    for kind in sorted(counts):
        x = (
            _read_rows(raw / "node-feat" / kind / "node-feat.csv.gz", counts[kind])
            if kind in featured
            else None
        )
        labels = _read_labels(directory, name, kind, counts[kind]) if kind == labelled else {}
        parts[kind] = NodesOfType(
            counts[kind], None if x is None else torch.from_numpy(x).float(), labels
        )
    return join_parts(
        parts,
        dict(_read_edges(raw)),
        origin=str(directory),
        add_reverse=reverse_relations,
        averages=featureless == "mean",
        metric=info["eval metric"],
    )


def _split_folder(folder: Path, name: str) -> Path:
    return folder / "split" / ogb_node.meta(name)["split"]


def _read_head(path: Path) -> dict[str, int]:
    """Read a table of one row: a whole number under the name of each type of nodes."""
    with open_unzipped(ogb_node.require(path)) as file:
        table = read_table(file, str(path), ",")
    if not len(table):
        raise ValueError(f"{path} has names, but no row of numbers")
    row = pd.to_numeric(
        table.iloc[0].map(lambda cell: {"True": 1, "False": 0}.get(str(cell), cell)),
        errors="coerce",
    )
    if (wrong := row.isna() | (row < 0) | (row != row.round())).any():
        raise ValueError(f"{path}: column {row.index[wrong.argmax()]} holds no whole number")
    return {str(kind): int(value) for kind, value in row.items()}


def _types_with(path: Path) -> list[str]:
    return [kind for kind, value in sorted(_read_head(path).items()) if value]


def _relations(raw: Path) -> list[Relation]:
    path = raw / "triplet-type-list.csv.gz"
    with open_unzipped(ogb_node.require(path)) as file:
        table = read_table(file, str(path), ",", header=None)
    if table.shape[1] != 3:
        raise ValueError(
            f"{path} has {table.shape[1]} columns; a relation has three: the type of the source, its name "
            "and the type of the target"
        )
    return sorted(
        (str(source), str(name), str(target))
        for source, name, target in table.itertuples(index=False)
    )


def _read_edges(raw: Path) -> Iterator[tuple[Relation, tuple[Tensor, None]]]:
    for relation in _relations(raw):
        path = raw / "relations" / "___".join(relation) / "edge.csv.gz"
        edges = ogb_node.whole(path, ogb_node.read_numbers(ogb_node.require(path)))
        if edges.shape[1] != 2:
            raise ValueError(
                f"{path} has {edges.shape[1]} columns; an edge has two, its source and its target"
            )
        yield relation, (torch.from_numpy(np.ascontiguousarray(edges.T)), None)


def _read_rows(path: Path, num_nodes: int) -> np.ndarray:
    table = ogb_node.read_numbers(ogb_node.require(path))
    if len(table) != num_nodes:
        raise ValueError(
            f"{path} has {len(table):,} rows, but num-node-dict.csv.gz says {num_nodes:,}"
        )
    return table


def _read_labels(directory: Path, name: str, kind: str, num_nodes: int) -> dict[str, Tensor]:
    """Read the classes and the split of a type of nodes."""
    path = directory / "raw" / "node-label" / kind / "node-label.csv.gz"
    table = _read_rows(path, num_nodes)
    masks = {mask: torch.zeros(num_nodes, dtype=torch.bool) for mask in MASKS}
    for part, mask in zip(SPLITS, masks.values(), strict=True):
        of_split = _split_folder(directory, name) / kind / f"{part}.csv.gz"
        nodes = ogb_node.whole(of_split, ogb_node.read_numbers(ogb_node.require(of_split))).reshape(
            -1
        )
        if nodes.size and not (0 <= nodes.min() and nodes.max() < num_nodes):
            wrong = nodes.max() if nodes.min() >= 0 else nodes.min()
            raise ValueError(
                f"{of_split}: node {wrong} is not one of {num_nodes:,} nodes of {kind}"
            )
        mask[torch.from_numpy(nodes)] = True
    in_split = torch.stack(list(masks.values())).any(0).numpy()
    unknown = (
        np.isnan(table).any(1) & ~in_split if table.dtype.kind == "f" else np.zeros(num_nodes, bool)
    )
    return {
        "y": torch.from_numpy(ogb_node.whole(path, np.where(unknown[:, None], 0, table))),
        **masks,
    }

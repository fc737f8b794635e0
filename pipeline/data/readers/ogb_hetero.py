"""Node datasets of the Open Graph Benchmark with several types of nodes: the raw folder of ogbn-mag, and its split."""

import logging
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

download = ogb_node.download


def hash_content(directory: Path, name: str) -> str:
    """Compute a digest of the dataset's files.

    Raises:
        ValueError: a file is missing; the message names it.
    """
    paths = [ogb_node.require(path) for path in needed(directory, name)]
    return hash_parts(label((str(path.relative_to(directory)), path) for path in paths))


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
    relations = [_edges_of(raw, relation) for relation in _relations(raw)]
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
    raw = directory / "raw"
    log.info("data: reading the tables in %s", raw)
    counts = _read_head(raw / "num-node-dict.csv.gz")
    labelled = choose_labelled(
        _types_with(raw / "nodetype-has-label.csv.gz"), label_type, counts, str(directory)
    )
    featured, parts, edges = _types_with(raw / "nodetype-has-feat.csv.gz"), {}, {}
    for kind in sorted(counts):
        parts[kind] = NodesOfType(counts[kind])
        if kind in featured:
            path = raw / "node-feat" / kind / "node-feat.csv.gz"
            x = ogb_node.read_numbers(path, counts[kind])
            parts[kind].x = torch.from_numpy(x).float()
        if kind == labelled:
            parts[kind].labels = _read_labels(directory, name, kind, counts[kind])
    for relation in _relations(raw):
        path = _edges_of(raw, relation)
        ends = ogb_node.read_whole(path, columns=2)
        edges[relation] = torch.from_numpy(np.ascontiguousarray(ends.T)), None
    return join_parts(
        parts,
        edges,
        origin=str(directory),
        add_reverse=reverse_relations,
        averages=featureless == "mean",
        metric=ogb_node.meta(name)["eval metric"],
    )


def _split_folder(folder: Path, name: str) -> Path:
    return folder / "split" / ogb_node.meta(name)["split"]


def _read_head(path: Path) -> dict[str, int]:
    """Read a table of one row: a whole number, or whether there is something, under the name of each type of nodes."""
    (row,) = _read_texts(path, header=0).to_dict("records")
    try:
        return {
            str(kind): int({"True": 1, "False": 0}.get(value, value)) for kind, value in row.items()
        }
    except ValueError:
        raise ValueError(f"{path} must have one row of whole numbers below the names") from None


def _read_texts(path: Path, header: int | None) -> pd.DataFrame:
    with open_unzipped(ogb_node.require(path)) as file:
        return read_table(file, str(path), ",", header=header, dtype=str)


def _types_with(path: Path) -> list[str]:
    return [kind for kind, value in sorted(_read_head(path).items()) if value]


def _relations(raw: Path) -> list[Relation]:
    path = raw / "triplet-type-list.csv.gz"
    with open_unzipped(ogb_node.require(path)) as file:
        table = read_table(file, str(path), ",", header=None, dtype=str)
    if table.shape[1] != 3:
        raise ValueError(
            f"{path} has {table.shape[1]} columns; a relation has three: the type of the source, its name "
            "and the type of the target"
        )
    return sorted(table.itertuples(index=False, name=None))


def _edges_of(raw: Path, relation: Relation) -> Path:
    return raw / "relations" / "___".join(relation) / "edge.csv.gz"


def _read_labels(directory: Path, name: str, kind: str, num_nodes: int) -> dict[str, Tensor]:
    """Read the classes and the split of a type of nodes."""
    masks = {}
    for part, mask in zip(SPLITS, MASKS, strict=True):
        path = _split_folder(directory, name) / kind / f"{part}.csv.gz"
        masks[mask] = ogb_node.read_mask(path, num_nodes, "node")
    in_split = torch.stack(list(masks.values())).any(0).numpy()
    path = directory / "raw" / "node-label" / kind / "node-label.csv.gz"
    labels = ogb_node.read_numbers(path, num_nodes)
    return {"y": torch.from_numpy(ogb_node.read_classes(path, labels, in_split)), **masks}

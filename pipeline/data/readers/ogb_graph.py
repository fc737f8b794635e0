"""Graph datasets of the Open Graph Benchmark: many graphs, read as one disjoint union."""

from pathlib import Path

import torch

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.readers import (
    ogb_node,
)  # before ogb itself, which it keeps from asking the network

from ogb.utils.features import get_atom_feature_dims, get_bond_feature_dims  # isort: skip

hash_content, download = ogb_node.hash_content, ogb_node.download


def read(directory: Path, name: str) -> Graph:
    """Read a dataset in OGB's raw CSV layout; nothing is written to the folder.

    Returns:
        A union of the graphs: ``ptr`` [num_graphs + 1]; ``x`` and ``edge_attr`` as the files have them, of categories
        uint8, with ``x_tables`` and ``edge_tables``, the number of categories in each column; ``y`` and the masks with
        a row for each graph; ``metric``.

    Raises:
        ValueError: a file is missing, cut short, or does not fit the others, or a category is not in OGB's table; the
            message names it.
    """
    info, data = ogb_node.meta(name), ogb_node.read_graphs(directory, name)
    if info["data type"] == "mol":
        data.x_tables, data.edge_tables = get_atom_feature_dims(), get_bond_feature_dims()
    path, num_graphs = directory / "raw" / "graph-label.csv.gz", len(data.ptr) - 1
    if info["task type"] == "multiclass classification":
        data.y = torch.from_numpy(ogb_node.read_whole(path, num_graphs))
    else:
        data.y = torch.from_numpy(ogb_node.read_numbers(path, num_graphs)).float()
    ogb_node.add_masks(data, directory, name, num_graphs, "graph")
    return data

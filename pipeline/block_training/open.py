"""Describes an opened graph for node embeddings and layouts, and turns its labels into columns."""

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.graph.structure import describe_edges
from parallel_epochs.pipeline.names import MASKS
from parallel_epochs.pipeline.run.words import count


def describe_graph(data: Data) -> str:
    """Describe a graph for the log: its size, and its labels if it has any."""
    degree = data.edge_index.get_csc()[0][0].diff()
    isolated = int((degree == 0).sum())
    text = f"graph: {describe_edges(data)}"
    if data.edge_attr is not None:
        text += ", weighted"
    if isolated:
        text += "; " + count(
            isolated,
            "node without an edge keeps the vector that it begins with",
            "nodes without an edge keep the vectors that they begin with",
        )
    if data.get("y") is not None:
        labels = label_columns(data)
        labelled = int((~data.y.float().isnan().any(1) & (labels > 0).any(1)).sum())
        text += f"; {count(labelled, 'node has', 'nodes have')} labels, of {count(labels.size(1), 'kind')}"
    return text


def label_columns(data: Data) -> Tensor:
    """Return labels as a column of 0 and 1 for each, NaN where unknown [num_nodes, num_labels]."""
    y = data.y
    if y.is_floating_point():
        return y
    binary = torch.nn.functional.one_hot(y[:, 0], data.out_channels).float()
    known = torch.stack([data[mask] for mask in MASKS]).any(0)
    binary[~known] = float("nan")
    return binary

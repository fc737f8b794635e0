"""What node embeddings and layouts say of a graph that they have opened."""

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.names import MASKS


def describe_graph(data: Data) -> str:
    """Describe a graph for the log: its size, and its labels if it has any."""
    degree = data.edge_index.get_csc()[0][0].diff()
    isolated = int((degree == 0).sum())
    text = f"graph: {data.num_nodes:,} nodes, {data.num_edges:,} directed edges"
    if data.edge_attr is not None:
        text += ", weighted"
    if isolated:
        text += f"; {isolated:,} without an edge keep the vector that they begin with"
    if data.get("y") is not None:
        labels = label_columns(data)
        labelled = int((~data.y.float().isnan().any(1) & (labels > 0).any(1)).sum())
        text += f"; {labelled:,} nodes have labels, of {labels.size(1):,} kinds"
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

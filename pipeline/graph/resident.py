"""A graph on the device of the model."""

import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.graph.subgraph import GRAPH_KEYS, NODE_KEYS

# Batches are made of these attributes.
KEYS = ("edge_index", "edge_attr", *NODE_KEYS, "n_id", "ptr")


def put_on(data: Data, device: torch.device) -> Data:
    """Copy what batches are made of to a device."""
    graph = type(data)(num_nodes=data.num_nodes)
    for key in KEYS:
        if data.get(key) is not None:
            graph[key] = data[key].to(device)
    for key in GRAPH_KEYS:
        if key in data:
            graph[key] = data[key]
    return graph


def bytes_of(data: Data) -> int:
    """Return the bytes that :func:`put_on` copies."""
    total = 0
    for key in KEYS:
        value = data.get(key)
        if value is not None:
            count = (
                2 * value.size(1) + value.get_sparse_size(1) + 1
                if key == "edge_index"
                else value.numel()
            )
            total += count * value.element_size()
    return total

"""Columns of whole graphs: what they hold, and how often each pattern of categories is in them."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.kernels.hash import GOLDEN, mix

# Columns that patterns are counted in, by their hash, and the largest distance from the middle of a pattern.
NUM_PATTERNS, RADIUS = 2048, 2


def count_contents(data: Data, num_last: int = 0) -> Float[Tensor, "num_graphs columns"]:
    """Sum the features of each graph's nodes, and of its edges; of categories, count each.

    Args:
        num_last: as for :func:`count_patterns`.
    """
    graph = torch.arange(len(data.ptr) - 1).repeat_interleave(data.ptr.diff())
    ends = graph[data.edge_index.as_tensor()[1].long()]
    parts = [torch.bincount(graph, minlength=len(data.ptr) - 1).float().unsqueeze(1)]
    for of, values, sizes in (
        (graph, data.x, data.get("x_tables")),
        (ends, data.edge_attr, data.get("edge_tables")),
    ):
        if values is None or not values.size(1):
            continue
        for column in range(values.size(1) - (num_last if values is data.x else 0)):
            if sizes is None:
                found = (
                    torch.zeros(len(parts[0]))
                    .index_add_(0, of, values[:, column].float())
                    .unsqueeze(1)
                )
            else:
                found = (
                    torch.bincount(
                        of * sizes[column] + values[:, column].long(),
                        minlength=len(parts[0]) * sizes[column],
                    )
                    .view(-1, sizes[column])
                    .float()
                )
            parts.append(found)
    return torch.cat(parts, dim=1)


def count_patterns(
    data: Data, num_last: int = 0
) -> Float[Tensor, "num_graphs num_patterns"] | None:
    """Count the neighbourhoods of up to two steps in each graph, told apart by the categories of nodes and edges.

    For molecules these are the circular fingerprints of Rogers and Hahn, Extended-Connectivity Fingerprints, J. Chem.
    Inf. Model. 50 (2010), with the columns of atoms and bonds as invariants. None where nodes have no categories.

    Args:
        num_last: number of the last columns of ``x`` that say where a node stands in its graph, which are not read.
    """
    if data.get("x_tables") is None or not (width := data.x.size(1) - num_last):
        return None
    num_graphs, (src, dst) = len(data.ptr) - 1, data.edge_index.as_tensor().long().numpy()
    graph = np.repeat(np.arange(num_graphs), data.ptr.diff().numpy())
    node = _hash_rows(data.x[:, :width].numpy())
    bond = _hash_rows(data.edge_attr.numpy()) if data.get("edge_tables") else 0
    out = np.zeros((num_graphs, NUM_PATTERNS), np.float32)
    for radius in range(RADIUS + 1):
        if radius:
            around = np.zeros_like(node)
            np.add.at(around, dst, mix(node[src] + bond))  # whatever the order of the neighbours
            node = mix(mix(node) + around)
        np.add.at(out, (graph, (node % NUM_PATTERNS).astype(np.int64)), 1)
    return torch.from_numpy(out)


def _hash_rows(rows: np.ndarray) -> np.ndarray:
    found = np.zeros(len(rows), np.uint64)
    for column in rows.T:
        found = mix(found + column.astype(np.uint64) + np.uint64(GOLDEN))
    return found

"""The neighbourhood of some nodes, from which they are predicted as from the whole graph."""

import math

import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.graph.sampling import GrowingSampler, TooMany
from parallel_epochs.pipeline.graph.subgraph import attach

# Part of the edges of a graph that a neighbourhood may have: with more, a pass over the graph takes less time.
MOST = 0.5
# A neighbourhood with fewer edges is always taken, and one with more never: it is one batch.
FEW_EDGES, MOST_EDGES = 1 << 14, 1 << 22


def most_edges(num_edges: int) -> float:
    """Return how many edges a neighbourhood may have in a graph of `num_edges` edges."""
    return min(max(MOST * num_edges, FEW_EDGES), MOST_EDGES)


def take(
    data: Data, nodes: Int[Tensor, " num_nodes"], num_hops: int, limit: float = math.inf
) -> Data | None:
    """Take all edges that enter some nodes and the nodes up to `num_hops` - 1 hops away from them.

    Args:
        nodes: distinct numbers, int64.
        limit: number of edges, at most.

    Returns:
        A batch whose first nodes and ``target`` are `nodes`, in their order; none where it has too many edges.
    """
    try:
        edge_index, found, place, _ = GrowingSampler(data.edge_index).sample_around(
            nodes, 0, [-1] * num_hops, limit
        )
    except TooMany:
        return None
    batch = attach(data, edge_index, found, place)
    batch.target = torch.arange(len(found)) < len(nodes)
    return batch

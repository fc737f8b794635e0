"""The neighbourhood of some nodes, from which they are predicted as from the whole graph."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.loaders.neighbor import NeighborLoader, SeedOrder
from parallel_epochs.pipeline.graph.edges import expand_ranges

# Part of the nodes, and of the edges, that a neighbourhood may have, and their largest numbers: it is one batch.
MOST = 0.1
MOST_NODES, MOST_EDGES = 1 << 19, 1 << 22


def is_small(edge_index: EdgeIndex, nodes: Int[Tensor, " num_nodes"], num_hops: int) -> bool:
    """Tell whether a neighbourhood has at most a tenth of the nodes and of the edges of its graph, and fits a batch.

    Args:
        edge_index: sorted by destination, with its CSC filled.
        nodes: distinct numbers, int64.
        num_hops: of how many steps against the edges it consists.
    """
    (indptr, src), _ = edge_index.get_csc()
    most_nodes = min(MOST * (indptr.numel() - 1), MOST_NODES)
    most_edges = min(MOST * src.numel(), MOST_EDGES)
    seen, last, num_edges = nodes, nodes, 0
    for _ in range(num_hops):
        first = indptr[last].long()
        degree = indptr[last + 1].long() - first
        num_edges += int(degree.sum())
        if num_edges > most_edges:
            return False
        found = src[expand_ranges(first, degree)[0]].long().unique()
        last = found[~torch.isin(found, seen)]
        seen = torch.cat([seen, last])
        if seen.numel() > most_nodes:
            return False
    return True


def take(data: Data, nodes: Int[Tensor, " num_nodes"], num_hops: int) -> Data:
    """Take all edges that enter some nodes and the nodes up to `num_hops` - 1 hops away from them.

    Returns:
        What a :class:`NeighborLoader` makes of it. `nodes` are its first nodes, in their order, and its ``target``.
    """
    loader = NeighborLoader(data, [-1] * num_hops, batch_size=nodes.numel(), nodes=nodes, purpose="prediction")
    (batch,) = loader.batches_of(SeedOrder(nodes, (0, 0)), [0])
    return batch

"""The neighbourhood of some nodes, from which they are predicted as from the whole graph."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.graph.sampling import GrowingSampler
from parallel_epochs.pipeline.graph.subgraph import attach


def take(data: Data, nodes: Int[Tensor, " num_nodes"], num_hops: int) -> Data:
    """Take all edges that enter some nodes and the nodes up to `num_hops` - 1 hops away from them.

    Args:
        nodes: distinct numbers, int64.

    Returns:
        A batch whose first nodes and ``target`` are `nodes`, in their order.
    """
    sampler = GrowingSampler(data.edge_index)
    edge_index, found, place = sampler.sample_around(nodes, num_hops)
    batch = attach(data, edge_index, found, place)
    batch.target = torch.arange(len(found)) < len(nodes)
    return batch

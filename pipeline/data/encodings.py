"""Where a node stands in its graph: PyG's encoding by random walks."""

from itertools import pairwise

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import coalesce

from parallel_epochs.pipeline.run import pulse

# Levels of a probability, where the other features of nodes are categories.
LEVELS = 32
# Rounding must not move a probability that is a multiple of 1 / 32 to the level below.
ROUNDING = 1e-5


def encode(
    edge_index: EdgeIndex, ptr: Int[Tensor, " num_graphs_plus_1"], num_steps: int
) -> Float[Tensor, "num_nodes num_steps"]:
    """Compute the probabilities that a walk, which goes to each neighbour alike, is back after 1 to `num_steps` steps.

    Args:
        edge_index: of all graphs, sorted by destination.
        ptr: where the nodes of each graph begin.
    """
    edges, walk = edge_index.as_tensor().long(), AddRandomWalkPE(num_steps)
    ends = torch.searchsorted(edges[1].contiguous(), ptr).tolist()
    out = torch.zeros(int(ptr[-1]), num_steps)
    for (first, last), (begin, end) in zip(pairwise(ptr.tolist()), pairwise(ends), strict=True):
        own = coalesce(edges[:, begin:end] - first, num_nodes=last - first)
        graph = Data(edge_index=own, num_nodes=last - first)
        out[first:last] = walk(graph).random_walk_pe
        pulse.renew()
    return out


def as_levels(
    values: Float[Tensor, "num_nodes num_steps"],
) -> UInt8[Tensor, "num_nodes num_steps"]:
    """Make categories of an encoding: equal parts of [0, 1]."""
    return ((values + ROUNDING) * LEVELS).clamp(max=LEVELS - 1).to(torch.uint8)

"""Nearest neighbours in feature space, dilated as in "DeepGCNs" (https://arxiv.org/abs/1904.03751)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.models.edge_index import choose_dtype, from_csc

# Number of distances that are in memory at a time.
MAX_DISTANCES = 2**24


@torch.no_grad()
def dilated_neighbors(
    h: Float[Tensor, "num_nodes channels"],
    k: int,
    *,
    dilation: int = 1,
    epsilon: float = 0.0,
    ptr: Int[Tensor, " num_graphs_plus_1"] | None = None,
) -> EdgeIndex:
    """Link every node with every `dilation`-th of its ``k * dilation`` nearest other nodes, by Euclidean distance.

    A graph with too few nodes is dilated less. A graph of at most `k` nodes is linked completely. The time grows with
    the square of the number of nodes; the memory is bounded.

    Args:
        h: features of the nodes [num_nodes, channels]; no gradient flows through the choice.
        k: number of neighbours of each node.
        dilation: step between the neighbours that are taken. With 3 these are the first, fourth, seventh, ... nearest.
        epsilon: probability, for each node, that `k` random ones of the ``k * dilation`` nearest are taken instead.
        ptr: index of each graph's first node [num_graphs + 1]. None: all nodes are one graph.

    Returns:
        Edges from neighbour to node, sorted by node and then by distance, with the CSC filled.
    """
    begins = [0, h.size(0)] if ptr is None else ptr.tolist()
    h = h.detach().float()
    chosen = [
        _neighbors_in_graph(h[begin:end], k, dilation, epsilon) + begin
        for begin, end in zip(begins[:-1], begins[1:])
    ]
    dtype = choose_dtype(h.size(0), sum(nearest.numel() for nearest in chosen))
    counts = torch.cat(
        [torch.tensor([0]), *(torch.full((len(nearest),), nearest.size(1)) for nearest in chosen)]
    )
    indptr = counts.cumsum(0).to(h.device, dtype)
    src = torch.cat([nearest.reshape(-1) for nearest in chosen]).to(dtype)
    dst = torch.arange(h.size(0), device=h.device, dtype=dtype).repeat_interleave(indptr.diff())
    return from_csc(torch.stack([src, dst]), indptr)


def _neighbors_in_graph(h: Tensor, k: int, dilation: int, epsilon: float) -> Tensor:
    """Return the neighbours of each node of one graph, the nearest first [num_nodes, at most k]."""
    num_nodes = h.size(0)
    k = min(k, num_nodes - 1)
    if k < 1:
        return torch.empty(num_nodes, 0, dtype=torch.int64, device=h.device)
    num_nearest = k * min(dilation, (num_nodes - 1) // k)
    with torch.autocast(h.device.type, enabled=False):
        h = h - h.mean(0)  # distances of small numbers are more exact
        squares = h.square().sum(1)
        out = []
        for first in range(0, num_nodes, rows := max(1, MAX_DISTANCES // num_nodes)):
            block = h[first : first + rows]
            distance = torch.addmm(
                squares, block, h.t(), alpha=-2
            )  # without the node's own square: the same order
            distance.diagonal(first).fill_(torch.inf)
            nearest = distance.topk(num_nearest, largest=False).indices
            out.append(_dilate(nearest, k, num_nearest // k, epsilon))
    return torch.cat(out)


def _dilate(nearest: Tensor, k: int, dilation: int, epsilon: float) -> Tensor:
    """Take `k` of the neighbours in each row: every `dilation`-th, or in some rows random ones in their order."""
    regular = nearest[:, ::dilation]
    if not epsilon or dilation == 1:
        return regular
    order = torch.rand(nearest.shape, device=nearest.device).argsort(1)[:, :k].sort(1).values
    is_random = torch.rand(len(nearest), 1, device=nearest.device) < epsilon
    return torch.where(is_random, nearest.gather(1, order), regular)

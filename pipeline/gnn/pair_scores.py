"""Scores of pairs of nodes that need no training: counts of common neighbours, and products of spectral vectors."""

from collections.abc import Callable

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import segment

from parallel_epochs.models.common_neighbors import find_common_neighbors

# Pairs whose neighbours are compared at a time.
BLOCK = 1 << 16
CHANNELS = 64

PairScorer = Callable[[Int[Tensor, "num_pairs 2"]], Float[Tensor, " num_pairs"]]


def _sum_over_common(data: Data, weight: Callable[[Tensor], Tensor]) -> PairScorer:
    """Sum a weight, a function of the degree, over the common neighbours of pairs."""
    def score(pairs: Tensor) -> Tensor:
        found = (find_common_neighbors(data.edge_index, block, data.num_nodes) for block in pairs.long().split(BLOCK))
        return torch.cat([segment(weight(each.degree.float()), each.ptr, reduce="sum") for each in found])

    return score


def common_neighbors(data: Data) -> PairScorer:
    """Count the common neighbours of pairs."""
    return _sum_over_common(data, torch.ones_like)


def adamic_adar(data: Data) -> PairScorer:
    """Sum 1 / log(degree) over the common neighbours of pairs (Adamic and Adar, 2003)."""
    return _sum_over_common(data, lambda degree: 1 / degree.clamp(min=2).log())


def resource_allocation(data: Data) -> PairScorer:
    """Sum 1 / degree over the common neighbours of pairs (Zhou, Lü and Zhang, 2009)."""
    return _sum_over_common(data, torch.reciprocal)


def adjacency_of(data: Data) -> scipy.sparse.csr_array:
    """Return the matrix of the edges, without self-loops, each 1."""
    source, target = data.edge_index.as_tensor().long().numpy()
    is_link = source != target
    edges = scipy.sparse.coo_array((np.ones(is_link.sum(), dtype=np.float32), (source[is_link], target[is_link])),
                                   shape=(data.num_nodes,) * 2).tocsr()
    edges.data[:] = 1
    return edges


def spectral(data: Data) -> PairScorer:
    """Take the entries of the best approximation of the adjacency matrix by one of rank 64 (truncated SVD)."""
    from sklearn.utils.extmath import randomized_svd
    edges = adjacency_of(data)
    left, values, right = randomized_svd(edges, min(CHANNELS, edges.shape[0]), random_state=0)
    sources, targets = torch.from_numpy(left * values).float(), torch.from_numpy(right.T.copy()).float()
    return lambda pairs: (sources[pairs[:, 0].long()] * targets[pairs[:, 1].long()]).sum(1)


PAIR_SCORES: dict[str, Callable[[Data], PairScorer]] = {
    "common neighbours": common_neighbors, "Adamic-Adar": adamic_adar, "resource allocation": resource_allocation,
    "products of spectral vectors": spectral}

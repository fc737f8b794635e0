"""Scores of pairs of nodes that need no training: counts of common neighbours, and products of spectral vectors."""

from collections.abc import Callable

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.data import Data

# Pairs whose neighbours are compared at a time.
BLOCK = 1 << 16
CHANNELS = 64

PairScorer = Callable[[Int[Tensor, "num_pairs 2"]], Float[Tensor, " num_pairs"]]


def adjacency_of(data: Data) -> scipy.sparse.csr_array:
    """Return the matrix of the edges in both directions, without self-loops, each 1."""
    source, target = data.edge_index.as_tensor().long().numpy()
    both = scipy.sparse.coo_array((np.ones(2 * len(source), dtype=np.float32), (
        np.concatenate([source, target]), np.concatenate([target, source]))), shape=(data.num_nodes,) * 2).tocsr()
    both.data[:] = 1
    both.setdiag(0)
    both.eliminate_zeros()
    return both


def _sum_over_common(data: Data, weight: Callable[[np.ndarray], np.ndarray]) -> PairScorer:
    """Sum a weight, a function of the degree, over the common neighbours of pairs."""
    edges = adjacency_of(data)
    degree = np.diff(edges.indptr)
    weighted = edges @ scipy.sparse.diags_array(weight(np.maximum(degree, 1).astype(np.float64)))

    def score(pairs: Tensor) -> Tensor:
        blocks = [np.asarray(weighted[block[:, 0]].multiply(edges[block[:, 1]]).sum(1)).ravel()
                  for block in np.array_split(pairs.long().numpy(), max(-(-len(pairs) // BLOCK), 1))]
        return torch.from_numpy(np.concatenate(blocks)).float()

    return score


def common_neighbors(data: Data) -> PairScorer:
    """Count the common neighbours of pairs."""
    return _sum_over_common(data, np.ones_like)


def adamic_adar(data: Data) -> PairScorer:
    """Sum 1 / log(degree) over the common neighbours of pairs (Adamic and Adar, 2003)."""
    return _sum_over_common(data, lambda degree: 1 / np.log(np.maximum(degree, 2)))


def resource_allocation(data: Data) -> PairScorer:
    """Sum 1 / degree over the common neighbours of pairs (Zhou, Lü and Zhang, 2009)."""
    return _sum_over_common(data, np.reciprocal)


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

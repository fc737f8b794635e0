"""Scores of pairs of nodes that need no training: counts of common neighbours, and products of spectral vectors."""

from collections.abc import Callable
from functools import partial

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.networks.common_neighbors import CommonNeighbors, Neighborhoods

# Pairs whose neighbours are compared at a time.
BLOCK = 1 << 16
CHANNELS = 64

PairScorer = Callable[[Int[Tensor, "num_pairs 2"]], Float[Tensor, " num_pairs"]]


# Functions that score the common neighbours of pairs, one number a pair: their number, or sums of their weights.
COUNTS: dict[str, Callable[[CommonNeighbors], Float[Tensor, " num_pairs"]]] = {
    "common neighbours": lambda found: found.ptr.diff().float(),
    "Adamic-Adar": CommonNeighbors.adamic_adar,
    "resource allocation": CommonNeighbors.allocate_resources,
}


def count_by(name: str, data: Data) -> PairScorer:
    """Score pairs by their common neighbours, by a member of `COUNTS`."""
    neighborhoods = Neighborhoods.of(data.edge_index, data.num_nodes)
    return lambda pairs: torch.cat(
        [COUNTS[name](neighborhoods.common(block)) for block in pairs.long().split(BLOCK)]
    )


def adjacency_of(data: Data) -> scipy.sparse.csr_array:
    """Return the matrix of the edges, without self-loops, each 1."""
    source, target = data.edge_index.as_tensor().long().numpy()
    is_link = source != target
    edges = scipy.sparse.coo_array(
        (np.ones(is_link.sum(), dtype=np.float32), (source[is_link], target[is_link])),
        shape=(data.num_nodes,) * 2,
    ).tocsr()
    edges.data[:] = 1
    return edges


def spectral(data: Data) -> PairScorer:
    """Take the entries of the best approximation of the adjacency matrix by one of rank 64 (truncated SVD)."""
    from sklearn.utils.extmath import randomized_svd

    edges = adjacency_of(data)
    left, values, right = randomized_svd(edges, min(CHANNELS, edges.shape[0]), random_state=0)
    sources, targets = (
        torch.from_numpy(left * values).float(),
        torch.from_numpy(right.T.copy()).float(),
    )
    return lambda pairs: (sources[pairs[:, 0].long()] * targets[pairs[:, 1].long()]).sum(1)


PAIR_SCORES: dict[str, Callable[[Data], PairScorer]] = {
    **{name: partial(count_by, name) for name in COUNTS},
    "products of spectral vectors": spectral,
}

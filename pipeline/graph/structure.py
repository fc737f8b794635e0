"""What is odd about a graph's edges: directed ones, self-loops, duplicates; and their digest."""

import hashlib
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric import EdgeIndex


@dataclass
class Structure:
    """What is odd about a graph's edges, all counted over directed edges."""

    num_nodes: int
    num_edges: int
    num_without_reverse: int
    num_self_loops: int
    num_duplicates: int
    num_isolated: int

    @property
    def is_undirected(self) -> bool:
        return self.num_without_reverse == 0

    def __str__(self) -> str:
        kind = "undirected" if self.is_undirected else f"directed ({self.num_without_reverse:,} edges have no reverse)"
        return (f"{self.num_nodes:,} nodes, {self.num_edges:,} directed edges, {kind}, {self.num_self_loops:,} "
                f"self-loops, {self.num_duplicates:,} duplicates, {self.num_isolated:,} isolated nodes")


def inspect(edge_index: EdgeIndex) -> Structure:
    """Inspect edges sorted by destination, then source, as :func:`pipeline.graph.edges.sort_edges` gives them."""
    (indptr, src), _ = edge_index.get_csc()
    num_nodes, num_edges = indptr.numel() - 1, src.numel()
    dst = edge_index.as_tensor()[1]
    same = (src[1:] == src[:-1]) & (dst[1:] == dst[:-1])
    loops = src == dst
    degree = indptr.diff().clone()
    degree.index_add_(0, src, torch.ones_like(src).to(degree.dtype))
    isolated = degree == 0
    if loops.any():
        # A node whose only edges are its own self-loops has no neighbour either.
        own = torch.zeros_like(degree).index_add_(0, src[loops], torch.ones_like(src[loops]).to(degree.dtype))
        isolated |= degree == 2 * own
    transposed = sp.csr_array((np.zeros(num_edges, np.int8), src.numpy(), indptr.numpy()),
                              shape=(num_nodes, num_nodes)).tocsc()
    mirrored = np.array_equal(transposed.indptr, indptr.numpy()) and np.array_equal(transposed.indices, src.numpy())
    without = 0
    if not mirrored:
        key = dst.long() * num_nodes + src
        reverse = src.long() * num_nodes + dst
        found = torch.searchsorted(key, reverse).clamp(max=num_edges - 1)
        without = int((key[found] != reverse).sum())
        # Duplicates whose numbers differ by direction leave no edge without a reverse: that is undirected as well.
    return Structure(num_nodes, num_edges, without, int(loops.sum()), int(same.sum()), int(isolated.sum()))


def hash_structure(edge_index: EdgeIndex) -> str:
    """Compute a digest of edges sorted by destination: equal graphs, equal digests."""
    (indptr, src), _ = edge_index.get_csc()
    digest = hashlib.blake2b(digest_size=16)
    for array in (indptr, src):
        digest.update(array.numpy().astype(np.int32, copy=False))
    return digest.hexdigest()

"""Common neighbours of pairs of nodes, found by search in sorted lists of neighbours."""
# ruff: noqa: F722 (shapes are strings)

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.utils import segment


@dataclass(frozen=True)
class CommonNeighbors:
    """The common neighbours of some pairs: those of pair i are ``node[ptr[i]:ptr[i + 1]]``.

    Attributes:
        node: [num_common], int64; those of a pair are in ascending order.
        ptr: [num_pairs + 1], int64.
        degree: number of nodes that each of these has an edge to, at least 1, [num_common], int64.
    """

    node: Int[Tensor, " num_common"]
    ptr: Int[Tensor, " num_pairs_plus_1"]
    degree: Int[Tensor, " num_common"]

    def allocate_resources(self) -> Float[Tensor, " num_pairs"]:
        """Compute the index "resource allocation": the sum of 1 / degree over the common neighbours of each pair.

        It is due to "Predicting missing links via local information" (https://arxiv.org/abs/0901.0553).
        """
        return segment(1 / self.degree.float(), self.ptr, reduce="sum")

    def adamic_adar(self) -> Float[Tensor, " num_pairs"]:
        """Compute the index of Adamic and Adar (2003): the sum of 1 / log(degree) over each pair's common neighbours.
        """
        return segment(1 / self.degree.clamp(min=2).float().log(), self.ptr, reduce="sum")


def find_common_neighbors(edge_index: Int[Tensor, "2 num_edges"], pairs: Int[Tensor, "num_pairs 2"],
                          num_nodes: int) -> CommonNeighbors:
    """Find the nodes with an edge to both nodes of a pair.

    Duplicate edges count once. Self-loops do not count: a node with a loop would be a common neighbour of itself and of
    the node that it is linked to, and so tell of the very edge that is predicted.

    Args:
        edge_index: [2, num_edges], a tensor or an ``EdgeIndex`` in any order. An edge counts for its destination.
        pairs: [num_pairs, 2], int64, numbers of nodes below `num_nodes`.
    """
    src, dst = edge_index.as_tensor().long() if isinstance(edge_index, EdgeIndex) else edge_index.long()
    is_link = src != dst
    edges = (dst[is_link] * num_nodes + src[is_link]).unique()
    ptr = torch.searchsorted(edges, torch.arange(num_nodes + 1, device=edges.device) * num_nodes)
    in_degree = ptr.diff()
    # The neighbours of the node of lower degree are looked up in the list of the other.
    is_second = in_degree[pairs[:, 1]] < in_degree[pairs[:, 0]]
    few, many = torch.where(is_second.unsqueeze(1), pairs.flip(1), pairs).unbind(1)
    counts = in_degree[few]
    pair = torch.arange(len(pairs), device=pairs.device).repeat_interleave(counts)
    first = ptr[few] - (counts.cumsum(0) - counts)
    node = edges[first[pair] + torch.arange(len(pair), device=pairs.device)] % num_nodes
    wanted = many[pair] * num_nodes + node
    found = edges[torch.searchsorted(edges, wanted).clamp(max=max(len(edges) - 1, 0))] == wanted
    node, counts = node[found], torch.bincount(pair[found], minlength=len(pairs))
    out_degree = torch.bincount(edges % num_nodes, minlength=num_nodes)
    return CommonNeighbors(node, torch.cat([counts.new_zeros(1), counts.cumsum(0)]), out_degree[node])

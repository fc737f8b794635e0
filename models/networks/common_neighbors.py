"""Common neighbours of pairs of nodes, found by search in sorted lists of neighbours."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.utils import segment

from parallel_epochs.models.aggregate import aggregate
from parallel_epochs.models.edge_index import from_csc, plain_edges

# Neighbours that are looked up at a time, and about those of one pair more.
NUMBERS = 1 << 22


@dataclass(frozen=True)
class Neighborhoods:
    """The neighbours of each node of a graph in ascending order, in which those of pairs are looked up.

    Attributes:
        edges: number of the destination times number of nodes, plus number of the source, of each edge once, sorted.
        ptr: where the neighbours of each node begin in `edges`, [num_nodes + 1].
        out_degree: number of nodes that each node has an edge to, [num_nodes].
    """

    edges: Int[Tensor, " num_edges"]
    ptr: Int[Tensor, " num_nodes_plus_1"]
    out_degree: Int[Tensor, " num_nodes"]

    @classmethod
    def of(cls, edge_index: Int[Tensor, "2 num_edges"], num_nodes: int) -> "Neighborhoods":
        """Sort the edges of a graph.

        Duplicate edges count once. Self-loops do not count: a node with a loop would be a common neighbour of itself
        and of the node that it is linked to, and so tell of the very edge that is predicted.

        Args:
            edge_index: [2, num_edges], a tensor or an ``EdgeIndex`` in any order. An edge counts for its destination.
        """
        src, dst = plain_edges(edge_index).long()
        is_link = src != dst
        edges = (dst[is_link] * num_nodes + src[is_link]).unique()
        ptr = torch.searchsorted(
            edges, torch.arange(num_nodes + 1, device=edges.device) * num_nodes
        )
        return cls(edges, ptr, torch.bincount(edges % max(num_nodes, 1), minlength=num_nodes))

    def allocate_to_pairs(self, pairs: Int[Tensor, "num_pairs 2"]) -> Float[Tensor, " num_pairs"]:
        """Compute the index "resource allocation" of pairs: the sum of 1 / degree over the nodes with an edge to both.

        It is due to "Predicting missing links via local information" (https://arxiv.org/abs/0901.0553). A degree is the
        number of nodes that a common neighbour has an edge to, at least 1.
        """
        # The neighbours of the node of fewer are looked up among those of the other, some pairs at a time.
        in_degree = self.ptr.diff()
        is_second = in_degree[pairs[:, 1]] < in_degree[pairs[:, 0]]
        few, many = torch.where(is_second.unsqueeze(1), pairs.flip(1), pairs).unbind(1)
        block = in_degree[few].cumsum(0) // NUMBERS
        sizes = torch.unique_consecutive(block, return_counts=True)[1].tolist()
        found = [self._find(*ends) for ends in zip(few.split(sizes), many.split(sizes))]
        return torch.cat(found) if found else self.edges.new_empty(0).float()

    def allocate_to(
        self, sources: Int[Tensor, " num_sources"], targets: Int[Tensor, " num_targets"]
    ) -> Float[Tensor, "num_sources num_targets"]:
        """Compute :meth:`allocate_to_pairs` of all pairs of some sources and targets.

        Args:
            sources: each once.
        """
        num_nodes = self.out_degree.numel()
        target, node = self.edges // max(num_nodes, 1), self.edges % max(num_nodes, 1)
        place = torch.full((num_nodes,), -1, device=node.device)
        place[sources] = torch.arange(len(sources), device=node.device)
        is_own = place[target] >= 0
        columns = torch.zeros(num_nodes, len(sources), device=node.device)
        columns[node[is_own], place[target[is_own]]] = 1 / self.out_degree[node[is_own]].float()
        found = aggregate(
            columns, from_csc(torch.stack([node, target]), self.ptr), aggr="add", eps=0.0
        )
        return found[targets].t()

    def _find(self, few: Tensor, many: Tensor) -> Tensor:
        num_nodes, counts = self.out_degree.numel(), self.ptr.diff()[few]
        pair = torch.arange(len(few), device=few.device).repeat_interleave(counts)
        first = self.ptr[few] - (counts.cumsum(0) - counts)
        node = self.edges[first[pair] + torch.arange(len(pair), device=few.device)] % num_nodes
        wanted = many[pair] * num_nodes + node
        place = torch.searchsorted(self.edges, wanted).clamp(max=max(len(self.edges) - 1, 0))
        is_common = self.edges[place] == wanted
        counts = torch.bincount(pair[is_common], minlength=len(few))
        ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return segment(1 / self.out_degree[node[is_common]].float(), ptr, reduce="sum")

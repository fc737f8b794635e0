"""The neighbourhood of some nodes, from which they are predicted as from the whole graph."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import scipy.sparse as sp
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.kernels.hash import GOLDEN, MASK, mix
from parallel_epochs.pipeline.data.degrees import count_degrees, scale_degrees
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.graph.sampling import GrowingSampler, TooMany
from parallel_epochs.pipeline.graph.subgraph import attach
from parallel_epochs.pipeline.names import MASKS

# Part of the edges of a graph that a neighbourhood may have: with more, a pass over the graph takes less time.
MOST = 0.5
# A neighbourhood with fewer edges is always taken, and one with more never: it is one batch.
FEW_EDGES, MOST_EDGES = 1 << 14, 1 << 22


def most_edges(num_edges: int) -> float:
    """Return how many edges a neighbourhood may have in a graph of `num_edges` edges."""
    return min(max(MOST * num_edges, FEW_EDGES), MOST_EDGES)


def take(
    data: Data, nodes: Int[Tensor, " num_nodes"], num_hops: int, limit: float = math.inf
) -> Data | None:
    """Take all edges that enter some nodes and the nodes up to `num_hops` - 1 hops away from them.

    Args:
        nodes: distinct numbers, int64.
        limit: number of edges, at most.

    Returns:
        A batch whose first nodes and ``target`` are `nodes`, in their order; none where it has too many edges.
    """
    try:
        edge_index, found, place, _ = GrowingSampler(data.edge_index).sample_around(
            nodes, 0, [-1] * num_hops, limit
        )
    except TooMany:
        return None
    batch = attach(data, edge_index, found, place)
    batch.target = torch.arange(len(found)) < len(nodes)
    return batch


@dataclass(frozen=True)
class NewNodes:
    """New nodes with edges to a graph, all of them behind its own.

    Attributes:
        x: features of the new nodes, without degrees, float32.
        edges: ends of the edges, sorted by destination, then source, int64; a new node is at one end or both.
        edge_attr: features of the edges, float32; none without them.
        terms: TF-IDF of the texts of the new nodes, as linear models read it; none where no model does.
    """

    x: Float[Tensor, "num_new channels"]
    edges: Int[Tensor, "2 num_edges"]
    edge_attr: Float[Tensor, "num_edges edge_channels"] | None
    terms: sp.csr_array | None


@dataclass(frozen=True)
class Surroundings:
    """The graph that predictions of new nodes are computed from; the new nodes are the first ones.

    Attributes:
        nodes: numbers of the nodes, int64.
        src: source of each edge, numbered as `nodes`, int64.
        ptr: where the edges of each node begin, int64.
        x, edge_attr: features, float32.
        new: the new nodes.
        is_bounded: whether edges of known nodes are left out.
    """

    nodes: Int[Tensor, " num_nodes"]
    src: Int[Tensor, " num_edges"]
    ptr: Int[Tensor, " num_nodes_plus_1"]
    x: Float[Tensor, "num_nodes channels"]
    edge_attr: Float[Tensor, "num_edges edge_channels"] | None
    new: NewNodes
    is_bounded: bool

    @property
    def num_new(self) -> int:
        """The number of the new nodes."""
        return len(self.new.x)


class Growing:
    """A graph behind whose nodes new ones stand, each time others. Only their neighbourhoods are built.

    Args:
        data: the graph, with all its features.
        moments: of the columns of degrees, which are the last ones of ``x``; none without them.
        seed: of the edges that are left out where neighbours are bounded.
    """

    def __init__(self, data: Graph, moments: Float[Tensor, "2 columns"] | None, seed: int):
        self._data, self._moments, self._key = data, moments, mix(seed + GOLDEN & MASK)
        self._sampler = GrowingSampler(data.edge_index)

    @cached_property
    def _degrees(self) -> Tensor:
        assert self._moments is not None
        return torch.from_numpy(count_degrees(self._data, self._moments.size(1)))

    def take(
        self, new: NewNodes, num_hops: int, max_neighbors: int | None = None
    ) -> Surroundings | None:
        """Take all edges that enter new nodes and the nodes up to `num_hops` - 1 hops away from them.

        Args:
            max_neighbors: edges of the graph that are taken of a known node, at most, drawn by a hash; none: all.

        Returns:
            None where a pass over the whole graph takes less time.
        """
        num_known = self._data.num_nodes
        try:
            found, nodes, place, is_bounded = self._sampler.sample_around(
                torch.arange(num_known, num_known + len(new.x)),
                self._key,
                [max_neighbors or -1] * num_hops,
                most_edges(self._data.edge_index.size(1)),
                new.edges,
            )
        except TooMany:
            return None
        (ptr, src), _ = found.get_csc()
        return Surroundings(
            nodes,
            src,
            ptr,
            self._features(nodes, new),
            self._edge_features(place, new),
            new,
            is_bounded,
        )

    def _features(self, nodes: Tensor, new: NewNodes) -> Tensor:
        x, num_own, num_new = self._data.x, new.x.size(1), len(new.x)
        found = x.new_empty(len(nodes), x.size(1))
        found[:num_new, :num_own] = new.x
        torch.index_select(x, 0, nodes[num_new:], out=found[num_new:])
        if self._moments is not None:
            counts = torch.zeros(len(nodes), self._moments.size(1), dtype=torch.int32)
            counts[num_new:] = self._degrees[nodes[num_new:]]
            for column, ends in enumerate(new.edges.flip(0)[: counts.size(1)]):
                ends = ends.sort().values
                counts[:, column] += (
                    torch.searchsorted(ends, nodes, right=True) - torch.searchsorted(ends, nodes)
                ).int()
            found[:, num_own:] = scale_degrees(counts.numpy(), self._moments)
        return found

    def _edge_features(self, place: Tensor, new: NewNodes) -> Tensor | None:
        own = self._data.edge_attr
        if own is None or new.edge_attr is None:
            return None
        found, is_new = own.new_empty(len(place), own.size(1)), place >= len(own)
        found[~is_new] = own[place[~is_new]]
        found[is_new] = new.edge_attr[place[is_new] - len(own)]
        return found

    def join(self, parts: Sequence[Surroundings]) -> Graph:
        """Join the surroundings of several groups of new nodes, which do not meet, to a batch whose targets these are."""
        num_nodes, num_edges = (
            [0, *accumulate(map(len, sizes))]
            for sizes in zip(*((part.nodes, part.src) for part in parts))
        )
        ptr = torch.cat(
            [
                torch.zeros(1, dtype=torch.int64),
                *(part.ptr[1:] + first for part, first in zip(parts, num_edges)),
            ]
        )
        src = torch.cat([part.src + first for part, first in zip(parts, num_nodes)])
        target = torch.cat([torch.arange(len(part.nodes)) < part.num_new for part in parts])
        nodes = torch.cat([part.nodes for part in parts])
        batch = Graph(
            x=torch.cat([part.x for part in parts]),
            num_nodes=num_nodes[-1],
            n_id=nodes,
            target=target,
            edge_index=self._sampler.edges_of(src, ptr),
        )
        if parts[0].edge_attr is not None:
            batch.edge_attr = torch.cat(
                [part.edge_attr for part in parts if part.edge_attr is not None]
            )
        known = nodes.where(~target, 0)
        batch.y = self._data.y[known].masked_fill(
            target.unsqueeze(1), torch.nan if self._data.y.is_floating_point() else 0
        )
        for mask in MASKS:
            batch[mask] = self._data[mask][known] & ~target
        for key in ("metric", "num_categories", "out_channels"):
            batch[key] = self._data[key]
        return batch

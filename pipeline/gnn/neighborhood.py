"""The neighbourhood of some nodes, from which they are predicted as from the whole graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.models.kernels.hash import GOLDEN, MASK, mix, mix_tensor, signed
from parallel_epochs.pipeline.data.degrees import count_degrees, scale_degrees
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.gnn.loaders.neighbor import NeighborLoader, SeedOrder
from parallel_epochs.pipeline.graph.edges import expand_ranges
from parallel_epochs.pipeline.graph.sampling import LIBRARY, edges_of, number
from parallel_epochs.pipeline.names import MASKS

# Part of the edges of a graph that a neighbourhood may have: with more, a pass over the graph takes less time.
MOST = 0.5
# A neighbourhood with fewer edges is always taken, and one with more than these nodes and edges never: it is one batch.
FEW_EDGES, MOST_NODES, MOST_EDGES = 1 << 14, 1 << 19, 1 << 22


def most_edges(num_edges: int) -> float:
    """Return how many edges a neighbourhood may have in a graph of `num_edges` edges."""
    return min(max(MOST * num_edges, FEW_EDGES), MOST_EDGES)


def is_small(edge_index: EdgeIndex, nodes: Int[Tensor, " num_nodes"], num_hops: int) -> bool:
    """Tell whether a neighbourhood has few enough of the edges of its graph, and fits a batch.

    Args:
        edge_index: sorted by destination, with its CSC filled.
        nodes: distinct numbers, int64.
        num_hops: of how many steps against the edges it consists.
    """
    (indptr, src), _ = edge_index.get_csc()
    limit = most_edges(src.numel())
    seen, last, num_edges = nodes, nodes, 0
    for _ in range(num_hops):
        first = indptr[last].long()
        degree = indptr[last + 1].long() - first
        num_edges += int(degree.sum())
        if num_edges > limit:
            return False
        found = src[expand_ranges(first, degree)[0]].long().unique()
        last = found[~torch.isin(found, seen)]
        seen = torch.cat([seen, last])
        if seen.numel() > MOST_NODES:
            return False
    return True


def take(data: Data, nodes: Int[Tensor, " num_nodes"], num_hops: int) -> Data:
    """Take all edges that enter some nodes and the nodes up to `num_hops` - 1 hops away from them.

    Returns:
        What a :class:`NeighborLoader` makes of it. `nodes` are its first nodes, in their order, and its ``target``.
    """
    loader = NeighborLoader(data, [-1] * num_hops, batch_size=nodes.numel(), nodes=nodes, purpose="prediction")
    (batch,) = loader.batches_of(SeedOrder(nodes, (0, 0)), [0])
    return batch


@dataclass(frozen=True)
class NewNodes:
    """New nodes with edges to a graph, all of them behind its own.

    Attributes:
        x: features of the new nodes, without degrees, float32.
        edges: ends of the edges, sorted by destination, then source, int64; a new node is at one end or both.
        edge_attr: features of the edges, float32; none without them.
    """

    x: Float[Tensor, "num_new channels"]
    edges: Int[Tensor, "2 num_edges"]
    edge_attr: Float[Tensor, "num_edges edge_channels"] | None


@dataclass(frozen=True)
class Surroundings:
    """What predictions of new nodes are computed from; the new nodes are the first ones.

    Attributes:
        nodes: numbers of the nodes, int64.
        src: source of each edge, numbered as `nodes`, int64.
        ptr: where the edges of each node begin, int64.
        x, edge_attr: features, float32.
        num_new: number of the new nodes.
        is_bounded: whether edges of known nodes are left out.
    """

    nodes: Int[Tensor, " num_nodes"]
    src: Int[Tensor, " num_edges"]
    ptr: Int[Tensor, " num_nodes_plus_1"]
    x: Float[Tensor, "num_nodes channels"]
    edge_attr: Float[Tensor, "num_edges edge_channels"] | None
    num_new: int
    is_bounded: bool


class Growing:
    """A graph behind whose nodes new ones stand, each time others. Only their neighbourhoods are built.

    Args:
        data: the graph, with all its features.
        moments: of the columns of degrees, which are the last ones of ``x``; none without them.
        seed: of the edges that are left out where neighbours are bounded.
    """

    def __init__(self, data: Graph, moments: Float[Tensor, "2 columns"] | None, seed: int):
        (self._indptr, self._src), _ = data.edge_index.get_csc()
        self._data, self._moments, self._key = data, moments, signed(mix(seed + GOLDEN & MASK))
        self._free: list[Tensor] = []  # numbers of nodes, -1 for each; a list, since several threads may take one

    @cached_property
    def _degrees(self) -> Tensor:
        assert self._moments is not None
        return torch.from_numpy(count_degrees(self._data, self._moments.size(1)))

    def take(self, new: NewNodes, num_hops: int, max_neighbors: int | None = None) -> Surroundings | None:
        """Take all edges that enter new nodes and the nodes up to `num_hops` - 1 hops away from them.

        Args:
            max_neighbors: edges of the graph that are taken of a known node, at most, drawn by a hash; none: all.

        Returns:
            None where a pass over the whole graph takes less time.
        """
        num_known, num_new = self._data.num_nodes, len(new.x)
        last = torch.arange(num_known, num_known + num_new)
        hops, ptrs, places, sources = [last], [last.new_zeros(1)], list[Tensor](), list[Tensor]()
        num_nodes, num_edges, limit, is_bounded = num_new, 0, most_edges(len(self._src)), False
        grown = self._numbers(num_known + num_new)
        try:
            grown[last] = torch.arange(num_new, dtype=torch.int32)
            for _ in range(num_hops):
                count, place, src, is_cut = self._enter(hops[-1], new, max_neighbors)
                num_edges, is_bounded = num_edges + len(src), is_bounded or is_cut
                if num_edges > limit or num_nodes > MOST_NODES:
                    return None
                fresh, local_src = number(src, torch.arange(len(src)), num_nodes, grown, LIBRARY.get())
                ptrs.append(num_edges - len(src) + count.cumsum(0))
                for found, each in ((hops, fresh), (places, place), (sources, local_src)):
                    found.append(each)
                num_nodes += len(fresh)
        finally:
            for nodes in hops:
                grown[nodes] = -1
            self._free.append(grown)
        ptrs.append(torch.full((len(hops[-1]),), num_edges))
        nodes, place = torch.cat(hops), torch.cat(places)
        return Surroundings(nodes, torch.cat(sources), torch.cat(ptrs), self._features(nodes, new),
                            self._edge_features(place, new), num_new, is_bounded)

    def _numbers(self, size: int) -> Tensor:
        """Return as many numbers of nodes at least, all of them -1, that no other thread has."""
        try:
            found = self._free.pop()
        except IndexError:
            found = torch.empty(0, dtype=torch.int32)
        return found if len(found) >= size else torch.full((size,), -1, dtype=torch.int32)

    def _enter(self, nodes: Tensor, new: NewNodes, most: int | None) -> tuple[Tensor, Tensor, Tensor, bool]:
        """Return how many edges enter each node, their places, new ones behind the others, their sources, and whether
        some are left out.
        """
        is_known = nodes < self._data.num_nodes
        own = torch.where(is_known, nodes, 0)
        first = self._indptr[own].long()
        degree = torch.where(is_known, self._indptr[own + 1].long() - first, 0)
        place, row = expand_ranges(first, degree)
        is_cut = False
        if most is not None and bool((degree > most).any()):
            is_cut = True
            order = mix_tensor(place ^ self._key).sort().indices
            order = order[row[order].sort(stable=True).indices]
            rank = torch.arange(len(row)) - (degree.cumsum(0) - degree)[row]
            kept = order[rank < most].sort().values
            place, row, degree = place[kept], row[kept], degree.clamp(max=most)
        src, dst = new.edges
        begin = torch.searchsorted(dst, nodes)
        more = torch.searchsorted(dst, nodes, right=True) - begin
        new_place, new_row = expand_ranges(begin, more)
        order = torch.cat([row, new_row]).sort(stable=True).indices
        return (degree + more, torch.cat([place, len(self._src) + new_place])[order],
                torch.cat([self._src[place].long(), src[new_place]])[order], is_cut)

    def _features(self, nodes: Tensor, new: NewNodes) -> Tensor:
        x, num_own, num_new = self._data.x, new.x.size(1), len(new.x)
        found = x.new_empty(len(nodes), x.size(1))
        found[:num_new, :num_own] = new.x
        torch.index_select(x, 0, nodes[num_new:], out=found[num_new:])
        if self._moments is not None:
            counts = torch.zeros(len(nodes), self._moments.size(1), dtype=torch.int32)
            counts[num_new:] = self._degrees[nodes[num_new:]]
            for column, ends in enumerate(new.edges.flip(0)[:counts.size(1)]):
                ends = ends.sort().values
                counts[:, column] += (torch.searchsorted(ends, nodes, right=True) -
                                      torch.searchsorted(ends, nodes)).int()
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

    def join(self, parts: Sequence[Surroundings]) -> Data:
        """Join the surroundings of several groups of new nodes, which do not meet, to a batch whose targets these are.
        """
        first_edges, first_nodes, num_edges, num_nodes, numbers = [], [], 0, 0, []
        for part in parts:
            first_edges.append(part.ptr[:-1] + num_edges)
            first_nodes.append(part.src + num_nodes)
            numbers.append(torch.arange(len(part.nodes)) < part.num_new)
            num_edges, num_nodes = num_edges + len(part.src), num_nodes + len(part.nodes)
        ptr = torch.cat([*first_edges, torch.tensor([num_edges])])
        target, nodes = torch.cat(numbers), torch.cat([part.nodes for part in parts])
        batch = Data(x=torch.cat([part.x for part in parts]), num_nodes=num_nodes, n_id=nodes, target=target,
                     edge_index=edges_of(torch.cat(first_nodes), ptr, LIBRARY.get()))
        if parts[0].edge_attr is not None:
            batch.edge_attr = torch.cat([part.edge_attr for part in parts if part.edge_attr is not None])
        known = nodes.where(~target, 0)
        batch.y = self._data.y[known].masked_fill(target.unsqueeze(1), torch.nan if self._data.y.is_floating_point()
                                                  else 0)
        for mask in MASKS:
            batch[mask] = self._data[mask][known] & ~target
        for key in ("metric", "num_categories", "out_channels"):
            batch[key] = self._data[key]
        return batch

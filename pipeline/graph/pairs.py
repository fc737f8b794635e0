"""Pairs of nodes that are to be linked: which lie within a cluster, which are linked already, and which are not."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.pipeline.graph.edges import transpose
from parallel_epochs.pipeline.graph.partition import Partition, assignment
from parallel_epochs.pipeline.run import checkpoint, files


class PairSet:
    """Knows which pairs of nodes are among some, either way round.

    Args:
        pairs: [num_pairs, 2], int64.
        num_nodes: nodes are numbered from 0 to it.
    """

    def __init__(self, pairs: Int[Tensor, "num_pairs 2"], num_nodes: int):
        self._num_nodes = num_nodes
        self._keys = self._key(pairs[pairs[:, 0] != pairs[:, 1]]).unique()

    def __len__(self) -> int:
        """Count different pairs of two nodes."""
        return self._keys.numel()

    @property
    def is_complete(self) -> bool:
        """Tell whether all pairs of two nodes are among them."""
        return len(self) == self._num_nodes * (self._num_nodes - 1) // 2

    def contains(self, pairs: Int[Tensor, "num_pairs 2"]) -> Bool[Tensor, " num_pairs"]:
        """Tell which pairs are among them."""
        if not len(self):
            return torch.zeros(len(pairs), dtype=torch.bool)
        keys = self._key(pairs)
        return self._keys[torch.searchsorted(self._keys, keys).clamp(max=len(self) - 1)] == keys

    def nodes(self) -> Int[Tensor, "num_pairs 2"]:
        """Return the different pairs, the smaller number first."""
        return torch.stack([self._keys // self._num_nodes, self._keys % self._num_nodes], dim=1)

    def _key(self, pairs: Tensor) -> Tensor:
        low, high = pairs.amin(1), pairs.amax(1)
        return low * self._num_nodes + high


@dataclass
class PairsByCluster:
    """Pairs within the clusters of a partition: those of cluster i are ``order[ptr[i]:ptr[i + 1]]``.

    Attributes:
        order: positions of pairs, [num_within], int64.
        ptr: [num_parts + 1], int64.
    """

    order: Int[Tensor, " num_within"]
    ptr: Int[Tensor, " num_parts_plus_1"]

    def of(self, cluster: int) -> Int[Tensor, " num_pairs_of_cluster"]:
        """Return the positions of the pairs of a cluster."""
        return self.order[self.ptr[cluster] : self.ptr[cluster + 1]]


def sort_by_cluster(
    pairs: Int[Tensor, "num_pairs 2"], partition: Partition, order: Int[Tensor, " num_pairs"]
) -> PairsByCluster:
    """Sort the pairs within clusters by cluster; those of a cluster keep the order given.

    Args:
        pairs: [num_pairs, 2], int64.
        order: every position of `pairs` once, int64.
    """
    part = torch.from_numpy(assignment(partition)).long()
    a, b = part[pairs[order]].unbind(1)
    within = (a == b).nonzero().squeeze(1)
    a, by_cluster = a[within].sort(stable=True)
    numbers = torch.arange(partition.num_parts + 1)
    return PairsByCluster(order[within[by_cluster]], torch.searchsorted(a, numbers))


def draw_negatives(
    rng: np.random.Generator,
    num_pairs: int,
    nodes: Int[Tensor, " num_nodes"],
    side: Int[Tensor, " num_nodes"] | None = None,
) -> Int[Tensor, "num_pairs 2"]:
    """Draw pairs of nodes at random, each of all with the same probability.

    Args:
        nodes: the numbers of the nodes to draw from.
        side: of each node in a bipartite graph, 0 or 1, or another number for a node that is not drawn: pairs go from
            side 0 to side 1. None: pairs of any nodes.

    Returns:
        Places in `nodes`, [num_pairs, 2], int64.
    """
    ends = None if side is None else [(side == number).nonzero().squeeze(1) for number in (0, 1)]

    def draw_below(bound: int, *size: int) -> Tensor:
        return torch.from_numpy(rng.integers(bound, size=size))

    if ends is None or not num_pairs:
        return draw_below(len(nodes), num_pairs, 2)
    return torch.stack([own[draw_below(len(own), num_pairs)] for own in ends], dim=1)


def draw_targets(
    rng: np.random.Generator,
    rows: Int[Tensor, " num_drawn"],
    num_places: int,
    taken: Int[Tensor, "num_taken 2"],
) -> Int[Tensor, " num_drawn"]:
    """Draw a place for each of some rows, each of those that are free in this row with the same probability.

    The k-th free place of a row is found by a binary search, so that a row with few free places takes no longer.

    Args:
        rows: numbers of rows, int64; one may occur several times.
        num_places: places of a row are numbered from 0 to it.
        taken: rows and places that are not drawn, int64; a pair may occur several times.

    Returns:
        Places, int64; -1 where every place of the row is taken.
    """
    keys = (taken[:, 0] * num_places + taken[:, 1]).unique()
    row, place = keys // num_places, keys % num_places
    num_rows = int(max(rows.max(), row.max() if len(row) else 0)) + 1 if len(rows) else 0
    ptr = torch.cat([row.new_zeros(1), torch.bincount(row, minlength=num_rows).cumsum(0)])
    num_free = num_places - ptr.diff()[rows]
    drawn = torch.from_numpy(rng.integers(num_free.clamp(min=1).numpy()))
    rank = torch.arange(len(row)) - ptr[row]
    steps = row * (num_places + 1) + place - rank  # free places of the row before each
    places = (
        drawn + torch.searchsorted(steps, rows * (num_places + 1) + drawn, right=True) - ptr[rows]
    )
    return torch.where(num_free > 0, places, -1)


def without_pairs(
    edge_index: EdgeIndex,
    pairs: Int[Tensor, "num_pairs 2"],
    among: Bool[Tensor, " num_edges"] | None = None,
) -> tuple[EdgeIndex, Tensor]:
    """Leave out the edges between the two nodes of some pairs, in both directions and all of several.

    Args:
        edge_index: sorted by destination.
        pairs: [num_pairs, 2], int64.
        among: the edges that may be left out; all if not given.

    Returns:
        An ``EdgeIndex`` sorted by destination, CSC and CSR filled, and the positions of its edges, int64.
    """
    linked = PairSet(pairs, edge_index.get_sparse_size(1))
    is_hidden = linked.contains(edge_index.as_tensor().t().long())
    kept = (~is_hidden if among is None else ~(is_hidden & among)).nonzero().squeeze(1)
    return keep_edges(edge_index, kept), kept


def keep_edges(edge_index: EdgeIndex, kept: Int[Tensor, " num_kept"]) -> EdgeIndex:
    """Return some edges of a graph, sorted by destination, CSC and CSR filled.

    Args:
        edge_index: sorted by destination.
        kept: positions of the edges to keep, ascending, int64.
    """
    left = edge_index.as_tensor().index_select(1, kept)
    counts = torch.bincount(left[1], minlength=edge_index.get_sparse_size(1))
    return transpose(from_csc(left, torch.cat([counts.new_zeros(1), counts.cumsum(0)])))


def check_pairs(key: str, pairs: object, num_nodes: int) -> None:
    """Check that pairs are integers of shape [num_pairs, 2] and name nodes of a graph.

    Args:
        key: what names the pairs, for messages.

    Raises:
        ValueError: they do not.
    """
    if not isinstance(pairs, Tensor):
        found = f"a {type(pairs).__name__}"
    elif pairs.dim() == 2 and pairs.size(1) == 2 and pairs.dtype in (torch.int32, torch.int64):
        outside = ((pairs < 0) | (pairs >= num_nodes)).any(1).nonzero()
        if not len(outside):
            return
        row = int(outside[0])
        raise ValueError(
            f"{key} is out of range: row {row} is the pair {pairs[row].tolist()}, the graph has nodes 0 "
            f"to {num_nodes - 1}"
        )
    else:
        found = f"{pairs.dtype} of {list(pairs.shape)}"
    raise ValueError(f"{key} must be integers of shape [num_pairs, 2], not {found}")


def read_pairs(path: Path) -> Tensor:
    """Read a tensor that torch.save wrote; :func:`check_pairs` checks it.

    Raises:
        ValueError: there is none.
    """
    if not files.is_there(path):
        raise ValueError(
            f"pairs={path} does not exist; save a tensor of shape [num_pairs, 2] there with torch.save"
        )
    return cast(Tensor, checkpoint.read_tensors(path, f"pairs={path}"))

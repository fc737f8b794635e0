"""Batches of snapshots: the edges from before a time, and the rows of a label table that ask at this time."""

import copy
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.gnn.contract import Loader
from parallel_epochs.pipeline.graph.subgraph import attach_nodes
from parallel_epochs.pipeline.names import SNAPSHOT
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)

# Edges of all snapshots, up to which these stay in memory.
MOST_KEPT = 30_000_000


def num_snapshots(data: Data) -> int:
    """Return the number of snapshots of a graph; 0 of a graph without a label table."""
    return int(data[SNAPSHOT].max()) + 1 if SNAPSHOT in data else 0


def rows_of(data: Data, number: int) -> Int[Tensor, " num_rows"]:
    """Return the nodes that are the rows of a snapshot."""
    return data.types.nodes_of(data.types.labelled).start + (
        data[SNAPSHOT] == number
    ).nonzero().squeeze(1)


def take_snapshot(data: Data, number: int) -> Graph:
    """Return the graph of a snapshot: its rows behind all other nodes, and the edges from before its time.

    Args:
        data: a graph whose last type of nodes are rows, and whose ``edge_time`` is the first snapshot of each edge.

    Returns:
        ``n_id`` holds the numbers of its nodes in `data`.
    """
    first = data.types.nodes_of(data.types.labelled).start
    nodes = torch.cat([torch.arange(first), rows_of(data, number)])
    place = torch.full((data.num_nodes,), -1)
    place[nodes] = torch.arange(len(nodes))
    src, dst = data.edge_index.as_tensor()
    kept = ((place[dst.long()] >= 0) & (data.edge_time <= number)).nonzero().squeeze(1)
    dst = place[dst.index_select(0, kept).long()]
    ptr = torch.zeros(len(nodes) + 1, dtype=torch.int64)
    ptr[1:] = torch.bincount(dst, minlength=len(nodes)).cumsum(0)
    edges = torch.stack([src.index_select(0, kept), dst.to(src.dtype)])  # rows send nothing
    view = Graph(
        edge_index=from_csc(edges, ptr.to(src.dtype)),
        num_nodes=len(nodes),
        edge_attr=data.edge_attr.index_select(0, kept),
    )
    attach_nodes(view, data, nodes)
    view.types = replace(data.types, counts=[*data.types.counts[:-1], len(nodes) - first])
    return view


def in_whole(batch: Data, view: Data) -> Data:
    """Return a batch of a snapshot with the numbers of its nodes in the whole graph."""
    found = copy.copy(batch)
    found.n_id = view.n_id[batch.n_id]
    return found


class SnapshotLoader:
    """Goes through the snapshots that have training rows, in another order each round, with a loader of each.

    Args:
        data: see :func:`take_snapshot`.
        build: builds the loader of the graph of a snapshot.
        seed: of the order.
    """

    def __init__(
        self, data: Data, build: Callable[[Data], Loader], *, device: torch.device, seed: int
    ):
        self.data, self.device, self._build, self._seed = data, device, build, seed
        self._loaders = dict[int, Loader]()
        self._numbers = [
            number
            for number in range(num_snapshots(data))
            if bool(data.train_mask[rows_of(data, number)].any())
        ]
        self._counts = [self._loader(number).num_batches for number in self._numbers]

    @property
    def num_batches(self) -> int:
        """Batches of a draw of each snapshot, together."""
        return sum(self._counts)

    def _loader(self, number: int) -> Loader:
        if number in self._loaders:
            return self._loaders[number]
        loader = self._build(take_snapshot(self.data, number))
        if len(self._numbers) * self.data.num_edges <= MOST_KEPT:
            self._loaders[number] = loader
        return loader

    def prepare(self) -> None:
        """Leave in the cache what other processes will find there."""
        for number in self._numbers:
            self._loader(number).prepare()

    def views(self, num_parts: int, seed: int) -> None:
        """Make none: the rows of each snapshot are predicted from its own graph."""

    def draw(self, round_: int, share: Share) -> object:
        """Draw what a share of the last snapshot is a part of."""
        return self._loader(self._numbers[-1]).draw(round_, share)

    def measure(self, drawn: object, seconds: float) -> dict[str, dict]:
        """Measure a draw of the last snapshot with training rows, and say so."""
        log.info("snapshots: %d with training rows; the last one:", len(self._numbers))
        return self._loader(self._numbers[-1]).measure(drawn, seconds)

    def batches(self, round_: int, share: Share) -> Iterator[Data]:
        """Build the batches of a share in turn: a function of the seed, the round and the share."""
        first, stride = share.first, share.stride
        for place in (
            stream("snapshots", self._seed, round_, share.draw)
            .permutation(len(self._numbers))
            .tolist()
        ):
            num_batches = self._counts[place]
            if first < num_batches and not share.is_empty:
                loader = self._loader(self._numbers[place])
                for batch in loader.batches(round_, replace(share, first=first)):
                    yield in_whole(batch, loader.data)
            first += len(range(first, num_batches, stride)) * stride - num_batches

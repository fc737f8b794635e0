"""Batches of sampled neighbourhoods: some nodes that count, and neighbours to predict them from."""

import functools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.contract import Views
from parallel_epochs.pipeline.gnn.loaders.cluster import hand_over
from parallel_epochs.pipeline.gnn.loaders.fan_outs import NumNeighbors, fan_outs_of, show
from parallel_epochs.pipeline.graph import subgraph
from parallel_epochs.pipeline.graph.sampling import NeighborSampler, library
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)

NUM_MEASURED = 4  # batches


@dataclass
class SeedOrder:
    """The order in which a draw goes through the seeds.

    Attributes:
        seeds: node numbers, [num_seeds], int64.
        path: the round and the number of the draw, of which every random number of its batches is a function too.
    """

    seeds: Int[Tensor, " num_seeds"]
    path: tuple[int, int]


class NeighborLoader:
    """Builds batches of seeds and of neighbours that are drawn hop by hop.

    A batch is a ``Data`` as :class:`pipeline.gnn.loaders.cluster.ClusterLoader` builds it; ``target`` marks the
    seeds, its first nodes. An epoch goes through all seeds, in another order each time; its last batch may have fewer.

    Args:
        data: a graph whose ``edge_index`` is an ``EdgeIndex`` sorted by destination.
        num_neighbors: the largest number of neighbours drawn for a node at each hop; -1 for all of them. Or such
            numbers of each relation, see :func:`pipeline.gnn.loaders.fan_outs.fan_outs_of`.
        batch_size: seeds of a batch.
        nodes: the seeds, int64; all training nodes if not given.
        purpose: what the batches are for; those of other purposes are drawn otherwise.
        seed: of every random number here.
        device: where the batches will be used; for a GPU they are put into page-locked memory.

    Raises:
        ValueError: there is no seed, or the numbers do not fit the relations.
    """

    def __init__(
        self,
        data: Data,
        num_neighbors: NumNeighbors,
        *,
        batch_size: int,
        nodes: Tensor | None = None,
        purpose: str = "train",
        seed: int = 0,
        device: torch.device = torch.device("cpu"),
    ):
        self.data, self.device = data, device
        self._fan_outs, self._batch_size = fan_outs_of(num_neighbors, data), batch_size
        self._num_neighbors = (
            dict(num_neighbors) if isinstance(num_neighbors, Mapping) else list(num_neighbors)
        )
        self._nodes = data.train_mask.nonzero().squeeze(1) if nodes is None else nodes
        self._purpose, self._seed = purpose, seed
        if not self._nodes.numel():
            raise ValueError(
                "loader=neighbor draws the neighbours of training nodes, but the graph has no training "
                "nodes. Put some nodes into train_mask"
            )

    @property
    def num_batches(self) -> int:
        """Batches of a draw."""
        return -(-self._nodes.numel() // self._batch_size)

    def prepare(self) -> None:
        """Compile what draws and selects, once for all processes."""
        library(), subgraph.LIBRARY.get()

    def draw(self, round_: int, share: Share) -> SeedOrder:
        """Draw the order of the seeds that a share is a part of."""
        rng = stream(f"{self._purpose} seeds", self._seed, round_, share.draw)
        seeds = self._nodes[torch.from_numpy(rng.permutation(self._nodes.numel()))]
        return SeedOrder(seeds, (round_, share.draw))

    def batches(self, round_: int, share: Share) -> Iterator[Data]:
        """Build the batches of a share in turn: a function of the seed, the round and the share."""
        return self.batches_of(self.draw(round_, share), share.batches(self.num_batches))

    def views(self, num_parts: int, seed: int) -> Views | None:
        """Make views, each a draw of neighbours of every seed; none for the training nodes alone."""
        if self._purpose == "train":
            return None
        return self.num_batches, lambda round_, view, numbers: self.batches_of(
            self.draw(round_, Share(draw=view)), numbers
        )

    def batches_of(self, order: SeedOrder, numbers: Iterable[int]) -> Iterator[Data]:
        """Build batches of a draw, given their numbers, in turn."""
        for number, num_seeds, (edge_index, nodes, position) in self._samples(order, numbers):
            batch = subgraph.attach(self.data, edge_index, nodes, position)
            batch.cluster = number
            batch.target = torch.arange(len(nodes)) < num_seeds
            yield hand_over(batch, self.device)

    def measure(self, order: SeedOrder, seconds: float) -> dict[str, dict]:
        """Draw some batches, measure them and say so: a record for who writes it down.

        Args:
            seconds: how long the order took.
        """
        start = time.perf_counter()
        numbers = range(min(NUM_MEASURED, self.num_batches))
        sizes = [
            (nodes.numel(), edge_index.size(1))
            for _, _, (edge_index, nodes, _) in self._samples(order, numbers)
        ]
        mean_nodes, mean_edges = (sum(column) / len(sizes) for column in zip(*sizes))
        seconds += (time.perf_counter() - start) / len(sizes)
        log.info(
            "sampling: native, num_neighbors=%s, %s batches of %s of %s seeds, with %s nodes and %s edges on average "
            "(of %d), %.3f s each",
            self._shown,
            f"{self.num_batches:,}",
            f"{min(self._batch_size, len(order.seeds)):,}",
            f"{len(order.seeds):,}",
            f"{mean_nodes:,.0f}",
            f"{mean_edges:,.0f}",
            len(sizes),
            seconds,
        )
        return {
            "sampling": {
                "name": "native",
                "num_neighbors": self._num_neighbors,
                "num_batches": self.num_batches,
                "num_seeds": len(order.seeds),
                "mean_nodes": mean_nodes,
                "mean_edges": mean_edges,
                "seconds": seconds,
            }
        }

    @property
    def _shown(self) -> str:
        return (
            show(self._num_neighbors)
            if isinstance(self._num_neighbors, dict)
            else str(self._num_neighbors)
        )

    def _samples(
        self, order: SeedOrder, numbers: Iterable[int]
    ) -> Iterator[tuple[int, int, tuple[EdgeIndex, Tensor, Tensor]]]:
        """Draw the batches of these numbers: their number, their number of seeds, and what was drawn."""
        # One for each iterator: training and evaluation may draw at the same time, in threads of their own.
        sampler = NeighborSampler(self.data.edge_index, self._fan_outs, relation=self._relation)
        for number in numbers:
            seeds = order.seeds[number * self._batch_size : (number + 1) * self._batch_size]
            key = stream(
                f"{self._purpose} neighbours", self._seed, *order.path, number
            ).bit_generator.random_raw()
            yield number, seeds.numel(), sampler.sample(seeds, int(key))

    @functools.cached_property
    def _relation(self) -> Tensor | None:
        """The relation of each edge, if neighbours are drawn from each relation for themselves."""
        return self.data.edge_attr[:, 0] if isinstance(self._fan_outs, Tensor) else None

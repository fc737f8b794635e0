"""Batches of whole graphs, cut out of their disjoint union."""

import logging
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.contract import Views
from parallel_epochs.pipeline.gnn.loaders.cluster import hand_over
from parallel_epochs.pipeline.graph.partition import Partition
from parallel_epochs.pipeline.graph.union import select_graphs
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)


class GraphLoader:
    """Builds batches of whole graphs; an epoch goes through all training graphs, in another order each time.

    A batch is the ``Data`` of :func:`pipeline.graph.union.select_graphs` with ``target`` (which of its graphs count,
    all of them here, [num_graphs], bool) and ``cluster`` (its place in the draw). The number of batches is the same in
    every draw: as few as hold `batch_size` graphs each. Their numbers of graphs differ by at most one.

    Args:
        data: a union of graphs.
        batch_size: graphs of a batch, on average at most.
        seed: of the order.
        device: where the batches will be used; for a GPU they are put into page-locked memory.
    """

    def __init__(
        self,
        data: Data,
        *,
        batch_size: int,
        seed: int = 0,
        device: torch.device = torch.device("cpu"),
    ):
        self.data, self.device = data, device
        self._batch_size, self._seed = batch_size, seed
        self._learned = data.train_mask.nonzero().squeeze(1)

    @property
    def num_batches(self) -> int:
        """Batches of a draw."""
        return -(-self._learned.numel() // self._batch_size)

    def prepare(self) -> None:
        """Leave in the cache what other processes will find there: nothing beside the union itself."""

    def draw(self, round_: int, share: Share) -> Partition:
        """Draw the order of the training graphs that a share is a part of, cut into batches.

        Returns:
            A partition of graphs in place of nodes.
        """
        rng = stream("graphs", self._seed, round_, share.draw)
        return self._cut(self._learned[torch.from_numpy(rng.permutation(self._learned.numel()))])

    def batches(self, round_: int, share: Share) -> Iterator[Data]:
        """Build the batches of a share in turn: a function of the seed, the round and the share."""
        partition = self.draw(round_, share)
        for batch in self._select(partition, share.batches(partition.num_parts)):
            yield hand_over(batch, self.device)

    def views(self, num_parts: int, seed: int) -> Views:
        """Make views of all graphs, in their own order, each of which is exact, as no graph knows of another."""
        graphs = self._cut(torch.arange(self.data.ptr.numel() - 1))
        return graphs.num_parts, lambda round_, view, places: (
            hand_over(batch, self.device) for batch in self._select(graphs, places)
        )

    def measure(self, partition: Partition, seconds: float) -> dict[str, dict]:
        """Measure a draw and say so: a record for who writes it down.

        Args:
            seconds: how long the draw took.
        """
        graphs = partition.ptr.diff()
        nodes = _sums(self.data.ptr.diff()[partition.perm], partition.ptr)
        record = {
            "num_graphs": partition.perm.numel(),
            "num_batches": partition.num_parts,
            "least_graphs": int(graphs.min()),
            "most_graphs": int(graphs.max()),
            "least_nodes": int(nodes.min()),
            "most_nodes": int(nodes.max()),
            "seconds": seconds,
        }
        log.info(
            "batches: %s training graphs in %s batches of %s to %s graphs and %s to %s nodes, drawn in %.2f s",
            *(
                f"{record[key]:,}"
                for key in (
                    "num_graphs",
                    "num_batches",
                    "least_graphs",
                    "most_graphs",
                    "least_nodes",
                    "most_nodes",
                )
            ),
            seconds,
        )
        return {"graphs": record}

    def _select(self, partition: Partition, places: Iterable[int]) -> Iterator[Data]:
        for place in places:
            batch = select_graphs(self.data, partition.nodes(place))
            batch.cluster, batch.target = place, torch.ones_like(batch.graph_id, dtype=torch.bool)
            yield batch

    def _cut(self, graphs: Tensor) -> Partition:
        num_parts = -(-graphs.numel() // self._batch_size)
        return Partition(graphs, torch.arange(num_parts + 1) * graphs.numel() // num_parts)


def _sums(values: Tensor, ptr: Tensor) -> Tensor:
    total = torch.cat([values.new_zeros(1), values.cumsum(0)])
    return total[ptr].diff()

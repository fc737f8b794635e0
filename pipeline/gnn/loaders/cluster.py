"""Batches of clusters: the subgraphs that a partition's clusters induce."""

import copy
import logging
from collections.abc import Iterable, Iterator
from typing import cast

import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.contract import Views
from parallel_epochs.pipeline.gnn.relations import count_kept, listed_types
from parallel_epochs.pipeline.graph.partition import (
    Partition,
    measure_partition,
    random_partition,
)
from parallel_epochs.pipeline.graph.partitioner import Partitioner
from parallel_epochs.pipeline.graph.stream import ClusterStream
from parallel_epochs.pipeline.graph.structure import keep_both_orders
from parallel_epochs.pipeline.graph.subgraph import induced_subgraph
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)


class ClusterLoader:
    """Builds the batches of partitions.

    A batch is a ``Data`` with ``n_id`` (numbers of its nodes in the graph), ``target`` (which of its nodes count, all
    of them here, [num_nodes], bool), ``cluster`` (its place in the partition), and an int64 ``EdgeIndex`` sorted by
    destination with CSC and CSR filled, which any PyG layer takes. All batches of a partition together cost one pass
    over the edges.

    Args:
        data: a graph whose ``edge_index`` is an ``EdgeIndex`` sorted by destination.
        partitioner: draws the partitions of :meth:`batches`; none where only :meth:`batches_of` is called.
        clusters_per_step: clusters merged into one batch.
        stream: of a graph on disk, what reads the clusters of a partition in one pass; without it each reads its own
            rows.
        device: where the batches will be used; for a GPU they are put into page-locked memory.
    """

    def __init__(
        self,
        data: Data,
        partitioner: Partitioner | None = None,
        *,
        clusters_per_step: int = 1,
        stream: ClusterStream | None = None,
        device: torch.device = torch.device("cpu"),
    ):
        self.data, self.device, self._stream = data, device, stream
        self._partitioner, self._clusters_per_step = (
            cast(Partitioner, partitioner),
            clusters_per_step,
        )
        self._whole: Data | None = None

    @property
    def num_batches(self) -> int:
        """Batches of a draw."""
        return -(-self._partitioner.num_parts // self._clusters_per_step)

    def prepare(self) -> None:
        """Leave in the cache what other processes will find there."""
        if self.num_batches == 1:
            self._whole_batch()

    def draw(self, round_: int, share: Share) -> Partition:
        """Draw the partition that a share is a part of, its clusters merged into batches."""
        return self._partitioner.draw(round_, share.draw).merge(self._clusters_per_step)

    def batches(self, round_: int, share: Share) -> Iterator[Data]:
        """Build the batches of a share in turn: a function of the seed, the round and the share."""
        partition = self.draw(round_, share)
        return self.batches_of(partition, share.batches(partition.num_parts))

    def views(self, num_parts: int, seed: int) -> Views:
        """Make views, each a random partition of all nodes into clusters, no more than there are nodes."""
        num_nodes = self.data.num_nodes
        num_parts = min(num_parts, num_nodes)

        def make(round_: int, view: int, clusters: Iterable[int]) -> Iterator[Data]:
            rng = stream("view", seed, round_, view)
            return self.batches_of(random_partition(num_nodes, num_parts, rng), clusters)

        return num_parts, make

    def batches_of(
        self, partition: Partition, clusters: Iterable[int] | None = None
    ) -> Iterator[Data]:
        """Build the batch of each cluster in turn, or of those given."""
        clusters = list(range(partition.num_parts) if clusters is None else clusters)
        if partition.num_parts == 1:
            yield from (self._whole_batch() for _ in clusters)
            return
        if self._stream is not None:
            subgraphs = self._stream.induce(partition, clusters)
        else:  # int64, since SAGEConv and GINConv of PyG 2.8 fail on an int32 EdgeIndex
            subgraphs = (
                induced_subgraph(self.data, partition.nodes(cluster), dtype=torch.int64)
                for cluster in clusters
            )
        for cluster, batch in zip(clusters, subgraphs):
            yield self._finish(batch, cluster)

    def measure(self, partition: Partition, seconds: float) -> dict[str, dict]:
        """Measure a draw, log the result, and return it as a record for metrics.jsonl.

        Args:
            seconds: how long the draw took.
        """
        quality = (
            measure_partition(self.data.edge_index, partition, seconds)
            if self._stream is None
            else self._stream.measure(partition, seconds)
        )
        log.info("partition: %s, %s", self._partitioner.name, quality)
        by_relation = (
            {"relations": count_kept(self.data, partition)}
            if listed_types(self.data) is not None
            else {}
        )
        return {
            "partition": {
                "name": self._partitioner.name,
                "sizes": quality.sizes,
                "kept_edges": quality.kept_edges,
                "num_edges": quality.num_edges,
                "cut": quality.cut,
                "imbalance": quality.imbalance,
                "seconds": quality.seconds,
                **by_relation,
            }
        }

    def _finish(self, batch: Data, cluster: int) -> Data:
        batch.cluster = cluster
        batch.target = torch.ones(batch.num_nodes, dtype=torch.bool)
        return hand_over(batch, self.device)

    def _whole_batch(self) -> Data:
        """Build one cluster of all nodes once, in the nodes' own order: any other order would round differently.

        It is the graph itself, and its edges lie in the cache if there is one: processes share the memory of both.
        """
        if self._whole is None:
            batch, cache = (
                copy.copy(self.data),
                None if self._partitioner is None else self._partitioner.cache,
            )
            batch.edge_index = keep_both_orders(self.data.edge_index, cache)
            batch.n_id = torch.arange(self.data.num_nodes)
            self._whole = self._finish(batch, 0)
        return self._whole


def hand_over(batch: Data, device: torch.device) -> Data:
    """Put a batch into page-locked memory, if it will be used on a GPU."""
    return batch.pin_memory() if device.type == "cuda" else batch

"""Batches of clusters: the subgraphs that a partition's clusters induce."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch_geometric.data import Data

from pipeline.graph.partition import Partition
from pipeline.graph.partitioner import Partitioner
from pipeline.graph.subgraph import induced_subgraph
from pipeline.schedule import Share


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
        device: where the batches will be used; for a GPU they are put into page-locked memory.
    """

    def __init__(self, data: Data, partitioner: Partitioner | None = None, *, clusters_per_step: int = 1,
                 device: torch.device = torch.device("cpu")):
        self.data, self.device = data, device
        self._partitioner, self._clusters_per_step = partitioner, clusters_per_step
        self._whole: Data | None = None

    @property
    def partition_name(self) -> str:
        """How the clusters are drawn."""
        return self._partitioner.name

    @property
    def num_batches(self) -> int:
        """Batches of a draw."""
        return -(-self._partitioner.num_parts // self._clusters_per_step)

    def draw(self, round_: int, share: Share) -> Partition:
        """Draw the partition that a share is a part of, its clusters merged into batches."""
        return self._partitioner.draw(round_, share.draw).merge(self._clusters_per_step)

    def batches(self, round_: int, share: Share) -> Iterator[Data]:
        """Build the batches of a share in turn: a function of the seed, the round and the share."""
        partition = self.draw(round_, share)
        return self.batches_of(partition, share.batches(partition.num_parts))

    def batches_of(self, partition: Partition, clusters: Iterable[int] | None = None) -> Iterator[Data]:
        """Build the batch of each cluster in turn, or of those given."""
        for cluster in range(partition.num_parts) if clusters is None else clusters:
            yield self._whole_batch() if partition.num_parts == 1 else self._batch(partition.nodes(cluster), cluster)

    def _batch(self, nodes: Tensor, cluster: int) -> Data:
        # int64, since SAGEConv and GINConv of PyG 2.8 fail on an int32 EdgeIndex.
        batch = induced_subgraph(self.data, nodes, dtype=torch.int64)
        batch.cluster = cluster
        batch.target = torch.ones(len(nodes), dtype=torch.bool)
        return batch.pin_memory() if self.device.type == "cuda" else batch

    def _whole_batch(self) -> Data:
        """Build one cluster of all nodes once, in the nodes' own order: any other order would round differently."""
        if self._whole is None:
            self._whole = self._batch(torch.arange(self.data.num_nodes), 0)
        return self._whole

"""Batches of clusters in which a labelled edge lies with the nodes at its ends."""

import logging
from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.graph.partition import Partition, assignment
from parallel_epochs.pipeline.run.schedule import Share

log = logging.getLogger(__name__)


class EdgeLoader(ClusterLoader):
    """Builds batches as a loader of clusters does, and lets each labelled edge follow a node at its ends.

    An edge stays in its cluster if one of its ends is there, and goes to that of its source otherwise. Edges with both
    ends in their cluster are trained on; all are predicted.

    Args:
        clusters: the loader, of a graph whose type with labels are edges.
        ends: of each labelled edge, see :func:`pipeline.gnn.tasks.edge.find_ends`; or the one node of each row of a
            label table, [num_rows, 1].
    """

    def __init__(self, clusters: ClusterLoader, ends: Int[Tensor, "num_edges ends"]):
        vars(self).update(vars(clusters))
        own, self._ends = self.data.types.nodes_of(self.data.types.labelled), ends
        self._own = slice(own.start, own.stop)

    def batches(self, round_: int, share: Share) -> Iterator[Data]:
        partition = self.draw(round_, share)
        if partition.num_parts == 1:
            yield from super().batches(round_, share)
            return
        is_whole = torch.ones(self.data.num_nodes, dtype=torch.bool)
        is_whole[self._own] = self._is_whole(partition)
        for batch in self.batches_of(partition, share.batches(partition.num_parts)):
            batch.target = batch.target & is_whole[batch.n_id]
            yield batch

    def batches_of(
        self, partition: Partition, clusters: Iterable[int] | None = None
    ) -> Iterator[Data]:
        return super().batches_of(self._follow(partition), clusters)

    def measure(self, partition: Partition, seconds: float) -> dict[str, dict]:
        """Measure a draw and say so, and how many training edges have both ends in a cluster.

        Raises:
            ValueError: none has.
        """
        train = self.data.train_mask[self._own]
        kept, total = int((self._is_whole(partition) & train).sum()), int(train.sum())
        if not kept:
            raise ValueError(
                f"none of the {total:,} training edges has both ends in one of {partition.num_parts:,} "
                "clusters: lower partition.num_parts, or set partition=metis or whole"
            )
        records = super().measure(self._follow(partition), seconds)
        log.info(
            "edges: %s of %s training edges have both ends in their cluster, and are learned",
            f"{kept:,}",
            f"{total:,}",
        )
        return records

    def _is_whole(self, partition: Partition) -> Tensor:
        """Tell which labelled edges have all ends that they have in one cluster."""
        part, ends = torch.from_numpy(assignment(partition)), self._ends
        of_ends = part[ends.clamp(min=0)]
        return (of_ends[:, 0] == of_ends[:, -1]) | (ends < 0).any(1)

    def _follow(self, partition: Partition) -> Partition:
        if partition.num_parts == 1:
            return partition
        part = torch.from_numpy(assignment(partition)).clone()
        known, own = self._ends >= 0, part[self._own]
        of_ends = part[self._ends.clamp(min=0)]
        stays = ((of_ends == own.unsqueeze(1)) & known).any(1) | ~known.any(1)
        chosen = torch.where(known[:, 0], of_ends[:, 0], of_ends[:, -1])
        part[self._own] = torch.where(stays, own, chosen)
        perm = partition.perm[part[partition.perm].argsort(stable=True)]
        sizes = torch.bincount(part, minlength=partition.num_parts)
        return Partition(perm, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))

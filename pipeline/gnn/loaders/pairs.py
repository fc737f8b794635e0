"""Batches for links: a cluster's subgraph, training pairs within it, and as many drawn pairs to tell them from."""

import copy
import logging
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.links import LinkRelation, link_relation_of
from parallel_epochs.pipeline.gnn.contract import Views
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader, hand_over
from parallel_epochs.pipeline.graph.pairs import (
    PairsByCluster,
    draw_negatives,
    draw_targets,
    sort_by_cluster,
    without_pairs,
)
from parallel_epochs.pipeline.graph.partition import Partition
from parallel_epochs.pipeline.names import PAIRS
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)

# A smaller part of the training pairs within clusters is worth a warning.
FEW = 0.1


class PairLoader:
    """Builds the batches of link prediction from those of clusters.

    A batch is that of a cluster with ``pairs`` [num_pairs, 2], the training pairs of the step, and ``negatives``
    [num_negatives x num_pairs, 2], pairs of its nodes drawn at random: both name places in the batch, int64. Every
    training pair within a cluster is in one batch of a draw; a cluster comes as often as its pairs need. What is drawn
    is a function of the seed, the round, the draw and the number of the batch: of the step and the rank.

    Of a graph with several types of nodes, the pairs are links of one relation. A pair that is drawn has the source of
    a training pair, and as target a node of the cluster of the type that the relation links to.

    Args:
        clusters: builds the clusters' subgraphs, of a graph with ``train_pairs`` [num_pairs, 2].
        pairs_per_step: training pairs of a batch. The pairs of a single cluster of all nodes are cut into as many, the
            last batch has the rest; with several clusters, each cluster's are divided evenly, into as many batches as
            this asks for on average.
        num_negatives: pairs drawn for each training pair.
        hide: leave the training pairs of a batch out of its edges; of those of a relation, the edges of this relation
            and of its reverse. A batch has at most about half of the pairs of its
            cluster then, so that the others remain.
        side: of each node, where pairs are drawn across the sides of a bipartite graph, see
            :func:`pipeline.data.links.sides_of`; none: of any two nodes.
        seed: of every random number here.
    """

    def __init__(
        self,
        clusters: ClusterLoader,
        *,
        pairs_per_step: int,
        num_negatives: int = 1,
        hide: bool = False,
        side: Tensor | None = None,
        seed: int = 0,
    ):
        self.clusters, self.data, self.device = clusters, clusters.data, clusters.device
        self._pairs: Tensor = self.data.train_pairs
        self._pairs_per_step, self._num_negatives = pairs_per_step, num_negatives
        self._hide, self._side, self._seed = hide, side, seed
        self._own = link_relation_of(self.data)
        self._visits = -(-len(self._pairs) // (clusters.num_batches * pairs_per_step))
        if hide and self._visits == 1:
            self._visits, self._pairs_per_step = 2, -(-len(self._pairs) // 2)

    @property
    def num_batches(self) -> int:
        """Batches of a draw."""
        return self.clusters.num_batches * self._visits

    def views(self, num_parts: int, seed: int) -> Views:
        """Make views of clusters."""
        return self.clusters.views(num_parts, seed)

    def prepare(self) -> None:
        """Leave in the cache what other processes will find there."""
        self.clusters.prepare()

    def draw(self, round_: int, share: Share) -> Partition:
        """Draw the partition that a share is a part of."""
        return self.clusters.draw(round_, share)

    def batches(self, round_: int, share: Share) -> Iterator[Data]:
        """Build the batches of a share in turn: a function of the seed, the round and the share."""
        partition = self.draw(round_, share)
        order = torch.from_numpy(
            stream("pairs", self._seed, round_, share.draw).permutation(len(self._pairs))
        )
        pairs = sort_by_cluster(self._pairs, partition, order)
        return self.batches_of(
            partition, pairs, share.batches(self.num_batches), (round_, share.draw)
        )

    def batches_of(
        self,
        partition: Partition,
        pairs: PairsByCluster,
        numbers: Iterable[int],
        path: tuple[int, int],
    ) -> Iterator[Data]:
        """Build batches of a draw, given their numbers, in turn: first each cluster once, then again.

        Args:
            path: the round and the number of the draw.
        """
        place = self._pairs.new_empty(self.data.num_nodes)
        numbers = list(numbers)
        batches = self.clusters.batches_of(
            partition, [number % partition.num_parts for number in numbers]
        )
        for number, batch in zip(numbers, batches, strict=True):
            visit, cluster = divmod(number, partition.num_parts)
            place[batch.n_id] = torch.arange(batch.num_nodes)
            within = place[self._pairs[pairs.of(cluster)]]
            yield self._finish(batch, self._cut(within, visit, partition), number, path)

    def _cut(self, pairs: Tensor, visit: int, partition: Partition) -> Tensor:
        size = self._pairs_per_step if partition.num_parts == 1 else -(-len(pairs) // self._visits)
        return pairs[visit * size : (visit + 1) * size]

    def _finish(self, cluster: Data, pairs: Tensor, number: int, path: tuple[int, int]) -> Data:
        """Complete the batch of a cluster with some of the training pairs within it, by their places in it."""
        batch = copy.copy(cluster)  # the whole graph is handed out again
        for key in PAIRS:
            if key in batch:  # the task has them
                del batch[key]
        rng = stream("negatives", self._seed, *path, number)
        batch.pairs, batch.cluster = pairs, number
        if self._own is None:
            batch.negatives = draw_negatives(
                rng,
                self._num_negatives * len(pairs),
                batch.n_id,
                None if self._side is None else self._side[batch.n_id],
            )
        else:
            batch.negatives = self._draw_targets(rng, pairs, batch.n_id, self._own)
        if self._hide and len(pairs):
            among = None if self._own is None else self._own.edges_of(batch.edge_attr[:, 0])
            batch.edge_index, kept = without_pairs(batch.edge_index, pairs, among)
            if batch.edge_attr is not None:
                batch.edge_attr = batch.edge_attr.index_select(0, kept)
        return hand_over(batch, self.device)

    def _draw_targets(
        self,
        rng: np.random.Generator,
        pairs: Tensor,
        nodes: Tensor,
        own: LinkRelation,
    ) -> Tensor:
        """Draw targets among the nodes of a cluster for the sources of pairs [num_negatives x num_pairs, 2]."""
        candidates = ((nodes >= own.target.start) & (nodes < own.target.stop)).nonzero().squeeze(1)
        sources = pairs[:, 0].repeat(self._num_negatives)
        targets = draw_targets(rng, sources, len(candidates), pairs.new_empty(0, 2))
        free = targets >= 0
        return torch.stack([sources[free], candidates[targets[free]]], dim=1)

    def measure(self, partition: Partition, seconds: float) -> dict[str, dict]:
        """Measure a draw and say so: records for who writes them down.

        Args:
            seconds: how long the draw took.

        Raises:
            ValueError: no training pair lies within a cluster.
        """
        records = self.clusters.measure(partition, seconds)
        order = torch.arange(len(self._pairs))
        pairs = sort_by_cluster(self._pairs, partition, order)
        within, sizes = (
            pairs.ptr.diff(),
            [
                len(self._cut(pairs.of(cluster), 0, partition))
                for cluster in range(partition.num_parts)
            ],
        )
        total, num_kept, num_empty = len(self._pairs), int(within.sum()), int((within == 0).sum())
        if not num_kept:
            raise ValueError(
                f"none of the {total:,} training pairs lies within one of {partition.num_parts:,} "
                "clusters: lower partition.num_parts, or set partition=metis"
            )
        log.info(
            "pairs: %s of %s training pairs within clusters (%.1f%% left out), %s batches of up to %s, each with "
            "%s drawn for one of them%s%s",
            f"{num_kept:,}",
            f"{total:,}",
            100 * (1 - num_kept / total),
            f"{self.num_batches:,}",
            f"{max(sizes):,}",
            self._num_negatives,
            ", across the sides of the graph" if self._side is not None else "",
            "; the pairs of a batch are hidden from its graph" if self._hide else "",
        )
        if num_kept < FEW * total:
            log.warning(
                "pairs: only %.1f%% of the training pairs lie within a cluster, and no other one is learned. "
                "Lower partition.num_parts, or set partition=metis or partition=whole",
                100 * num_kept / total,
            )
        if num_empty:
            log.warning(
                "pairs: %s of %s clusters hold no training pair: their steps learn nothing. Lower "
                "partition.num_parts",
                f"{num_empty:,}",
                f"{partition.num_parts:,}",
            )
        return {
            **records,
            "pairs": {
                "num_pairs": total,
                "num_within": num_kept,
                "num_batches": self.num_batches,
                "num_clusters_without": num_empty,
                "largest": max(sizes),
            },
        }

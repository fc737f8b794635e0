"""Draws partitions: pure functions of the graph, the seed, the round and the rank."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch_geometric import EdgeIndex

from pipeline.graph.metis import cut_with_metis
from pipeline.graph.partition import Partition, random_partition, regroup, shuffle_clusters, whole_partition
from pipeline.graph.structure import inspect
from pipeline.run.seeds import stream


class Partitioner:
    """Draws the partition of any round and rank.

    Args:
        edge_index: edges sorted by destination.
        name: one of ``PARTITIONS``.
        num_parts: clusters of a partition.
        seed: of every random number here.
        num_micro_parts: of "metis_random"; 0 for 20 x `num_parts`, or as many as the graph has nodes.
        cache: a folder for METIS' results.

    Raises:
        ValueError: unknown name, fewer than one cluster, more clusters than nodes, or METIS on a directed graph.
    """

    def __init__(self, edge_index: EdgeIndex, *, name: str, num_parts: int, seed: int = 0, num_micro_parts: int = 0,
                 cache: Path | None = None):
        self.num_nodes = edge_index.get_sparse_size(1)
        if name not in PARTITIONS:
            raise ValueError(f"unknown partition '{name}'; choose one of {', '.join(PARTITIONS)}")
        if num_parts < 1:
            raise ValueError(f"partition.num_parts must be at least 1, not {num_parts}")
        if num_parts > self.num_nodes:
            raise ValueError(f"{num_parts:,} clusters of {self.num_nodes:,} nodes: partition.num_parts must not exceed "
                             "the number of nodes")
        if name == "metis_random":
            num_micro_parts = num_micro_parts or min(20 * num_parts, self.num_nodes)
            if not num_parts <= num_micro_parts <= self.num_nodes:
                raise ValueError(f"partition.num_micro_parts must be between partition.num_parts ({num_parts:,}) and "
                                 f"the number of nodes ({self.num_nodes:,}), not {num_micro_parts:,}")
        if name.startswith("metis"):
            # METIS crashes on a directed graph.
            structure = inspect(edge_index)
            if not structure.is_undirected:
                raise ValueError(f"graph is directed: {structure.num_without_reverse:,} of {structure.num_edges:,} "
                                 "edges have no reverse; METIS needs an undirected graph. Set data.to_undirected=true.")
        self.edge_index = edge_index
        self.name = name
        self.num_parts = 1 if name == "whole" else num_parts
        self.num_micro_parts = num_micro_parts
        self.seed = seed
        self.cache = cache
        self._cut: dict[int, Partition] = {}

    def draw(self, round_: int, rank: int = 0) -> Partition:
        """Draw the partition of a round and rank, both from 0."""
        return PARTITIONS[self.name](self, rank, stream("partition", self.seed, round_, rank))

    def cut(self, num_parts: int, rank: int) -> Partition:
        """Cut the graph with METIS, once for each rank."""
        if rank not in self._cut:
            seed = int(stream("metis", self.seed, rank).integers(2**31))
            self._cut[rank] = cut_with_metis(self.edge_index, num_parts, seed, self.cache)
        return self._cut[rank]

    def micro_clusters(self) -> Partition:
        """Return what "metis_random" puts its clusters together of."""
        return self.cut(self.num_micro_parts, 0)


def draw_random(partitioner: Partitioner, rank: int, rng: np.random.Generator) -> Partition:
    """Draw clusters of equal sizes, other ones each round."""
    return random_partition(partitioner.num_nodes, partitioner.num_parts, rng)


def draw_metis(partitioner: Partitioner, rank: int, rng: np.random.Generator) -> Partition:
    """Put the clusters of METIS, cut once for each rank, into another order each round."""
    return shuffle_clusters(partitioner.cut(partitioner.num_parts, rank), rng)


def draw_metis_random(partitioner: Partitioner, rank: int, rng: np.random.Generator) -> Partition:
    """Regroup micro-clusters of METIS each round; one cut serves all ranks, as the regrouping makes them differ."""
    return regroup(partitioner.micro_clusters(), partitioner.num_parts, rng)


def draw_whole(partitioner: Partitioner, rank: int, rng: np.random.Generator) -> Partition:
    """Put all nodes into one cluster."""
    return whole_partition(partitioner.num_nodes)


# One line for each partition: a pure function of the graph, the rank and the random numbers of its round.
PARTITIONS: dict[str, Callable[[Partitioner, int, np.random.Generator], Partition]] = {
    "random": draw_random,
    "metis": draw_metis,
    "metis_random": draw_metis_random,
    "whole": draw_whole,
}

"""Draws partitions as pure functions of the graph, the seed, the round and the rank."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch_geometric import EdgeIndex

from parallel_epochs.pipeline.graph.metis import cut_with_metis
from parallel_epochs.pipeline.graph.partition import (
    Partition,
    random_partition,
    regroup,
    shuffle_clusters,
    whole_partition,
)
from parallel_epochs.pipeline.graph.structure import inspect
from parallel_epochs.pipeline.run.seeds import stream


class Partitioner:
    """Draws the partition of any round and rank.

    Args:
        edge_index: edges sorted by destination.
        name: one of ``PARTITIONS``.
        num_parts: number of clusters of a partition.
        seed: seed of the random numbers.
        cache: a folder for the results of METIS.

    Raises:
        ValueError: the name is unknown, there is less than one cluster or more than nodes, or METIS should cut a
            directed graph.
    """

    def __init__(
        self,
        edge_index: EdgeIndex,
        *,
        name: str,
        num_parts: int,
        seed: int = 0,
        cache: Path | None = None,
    ):
        self.num_nodes = edge_index.get_sparse_size(1)
        if name not in PARTITIONS:
            raise ValueError(f"partition={name} is unknown; choose one of {', '.join(PARTITIONS)}")
        if num_parts < 1:
            raise ValueError(f"partition.num_parts must be at least 1, not {num_parts}")
        if num_parts > self.num_nodes:
            raise ValueError(
                f"partition.num_parts={num_parts} is more than the {self.num_nodes:,} nodes of the graph; "
                "set it to at most that number"
            )
        if name in ("metis", "metis_random"):
            # METIS crashes on a directed graph.
            structure = inspect(edge_index)
            if not structure.is_undirected:
                raise ValueError(
                    f"graph is directed: {structure.num_without_reverse:,} of {structure.num_edges:,} "
                    "edges have no reverse; METIS needs an undirected graph. Set data.to_undirected=true."
                )
        self.edge_index = edge_index
        self.name = name
        self.num_parts = 1 if name == "whole" else num_parts
        # Micro-clusters, of which "metis_random" combines some at random.
        self.num_micro_parts = min(20 * num_parts, self.num_nodes)
        self.seed = seed
        self.cache = cache
        self._cut: dict[int, Partition] = {}

    def draw(self, round_: int, rank: int = 0) -> Partition:
        """Draw the partition of a round and a rank, both counted from 0."""
        return PARTITIONS[self.name](self, rank, stream("partition", self.seed, round_, rank))

    def cut(self, num_parts: int, rank: int) -> Partition:
        """Return the cut of METIS for a rank, which is computed once."""
        if rank not in self._cut:
            seed = int(stream("metis", self.seed, rank).integers(2**31))
            self._cut[rank] = cut_with_metis(self.edge_index, num_parts, seed, self.cache)
        return self._cut[rank]


# Random clusters, new ones in each round; a cut for each rank, whose clusters each round visits in another order; a cut
# into micro-clusters, which each round combines anew; and one cluster of all nodes.
PARTITIONS: dict[str, Callable[[Partitioner, int, np.random.Generator], Partition]] = {
    "random": lambda own, rank, rng: random_partition(own.num_nodes, own.num_parts, rng),
    "metis": lambda own, rank, rng: shuffle_clusters(own.cut(own.num_parts, rank), rng),
    # Ranks share the cut, and combine its micro-clusters differently.
    "metis_random": lambda own, rank, rng: regroup(
        own.cut(own.num_micro_parts, 0), own.num_parts, rng
    ),
    "whole": lambda own, rank, rng: whole_partition(own.num_nodes),
}

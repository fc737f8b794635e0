"""Partitions of the nodes into clusters, and measures of their quality."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.pipeline.graph.edges import counting_sort
from parallel_epochs.pipeline.run.words import count


@dataclass
class Partition:
    """The nodes of each cluster: ``perm[ptr[i]:ptr[i + 1]]`` are those of cluster i.

    Attributes:
        perm: every node once, [num_nodes], int64.
        ptr: [num_parts + 1], int64.
    """

    perm: Int[Tensor, " num_nodes"]
    ptr: Int[Tensor, " num_parts_plus_1"]

    @property
    def num_parts(self) -> int:
        return self.ptr.numel() - 1

    def nodes(self, part: int) -> Int[Tensor, " num_nodes_of_part"]:
        """Return the nodes of a cluster."""
        return self.perm[self.ptr[part] : self.ptr[part + 1]]

    def merge(self, clusters_per_step: int) -> "Partition":
        """Merge every `clusters_per_step` consecutive clusters into one. The last may consist of fewer."""
        ends = self.ptr[::clusters_per_step]
        if ends[-1] != self.ptr[-1]:
            ends = torch.cat([ends, self.ptr[-1:]])
        return Partition(self.perm, ends)


def random_partition(num_nodes: int, num_parts: int, rng: np.random.Generator) -> Partition:
    """Assign the nodes at random to clusters whose sizes differ by at most one."""
    perm = torch.from_numpy(rng.permutation(num_nodes))
    return Partition(perm, torch.arange(num_parts + 1) * num_nodes // num_parts)


def whole_partition(num_nodes: int) -> Partition:
    """Put all nodes into one cluster, in the order of their numbers."""
    return Partition(torch.arange(num_nodes), torch.tensor([0, num_nodes]))


def from_assignment(part: np.ndarray, num_parts: int) -> Partition:
    """Build the partition in which node i is in cluster part[i]."""
    perm, ptr = counting_sort(part, num_parts)
    return Partition(torch.from_numpy(perm).long(), torch.from_numpy(ptr).long())


def shuffle_clusters(partition: Partition, rng: np.random.Generator) -> Partition:
    """Shuffle the order of the clusters."""
    order = rng.permutation(partition.num_parts)
    sizes = partition.ptr.diff()[order]
    perm = torch.cat([partition.nodes(int(part)) for part in order])
    return Partition(perm, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))


def regroup(micro: Partition, num_parts: int, rng: np.random.Generator) -> Partition:
    """Combine micro-clusters at random into `num_parts` clusters with about equal numbers of nodes."""
    shuffled = shuffle_clusters(micro, rng)
    num_nodes = int(shuffled.ptr[-1])
    # Each boundary is the one nearest to an even division that leaves at least one micro-cluster to each part.
    ends, first = [0], 0
    for part in range(1, num_parts):
        target = part * num_nodes / num_parts
        choices = range(first + 1, micro.num_parts - (num_parts - part) + 1)
        ptr = shuffled.ptr[choices.start : choices.stop].double()
        first = choices.start + int((ptr - target).abs().argmin())
        ends.append(first)
    ends.append(micro.num_parts)
    return Partition(shuffled.perm, shuffled.ptr[torch.tensor(ends)])


@dataclass
class Quality:
    """The quality of a partition of a graph.

    Attributes:
        sizes: nodes in each cluster.
        kept_edges: number of directed edges within each cluster.
        num_edges: number of directed edges of the graph.
        seconds: time that the partition took.
    """

    sizes: list[int]
    kept_edges: list[int]
    num_edges: int
    seconds: float

    @property
    def cut(self) -> float:
        """Return the fraction of the edges that run between clusters."""
        return 1 - sum(self.kept_edges) / max(self.num_edges, 1)

    @property
    def imbalance(self) -> float:
        """Return the size of the largest cluster divided by the mean size."""
        return max(self.sizes) * len(self.sizes) / sum(self.sizes)

    def __str__(self) -> str:
        return (
            f"{count(len(self.sizes), 'cluster')}, {self.seconds:.2f} s, {sum(self.kept_edges):,} of "
            f"{self.num_edges:,} edges kept ({self.cut:.1%} cut), imbalance {self.imbalance:.3f}"
        )


def measure_partition(
    edge_index: EdgeIndex, partition: Partition, seconds: float, *, block_edges: int = 1 << 24
) -> Quality:
    """Count the edges within clusters, `block_edges` at a time."""
    part = torch.from_numpy(assignment(partition))
    src, dst = edge_index.as_tensor()
    kept = torch.zeros(partition.num_parts, dtype=torch.int64)
    # In blocks, so that the full graph needs no further tensors of its size.
    for first in range(0, src.numel(), block_edges):
        block = slice(first, first + block_edges)
        a, b = part.index_select(0, src[block]), part.index_select(0, dst[block])
        kept += torch.bincount(a[a == b], minlength=partition.num_parts)
    return Quality(partition.ptr.diff().tolist(), kept.tolist(), src.numel(), seconds)


def assignment(partition: Partition) -> np.ndarray:
    """Return the cluster of each node, [num_nodes], int32."""
    part, numbers = (
        np.empty(partition.perm.numel(), np.int32),
        np.arange(partition.num_parts, dtype=np.int32),
    )
    part[partition.perm.numpy()] = np.repeat(numbers, partition.ptr.diff().numpy())
    return part

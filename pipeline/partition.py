"""Clusters of nodes: a partition is a pure function of the graph, the seed, the epoch and the rank."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pymetis
import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from pipeline import checkpoint, graph

log = logging.getLogger(__name__)

PARTITIONS = ("random", "metis", "metis_random", "whole")
METIS_CACHE_VERSION = f"{pymetis.version}-1"


@dataclass
class Partition:
    """Nodes by cluster: ``perm[ptr[i]:ptr[i + 1]]`` are the nodes of cluster i.

    Attributes:
        perm: every node once, [num_nodes], int64.
        ptr: [num_parts + 1], int64.
    """

    perm: Tensor
    ptr: Tensor

    @property
    def num_parts(self) -> int:
        return self.ptr.numel() - 1

    def nodes(self, part: int) -> Tensor:
        return self.perm[self.ptr[part]:self.ptr[part + 1]]

    def merge(self, clusters_per_step: int) -> "Partition":
        """Every `clusters_per_step` consecutive clusters as one; the last may have fewer."""
        ends = self.ptr[::clusters_per_step]
        if ends[-1] != self.ptr[-1]:
            ends = torch.cat([ends, self.ptr[-1:]])
        return Partition(self.perm, ends)


def stream(purpose: str, *path: int) -> np.random.Generator:
    """Random numbers that depend on nothing but a purpose and some integers (seed, epoch, rank), each at least 0."""
    # SeedSequence ignores trailing zeros: without the length, an epoch 0 would replay its parent.
    entropy = [int.from_bytes(purpose.encode(), "big"), len(path), *path]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def random_partition(num_nodes: int, num_parts: int, rng: np.random.Generator) -> Partition:
    """Divide the nodes at random into clusters whose sizes differ by at most one."""
    perm = torch.from_numpy(rng.permutation(num_nodes))
    return Partition(perm, torch.arange(num_parts + 1) * num_nodes // num_parts)


def whole(num_nodes: int) -> Partition:
    """One cluster of all nodes in their own order."""
    return Partition(torch.arange(num_nodes), torch.tensor([0, num_nodes]))


def from_assignment(part: np.ndarray, num_parts: int) -> Partition:
    """The partition in which node i is in cluster part[i]."""
    perm, ptr = graph.counting_sort(part, num_parts)
    return Partition(torch.from_numpy(perm).long(), torch.from_numpy(ptr).long())


def metis(edge_index: EdgeIndex, num_parts: int, seed: int, cache: Path | None = None) -> Partition:
    """Cut an undirected graph (METIS crashes on others) into clusters of about equal size, few edges between them.

    No cluster is empty: METIS leaves some empty on tiny graphs, these get a node of the largest.

    Args:
        edge_index: edges sorted by destination; self-loops and duplicates are left out of what METIS sees.
        seed: any non-negative integer; different seeds give different partitions.
        cache: a folder to keep the result in, under the digest of the graph, `num_parts`, `seed` and METIS' version.
    """
    if num_parts == 1:
        return whole(edge_index.get_sparse_size(1))
    path = None
    if cache is not None:
        key = f"{graph.structure_hash(edge_index)}-{num_parts}-{seed}-{METIS_CACHE_VERSION}"
        path = cache / f"metis-{key}.pt"
        if path.exists():
            try:
                return Partition(**checkpoint.load(path))
            except ValueError as error:
                log.warning("%s; cutting the graph again", error)
    start = time.perf_counter()
    part = _run_metis(edge_index, num_parts, seed)
    partition = from_assignment(part, num_parts)
    log.info("METIS: %s", describe(edge_index, partition, time.perf_counter() - start))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.save(path, {"perm": partition.perm, "ptr": partition.ptr})
    return partition


def _run_metis(edge_index: EdgeIndex, num_parts: int, seed: int) -> np.ndarray:
    (indptr, src), _ = edge_index.get_csc()
    indptr, src = indptr.numpy(), src.numpy()
    dst = edge_index.as_tensor()[1].numpy()
    keep = src != dst
    keep[1:] &= (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    if not keep.all():
        indptr = np.concatenate([[0], np.cumsum(np.bincount(dst[keep], minlength=len(indptr) - 1))])
        src = src[keep]
    # METIS treats the seeds 0 and 1 alike, and takes no more than 31 bits.
    options = pymetis.Options(seed=2 + seed % (2**31 - 3))
    adjacency = pymetis.CSRAdjacency(indptr.astype(np.int32, copy=False), src.astype(np.int32, copy=False))
    part = np.asarray(pymetis.part_graph(num_parts, adjacency, options=options).vertex_part, dtype=np.int64)
    sizes = np.bincount(part, minlength=num_parts)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        part[np.flatnonzero(part == largest)[-1]] = empty
        sizes[largest] -= 1
        sizes[empty] += 1
    return part


def shuffle_clusters(partition: Partition, rng: np.random.Generator) -> Partition:
    """The same clusters in another order."""
    return _reorder(partition, rng.permutation(partition.num_parts))


def regroup(micro: Partition, num_parts: int, rng: np.random.Generator) -> Partition:
    """Put micro-clusters together at random into `num_parts` clusters of about equal numbers of nodes."""
    shuffled = shuffle_clusters(micro, rng)
    num_nodes = int(shuffled.ptr[-1])
    # Each cut goes to the boundary nearest to an even division, and leaves at least one micro-cluster to each part.
    ends, first = [0], 0
    for part in range(1, num_parts):
        target = part * num_nodes / num_parts
        choices = range(first + 1, micro.num_parts - (num_parts - part) + 1)
        ptr = shuffled.ptr[choices.start:choices.stop].double()
        first = choices.start + int((ptr - target).abs().argmin())
        ends.append(first)
    ends.append(micro.num_parts)
    return Partition(shuffled.perm, shuffled.ptr[torch.tensor(ends)])


def _reorder(partition: Partition, order: np.ndarray) -> Partition:
    sizes = partition.ptr.diff()[order]
    perm = torch.cat([partition.nodes(int(part)) for part in order])
    return Partition(perm, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))


class Partitioner:
    """Draws the partition of any epoch and rank.

    Args:
        edge_index: edges sorted by destination.
        name: "random" (equal sizes, redrawn each epoch), "metis" (cut once for each rank, in another order each
            epoch), "metis_random" (METIS micro-clusters, regrouped each epoch) or "whole".
        num_parts: clusters in an epoch.
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
            structure = graph.structure(edge_index)
            if not structure.is_undirected:
                raise ValueError(f"graph is directed: {structure.num_without_reverse:,} of {structure.num_edges:,} edges "
                                 "have no reverse; METIS needs an undirected graph. Set data.to_undirected=true.")
        self.edge_index = edge_index
        self.name = name
        self.num_parts = 1 if name == "whole" else num_parts
        self.num_micro_parts = num_micro_parts
        self.seed = seed
        self.cache = cache
        self._cut: dict[int, Partition] = {}

    def draw(self, epoch: int, rank: int = 0) -> Partition:
        """The partition of an epoch and rank, both from 0."""
        if self.name == "whole":
            return whole(self.num_nodes)
        rng = stream("partition", self.seed, epoch, rank)
        if self.name == "random":
            return random_partition(self.num_nodes, self.num_parts, rng)
        if self.name == "metis":
            return shuffle_clusters(self._metis(self.num_parts, rank), rng)
        # One cut serves all ranks here: the regrouping makes them differ.
        return regroup(self._metis(self.num_micro_parts, 0), self.num_parts, rng)

    def _metis(self, num_parts: int, rank: int) -> Partition:
        if rank not in self._cut:
            seed = int(stream("metis", self.seed, rank).integers(2**31))
            self._cut[rank] = metis(self.edge_index, num_parts, seed, self.cache)
        return self._cut[rank]


@dataclass
class Quality:
    """How a partition cuts a graph.

    Attributes:
        sizes: nodes in each cluster.
        kept_edges: directed edges within each cluster.
        num_edges: directed edges of the graph.
        seconds: how long the partition took.
    """

    sizes: list[int]
    kept_edges: list[int]
    num_edges: int
    seconds: float

    @property
    def cut(self) -> float:
        """Fraction of the edges that run between clusters."""
        return 1 - sum(self.kept_edges) / max(self.num_edges, 1)

    @property
    def imbalance(self) -> float:
        """Nodes in the largest cluster over the mean."""
        return max(self.sizes) * len(self.sizes) / sum(self.sizes)

    def __str__(self) -> str:
        return (f"{len(self.sizes):,} clusters, {self.seconds:.2f} s, {sum(self.kept_edges):,} of {self.num_edges:,} "
                f"edges kept ({self.cut:.1%} cut), imbalance {self.imbalance:.3f}")


def describe(edge_index: EdgeIndex, partition: Partition, seconds: float) -> Quality:
    """Count the edges that a partition keeps."""
    part = np.empty(partition.perm.numel(), np.int32)
    sizes = partition.ptr.diff()
    part[partition.perm.numpy()] = np.repeat(np.arange(partition.num_parts, dtype=np.int32), sizes.numpy())
    part = torch.from_numpy(part)
    src, dst = edge_index.as_tensor()
    kept = torch.zeros(partition.num_parts, dtype=torch.int64)
    # In blocks, so that the full graph needs no further tensors of its size.
    for first in range(0, src.numel(), 1 << 24):
        block = slice(first, first + (1 << 24))
        a, b = part.index_select(0, src[block]), part.index_select(0, dst[block])
        kept += torch.bincount(a[a == b], minlength=partition.num_parts)
    return Quality(sizes.tolist(), kept.tolist(), src.numel(), seconds)

"""Cuts graphs with METIS into clusters of about equal size with few edges between them, and caches the cuts."""

import logging
import time
from pathlib import Path

import numpy as np
import pymetis
import torch
from torch_geometric import EdgeIndex

from parallel_epochs.models.edge_index import choose_dtype
from parallel_epochs.pipeline.graph.partition import (
    Partition,
    from_assignment,
    measure_partition,
    whole_partition,
)
from parallel_epochs.pipeline.graph.ranges import check_ends, check_order
from parallel_epochs.pipeline.graph.structure import hash_structure
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

CACHE_VERSION = f"{pymetis.version}-1"


def cut_with_metis(
    edge_index: EdgeIndex, num_parts: int, seed: int, cache: Path | None = None
) -> Partition:
    """Cut an undirected graph into non-empty clusters of about equal size with few edges between them.

    METIS crashes on directed graphs. On tiny graphs it leaves clusters empty; each of these gets a node of the largest.

    Args:
        edge_index: edges sorted by destination. METIS does not see self-loops and duplicates.
        seed: any non-negative integer. Different seeds give different partitions.
        cache: a folder to keep the result in, under the digest of the graph, `num_parts`, `seed` and METIS' version.
    """
    if num_parts == 1:
        return whole_partition(edge_index.get_sparse_size(1))

    def cut() -> dict:
        start = time.perf_counter()
        log.info(
            "METIS: cutting %s into %s%s",
            count(edge_index.get_sparse_size(1), "node"),
            count(num_parts, "cluster"),
            "" if cache is None else f", kept in {cache} for later runs",
        )
        partition = from_assignment(
            fill_empty(_run_metis(edge_index, num_parts, seed), num_parts), num_parts
        )
        log.info("METIS: %s", measure_partition(edge_index, partition, time.perf_counter() - start))
        return {"perm": partition.perm, "ptr": partition.ptr}

    if cache is None:
        return Partition(**cut())

    def check(path: Path, kept: dict) -> None:
        check_order(path, "perm", kept["perm"], edge_index.get_sparse_size(1), "node")
        check_ends(path, "ptr", kept["ptr"], edge_index.get_sparse_size(1), "nodes")

    path = cache / f"metis-{hash_structure(edge_index)}-{num_parts}-{seed}-{CACHE_VERSION}.pt"
    return Partition(
        **checkpoint.keep(path, cut, again="cutting the graph again", mmap=False, check=check)
    )


def _run_metis(edge_index: EdgeIndex, num_parts: int, seed: int) -> np.ndarray:
    (indptr, src), _ = edge_index.get_csc()
    indptr, src = indptr.numpy(), src.numpy()
    dst = edge_index.as_tensor()[1].numpy()
    links = src != dst
    links[1:] &= (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    if not links.all():
        indptr = np.concatenate(
            [[0], np.cumsum(np.bincount(dst[links], minlength=len(indptr) - 1))]
        )
        src = src[links]
    # METIS treats the seeds 0 and 1 alike, and takes no more than 31 bits.
    options = pymetis.Options(seed=2 + seed % (2**31 - 3))
    check_counts(len(indptr) - 1, len(src))
    adjacency = pymetis.CSRAdjacency(
        indptr.astype(np.int32, copy=False), src.astype(np.int32, copy=False)
    )
    return np.asarray(
        pymetis.part_graph(num_parts, adjacency, options=options).vertex_part, dtype=np.int64
    )


def fill_empty(part: np.ndarray, num_parts: int) -> np.ndarray:
    """Give each empty cluster a node of the largest one. `part` [num_nodes] is changed in place."""
    sizes = np.bincount(part, minlength=num_parts)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        part[np.flatnonzero(part == largest)[-1]] = empty
        sizes[largest] -= 1
    return part


def check_counts(num_nodes: int, num_edges: int) -> None:
    """Raise a ValueError if there are more nodes or edges than METIS can count."""
    if choose_dtype(num_nodes + 1, num_edges) != torch.int32:
        raise ValueError(
            f"METIS counts in int32, but the graph has {num_nodes:,} nodes and {num_edges:,} edges. "
            "Set partition=random."
        )

"""METIS: clusters of about equal size with few edges between them, kept in a cache."""

import logging
import time
from pathlib import Path

import numpy as np
import pymetis
import torch
from torch_geometric import EdgeIndex

from models.edges import choose_dtype
from pipeline.graph.partition import Partition, from_assignment, measure_partition, whole_partition
from pipeline.graph.structure import hash_structure
from pipeline.run import checkpoint

log = logging.getLogger(__name__)

CACHE_VERSION = f"{pymetis.version}-1"


def cut_with_metis(edge_index: EdgeIndex, num_parts: int, seed: int, cache: Path | None = None) -> Partition:
    """Cut an undirected graph (METIS crashes on others) into clusters of about equal size, few edges between them.

    No cluster is empty: METIS leaves some empty on tiny graphs, these get a node of the largest.

    Args:
        edge_index: edges sorted by destination; self-loops and duplicates are left out of what METIS sees.
        seed: any non-negative integer; different seeds give different partitions.
        cache: a folder to keep the result in, under the digest of the graph, `num_parts`, `seed` and METIS' version.
    """
    if num_parts == 1:
        return whole_partition(edge_index.get_sparse_size(1))

    def cut() -> dict:
        start = time.perf_counter()
        log.info("METIS: cutting %s nodes into %s clusters%s", f"{edge_index.get_sparse_size(1):,}", f"{num_parts:,}",
                 "" if cache is None else f", kept in {cache} for the next run")
        partition = from_assignment(_run_metis(edge_index, num_parts, seed), num_parts)
        log.info("METIS: %s", measure_partition(edge_index, partition, time.perf_counter() - start))
        return {"perm": partition.perm, "ptr": partition.ptr}

    if cache is None:
        return Partition(**cut())
    path = cache / f"metis-{hash_structure(edge_index)}-{num_parts}-{seed}-{CACHE_VERSION}.pt"
    return Partition(**checkpoint.keep(path, cut, again="cutting the graph again", mmap=False))


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
    check_counts(len(indptr) - 1, len(src))
    adjacency = pymetis.CSRAdjacency(indptr.astype(np.int32, copy=False), src.astype(np.int32, copy=False))
    part = np.asarray(pymetis.part_graph(num_parts, adjacency, options=options).vertex_part, dtype=np.int64)
    sizes = np.bincount(part, minlength=num_parts)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        part[np.flatnonzero(part == largest)[-1]] = empty
        sizes[largest] -= 1
    return part


def check_counts(num_nodes: int, num_edges: int) -> None:
    """Raise a ValueError if METIS cannot number as many nodes and edges."""
    if choose_dtype(num_nodes + 1, num_edges) != torch.int32:
        raise ValueError(f"METIS counts in int32, but the graph has {num_nodes:,} nodes and {num_edges:,} edges. "
                         f"Set partition=random.")

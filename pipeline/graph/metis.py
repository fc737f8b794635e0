"""METIS: clusters of about equal size with few edges between them, kept in a cache."""

import logging
import time
from pathlib import Path

import numpy as np
import pymetis
from torch_geometric import EdgeIndex

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
    path = None
    if cache is not None:
        key = f"{hash_structure(edge_index)}-{num_parts}-{seed}-{CACHE_VERSION}"
        path = cache / f"metis-{key}.pt"
        if path.exists():
            try:
                return Partition(**checkpoint.load(path))
            except ValueError as error:
                log.warning("%s; cutting the graph again", error)
    start = time.perf_counter()
    part = _run_metis(edge_index, num_parts, seed)
    partition = from_assignment(part, num_parts)
    log.info("METIS: %s", measure_partition(edge_index, partition, time.perf_counter() - start))
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
    return part

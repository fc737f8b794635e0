"""Code that all external partitioners share: the edges they see, a mend for empty clusters, and a cache of the cuts."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch_geometric import EdgeIndex

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


def cut_graph(
    edge_index: EdgeIndex,
    num_parts: int,
    seed: int,
    cache: Path | None,
    run: Callable[[EdgeIndex, int, int], np.ndarray],
    *,
    title: str,
    version: str,
) -> Partition:
    """Cut an undirected graph into non-empty clusters, or read the cut from a cache.

    Args:
        edge_index: edges sorted by destination.
        seed: any non-negative integer.
        cache: a folder to keep the result in, under the digest of the graph, `num_parts`, `seed` and `version`.
        run: computes the cluster of each node, [num_nodes], from the edges, `num_parts` and `seed`.
        title: name of the partitioner for the log and, in lower case, for the file.
        version: version of the partitioner, as another one may cut differently.
    """
    if num_parts == 1:
        return whole_partition(edge_index.get_sparse_size(1))

    def cut() -> dict:
        start = time.perf_counter()
        log.info(
            "%s: cutting %s into %s%s",
            title,
            count(edge_index.get_sparse_size(1), "node"),
            count(num_parts, "cluster"),
            "" if cache is None else f", kept in {cache} for later runs",
        )
        partition = from_assignment(
            fill_empty(run(edge_index, num_parts, seed), num_parts), num_parts
        )
        log.info(
            "%s: %s", title, measure_partition(edge_index, partition, time.perf_counter() - start)
        )
        return {"perm": partition.perm, "ptr": partition.ptr}

    if cache is None:
        return Partition(**cut())

    def check(path: Path, kept: dict) -> None:
        check_order(path, "perm", kept["perm"], edge_index.get_sparse_size(1), "node")
        check_ends(path, "ptr", kept["ptr"], edge_index.get_sparse_size(1), "nodes")

    path = cache / f"{title.lower()}-{hash_structure(edge_index)}-{num_parts}-{seed}-{version}.pt"
    return Partition(
        **checkpoint.keep(path, cut, again="cutting the graph again", mmap=False, check=check)
    )


def find_links(src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Find the edges that are neither self-loops nor duplicates, among edges sorted by destination, then source.

    Returns:
        [num_edges], bool.
    """
    links = src != dst
    links[1:] &= (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    return links


def fill_empty(part: np.ndarray, num_parts: int) -> np.ndarray:
    """Give each empty cluster a node of the largest one. `part` [num_nodes] is changed in place."""
    sizes = np.bincount(part, minlength=num_parts)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        part[np.flatnonzero(part == largest)[-1]] = empty
        sizes[largest] -= 1
    return part

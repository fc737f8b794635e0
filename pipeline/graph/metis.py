"""Cuts graphs with METIS into clusters of about equal size with few edges between them."""

from pathlib import Path

import numpy as np
import pymetis
import torch
from torch_geometric import EdgeIndex

from parallel_epochs.models.edge_index import choose_dtype
from parallel_epochs.pipeline.graph.cut import cut_graph, find_links
from parallel_epochs.pipeline.graph.partition import Partition

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
    return cut_graph(
        edge_index, num_parts, seed, cache, _run_metis, title="METIS", version=CACHE_VERSION
    )


def _run_metis(edge_index: EdgeIndex, num_parts: int, seed: int) -> np.ndarray:
    (indptr, src), _ = edge_index.get_csc()
    indptr, src = indptr.numpy(), src.numpy()
    dst = edge_index.as_tensor()[1].numpy()
    keep = find_links(src, dst)
    if not keep.all():
        indptr = np.concatenate([[0], np.cumsum(np.bincount(dst[keep], minlength=len(indptr) - 1))])
        src = src[keep]
    # METIS treats the seeds 0 and 1 alike, and takes no more than 31 bits.
    options = pymetis.Options(seed=2 + seed % (2**31 - 3))
    check_counts(len(indptr) - 1, len(src))
    adjacency = pymetis.CSRAdjacency(
        indptr.astype(np.int32, copy=False), src.astype(np.int32, copy=False)
    )
    return np.asarray(
        pymetis.part_graph(num_parts, adjacency, options=options).vertex_part, dtype=np.int64
    )


def check_counts(num_nodes: int, num_edges: int) -> None:
    """Raise a ValueError if there are more nodes or edges than METIS can count."""
    if choose_dtype(num_nodes + 1, num_edges) != torch.int32:
        raise ValueError(
            f"METIS counts in int32, but the graph has {num_nodes:,} nodes and {num_edges:,} edges. "
            f"Set partition=random or partition=kaminpar."
        )

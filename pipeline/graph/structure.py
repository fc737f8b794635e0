"""Inspects a graph's edges (directed ones, self-loops, duplicates), computes their digest, and sorts them both ways."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import choose_dtype, fill_csr, from_csc
from parallel_epochs.models.kernels.hash import GOLDEN, mix
from parallel_epochs.pipeline.graph.edges import transpose
from parallel_epochs.pipeline.graph.ranges import (
    check_edges,
    check_ends,
    check_numbers,
    check_order,
)
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.words import count

# Edges that are hashed at a time.
HASHED = 2**20


@dataclass
class Structure:
    """Irregularities of a graph's edges, all counted over directed edges."""

    num_nodes: int
    num_edges: int
    num_without_reverse: int
    num_self_loops: int
    num_duplicates: int
    num_isolated: int

    @property
    def is_undirected(self) -> bool:
        return self.num_without_reverse == 0

    def __str__(self) -> str:
        return self.describe()

    def describe(self, *, several_relations: bool = False) -> str:
        """Say what the graph is like; with several relations, edges between the same nodes are no duplicates."""
        without = self.num_without_reverse
        kind = (
            f"directed ({count(without, 'edge has', 'edges have')} no reverse)"
            if without
            else "undirected (every edge has its reverse)"
        )
        return ", ".join(
            [
                kind,
                count(self.num_nodes, "node"),
                count(self.num_edges, "directed edge"),
                count(self.num_self_loops, "self-loop"),
                count(self.num_duplicates, "parallel edge" if several_relations else "duplicate"),
                count(self.num_isolated, "isolated node"),
            ]
        )


def inspect(edge_index: EdgeIndex) -> Structure:
    """Inspect edges sorted by destination, then source, as :func:`pipeline.graph.edges.sort_edges` gives them."""
    (indptr, src), _ = edge_index.get_csc()
    num_nodes, num_edges = indptr.numel() - 1, src.numel()
    dst = edge_index.as_tensor()[1]
    same = (src[1:] == src[:-1]) & (dst[1:] == dst[:-1])
    loops = src == dst
    degree = indptr.diff().clone()
    degree.index_add_(0, src, torch.ones_like(src).to(degree.dtype))
    isolated = degree == 0
    if loops.any():
        # A node whose only edges are its own self-loops has no neighbour either.
        own = torch.zeros_like(degree).index_add_(
            0, src[loops], torch.ones_like(src[loops]).to(degree.dtype)
        )
        isolated |= degree == 2 * own
    transposed = sp.csr_array(
        (np.zeros(num_edges, np.int8), src.numpy(), indptr.numpy()), shape=(num_nodes, num_nodes)
    ).tocsc()
    mirrored = np.array_equal(transposed.indptr, indptr.numpy()) and np.array_equal(
        transposed.indices, src.numpy()
    )
    without = 0
    if not mirrored:
        key = dst.long() * num_nodes + src
        reverse = src.long() * num_nodes + dst
        found = torch.searchsorted(key, reverse).clamp(max=num_edges - 1)
        without = int((key[found] != reverse).sum())
        # Duplicates whose numbers differ by direction leave no edge without a reverse: that is undirected as well.
    return Structure(
        num_nodes, num_edges, without, int(loops.sum()), int(same.sum()), int(isolated.sum())
    )


def structure_of(data: Data) -> Structure | None:
    """Inspect the edges of a graph; of one on disk return what its store says of them, or None if that is nothing."""
    if "structure" in data:
        return Structure(**data.structure)
    # To count those on a disk needs memory for several numbers of each edge.
    return None if data.on_disk else inspect(data.edge_index)


def describe_edges(data: Data, *, several_relations: bool = False) -> str:
    """Say how large a graph is, and whether it is directed."""
    if (found := structure_of(data)) is None:
        return (
            f"{count(data.num_nodes, 'node')}, {count(data.num_edges, 'directed edge')}; its store does not say "
            "whether every edge has its reverse"
        )
    return found.describe(several_relations=several_relations)


def draw_lots(edge_index: EdgeIndex, key: int) -> Tensor:
    """Draw a number for each edge, the same for both ways round of a link and for its duplicates.

    Args:
        key: 64 bits, of which every number is a hash.

    Returns:
        Even in [0, 1), [num_edges], float32.
    """
    src, dst = edge_index.as_tensor().numpy()
    lots = np.empty(len(src), np.float32)
    for first in range(0, len(src), HASHED):
        ends = np.stack([part[first : first + HASHED] for part in (src, dst)]).astype(np.uint64)
        ends.sort(axis=0)
        bits = mix(mix(ends[0] + np.uint64(key) + GOLDEN) + ends[1] + GOLDEN)
        lots[first : first + HASHED] = (bits >> np.uint64(40)).astype(np.float32) * np.float32(
            2**-24
        )
    return torch.from_numpy(lots)


def hash_structure(edge_index: EdgeIndex) -> str:
    """Compute a digest of edges sorted by destination: equal graphs, equal digests."""
    (indptr, src), _ = edge_index.get_csc()
    digest = hashlib.blake2b(digest_size=16)
    dtype = np.int32 if choose_dtype(indptr.numel(), src.numel()) == torch.int32 else np.int64
    for array in (indptr, src):
        digest.update(array.numpy().astype(dtype, copy=False))
    return digest.hexdigest()


def keep_both_orders(edge_index: EdgeIndex, cache: Path | None = None) -> EdgeIndex:
    """Return edges sorted by destination as int64 with CSC and CSR filled, which any PyG layer takes.

    Args:
        cache: a folder to keep them in, under the digest of the graph; processes share the memory of the file.
    """

    def build() -> dict:
        (indptr, _), _ = edge_index.get_csc()
        both = transpose(from_csc(edge_index.as_tensor().long(), indptr))
        (rowptr, dst), perm = both.get_csr()
        return {
            "edges": both.as_tensor(),
            "indptr": indptr.long(),
            "perm": perm,
            "rowptr": rowptr,
            "dst": dst,
            "src": both.as_tensor()[0].index_select(0, perm),
        }

    def check(path: Path, kept: dict) -> None:
        num_nodes, num_edges = check_edges(path, kept), edge_index.size(1)
        check_ends(path, "rowptr", kept["rowptr"], num_edges, "edges")
        check_order(path, "perm", kept["perm"], num_edges, "edge")
        for name in ("src", "dst"):
            check_numbers(path, name, kept[name], num_nodes, "node")

    if cache is None:
        kept = build()
    else:
        kept = checkpoint.keep(
            cache / f"whole-{hash_structure(edge_index)}.pt",
            build,
            again="sorting the edges again",
            check=check,
        )
    return fill_csr(
        from_csc(kept["edges"], kept["indptr"]),
        perm=kept["perm"],
        src=kept["src"],
        dst=kept["dst"],
        rowptr=kept["rowptr"],
    )

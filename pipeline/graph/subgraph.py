"""The subgraph that some nodes induce: one pass over their rows, in C++ where it compiles, by torch elsewhere."""

import ctypes
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import choose_dtype, fill_csr, from_csc
from parallel_epochs.models.kernels.native import NativeLibrary, pointer
from parallel_epochs.pipeline.graph.edges import expand_ranges, transpose

LIBRARY = NativeLibrary(
    "induced subgraph", Path(__file__).with_name("subgraph.cpp"), otherwise="torch selects instead"
)
NODE_KEYS = ("x", "y", "train_mask", "valid_mask", "test_mask")
# Edges that torch looks at together: with some 40 bytes for each.
BLOCK_EDGES = 1 << 24
GRAPH_KEYS = ("metric", "num_categories", "out_channels", "content_hash")


def induced_subgraph(
    data: Data, nodes: Int[Tensor, " num_selected"], *, dtype: torch.dtype = torch.int32
) -> Data:
    """Build the subgraph of some nodes, numbered in the order given; ``n_id`` holds their numbers in `data`.

    Only the rows of `nodes` are read, so that all clusters of a partition together cost one pass over the edges.

    Args:
        nodes: distinct node numbers, [num_selected], int64.
        dtype: of the new ``edge_index``, int32 (where it holds the numbers of all edges) with the CSC filled, or int64
            with CSC and CSR filled.
    """
    if can_run(data.edge_index):
        edge_index, position = induce(data.edge_index, nodes)
    else:
        edge_index, position = induce_with_torch(data.edge_index, nodes)
    if dtype != edge_index.dtype and dtype == choose_dtype(len(nodes), edge_index.size(1)):
        edge_index = from_csc(edge_index.as_tensor().to(dtype), edge_index.get_csc()[0][0])
    return attach(data, edge_index, nodes, position)


def attach(
    data: Data,
    edge_index: EdgeIndex,
    nodes: Int[Tensor, " num_selected"],
    position: Int[Tensor, " num_kept"],
) -> Data:
    """Build a part of a graph: some edges between some nodes, with what `data` knows of them.

    Args:
        edge_index: the edges, between nodes numbered in the order given.
        nodes: their numbers in `data`, int64; they become ``n_id``.
        position: of the edges in `data`, integers.
    """
    out = Data(edge_index=edge_index, num_nodes=len(nodes))
    if data.edge_attr is not None:
        out.edge_attr = data["edge_attr"].index_select(0, position)
    return attach_nodes(out, data, nodes)


def attach_nodes(batch: Data, data: Data, nodes: Tensor, x: Tensor | None = None) -> Data:
    """Give a subgraph what a graph knows of its nodes.

    Args:
        nodes: their numbers in `data`, which become ``n_id``.
        x: their features, where these are at hand.
    """
    batch.n_id = nodes
    for key in NODE_KEYS:
        if key == "x" and x is not None:
            batch.x = x
        elif data.get(key) is not None:
            batch[key] = data[key].index_select(0, nodes)
    for key in GRAPH_KEYS:
        if key in data:
            batch[key] = data[key]
    return batch


def induce_sorted(
    src: np.ndarray, dst: np.ndarray, edge_attr: np.ndarray | None, order: Int[Tensor, " num_nodes"]
) -> Data:
    """Build a graph of edges that are sorted by destination, and number its nodes anew.

    Args:
        src, dst: numbers of nodes [num_edges], int32.
        edge_attr: [num_edges, edge_dim] or none.
        order: every node once: their numbers in the new order, int64.

    Returns:
        What :func:`induced_subgraph` makes of it, with an int64 ``EdgeIndex``.
    """
    ptr = np.zeros(len(order) + 1, np.int32)
    np.cumsum(np.bincount(dst, minlength=len(order)), out=ptr[1:])
    graph = Data(
        edge_index=from_csc(torch.from_numpy(np.stack([src, dst])), torch.from_numpy(ptr)),
        num_nodes=len(order),
        edge_attr=None if edge_attr is None else torch.from_numpy(edge_attr),
    )
    return induced_subgraph(graph, order, dtype=torch.int64)


def induce_with_torch(
    edge_index: EdgeIndex, nodes: Tensor, *, block_edges: int = BLOCK_EDGES
) -> tuple[EdgeIndex, Tensor]:
    """Do what :func:`induce` does with torch's operations: without a compiler, and for int64 as well.

    Args:
        block_edges: edges that are looked at together. A node's edges stay together.
    """
    (indptr, src), _ = edge_index.get_csc()
    local = torch.full((indptr.numel() - 1,), -1)
    local[nodes] = torch.arange(len(nodes))
    first = indptr[nodes].long()
    degree = indptr[nodes + 1].long() - first
    parts = [torch.empty(3, 0, dtype=torch.int64)]
    for begin, end in pairwise(_cut_rows(degree, block_edges)):
        position, row = expand_ranges(first[begin:end], degree[begin:end])
        neighbour = local[src[position]]
        kept = (neighbour >= 0).nonzero().squeeze(1)
        parts.append(torch.stack([neighbour[kept], row[kept] + begin, position[kept]]))
    edges = torch.cat(parts, dim=1)
    ptr = torch.searchsorted(edges[1].contiguous(), torch.arange(len(nodes) + 1))
    return transpose(from_csc(edges[:2], ptr)), edges[2]


def _cut_rows(sizes: Int[Tensor, " num_rows"], most: int) -> list[int]:
    """Cut rows into blocks of about `most` entries; return the first row of each, and the end."""
    ends = sizes.cumsum(0)
    num_blocks = -(-int(ends[-1]) // most) if len(ends) else 0
    if num_blocks < 2:
        return [0, len(sizes)]
    shares = torch.arange(1, num_blocks) * most
    return [0, *torch.searchsorted(ends, shares).tolist(), len(sizes)]


def can_run(edge_index: EdgeIndex) -> bool:
    """Tell whether :func:`induce` takes this graph: int32, on a machine with a compiler."""
    return edge_index.dtype == torch.int32 and LIBRARY.get() is not None


def induce(
    edge_index: EdgeIndex, nodes: Int[Tensor, " num_selected"]
) -> tuple[EdgeIndex, Int[Tensor, " num_kept"]]:
    """Select the edges between some nodes, numbered in the order given.

    Args:
        edge_index: edges sorted by destination, int32.
        nodes: distinct node numbers, [num_selected], int64.

    Returns:
        An int64 ``EdgeIndex`` sorted by destination, CSC and CSR filled, and the positions of its edges in
        `edge_index`, int64. Edges of a destination keep their order.
    """
    library, threads = LIBRARY.require("subgraphs are taken"), torch.get_num_threads()
    library.subgraph_select.restype = ctypes.c_void_p
    (indptr, src), _ = edge_index.get_csc()
    indptr, src, nodes = indptr.contiguous(), src.contiguous(), nodes.contiguous()
    num_nodes, num_edges = nodes.numel(), ctypes.c_int64()
    selected = ctypes.c_void_p(
        library.subgraph_select(
            pointer(indptr),
            pointer(src),
            ctypes.c_int64(indptr.numel() - 1),
            pointer(nodes),
            ctypes.c_int64(num_nodes),
            threads,
            ctypes.byref(num_edges),
        )
    )
    if not selected:
        raise MemoryError(f"no memory for the subgraph of {num_nodes:,} nodes")
    try:
        edges = torch.empty(2, num_edges.value, dtype=torch.int64)
        transposed = torch.empty(2, num_edges.value, dtype=torch.int64)
        position, perm = torch.empty(2, num_edges.value, dtype=torch.int64)
        ptr, rowptr = torch.empty(2, num_nodes + 1, dtype=torch.int64)
        library.subgraph_write(
            selected,
            threads,
            *map(
                pointer,
                (edges[0], edges[1], ptr, position, transposed[0], transposed[1], rowptr, perm),
            ),
        )
    finally:
        library.subgraph_free(selected)
    out = from_csc(edges, ptr)
    return fill_csr(out, perm=perm, src=transposed[0], dst=transposed[1], rowptr=rowptr), position

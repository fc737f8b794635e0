"""Edges sorted by destination: sorting, matrices without copies, weights, and the transpose."""

import logging

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.models.edge_index import choose_dtype, fill_csr, from_csc

log = logging.getLogger(__name__)

# The inverse of a sum of such weights still fits into float32.
SMALLEST_WEIGHT = 1e-30


def counting_sort(keys: np.ndarray, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort integers below `num_keys` in linear time, keeping the order of equal ones.

    Returns:
        perm: positions in `keys`, sorted by key, [len(keys)].
        ptr: the positions with key i are perm[ptr[i]:ptr[i + 1]], [num_keys + 1].
    """
    n = len(keys)
    index_dtype = np.int32 if choose_dtype(n, num_keys) == torch.int32 else np.int64
    one_per_row = sp.csr_array(
        (
            np.zeros(n, np.int8),
            keys.astype(index_dtype, copy=False),
            np.arange(n + 1, dtype=index_dtype),
        ),
        shape=(n, num_keys),
    )
    by_column = one_per_row.tocsc()
    return by_column.indices, by_column.indptr


def sort_edges(
    edge_index: Int[Tensor, "2 num_edges"], num_nodes: int
) -> tuple[EdgeIndex, Int[Tensor, " num_edges"]]:
    """Sort edges by destination, then source.

    Args:
        edge_index: [2, num_edges], integers in [0, num_nodes).

    Returns:
        An ``EdgeIndex``, int32 below 2**31 nodes and edges, sorted by column with its CSC filled, and the positions of
        its edges in `edge_index`.
    """
    src, dst = edge_index.numpy()
    by_src, _ = counting_sort(src, num_nodes)
    by_dst, ptr = counting_sort(dst[by_src], num_nodes)
    perm = torch.from_numpy(by_src[by_dst])
    # int32 halves the memory, as long as both nodes and the pointers to edges fit.
    dtype = choose_dtype(num_nodes, edge_index.size(1))
    out = torch.empty(2, edge_index.size(1), dtype=dtype)
    for row in (0, 1):
        out[row] = edge_index[row].index_select(0, perm)
    return from_csc(out, torch.from_numpy(ptr)), perm


def with_reverse(edge_index: Int[Tensor, "2 num_edges"], num_nodes: int) -> EdgeIndex:
    """Add the missing reverse of every edge, and leave out duplicates, in linear time.

    Returns:
        Edges sorted by destination, then source, as of :func:`sort_edges`.
    """
    dtype = np.int32 if choose_dtype(num_nodes, 2 * edge_index.size(1)) == torch.int32 else np.int64
    src, dst = (part.astype(dtype, copy=False) for part in edge_index.numpy())
    there = sp.coo_array(
        (np.ones(len(src), bool), (dst, src)), shape=(num_nodes, num_nodes)
    ).tocsr()
    both = there + there.T
    indptr = torch.from_numpy(both.indptr)
    out = torch.empty(2, both.nnz, dtype=choose_dtype(num_nodes, both.nnz))
    out[0] = torch.from_numpy(both.indices)
    out[1] = torch.repeat_interleave(
        torch.arange(num_nodes, dtype=out.dtype), indptr.diff(), output_size=both.nnz
    )
    return from_csc(out, indptr)


def adjacency(edge_index: EdgeIndex) -> sp.csr_array:
    """View the sources of every destination as a scipy matrix without copies; its data are the edges' positions."""
    (indptr, src), _ = edge_index.get_csc()
    num_nodes = indptr.numel() - 1
    positions = np.arange(src.numel(), dtype=src.numpy().dtype)
    return sp.csr_array((positions, src.numpy(), indptr.numpy()), shape=(num_nodes, num_nodes))


def choose_weight(edge_attr: Tensor | None) -> Tensor | None:
    """Take the features of edges for their weights, if they are one number each and none is negative [num_edges]."""
    if edge_attr is None:
        return None
    if edge_attr.size(1) > 1 or bool((edge_attr < 0).any()):
        log.info(
            "edge features are not used as weights: weights are one column of numbers of at least 0, but "
            "edge_attr has %s",
            f"{edge_attr.size(1)} columns" if edge_attr.size(1) > 1 else "negative numbers",
        )
        return None
    return edge_attr[:, 0].contiguous()


def check_weight(edge_attr: Tensor | None, origin: str) -> None:
    """Refuse negative edge weights, and those that float32 cannot add up: walks, spectral factors and layouts divide
    by their sums.

    Raises:
        ValueError: names the dataset and the weight.
    """
    if edge_attr is None or edge_attr.size(1) > 1 or not edge_attr.numel():
        return
    low, high = (float(bound) for bound in torch.aminmax(edge_attr))
    if low < 0:
        edge = int((edge_attr[:, 0] < 0).nonzero()[0])
        raise ValueError(
            f"{origin}: edge {edge:,} of the prepared graph has the weight {float(edge_attr[edge, 0]):g}; "
            "weights must not be negative. Leave them out to learn from the edges alone"
        )
    most = torch.finfo(torch.float32).max / len(edge_attr)
    if not SMALLEST_WEIGHT <= high <= most:
        raise ValueError(
            f"{origin}: the largest weight of an edge is {high:g}, and float32 adds up {len(edge_attr):,} "
            f"weights if the largest is between {SMALLEST_WEIGHT:g} and {most:.0e}: scale all weights, or "
            "leave them out"
        )


def weight_matrix(edge_index: EdgeIndex, weight: Tensor | None) -> sp.csr_array:
    """View the weights of the edges, 1 if there are none, as a scipy matrix; rows are destinations."""
    edges = adjacency(edge_index)
    values = np.ones(edges.nnz, np.float32) if weight is None else weight.numpy()
    return sp.csr_array((values, edges.indices, edges.indptr), shape=edges.shape)


def expand_ranges(
    first: Int[Tensor, " num_ranges"], sizes: Int[Tensor, " num_ranges"]
) -> tuple[Int[Tensor, " total"], Int[Tensor, " total"]]:
    """Return all numbers of some ranges, one range after the other, and the range of each number.

    Args:
        first: where each range begins, int64.
        sizes: how many numbers it has, int64.
    """
    ends = sizes.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes, output_size=total)
    return (first - ends + sizes)[owner] + torch.arange(total), owner


def transpose(edge_index: EdgeIndex) -> EdgeIndex:
    """Fill the CSR of an ``EdgeIndex`` sorted by destination, in linear time."""
    matrix = adjacency(edge_index).tocsc()
    dtype, num_nodes = edge_index.dtype, matrix.shape[0]
    rowptr, dst = (
        torch.from_numpy(matrix.indptr).to(dtype),
        torch.from_numpy(matrix.indices).to(dtype),
    )
    src = torch.repeat_interleave(
        torch.arange(num_nodes, dtype=dtype), rowptr.diff(), output_size=dst.numel()
    )
    return fill_csr(
        edge_index, perm=torch.from_numpy(matrix.data).to(dtype), src=src, dst=dst, rowptr=rowptr
    )

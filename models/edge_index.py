"""Edges in both sorted orders. No other file touches the private fields of PyG's ``EdgeIndex``.

PyG sorts edges when a sorted order is asked for. These functions store an order that is known already.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor

# The smallest integer that does not fit into int32.
INT32_END = 2**31


def choose_dtype(*counts: int) -> torch.dtype:
    """Choose the dtype for numbers of nodes and edges up to these counts: int32 if they fit, else int64."""
    return torch.int32 if max(counts) < INT32_END else torch.int64


def check_int32(edge_index: Tensor, *num_nodes: int) -> None:
    """Raise a ValueError if edges [2, num_edges] are int32 but there are too many edges or nodes for int32."""
    counts = edge_index.size(1), *num_nodes
    if edge_index.dtype == torch.int32 and choose_dtype(*counts) != torch.int32:
        raise ValueError(
            f"edge_index is int32, which cannot count to {max(counts):,}, the number of edges or nodes: "
            f"make it int64"
        )


def check_edges(edge_index: Tensor) -> None:
    """Raise a ValueError unless a tensor is int32 or int64 [2, num_edges]."""
    is_integer = edge_index.dtype in (torch.int32, torch.int64)
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or not is_integer:
        raise ValueError(
            f"edge_index is {edge_index.dtype} of shape {tuple(edge_index.shape)}, but must be int32 or "
            f"int64 [2, num_edges]"
        )


def plain_edges(edge_index: Tensor) -> Tensor:
    """Return a tensor as a plain one: edges without the caches of an ``EdgeIndex``, whatever their shape and type."""
    return edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index


def for_pyg(edge_index: Tensor | SparseTensor) -> Tensor | SparseTensor:
    """Return edges as PyG's own layers need them: int64, with the sorted orders that they have.

    Some layers reduce the segments of an ``EdgeIndex``, and torch_scatter, where it is installed, takes no other
    integers for their pointers. Sparse tensors are returned as they are.
    """
    is_dense = isinstance(edge_index, Tensor) and edge_index.layout == torch.strided
    return edge_index.long() if is_dense and edge_index.dtype == torch.int32 else edge_index


def from_csc(
    edge_index: Int[Tensor, "2 num_edges"],
    indptr: Int[Tensor, " num_dst_plus_1"],
    *,
    num_src: int | None = None,
) -> EdgeIndex:
    """Make an ``EdgeIndex`` of edges that are sorted by destination.

    Args:
        edge_index: sources and destinations [2, num_edges], sorted by destination.
        indptr: where each destination's edges begin [num_dst + 1]; cast to `edge_index`'s dtype.
        num_src: number of source nodes. None: as many as destinations.

    Returns:
        The edges with their CSC filled.

    Raises:
        ValueError: `edge_index` is int32, but there are 2**31 or more edges or nodes.
    """
    num_dst = indptr.numel() - 1
    check_int32(edge_index, num_dst, num_src or 0)
    out = EdgeIndex(
        edge_index, sparse_size=(num_dst if num_src is None else num_src, num_dst), sort_order="col"
    )
    out._indptr = indptr.to(edge_index.dtype)
    return out


def fill_csr(
    edge_index: EdgeIndex,
    *,
    perm: Int[Tensor, " num_edges"],
    src: Int[Tensor, " num_edges"],
    dst: Int[Tensor, " num_edges"],
    rowptr: Int[Tensor, " num_src_plus_1"],
) -> EdgeIndex:
    """Fill the CSR of an ``EdgeIndex`` that is sorted by destination, in place.

    Args:
        edge_index: the edges, sorted by destination.
        perm: positions in `edge_index` of the edges sorted by source [num_edges].
        src: sources in that order [num_edges].
        dst: destinations in that order [num_edges].
        rowptr: where each source's edges begin in that order [num_src + 1].

    Returns:
        `edge_index` itself.
    """
    edge_index._T_perm, edge_index._T_index, edge_index._T_indptr = perm, (src, dst), rowptr
    return edge_index


def keep_edges(edge_index: Int[Tensor, "2 num_edges"], kept: Bool[Tensor, " num_edges"]) -> Tensor:
    """Return some of the edges, in their order. An ``EdgeIndex`` keeps its sorted orders, and nothing is sorted again.

    Args:
        edge_index: [2, num_edges], a tensor or an ``EdgeIndex``.
        kept: whether an edge is kept [num_edges].
    """
    if not isinstance(edge_index, EdgeIndex):
        return edge_index[:, kept]
    left = edge_index.as_tensor()[:, kept]
    num_src, num_dst = edge_index.get_sparse_size()
    if not edge_index.is_sorted_by_col:
        return EdgeIndex(left, sparse_size=(num_src, num_dst), sort_order=edge_index.sort_order)
    out = from_csc(left, _count(kept)[edge_index.get_csc()[0][0].long()], num_src=num_src)
    if edge_index._T_perm is None or edge_index._T_indptr is None or edge_index._T_index[0] is None:
        return out
    # The same choice among the edges sorted by source.
    by_source = edge_index._T_perm.long()
    kept_by_source = kept[by_source]
    src, dst = (nodes[kept_by_source] for nodes in edge_index._T_index)
    return fill_csr(
        out,
        perm=_count(kept)[by_source[kept_by_source]].to(left.dtype),
        src=src,
        dst=dst,
        rowptr=_count(kept_by_source)[edge_index._T_indptr.long()].to(left.dtype),
    )


def flip(edge_index: Int[Tensor, "2 num_edges"]) -> Tensor:
    """Turn every edge round, in the order of the edges. An ``EdgeIndex`` keeps its sorted orders.

    PyG 2.8 exchanges the pointers of the two orders when it flips an ``EdgeIndex``, and then returns wrong neighbours.
    """
    if not isinstance(edge_index, EdgeIndex):
        return edge_index.flip(0)
    num_src, num_dst = edge_index.get_sparse_size()
    order = "row" if edge_index.is_sorted_by_col else "col" if edge_index.is_sorted_by_row else None
    out = EdgeIndex(
        edge_index.as_tensor().flip(0), sparse_size=(num_dst, num_src), sort_order=order
    )
    out._indptr, out._T_perm, out._T_indptr = (
        edge_index._indptr,
        edge_index._T_perm,
        edge_index._T_indptr,
    )
    out._T_index = edge_index._T_index[::-1]
    return out


def _count(kept: Tensor) -> Tensor:
    """Count the edges that are kept in front of each edge [num_edges + 1]."""
    return torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.cumsum(0)])


def expand(ptr: Tensor) -> Tensor:
    """Return the row of each entry."""
    return torch.arange(ptr.numel() - 1, dtype=ptr.dtype, device=ptr.device).repeat_interleave(
        ptr.diff()
    )


def compress(edge_index: EdgeIndex, *, by: str) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
    """Return the CSC (`by` "col") or the CSR (`by` "row") of a sorted ``EdgeIndex``, as PyG does; torch.compile too.

    Returns:
        The pointers [num_nodes + 1] with the nodes at the other ends [num_edges], and the positions in `edge_index` of
        the edges in that order, or none if they are in that order.

    Raises:
        IndexError: an edge has an end that is not in the graph.
    """
    check_int32(edge_index)
    in_order = edge_index.is_sorted_by_col if by == "col" else edge_index.is_sorted_by_row
    if torch.compiler.is_compiling():
        # PyG 2.8 hands a filled transpose to the compiler without its nodes, and then fails on that.
        if not in_order and edge_index._T_perm is not None and edge_index._T_indptr is not None:
            perm = edge_index._T_perm
            return (
                edge_index._T_indptr,
                edge_index.as_tensor()[1 if by == "row" else 0].index_select(0, perm),
            ), perm
    elif (edge_index._indptr if in_order else edge_index._T_indptr) is None:
        _check_ends(edge_index, 1 if by == "col" else 0)
    return edge_index.get_csc() if by == "col" else edge_index.get_csr()


def _check_ends(edge_index: EdgeIndex, side: int) -> None:
    """Refuse ends of edges for which there is no pointer: PyG would write the pointers out of bounds."""
    ends, num_nodes = edge_index.as_tensor()[side], edge_index.sparse_size(side)
    if num_nodes is None or ends.numel() == 0:  # PyG counts the nodes
        return
    least, greatest = ends.aminmax()
    check_range(side, int(least), int(greatest), num_nodes)


def check_range(side: int, least: int, greatest: int, num_nodes: int) -> None:
    """Raise an IndexError if ends of edges, from the least to the greatest, are not among this number of nodes."""
    if least < 0 or greatest >= num_nodes:
        raise IndexError(
            f"edge_index[{side}] has values from {least} to {greatest}, but there are {num_nodes} such "
            "nodes"
        )


def pad(indptr: Tensor, num_nodes: int, side: str) -> Tensor:
    """Append nodes without edges to pointers [n + 1], so that there are `num_nodes`; `side` names them in errors.

    Raises:
        ValueError: there are more already.
    """
    missing = num_nodes + 1 - indptr.numel()
    if missing < 0:
        raise ValueError(
            f"the EdgeIndex has {indptr.numel() - 1} {side} nodes, but there are only {num_nodes}; "
            f"build it with sparse_size=(num_src, num_dst)"
        )
    return indptr if missing == 0 else torch.cat([indptr, indptr[-1:].expand(missing)])


def cut_into_blocks(
    indptr: Tensor, max_edges: int, max_rows: int | None = None
) -> list[tuple[int, int]]:
    """Cut the rows into ranges of at most `max_rows` rows and `max_edges` edges; a larger row is a range of its own."""
    indptr = indptr.cpu()
    blocks, first, num_rows = [], 0, indptr.numel() - 1
    while first < num_rows:
        limit = min(
            int(indptr[first]) + max_edges, int(indptr[-1])
        )  # fits into the pointers' dtype
        last = int(torch.searchsorted(indptr, indptr.new_tensor(limit), right=True)) - 1
        last = min(max(last, first + 1), num_rows, first + (max_rows or num_rows))
        blocks.append((first, last))
        first = last
    return blocks

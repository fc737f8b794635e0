"""The induced subgraph in C++: one pass over the rows of the nodes, both orders of the edges at once."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from models.kernels.native import NativeLibrary

LIBRARY = NativeLibrary("induced subgraph", Path(__file__).with_name("subgraph.cpp"), otherwise="scipy selects instead")


def can_run(edge_index: EdgeIndex) -> bool:
    """Whether :func:`induce` takes this graph: int32, on a machine with a compiler."""
    return edge_index.dtype == torch.int32 and edge_index.device.type == "cpu" and LIBRARY.get() is not None


def induce(edge_index: EdgeIndex, nodes: Tensor) -> tuple[EdgeIndex, Tensor]:
    """The edges between some nodes, numbered in the order given.

    Args:
        edge_index: edges sorted by destination, int32.
        nodes: distinct node numbers, [num_selected], int64.

    Returns:
        An int64 ``EdgeIndex`` sorted by destination, CSC and CSR filled, and the positions of its edges in
        `edge_index`, int64. Edges of a destination keep their order.
    """
    library, threads = LIBRARY.get(), torch.get_num_threads()
    library.subgraph_select.restype = ctypes.c_void_p
    (indptr, src), _ = edge_index.get_csc()
    indptr, src, nodes = indptr.contiguous(), src.contiguous(), nodes.contiguous()
    num_nodes, num_edges = nodes.numel(), ctypes.c_int64()
    selected = ctypes.c_void_p(library.subgraph_select(
        _pointer(indptr), _pointer(src), ctypes.c_int64(indptr.numel() - 1), _pointer(nodes), ctypes.c_int64(num_nodes),
        threads, ctypes.byref(num_edges)))
    if not selected:
        raise MemoryError(f"no memory for the subgraph of {num_nodes:,} nodes")
    try:
        edges = torch.empty(2, num_edges.value, dtype=torch.int64)
        transposed = torch.empty(2, num_edges.value, dtype=torch.int64)
        position, perm = torch.empty(2, num_edges.value, dtype=torch.int64)
        ptr, rowptr = torch.empty(2, num_nodes + 1, dtype=torch.int64)
        library.subgraph_write(selected, threads, *map(_pointer, (
            edges[0], edges[1], ptr, position, transposed[0], transposed[1], rowptr, perm)))
    finally:
        library.subgraph_free(selected)
    out = EdgeIndex(edges, sparse_size=(num_nodes, num_nodes), sort_order="col")
    out._indptr = ptr
    out._T_perm, out._T_index, out._T_indptr = perm, (transposed[0], transposed[1]), rowptr
    return out, position


def gather(values: Tensor, rows: Tensor) -> Tensor:
    """``values[rows]`` for a contiguous matrix on the CPU and rows of int64, all in range."""
    assert values.is_contiguous() and values.dim() == 2 and rows.dtype == torch.int64
    out = values.new_empty(rows.numel(), values.size(1))
    LIBRARY.get().gather_rows(
        _pointer(values), _pointer(rows), ctypes.c_int64(rows.numel()),
        ctypes.c_int64(values.size(1) * values.element_size()), _pointer(out), torch.get_num_threads())
    return out


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())

"""Sorting of plain edge lists as one torch custom operator, and checksums that tell whether one was changed."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from parallel_epochs.models.kernels.native import NativeLibrary, pointer
from parallel_epochs.models.kernels.operator import operator

LIBRARY = NativeLibrary(
    "edge sorting",
    Path(__file__).with_name("sorting.cpp"),
    otherwise="layers run in plain torch instead",
)


def _allocate(edge_index, num_src, num_dst):
    num_edges = edge_index.size(1)
    sizes = (num_dst + 1, num_edges, num_edges, num_src + 1, num_edges, num_edges)
    return [edge_index.new_empty((size,)) for size in sizes]


@operator("sort_edges", _allocate)
def sort_edges(edge_index: Tensor, num_src: int, num_dst: int) -> list[Tensor]:
    """Sort edges by destination and by source. Edges of the same node keep their order.

    Args:
        edge_index: source and destination of each edge [2, num_edges], int32 or int64.
        num_src: number of source nodes.
        num_dst: number of destination nodes.

    Returns:
        The fields of :class:`models.structure.Structure`, in the dtype of `edge_index`.

    Raises:
        IndexError: `edge_index` has a node that is out of range.
    """
    structure, edge_index = _allocate(edge_index, num_src, num_dst), edge_index.contiguous()
    for key, num_keys, arrays in ((1, num_dst, structure[:3]), (0, num_src, structure[3:])):
        broken = LIBRARY.get().edges_sort(
            *(pointer(edge_index[i]) for i in (key, 1 - key)),
            ctypes.c_int64(edge_index.size(1)),
            ctypes.c_int64(num_keys),
            ctypes.c_int(edge_index.dtype == torch.int64),
            *map(pointer, arrays),
        )
        if broken:
            check_ends(edge_index, num_src, num_dst)
    return structure


def check_ends(edge_index: Tensor, num_src: int | None, num_dst: int | None) -> None:
    """Raise an IndexError if an edge [2, num_edges] has a source or a destination that is not in the graph.

    A number of nodes that is none is not checked.
    """
    for row, (ends, num_nodes) in enumerate(zip(edge_index, (num_src, num_dst), strict=True)):
        if num_nodes is None or not ends.numel():
            continue
        least, greatest = map(int, ends.aminmax())
        if least < 0 or greatest >= num_nodes:
            raise IndexError(
                f"edge_index[{row}] has values from {least} to {greatest}, but there are {num_nodes} such "
                f"nodes"
            )


def hash_tensor(tensor: Tensor) -> int:
    """Compute a checksum of the values of a tensor on the CPU."""
    tensor = tensor.contiguous()
    function = LIBRARY.get().edges_hash
    function.restype = ctypes.c_uint64
    return function(
        pointer(tensor),
        ctypes.c_int64(tensor.numel() * tensor.element_size()),
        ctypes.c_int64(torch.get_num_threads()),
    )

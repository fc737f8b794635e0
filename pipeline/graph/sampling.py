"""Neighbours of nodes, drawn without replacement, hop by hop: in C++ where it compiles, by numpy elsewhere.

The sampling of GraphSAGE, "Inductive Representation Learning on Large Graphs" (https://arxiv.org/abs/1706.02216). Each
random number is a hash of a key, the hop, the node and a counter: no draw depends on threads, on the order of the nodes
or on the draws before it.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.models.edge_index import fill_csr, from_csc
from parallel_epochs.models.kernels.hash import GOLDEN, MASK, mix
from parallel_epochs.models.kernels.native import NativeLibrary, pointer
from parallel_epochs.pipeline.graph.edges import transpose

LIBRARY = NativeLibrary("neighbour sampling", Path(__file__).with_name("sampling.cpp"), otherwise="numpy draws instead")


class NeighborSampler:
    """Draws the subgraphs that predictions of some nodes are computed from.

    A sampler belongs to one thread: it keeps a number for each node of the graph from call to call.

    Args:
        edge_index: edges sorted by destination, int32 or int64, on the CPU.
        num_neighbors: the largest number of neighbours drawn for a node at each hop; -1 for all of them. With
            `relation`, that of each relation at each hop [num_hops, num_relations], int64.
        relation: the number of the relation of each edge, float32; none to draw from all edges together.
        native: whether C++ draws, where it compiles; the draws are the same.
    """

    def __init__(self, edge_index: EdgeIndex, num_neighbors: Sequence[int] | Int[Tensor, "num_hops num_relations"], *,
                 relation: Float[Tensor, " num_edges"] | None = None, native: bool = True):
        (indptr, src), _ = edge_index.get_csc()
        self._indptr, self._src = indptr.contiguous(), src.contiguous()
        self._num_neighbors, self._relation = tuple(num_neighbors), relation
        self._library = LIBRARY.get() if native else None
        self._local = torch.full((indptr.numel() - 1,), -1, dtype=torch.int32)

    def sample(self, seeds: Int[Tensor, " num_seeds"],
               key: int) -> tuple[EdgeIndex, Int[Tensor, " num_nodes"], Int[Tensor, " num_edges"]]:
        """Draw the neighbours of nodes, then of those that are new, and so on.

        A node draws once, in the hop after the one that reached it. Each of the edges that enter it is drawn with
        the same probability, several between the same two nodes each for itself; with relations, each of those of the
        same relation.

        Args:
            seeds: distinct node numbers, int64.
            key: 64 bits, of which every random number is a hash.

        Returns:
            An int64 ``EdgeIndex`` from the drawn nodes towards the seeds, sorted by destination, CSC and CSR filled;
            the numbers of its nodes in the graph, the seeds first, each hop behind the one before; and the positions
            of its edges in the graph, ascending for each destination. All int64.
        """
        hops, ptrs, positions, sources = [seeds], [torch.zeros(1, dtype=torch.int64)], [], []
        num_nodes, num_edges = seeds.numel(), 0
        self._local[seeds] = torch.arange(num_nodes, dtype=torch.int32)
        try:
            for hop, most in enumerate(self._num_neighbors):
                ptr = self._count(hops[-1], most)
                positions.append(self._draw(hops[-1], ptr, mix(key + (hop + 1) * GOLDEN & MASK), most))
                fresh, local_src = self._number(positions[-1], num_nodes)
                ptrs.append(ptr[1:] + num_edges)
                sources.append(local_src)
                hops.append(fresh)
                num_nodes, num_edges = num_nodes + fresh.numel(), num_edges + local_src.numel()
        finally:
            for nodes in hops:
                self._local[nodes] = -1
        ptrs.append(torch.full((hops[-1].numel(),), num_edges))
        return self._edges(torch.cat(sources), torch.cat(ptrs)), torch.cat(hops), torch.cat(positions)

    def _count(self, nodes: Tensor, most: int | Tensor) -> Tensor:
        """Count the neighbours to draw, summed up to each node."""
        if isinstance(most, Tensor):
            count = self._count_by_relation(nodes, most)
        else:
            degree = (self._indptr[nodes + 1] - self._indptr[nodes]).long()
            count = degree if most < 0 else degree.clamp(max=most)
        return torch.cat([count.new_zeros(1), count.cumsum(0)])

    def _count_by_relation(self, nodes: Tensor, most: Tensor) -> Tensor:
        if self._library is None:
            return DrawnRows(self._indptr, nodes, self._relation, most).count_of_node()
        count = torch.empty(nodes.numel(), dtype=torch.int64)
        self._library.sampling_count_by_relation(
            *self._relations(most), pointer(nodes), ctypes.c_int64(nodes.numel()), pointer(count),
            torch.get_num_threads())
        return count

    def _draw(self, nodes: Tensor, ptr: Tensor, key: int, most: int | Tensor) -> Tensor:
        """Draw positions of edges that enter each node."""
        if self._library is None:
            return DrawnRows(self._indptr, nodes, self._relation, most).draw(key)
        position = torch.empty(int(ptr[-1]), dtype=torch.int64)
        rest = (pointer(nodes), ctypes.c_int64(nodes.numel()), pointer(ptr), ctypes.c_uint64(key), pointer(position),
                torch.get_num_threads())
        if isinstance(most, Tensor):
            self._library.sampling_draw_by_relation(*self._relations(most), *rest)
        else:
            self._library.sampling_draw(pointer(self._indptr), self._indptr.element_size(), *rest)
        return position

    def _relations(self, most: Tensor) -> tuple:
        """Return the arguments of the kernels that say which edges are of which relation."""
        relation = cast(Tensor, self._relation)
        return (pointer(self._indptr), self._indptr.element_size(), ctypes.c_void_p(relation.data_ptr()),
                ctypes.c_int64(relation.stride(0)), pointer(most), ctypes.c_int64(most.numel()))

    def _number(self, position: Tensor, num_known: int) -> tuple[Tensor, Tensor]:
        """Number the sources of edges; returns the nodes that had no number yet, and the numbers."""
        if self._library is None:
            return number_with_numpy(self._src, position, num_known, self._local)
        fresh, local_src = torch.empty(2, position.numel(), dtype=torch.int64)
        self._library.sampling_number.restype = ctypes.c_int64
        num_fresh = self._library.sampling_number(
            pointer(self._src), self._src.element_size(), pointer(position), ctypes.c_int64(position.numel()),
            ctypes.c_int64(num_known), pointer(self._local), pointer(fresh), pointer(local_src))
        return fresh[:num_fresh].clone(), local_src

    def _edges(self, src: Tensor, ptr: Tensor) -> EdgeIndex:
        num_nodes = ptr.numel() - 1
        edges = torch.empty(2, src.numel(), dtype=torch.int64)
        edges[0] = src
        if self._library is None:
            edges[1] = torch.repeat_interleave(torch.arange(num_nodes), ptr.diff(), output_size=src.numel())
            return transpose(from_csc(edges, ptr))
        T_src, T_dst, perm = torch.empty(3, src.numel(), dtype=torch.int64)
        rowptr = torch.empty(num_nodes + 1, dtype=torch.int64)
        self._library.sampling_transpose(pointer(src), pointer(ptr), ctypes.c_int64(num_nodes), *map(pointer, (
            edges[1], T_src, T_dst, rowptr, perm)))
        return fill_csr(from_csc(edges, ptr), perm=perm, src=T_src, dst=T_dst, rowptr=rowptr)


class DrawnRows:
    """The edges that enter some nodes, in rows of the same node and relation, as sampling.cpp draws from them.

    Args:
        indptr: first edge of each node [num_nodes + 1].
        nodes: those that draw, int64.
        relation: the number of the relation of each edge, float32; none: a row for each node.
        most: the most edges of each relation that a node draws, int64 [num_relations]; -1 for all.
    """

    def __init__(self, indptr: Tensor, nodes: Tensor, relation: Tensor | None, most: int | Tensor):
        most = torch.as_tensor(most).reshape(-1)
        self._num_nodes = len(nodes)
        first = indptr[nodes].long()
        degree = indptr[nodes + 1].long() - first
        owner = torch.repeat_interleave(torch.arange(len(nodes)), degree)
        self._position = torch.arange(len(owner)) + (first - degree.cumsum(0) + degree)[owner]
        number = torch.zeros_like(owner) if relation is None else relation[self._position].long()
        keys, self._order = (owner * len(most) + number).sort(stable=True)
        rows, counts = keys.unique_consecutive(return_counts=True)
        self._owner, number = rows // len(most), rows % len(most)
        self._degree, limit = counts, most[number]
        self._count = torch.where(limit < 0, counts, torch.minimum(counts, limit))
        row_id = nodes[self._owner] if relation is None else nodes[self._owner] | number + 1 << 32
        self._id = row_id.numpy().astype(np.uint64)

    def count_of_node(self) -> Int[Tensor, " num_drawing"]:
        """Count the edges that each node draws."""
        return torch.zeros(self._num_nodes, dtype=torch.int64).index_add_(0, self._owner, self._count)

    def draw(self, key: int) -> Int[Tensor, " num_drawn"]:
        """Draw positions of edges that enter each node, ascending."""
        taken = torch.zeros(len(self._order), dtype=torch.bool)
        taken[self._order] = torch.from_numpy(_take(self._degree.numpy(), self._count.numpy(), self._id, key))
        return self._position[taken]


def _take(degree: np.ndarray, count: np.ndarray, ids: np.ndarray, key: int) -> np.ndarray:
    """Choose `count` of the `degree` places of each row by Floyd's algorithm; returns which, row by row.

    Args:
        ids: of the rows, uint64, of which their random numbers are a function.
    """
    begin = np.concatenate([[0], degree.cumsum()])
    taken = np.repeat(count == degree, degree)
    rows = np.flatnonzero(count < degree)
    state = mix(np.uint64(key) ^ mix(ids[rows]))
    for j in range(count[rows].max(initial=0)):
        draws = count[rows] > j  # rows of relations draw other numbers
        rows, state = rows[draws], state[draws]
        last = degree[rows] - count[rows] + j
        at = begin[rows] + _below(mix(state + np.uint64((j + 1) * GOLDEN & MASK)), last + 1)
        taken[np.where(taken[at], begin[rows] + last, at)] = True
    return taken


def number_with_numpy(src: Int[Tensor, " num_edges"], position: Int[Tensor, " num_drawn"], num_known: int,
                      local: Int[Tensor, " num_nodes"]) -> tuple[Int[Tensor, " num_fresh"], Int[Tensor, " num_drawn"]]:
    """Number the sources of edges as sampling.cpp does, in the order in which they appear."""
    nodes = src[position].long()
    new = nodes[local[nodes] < 0].numpy()
    _, at = np.unique(new, return_index=True)
    fresh = torch.from_numpy(new[np.sort(at)])
    local[fresh] = torch.arange(num_known, num_known + fresh.numel(), dtype=torch.int32)
    return fresh, local[nodes].long()


def _below(random: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Scale 64 random bits to integers below a bound, which is below 2^32: the high half of their product."""
    low, high, bound = random & np.uint64(0xffffffff), random >> np.uint64(32), bound.astype(np.uint64)
    return ((high * bound + (low * bound >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)

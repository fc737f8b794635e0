"""Neighbours of nodes, drawn without replacement, hop by hop, in C++.

The sampling of GraphSAGE, "Inductive Representation Learning on Large Graphs" (https://arxiv.org/abs/1706.02216). Each
random number is a hash of a key, the hop, the node and a counter: no draw depends on threads, on the order of the nodes
or on the draws before it.
"""

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.models.edge_index import fill_csr, from_csc
from parallel_epochs.models.kernels.hash import GOLDEN, MASK, mix
from parallel_epochs.models.kernels.native import NativeLibrary, pointer
from parallel_epochs.pipeline.graph.edges import expand_ranges

LIBRARY = NativeLibrary(
    "neighbour sampling", Path(__file__).with_name("sampling.cpp"), otherwise="none are drawn"
)


def library() -> ctypes.CDLL:
    """Return the compiled functions.

    Raises:
        ValueError: they cannot be compiled here; the message says why.
    """
    return LIBRARY.require(
        "neighbours are drawn", ". loader=cluster and evaluation=exact need none"
    )


class NeighborSampler:
    """Draws the subgraphs that predictions of some nodes are computed from.

    A sampler belongs to one thread: it keeps a number for each node of the graph from call to call.

    Args:
        edge_index: edges sorted by destination, int32 or int64.
        num_neighbors: the largest number of neighbours drawn for a node at each hop; -1 for all of them. With
            `relation`, that of each relation at each hop [num_hops, num_relations], int64.
        relation: the number of the relation of each edge, float32; none to draw from all edges together.

    Raises:
        ValueError: the C++ cannot be compiled.
    """

    def __init__(
        self,
        edge_index: EdgeIndex,
        num_neighbors: Sequence[int] | Int[Tensor, "num_hops num_relations"],
        *,
        relation: Float[Tensor, " num_edges"] | None = None,
    ):
        (indptr, src), _ = edge_index.get_csc()
        self._indptr, self._src = indptr.contiguous(), src.contiguous()
        self._library, self._relation = library(), relation
        self._num_neighbors = tuple(num_neighbors)
        self._local = torch.full((indptr.numel() - 1,), -1, dtype=torch.int32)

    def sample(
        self, seeds: Int[Tensor, " num_seeds"], key: int
    ) -> tuple[EdgeIndex, Int[Tensor, " num_nodes"], Int[Tensor, " num_edges"]]:
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
        hops, ptrs, positions, sources = (
            [seeds],
            [seeds.new_zeros(1)],
            [seeds.new_empty(0)],
            [seeds.new_empty(0)],
        )
        num_nodes, num_edges = seeds.numel(), 0
        self._local[seeds] = torch.arange(num_nodes, dtype=torch.int32)
        try:
            for hop, most in enumerate(self._num_neighbors):
                ptr, position = self._enter(hops[-1], mix(key + (hop + 1) * GOLDEN & MASK), most)
                positions.append(position)
                fresh, local_src = self._number(self._src, position, num_nodes)
                ptrs.append(ptr[1:] + num_edges)
                sources.append(local_src)
                hops.append(fresh)
                num_nodes, num_edges = num_nodes + fresh.numel(), num_edges + local_src.numel()
        finally:
            for nodes in hops:
                self._local[nodes] = -1
        ptrs.append(torch.full((hops[-1].numel(),), num_edges))
        return (
            self.edges_of(torch.cat(sources), torch.cat(ptrs)),
            torch.cat(hops),
            torch.cat(positions),
        )

    def _enter(self, nodes: Tensor, key: int, most: int | Tensor) -> tuple[Tensor, Tensor]:
        """Draw edges that enter each node; returns where each node's begin, and their positions, ascending."""
        library, drawing = self._library, (pointer(nodes), ctypes.c_int64(nodes.numel()))
        count = (self._indptr[nodes + 1] - self._indptr[nodes]).long()
        if isinstance(most, Tensor):
            library.sampling_count_by_relation(
                *self._relations(most), *drawing, pointer(count), torch.get_num_threads()
            )
        elif most >= 0:
            count = count.clamp(max=most)
        ptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
        position = torch.empty(int(ptr[-1]), dtype=torch.int64)
        rest = (
            *drawing,
            pointer(ptr),
            ctypes.c_uint64(key),
            pointer(position),
            torch.get_num_threads(),
        )
        if isinstance(most, Tensor):
            library.sampling_draw_by_relation(*self._relations(most), *rest)
        else:
            library.sampling_draw(pointer(self._indptr), self._indptr.element_size(), *rest)
        return ptr, position

    def _relations(self, most: Tensor) -> tuple:
        """Return the arguments of the kernels that say which edges are of which relation."""
        relation = cast(Tensor, self._relation)
        return (
            pointer(self._indptr),
            self._indptr.element_size(),
            ctypes.c_void_p(relation.data_ptr()),
            ctypes.c_int64(relation.stride(0)),
            pointer(most),
            ctypes.c_int64(most.numel()),
        )

    def _number(self, src: Tensor, position: Tensor, num_known: int) -> tuple[Tensor, Tensor]:
        """Number the sources of edges; returns the nodes that had no number yet, and the numbers."""
        fresh, local_src = torch.empty(2, position.numel(), dtype=torch.int64)
        self._library.sampling_number.restype = ctypes.c_int64
        num_fresh = self._library.sampling_number(
            pointer(src),
            src.element_size(),
            pointer(position),
            ctypes.c_int64(position.numel()),
            ctypes.c_int64(num_known),
            pointer(self._local),
            pointer(fresh),
            pointer(local_src),
        )
        return fresh[:num_fresh].clone(), local_src

    def edges_of(self, src: Tensor, ptr: Tensor) -> EdgeIndex:
        """Make an ``EdgeIndex`` of the sources of edges, int64, and of where those of each node begin."""
        num_nodes = ptr.numel() - 1
        edges = src.new_empty(2, src.numel())
        edges[0] = src
        T_src, T_dst, perm = torch.empty(3, src.numel(), dtype=torch.int64)
        rowptr = torch.empty(num_nodes + 1, dtype=torch.int64)
        self._library.sampling_transpose(
            pointer(src),
            pointer(ptr),
            ctypes.c_int64(num_nodes),
            *map(pointer, (edges[1], T_src, T_dst, rowptr, perm)),
        )
        return fill_csr(from_csc(edges, ptr), perm=perm, src=T_src, dst=T_dst, rowptr=rowptr)


class GrowingSampler(NeighborSampler):
    """Takes parts of a graph behind whose nodes new ones stand, each time others. The graph of both is never built.

    Args:
        edge_index: edges of the graph, as for :class:`NeighborSampler`.
    """

    def __init__(self, edge_index: EdgeIndex):
        super().__init__(edge_index, [])
        self._num_known, self._lock = len(self._local), threading.Lock()

    def sample_around(
        self,
        seeds: Int[Tensor, " num_seeds"],
        num_hops: int,
        new: Int[Tensor, "2 num_new_edges"] | None = None,
    ) -> tuple[EdgeIndex, Int[Tensor, " num_nodes"], Int[Tensor, " num_edges"]]:
        """Take all neighbours of nodes, then of those that are new, and so on, see :meth:`sample`.

        Args:
            seeds: distinct node numbers, int64; those of all new nodes are among them.
            new: ends of the new edges, sorted by destination, then source, int64. Their positions are behind those of
                the graph. None: there are none.
        """
        with self._lock:
            self._num_neighbors = (-1,) * num_hops
            self._new = seeds.new_empty(2, 0) if new is None else new
            more = self._num_known + int((seeds >= self._num_known).sum()) - len(self._local)
            if more > 0:
                self._local = torch.cat([self._local, self._local.new_full((more,), -1)])
            return self.sample(seeds, 0)

    def _enter(self, nodes: Tensor, key: int, most: int | Tensor) -> tuple[Tensor, Tensor]:
        is_own = nodes < self._num_known
        ptr, position = super()._enter(nodes[is_own], key, most)
        first = torch.searchsorted(self._new[1], nodes)
        more = torch.searchsorted(self._new[1], nodes, right=True) - first
        place, row = expand_ranges(first, more)
        count = more.index_add(0, is_own.nonzero()[:, 0], ptr.diff())
        rows = torch.cat([is_own.nonzero()[:, 0].repeat_interleave(ptr.diff()), row])
        position = torch.cat([position, len(self._src) + place])[rows.sort(stable=True).indices]
        return torch.cat([count.new_zeros(1), count.cumsum(0)]), position

    def _number(self, src: Tensor, position: Tensor, num_known: int) -> tuple[Tensor, Tensor]:
        is_own = position < len(src)
        found = torch.empty_like(position)
        found[is_own], found[~is_own] = (
            src[position[is_own]].long(),
            self._new[0, position[~is_own] - len(src)],
        )
        return super()._number(found, torch.arange(len(found)), num_known)

"""The structure of a graph: sorting, symmetry, self-loops, duplicates, connected components."""

import hashlib
import logging
from dataclasses import asdict, dataclass

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse import csgraph
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

log = logging.getLogger(__name__)


def counting_sort(keys: np.ndarray, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort integers below `num_keys` in linear time, keeping the order of equal ones.

    Returns:
        perm: positions in `keys`, sorted by key, [len(keys)].
        ptr: the positions with key i are perm[ptr[i]:ptr[i + 1]], [num_keys + 1].
    """
    n = len(keys)
    index_dtype = np.int32 if n < 2**31 else np.int64
    one_per_row = sp.csr_array(
        (np.zeros(n, np.int8), keys.astype(index_dtype, copy=False), np.arange(n + 1, dtype=index_dtype)),
        shape=(n, num_keys))
    by_column = one_per_row.tocsc()
    return by_column.indices, by_column.indptr


def sort_edges(edge_index: Tensor, num_nodes: int) -> tuple[EdgeIndex, Tensor]:
    """Sort edges by destination, then source.

    Args:
        edge_index: [2, num_edges], integers in [0, num_nodes).

    Returns:
        An int32 ``EdgeIndex`` sorted by column with its CSC filled, and the positions of its edges in `edge_index`.
    """
    src, dst = edge_index.numpy()
    by_src, _ = counting_sort(src, num_nodes)
    by_dst, ptr = counting_sort(dst[by_src], num_nodes)
    perm = torch.from_numpy(by_src[by_dst])
    # int32 halves the memory; EdgeIndex itself takes no larger sizes in int32 than these.
    dtype = torch.int32 if num_nodes < 2**31 else torch.int64
    out = torch.empty(2, edge_index.size(1), dtype=dtype)
    for row in (0, 1):
        out[row] = edge_index[row].index_select(0, perm)
    return from_sorted(out, torch.from_numpy(ptr)), perm


def from_sorted(edge_index: Tensor, indptr: Tensor, *, is_undirected: bool = False) -> EdgeIndex:
    """An ``EdgeIndex`` from edges sorted by destination and the pointers [num_nodes + 1] of its columns."""
    num_nodes = indptr.numel() - 1
    out = EdgeIndex(edge_index, sparse_size=(num_nodes, num_nodes), sort_order="col", is_undirected=is_undirected)
    out._indptr = indptr.to(edge_index.dtype)
    return out


def adjacency(edge_index: EdgeIndex) -> sp.csr_array:
    """The sources of every destination as a scipy matrix without copies; its data are the positions of the edges."""
    (indptr, src), _ = edge_index.get_csc()
    num_nodes = indptr.numel() - 1
    positions = np.arange(src.numel(), dtype=src.numpy().dtype)
    return sp.csr_array((positions, src.numpy(), indptr.numpy()), shape=(num_nodes, num_nodes))


def fill_transpose(edge_index: EdgeIndex) -> EdgeIndex:
    """Fill the CSR of an ``EdgeIndex`` sorted by destination in linear time; PyG would sort."""
    (indptr, src), _ = edge_index.get_csc()
    num_nodes = indptr.numel() - 1
    matrix = sp.csr_array((np.arange(src.numel(), dtype=src.numpy().dtype), src.numpy(), indptr.numpy()),
                          shape=(num_nodes, num_nodes)).tocsc()
    dtype = edge_index.dtype
    rowptr, dst = torch.from_numpy(matrix.indptr).to(dtype), torch.from_numpy(matrix.indices).to(dtype)
    row = torch.repeat_interleave(torch.arange(num_nodes, dtype=dtype), rowptr.diff(), output_size=dst.numel())
    edge_index._T_perm = torch.from_numpy(matrix.data).to(dtype)
    edge_index._T_index = (row, dst)
    edge_index._T_indptr = rowptr
    return edge_index


@dataclass
class Structure:
    """What is odd about a graph's edges, all counted over directed edges."""

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
        kind = "undirected" if self.is_undirected else f"directed ({self.num_without_reverse:,} edges have no reverse)"
        return (f"{self.num_nodes:,} nodes, {self.num_edges:,} directed edges, {kind}, {self.num_self_loops:,} "
                f"self-loops, {self.num_duplicates:,} duplicates, {self.num_isolated:,} isolated nodes")


def structure(edge_index: EdgeIndex) -> Structure:
    """Inspect edges sorted by destination, then source, as :func:`sort_edges` gives them."""
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
        own = torch.zeros_like(degree).index_add_(0, src[loops], torch.ones_like(src[loops]).to(degree.dtype))
        isolated |= degree == 2 * own
    transposed = sp.csr_array((np.zeros(num_edges, np.int8), src.numpy(), indptr.numpy()),
                              shape=(num_nodes, num_nodes)).tocsc()
    mirrored = np.array_equal(transposed.indptr, indptr.numpy()) and np.array_equal(transposed.indices, src.numpy())
    without = 0
    if not mirrored:
        key = dst.long() * num_nodes + src
        reverse = src.long() * num_nodes + dst
        found = torch.searchsorted(key, reverse).clamp(max=num_edges - 1)
        without = int((key[found] != reverse).sum())
        # Duplicates whose numbers differ by direction leave no edge without a reverse: that is undirected as well.
    return Structure(num_nodes, num_edges, without, int(loops.sum()), int(same.sum()), int(isolated.sum()))


@dataclass
class Component:
    num_nodes: int
    num_edges: int
    num_train: int
    num_labelled: int


@dataclass
class Components:
    """Connected components, the largest first.

    Attributes:
        index: component of each node, [num_nodes], int64.
        components: one entry for each.
    """

    index: Tensor
    components: list[Component]

    def __str__(self) -> str:
        sizes = [c.num_nodes for c in self.components]
        single = sum(size == 1 for size in sizes)
        lines = [f"components: {len(sizes):,}, of which {single:,} are single nodes"]
        for rank, c in enumerate(self.components[:5], start=1):
            if c.num_nodes == 1 and rank > 1:
                break
            lines.append(f"  {rank}: {c.num_nodes:,} nodes, {c.num_edges:,} edges, {c.num_labelled:,} labelled nodes, "
                         f"{c.num_train:,} of them for training")
        rest = sizes[len(lines) - 1:]
        if rest:
            lines.append(f"  and {len(rest):,} more of {min(rest):,} to {max(rest):,} nodes")
        return "\n".join(lines)

    def record(self) -> dict:
        """For metrics.jsonl: the first hundred components and the number of all."""
        return {"num_components": len(self.components), "largest": [asdict(c) for c in self.components[:100]],
                "num_single_nodes": sum(c.num_nodes == 1 for c in self.components)}


def connected_components(data: Data) -> Components:
    """Find the (weakly) connected components of a graph with ``train_mask``, ``valid_mask`` and ``test_mask``."""
    (indptr, src), _ = data.edge_index.get_csc()
    num_nodes = indptr.numel() - 1
    # csgraph wants float64 values; ones as a matrix of their own leave the graph's arrays alone.
    matrix = sp.csr_array((np.ones(src.numel(), np.float64), src.numpy(), indptr.numpy()), shape=(num_nodes, num_nodes))
    count, label = csgraph.connected_components(matrix, directed=False)
    sizes = np.bincount(label, minlength=count)
    order = np.argsort(-sizes, kind="stable")
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    index = rank[label]
    labelled = (data.train_mask | data.valid_mask | data.test_mask).numpy()

    def count_by_component(weights: np.ndarray) -> list[int]:
        return np.bincount(index, weights=weights, minlength=count).astype(np.int64).tolist()

    columns = (sizes[order].tolist(), count_by_component(np.diff(indptr.numpy())),
               count_by_component(data.train_mask.numpy()), count_by_component(labelled))
    return Components(torch.from_numpy(index), [Component(*row) for row in zip(*columns)])


NODE_KEYS = ("x", "y", "train_mask", "valid_mask", "test_mask")


def induced_subgraph(data: Data, nodes: Tensor, matrix: sp.csr_array | None = None, *,
                     dtype: torch.dtype = torch.int32) -> Data:
    """The subgraph of some nodes, numbered in the order given; ``n_id`` holds their numbers in `data`.

    Only the rows of `nodes` are read, so that all clusters of a partition together cost one pass over the edges.

    Args:
        nodes: distinct node numbers, [num_selected], int64.
        matrix: :func:`adjacency` of the graph, if it is at hand.
        dtype: of the new ``edge_index``, int32 or int64.
    """
    matrix = adjacency(data.edge_index) if matrix is None else matrix
    rows = nodes.numpy()
    matrix = matrix[rows][:, rows]
    indptr = torch.from_numpy(matrix.indptr).to(dtype)
    edge_index = torch.empty(2, matrix.nnz, dtype=dtype)
    edge_index[0] = torch.from_numpy(matrix.indices)
    edge_index[1] = torch.repeat_interleave(torch.arange(len(nodes), dtype=dtype), indptr.diff(), output_size=matrix.nnz)
    out = Data(edge_index=from_sorted(edge_index, indptr), n_id=nodes, num_nodes=len(nodes))
    if data.edge_attr is not None:
        out.edge_attr = data.edge_attr.index_select(0, torch.from_numpy(matrix.data))
    for key in NODE_KEYS:
        if data.get(key) is not None:
            out[key] = data[key].index_select(0, nodes)
    for key in ("metric", "num_categories", "out_channels"):
        if key in data:
            out[key] = data[key]
    return out


def structure_hash(edge_index: EdgeIndex) -> str:
    """A digest of the edges sorted by destination: equal graphs, equal digests."""
    (indptr, src), _ = edge_index.get_csc()
    digest = hashlib.blake2b(digest_size=16)
    for array in (indptr, src):
        digest.update(array.numpy().astype(np.int32, copy=False))
    return digest.hexdigest()


def select(data: Data, components: Components, which: str) -> Data:
    """The part of a graph to train on: "all", "largest", or the K-th largest component.

    Raises:
        ValueError: there are fewer than K components, or the K-th holds no training node.
    """
    if which == "all" or len(components.components) == 1 and which in ("largest", "1"):
        return data
    rank = 1 if which == "largest" else int(which)
    if rank > len(components.components):
        raise ValueError(f"data.components={which}: the graph has {len(components.components):,} components")
    component = components.components[rank - 1]
    if component.num_train == 0:
        raise ValueError(f"data.components={which}: its {component.num_nodes:,} nodes hold none of the train split")
    left_out = sum(c.num_labelled for c in components.components) - component.num_labelled
    log.info("component %d: %s nodes; the others hold %s labelled nodes, which are left out", rank,
             f"{component.num_nodes:,}", f"{left_out:,}")
    return induced_subgraph(data, (components.index == rank - 1).nonzero().squeeze(1))

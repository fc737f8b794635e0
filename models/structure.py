"""Edges in both sorted orders, as the kernels read them. Plain edge lists are sorted once and remembered."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric import EdgeIndex

from parallel_epochs.models import edge_index as edges
from parallel_epochs.models.kernels import sorting
from parallel_epochs.models.kernels.hash import GOLDEN, signed

# Sorted edges of plain edge lists, and of edge lists with self-loops. They are kept until the edge list is freed or
# written to.
_sorted, _looped = WeakIdKeyDictionary(), WeakIdKeyDictionary()
# The degrees and self-loops of edges, kept in the same way.
_degrees = WeakIdKeyDictionary()


class Structure(NamedTuple):
    """Edges sorted by destination, then the same edges sorted by source; int32 or int64.

    Attributes:
        indptr: first edge of each destination [num_dst + 1].
        src: sources of the edges sorted by destination [num_edges].
        position: number that each of these edges has in the caller's order [num_edges]. None: they are in that order.
        rowptr: first edge of each source [num_src + 1]. None, as the next two, if backward does not follow.
        dst: destinations of the edges sorted by source [num_edges].
        position_by_src: number that each of these edges has in the caller's order [num_edges]. None: in that order.
    """

    indptr: Int[Tensor, " num_dst_plus_1"]
    src: Int[Tensor, " num_edges"]
    position: Int[Tensor, " num_edges"] | None
    rowptr: Int[Tensor, " num_src_plus_1"] | None
    dst: Int[Tensor, " num_edges"] | None
    position_by_src: Int[Tensor, " num_edges"] | None

    @property
    def by_destination(self) -> tuple:
        """First edge of each row, node at the other end and position of each edge, where rows are destinations."""
        return self[:3]

    @property
    def by_source(self) -> tuple:
        """The same where rows are sources."""
        return self[3:]


def find_structure(
    edge_index: Int[Tensor, "2 num_edges"], num_src: int, num_dst: int, *, by_source: bool
) -> Structure:
    """Sort edges, unless they are sorted already.

    An ``EdgeIndex`` that is sorted by row or column is used as it is. A plain `edge_index` is sorted on its first use,
    and the result is kept until that tensor is freed or its values change. A checksum detects changes through ``.data``
    or a NumPy array that shares its memory, too.

    Args:
        edge_index: [2, num_edges], a tensor or an ``EdgeIndex``, int32 or int64.
        by_source: whether the order by source is needed, which backward reads.

    Raises:
        IndexError: a plain `edge_index` has a node that is out of range.
        ValueError: an ``EdgeIndex`` has more nodes than `num_src` or `num_dst`, or int32 cannot count the edges.
    """
    if not isinstance(edge_index, EdgeIndex):
        return _sort(edge_index, num_src, num_dst)
    # PyG keeps what it sorts in the edges, and torch.export refuses inputs that change.
    if edge_index.sort_order is None or torch.compiler.is_exporting():
        return _sort(edge_index.as_tensor(), num_src, num_dst)
    (indptr, src), position = edges.compress(edge_index, by="col")
    by_destination = edges.pad(indptr, num_dst, "destination"), src, position
    if not by_source:
        return Structure(*by_destination, None, None, None)
    (rowptr, dst), position = edges.compress(edge_index, by="row")
    return Structure(*by_destination, edges.pad(rowptr, num_src, "source"), dst, position)


class Degrees(NamedTuple):
    """The edges of a graph as a layer that normalizes by degrees reads them.

    Attributes:
        edge_index: the edges, sorted by destination if that order is kept.
        position: number that each of these edges has in the caller's order [num_edges]. None: they are in that order.
        in_degree: number of edges that end at each node [num_nodes].
        loops: positions in `edge_index` of the edges that join a node with itself [num_loops].
    """

    edge_index: Int[Tensor, "2 num_edges"]
    position: Int[Tensor, " num_edges"] | None
    in_degree: Int[Tensor, " num_nodes"]
    loops: Int[Tensor, " num_loops"]


def find_degrees(edge_index: Int[Tensor, "2 num_edges"], num_nodes: int) -> Degrees:
    """Find the degrees and self-loops of a graph. They are kept as the sorted edges of :func:`find_structure` are."""
    if torch.compiler.is_exporting():  # the numbers of torch.bincount might be more than the nodes
        degree = edge_index.new_zeros(num_nodes).index_add(
            0, edge_index[1], torch.ones_like(edge_index[1])
        )
        return Degrees(edge_index, None, degree, _find_loops(edge_index))
    is_sorted = isinstance(edge_index, EdgeIndex) and edge_index.sort_order == "col"
    if (
        torch.compiler.is_compiling()
        or edge_index.is_inference()
        or not is_sorted
        and (
            isinstance(edge_index, EdgeIndex)
            or edge_index.device.type != "cpu"
            or sorting.LIBRARY.get() is None
        )
    ):
        plain = edges.plain_edges(edge_index)
        return Degrees(
            edge_index, None, torch.bincount(plain[1], minlength=num_nodes), _find_loops(plain)
        )
    structure = find_structure(edge_index, num_nodes, num_nodes, by_source=not is_sorted)
    key = edge_index._version if is_sorted else _sorted[edge_index][0]
    known = _degrees.get(edge_index)
    if known is None or known[0] != key:
        kept = edge_index if is_sorted else as_edge_index(structure)
        plain = torch.stack([structure.src, edges.expand(structure.indptr)])
        # An entry must not hold its own key, which would then live for ever.
        degrees = Degrees(
            plain[:, :0] if is_sorted else kept,
            None if is_sorted else structure.position,
            structure.indptr.diff(),
            _find_loops(plain),
        )
        known = _degrees[edge_index] = key, degrees
    return known[1]._replace(edge_index=edge_index) if is_sorted else known[1]


def _find_loops(edges: Tensor) -> Tensor:
    return (edges[0] == edges[1]).nonzero().squeeze(1)


def as_edge_index(structure: Structure) -> EdgeIndex:
    """Make an ``EdgeIndex`` that is sorted by destination, with its CSC and CSR filled, of edges in both orders."""
    indptr, src, position, rowptr, by_source, position_by_src = structure
    assert (
        position is not None
        and rowptr is not None
        and by_source is not None
        and position_by_src is not None
    )
    dst, num_src = edges.expand(indptr), rowptr.numel() - 1
    place = torch.empty_like(position)
    place[position] = torch.arange(position.numel(), dtype=position.dtype, device=position.device)
    return edges.fill_csr(
        edges.from_csc(torch.stack([src, dst]), indptr, num_src=num_src),
        src=edges.expand(rowptr),
        perm=place[position_by_src],
        dst=by_source,
        rowptr=rowptr,
    )


def find_structure_with_loops(
    edge_index: Int[Tensor, "2 num_edges"], num_src: int, num_dst: int, num_loops: int
) -> Structure:
    """Sort edges after their self-loops were replaced by one of each of the first `num_loops` nodes.

    In `position`, edge i of `edge_index` has number i, and the new self-loop of node n has number num_edges + n. The
    result is kept as :func:`find_structure` keeps it.

    Args:
        edge_index: [2, num_edges], a tensor or an ``EdgeIndex``, int32 or int64.

    Returns:
        The edges in both orders. By destination, the removed self-loops lie behind the last edge that `indptr` counts.

    Raises:
        IndexError: a node is out of range.
        ValueError: int32 cannot count the edges or nodes.
    """
    edges.check_int32(edge_index, num_src, num_dst + 1, edge_index.size(1) + num_loops)

    def sort(edge_index: Tensor) -> Structure:
        if not torch.compiler.is_compiling() and bool((edge_index[1] >= num_dst).any()):
            raise IndexError(
                f"edge_index[1] has values up to {int(edge_index[1].max())}, but there are {num_dst} such "
                "nodes"
            )
        indptr, src, position, rowptr, dst, position_by_src = sorting.sort_edges(
            append_loops(edge_index, num_dst, num_loops), num_src, num_dst + 1
        )
        stays = dst < num_dst
        before = torch.cat([rowptr[:1], stays.cumsum(0)])  # of the edges that stay
        return Structure(
            indptr[:-1],
            src,
            position,
            before[rowptr].to(rowptr.dtype),
            dst[stays],
            position_by_src[stays],
        )

    return _remember(_looped, edge_index, (num_src, num_dst, num_loops), sort)


def append_loops(
    edge_index: Int[Tensor, "2 num_edges"], num_dst: int, num_loops: int
) -> Int[Tensor, "2 num_edges_and_loops"]:
    """Append a self-loop of each of the first nodes; those that are there already get the destination `num_dst`."""
    src, dst = edges.plain_edges(edge_index)
    loops = torch.arange(num_loops, dtype=src.dtype, device=src.device)
    return torch.stack(
        [torch.cat([src, loops]), torch.cat([torch.where(src == dst, num_dst, dst), loops])]
    )


def _sort(edge_index: Tensor, num_src: int, num_dst: int) -> Structure:
    edges.check_int32(edge_index, num_src, num_dst)
    return _remember(
        _sorted,
        edge_index,
        (num_src, num_dst),
        lambda edge_index: Structure(*sorting.sort_edges(edge_index, num_src, num_dst)),
    )


def _remember(
    known_of: WeakIdKeyDictionary,
    edge_index: Tensor,
    sizes: tuple[int, ...],
    sort: Callable[[Tensor], Structure],
) -> Structure:
    if torch.compiler.is_compiling() or edge_index.is_inference():
        return sort(edge_index)
    plain = edges.plain_edges(edge_index)
    # torch's version counter misses writes through `.data` and NumPy, so a checksum of the values is compared.
    checksum = _hash_on_gpu(plain) if plain.is_cuda else sorting.hash_tensor(plain)
    key = (plain._version, *sizes) if plain.is_cuda else (checksum, *sizes)
    known = known_of.get(edge_index)
    if known is None or known[0] != key:
        known = known_of[edge_index] = key, checksum, sort(edge_index)
    elif plain.is_cuda:  # comparing here would wait for the device
        torch._assert_async(
            known[1] == checksum, "edge_index was changed through .data: pass a new tensor instead"
        )
    return known[2]


def _hash_on_gpu(edge_index: Tensor) -> Tensor:
    numbers = edge_index.flatten().long()
    return (
        (numbers + 1) * (torch.arange(numbers.numel(), device=numbers.device) * signed(GOLDEN) + 1)
    ).sum()

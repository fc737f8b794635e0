"""Typed edges expanded by relation, and products with one matrix for each relation.

A pair is a relation and a node that has edges of that relation. A layer of a typed graph reads a node once for each of
its pairs, so the largest tensor has a row for each pair, never for each edge. Numbers of pairs depend on the edges
alone: they are computed once per batch and shared by all layers.
"""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from parallel_epochs.models.edge_index import choose_dtype, expand, from_csc, plain_edges
from parallel_epochs.models.kernels import sorting
from parallel_epochs.models.kernels.operator import is_transformed
from parallel_epochs.models.messages import update_all
from parallel_epochs.models.structure import Structure, as_edge_index

# All pairs of relations and nodes are numbered if at least this fraction of them has edges: products with the matrices
# of all relations are then a single one.
DENSE = 0.7


@dataclass(frozen=True)
class RelationPairs:
    """Pairs of a relation and a node at one end of its edges.

    Attributes:
        num_relations: number of relations.
        num_nodes: number of nodes.
        node: node of each pair [num_pairs], sorted by relation. None: pair ``node * num_relations + relation`` stands
            for each node and relation.
        sizes: number of pairs of each relation; not read where `node` is none.
    """

    num_relations: int
    num_nodes: int
    node: Int[Tensor, " num_pairs"] | None
    sizes: tuple[int, ...] = ()

    @property
    def num_pairs(self) -> int:
        """Number of pairs."""
        return self.num_nodes * self.num_relations if self.node is None else self.node.numel()

    @functools.cached_property
    def to_nodes(self) -> Tensor:
        """Edges from each pair to its node [2, num_pairs]."""
        assert self.node is not None
        return torch.stack([torch.arange(self.node.numel(), device=self.node.device), self.node])

    def multiply(
        self,
        x: Float[Tensor, "num_nodes channels"],
        weight: Float[Tensor, "num_relations channels out"],
    ) -> Float[Tensor, "num_pairs out"]:
        """Multiply each pair's node by the matrix of the pair's relation."""
        if self.node is None:
            wide = weight.transpose(0, 1).reshape(weight.size(1), -1)
            return (x @ wide).view(-1, weight.size(2))
        return multiply_segments(x.index_select(0, self.node), weight, self.sizes)

    def add_up(
        self,
        values: Float[Tensor, "num_pairs channels"],
        weight: Float[Tensor, "num_relations channels out"],
        kernel: str = "auto",
    ) -> Float[Tensor, "num_nodes out"]:
        """Multiply the values of each pair by the matrix of its relation, and sum the pairs of each node."""
        if self.node is None:
            return values.view(self.num_nodes, -1) @ weight.reshape(-1, weight.size(2))
        return update_all(
            self.to_nodes,
            "copy_u",
            "sum",
            u=multiply_segments(values, weight, self.sizes),
            num_dst=self.num_nodes,
            kernel=kernel,
        )


class Relations:
    """The edges of a typed graph, as its layers read them.

    Args:
        edge_index: [2, num_edges], a tensor or an ``EdgeIndex``, int32 or int64.
        relation: number of the relation of each edge [num_edges], whole numbers of any dtype.
        num_relations: number of relations.
        num_src: number of source nodes.
        num_dst: number of destination nodes.

    Raises:
        IndexError: an edge has a relation or an end that does not exist. A GPU does not check this.
        ValueError: a relation is no whole number.
    """

    def __init__(
        self,
        edge_index: Int[Tensor, "2 num_edges"],
        relation: Num[Tensor, " num_edges"],
        num_relations: int,
        num_src: int,
        num_dst: int,
    ):
        edges = plain_edges(edge_index)
        self.num_relations, self.num_src, self.num_dst = num_relations, num_src, num_dst
        if edges.device.type == "cpu" and not is_transformed():
            _check_relations(relation, num_relations)
            sorting.check_ends(edges, num_src, num_dst)
        self._most = max(num_src, num_dst) * num_relations
        dtype = (
            torch.int64
            if edges.dtype == torch.int64
            else choose_dtype(self._most + 1, edges.size(1))
        )
        self.edges, self.relation = edges.to(dtype), relation.to(dtype)

    @functools.cached_property
    def is_dense(self) -> bool:
        """Tell whether nearly all pairs have edges, so that all are numbered. An exported program numbers all."""
        if torch.compiler.is_exporting():
            return True
        if DENSE * self._most > self.edges.size(1) or not self.edges.size(1):
            return False
        return all(
            float((ptr[1:] > ptr[:-1]).float().mean()) >= DENSE
            for ptr in (self._sorted.indptr, self._sorted.rowptr)
        )

    @functools.cached_property
    def sources(self) -> RelationPairs:
        """Pairs at the sources of the edges."""
        return (
            self._compact_sources[0]
            if not self.is_dense
            else RelationPairs(self.num_relations, self.num_src, None)
        )

    @functools.cached_property
    def destinations(self) -> RelationPairs:
        """Pairs at the destinations of the edges."""
        return (
            self._compact_destinations[0]
            if not self.is_dense
            else RelationPairs(self.num_relations, self.num_dst, None)
        )

    @functools.cached_property
    def from_sources(self) -> Tensor:
        """The edges, from the pairs of their sources to their destinations [2, num_edges]."""
        if not self.is_dense:
            return torch.stack([self._compact_sources[1], self.edges[1]])
        if torch.compiler.is_exporting():
            return torch.stack([self._pair_of(self.edges[0]), self.edges[1]])
        found = self._sorted
        indptr = found.indptr[:: self.num_relations]
        if not torch.is_grad_enabled():  # the order by source is for a backward pass
            return from_csc(
                torch.stack([found.src, expand(indptr)]), indptr, num_src=self.sources.num_pairs
            )
        return as_edge_index(found._replace(indptr=indptr, dst=self._nodes_of(found.dst)))

    @functools.cached_property
    def into_destinations(self) -> Tensor:
        """The edges, from their sources to the pairs of their destinations. For dense pairs."""
        if torch.compiler.is_exporting():
            return torch.stack([self.edges[0], self._pair_of(self.edges[1])])
        found = self._sorted
        rowptr, src = found.rowptr[:: self.num_relations], self._nodes_of(found.src)
        return as_edge_index(found._replace(src=src, rowptr=rowptr))

    @functools.cached_property
    def smaller(self) -> "SmallerSides":
        """For each relation, its edges by the end with fewer pairs. For pairs that are not dense."""
        return _choose_sides(self)

    @functools.cached_property
    def _sorted(self) -> Structure:
        """The edges between dense pairs."""
        src_pair, dst_pair = self._pair_of(self.edges)
        sizes = self.num_src * self.num_relations, self.num_dst * self.num_relations
        if self.edges.device.type == "cpu" and sorting.LIBRARY.get() is not None:
            return Structure(*sorting.sort_edges(torch.stack([src_pair, dst_pair]), *sizes))
        (by_dst, order), (by_src, order_by_src) = (
            pair.sort(stable=True) for pair in (dst_pair, src_pair)
        )
        indptr, rowptr = (
            _point(keys, size) for keys, size in ((by_dst, sizes[1]), (by_src, sizes[0]))
        )
        dtype = src_pair.dtype
        return Structure(
            indptr,
            src_pair[order],
            order.to(dtype),
            rowptr,
            dst_pair[order_by_src],
            order_by_src.to(dtype),
        )

    def _pair_of(self, nodes: Tensor) -> Tensor:
        return nodes * self.num_relations + self.relation

    def _nodes_of(self, dense_pairs: Tensor) -> Tensor:
        return torch.div(dense_pairs, self.num_relations, rounding_mode="floor")

    @functools.cached_property
    def _compact_sources(self) -> tuple[RelationPairs, Tensor]:
        return self._number_pairs(self.edges[0], self.num_src)

    @functools.cached_property
    def _compact_destinations(self) -> tuple[RelationPairs, Tensor]:
        return self._number_pairs(self.edges[1], self.num_dst)

    def _number_pairs(self, nodes: Tensor, num_nodes: int) -> tuple[RelationPairs, Tensor]:
        """Number the pairs of relations and nodes that edges have; also return the number of each edge's pair."""
        key, most = self.relation.long() * num_nodes + nodes, self.num_relations * num_nodes
        if most <= 4 * key.numel():
            occurs = torch.zeros(most, dtype=torch.bool, device=key.device)
            occurs[key] = True
            found, pair = occurs.nonzero().squeeze(1), (occurs.cumsum(0) - 1).index_select(0, key)
        else:
            found, pair = key.unique(return_inverse=True)
        relation = torch.div(found, max(num_nodes, 1), rounding_mode="floor")
        sizes = torch.bincount(relation, minlength=self.num_relations).tolist()
        pairs = RelationPairs(
            self.num_relations,
            num_nodes,
            (found - relation * num_nodes).to(nodes.dtype),
            tuple(sizes),
        )
        return pairs, pair.to(nodes.dtype)


@dataclass(frozen=True)
class SmallerSides:
    """Edges of the relations with fewer pairs of destinations, and of the others.

    Attributes:
        destinations: pairs of destinations of the former.
        first: edges of the former, from sources to these pairs.
        sources: pairs of sources of the others.
        second: edges into the destinations: from `destinations`, then from `sources`, numbered behind them.
        share: factor of each of the edges `second` [num, 1]: 1, then 1 / number of edges of the destination's pair.
    """

    destinations: RelationPairs
    first: Tensor
    sources: RelationPairs
    second: Tensor
    share: Tensor


def _choose_sides(relations: Relations) -> SmallerSides:
    (sources, src_pair), (destinations, dst_pair) = (
        relations._compact_sources,
        relations._compact_destinations,
    )
    device, dtype = src_pair.device, src_pair.dtype
    fewer = torch.tensor(
        [d <= s for d, s in zip(destinations.sizes, sources.sizes, strict=True)],
        dtype=torch.bool,
        device=device,
    )
    is_first = fewer.index_select(0, relations.relation.long())
    kept_dst, new_dst = _keep_pairs(destinations, fewer)
    kept_src, new_src = _keep_pairs(sources, ~fewer)
    share = (
        torch.bincount(dst_pair, minlength=destinations.num_pairs).clamp(min=1).float().reciprocal()
    )
    src, dst = relations.edges
    others = ~is_first
    assert kept_dst.node is not None
    from_pairs = torch.stack(
        [torch.arange(kept_dst.num_pairs, device=device, dtype=dtype), kept_dst.node]
    )
    from_others = torch.stack([new_src[src_pair[others].long()] + kept_dst.num_pairs, dst[others]])
    return SmallerSides(
        kept_dst,
        torch.stack([src[is_first], new_dst[dst_pair[is_first].long()]]),
        kept_src,
        torch.cat([from_pairs, from_others], 1),
        torch.cat([share.new_ones(kept_dst.num_pairs), share[dst_pair[others].long()]]).unsqueeze(
            1
        ),
    )


def _keep_pairs(pairs: RelationPairs, kept: Tensor) -> tuple[RelationPairs, Tensor]:
    """Keep the pairs of some relations, a boolean for each; also return the new number of each old pair."""
    assert pairs.node is not None
    is_kept = kept.repeat_interleave(torch.tensor(pairs.sizes, device=kept.device))
    sizes = tuple(
        size if keep else 0 for size, keep in zip(pairs.sizes, kept.tolist(), strict=True)
    )
    return (
        RelationPairs(pairs.num_relations, pairs.num_nodes, pairs.node[is_kept], sizes),
        (is_kept.cumsum(0) - 1).to(pairs.node.dtype),
    )


def _check_relations(relation: Tensor, num_relations: int) -> None:
    if not relation.numel():
        return
    least, most = (float(end) for end in relation.aminmax())
    if not (0 <= least and most < num_relations):
        raise IndexError(
            f"the relations of the edges have numbers from {least:g} to {most:g}, but there are "
            f"num_relations={num_relations}"
        )
    if relation.is_floating_point() and bool((relation != relation.floor()).any()):
        raise ValueError("the relations of the edges must be whole numbers")


def _point(keys: Tensor, num_keys: int) -> Tensor:
    """Return where each key begins among sorted keys [num_keys + 1]."""
    return torch.searchsorted(
        keys, torch.arange(num_keys + 1, device=keys.device, dtype=keys.dtype)
    ).to(keys.dtype)


def multiply_segments(
    values: Float[Tensor, "num_rows channels"],
    weight: Float[Tensor, "num_segments channels out"],
    sizes: tuple[int, ...],
    bias: Float[Tensor, "num_segments out"] | None = None,
) -> Float[Tensor, "num_rows out"]:
    """Multiply consecutive segments of rows by a matrix each.

    Args:
        values: [num_rows, channels]
        weight: [num_segments, channels, out]
        sizes: number of rows of each segment.
        bias: row that is added to each product of a segment [num_segments, out].
    """
    parts = [rows @ matrix for rows, matrix in zip(values.split(sizes), weight, strict=True)]
    if bias is not None:
        parts = [(part + row).to(part.dtype) for part, row in zip(parts, bias, strict=True)]
    return torch.cat(parts)


def convolve(
    x: Float[Tensor, "num_src channels"],
    weight: Float[Tensor, "num_relations channels out"],
    relations: Relations,
    *,
    kernel: str = "auto",
) -> Float[Tensor, "num_dst out"]:
    """Compute ``sum_r mean_j W_r x_j`` over the neighbours j of each destination by each relation r.

    Dense pairs of destinations are reduced first, and have one product for all relations. Otherwise each relation is
    reduced before its product, if its pairs of destinations are fewer than those of its sources, or after it.

    Args:
        kernel: as for :func:`models.messages.update_all`.
    """
    if relations.is_dense:
        reduced = update_all(
            relations.into_destinations,
            "copy_u",
            "mean",
            u=x,
            kernel=kernel,
            num_dst=relations.destinations.num_pairs,
        )
        return relations.destinations.add_up(reduced, weight, kernel)
    sides = relations.smaller
    reduced = update_all(
        sides.first, "copy_u", "mean", u=x, num_dst=sides.destinations.num_pairs, kernel=kernel
    )
    values = torch.cat(
        [
            multiply_segments(reduced, weight, sides.destinations.sizes),
            sides.sources.multiply(x, weight),
        ]
    )
    return update_all(
        sides.second,
        "u_mul_e",
        "sum",
        u=values,
        e=sides.share.to(x.dtype),
        num_dst=relations.num_dst,
        kernel=kernel,
    )

"""Links of one relation of a graph with several types of nodes: which edges are its links, and what is drawn.

As in PyG's RandomLinkSplit, edges of other relations stay in the message graph, and the edges of the reverse relation
are hidden together with the links. As in its LinkNeighborLoader, pairs without a link keep the source of a link.
"""

import logging
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.data.relation import REVERSE, choose_relation, refuse_relation, reverses_of
from parallel_epochs.pipeline.data.typed import fill_means, plan_means
from parallel_epochs.pipeline.graph.pairs import draw_targets
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# Largest fraction of links that another relation shows by accident.
COPIED = 0.5
# The value of a graph with pairs that holds the number of their relation.
RELATION = "link_relation"


@dataclass(frozen=True)
class LinkRelation:
    """The relation whose links are learned.

    Attributes:
        number: of the relation.
        reverse: number of its reverse relation; none without one.
        source, target: numbers of the nodes of the types at both ends.
        name: for messages.
    """

    number: int
    reverse: int | None
    source: range
    target: range
    name: str

    @property
    def is_within_type(self) -> bool:
        """Tell whether both ends have the same type."""
        return self.source == self.target

    def edges_of(self, relation: Float[Tensor, " num_edges"]) -> Bool[Tensor, " num_edges"]:
        """Tell which edges are of this relation or of its reverse.

        Args:
            relation: the number of each edge's relation.
        """
        found = relation == self.number
        return found if self.reverse is None else found | (relation == self.reverse)


def name_relation(data: Graph, wanted: object, origin: str) -> int | None:
    """Return the number of the relation that task.relation names; none for a graph with one type of nodes.

    Raises:
        ValueError: see :func:`choose_relation`; or it is named for a graph without relations.
    """
    if not data.types.homogeneous:
        return choose_relation(data.types.relations, wanted, origin)
    refuse_relation(wanted, origin)
    return None


def describe_relation(types: GraphTypes, number: int) -> LinkRelation:
    """Look up what a relation links."""
    source, _, target = types.relations[number]
    reverse = next((own for own, other in reverses_of(types.relations).items() if other == number), None)
    return LinkRelation(number, reverse, types.nodes_of(source), types.nodes_of(target), types.name_of(number))


def link_relation_of(data: Graph) -> LinkRelation | None:
    """Return the relation of the pairs of a graph; none if it has one type of nodes."""
    return describe_relation(data.types, data[RELATION]) if RELATION in data else None


def find_relation_links(edges: Int[Tensor, "2 num_edges"], relation: Float[Tensor, " num_edges"], own: LinkRelation,
                        num_nodes: int, origin: str) -> tuple[Int[Tensor, "num_links 2"], Int[Tensor, " num_edges"]]:
    """Find the pairs of two different nodes that edges of a relation link.

    Within one type, a pair counts once if both nodes are linked to each other: it is that from the smaller node to the
    larger one. The edges of the reverse relation between the same nodes belong to the link.

    Args:
        edges: all edges of the graph.
        relation: the number of each edge's relation.

    Returns:
        The links, source and target of each, sorted by the smaller node; and the link of each edge, -1 for edges that
        belong to none.

    Raises:
        ValueError: the relation has no edge between two different nodes.
    """
    low, high = edges.amin(0), edges.amax(0)
    keys = low * num_nodes + high
    is_link = (relation == own.number) & (low != high)
    unique = keys[is_link].unique()
    if not len(unique):
        raise ValueError(f"the relation {own.name} of {origin} has no edge between two different nodes: there is no "
                         "link to predict. Choose another by task.relation")
    place = torch.searchsorted(unique, keys).clamp(max=len(unique) - 1)
    belongs = (unique[place] == keys) & own.edges_of(relation) & (low != high)
    pairs = torch.stack([unique // num_nodes, unique % num_nodes], dim=1)
    ascending = torch.zeros(len(unique), dtype=torch.bool)
    ascending[place[is_link & (edges[0] < edges[1])]] = True
    return torch.where(ascending[:, None], pairs, pairs.flip(1)), torch.where(belongs, place, -1)


def warn_of_copies(types: GraphTypes, own: LinkRelation, links: Int[Tensor, "num_links 2"],
                   edges: Int[Tensor, "2 num_edges"], relation: Float[Tensor, " num_edges"]) -> None:
    """Warn of other relations that link the same nodes, in either direction: they would show the hidden links.

    Args:
        links: of the relation that is learned.
        edges: all edges of the graph.
        relation: the number of each edge's relation.
    """
    num_nodes = sum(types.counts)
    keys = links.amin(1) * num_nodes + links.amax(1)
    keys = keys.sort().values
    others = ~own.edges_of(relation) & (edges[0] != edges[1])
    found = edges.amin(0)[others] * num_nodes + edges.amax(0)[others]
    place = torch.searchsorted(keys, found).clamp(max=len(keys) - 1)
    is_copy = keys[place] == found
    numbers = relation[others][is_copy].long()
    for number in numbers.unique().tolist():
        share = len(found[is_copy][numbers == number].unique()) / len(keys)
        if share > COPIED:
            log.warning("%.0f %% of the links of %s are edges of %s too, which stay in the graph: a model sees the "
                        "links that it is to predict. If it is the inverse relation, name it %s%s, and both are "
                        "hidden; otherwise leave it out", 100 * share, own.name, types.name_of(number), REVERSE,
                        types.relations[own.number][1])


def times_of_links(times: Tensor | None, relation: Float[Tensor, " num_edges"], own: LinkRelation,
                   origin: str) -> Float[Tensor, " num_edges"]:
    """Return the times of edges.

    Raises:
        ValueError: the edges of the relation have none.
    """
    if times is None or not bool(times[relation == own.number].isfinite().all()):
        raise ValueError(f"data.split=time: the relation {own.name} of {origin} has no times. Name their column by "
                         "time, in its part of data.schema, or set data.split=random")
    return times


def draw_unlinked_targets(rng: np.random.Generator, pairs: Int[Tensor, "num_pairs 2"],
                          links: Int[Tensor, "num_links 2"], own: LinkRelation,
                          origin: str) -> Int[Tensor, "num_drawn 2"]:
    """Draw a target for the source of each pair among all nodes of the target's type that it is not linked to.

    Within one type, a node that is linked to the source in the other direction is not drawn, and neither is the source.

    Args:
        links: all links of the relation.

    Returns:
        Source and target, in the order of the pairs; sources that are linked to every node are left out.

    Raises:
        ValueError: no pair is left.
    """
    first = torch.tensor([own.source.start, own.target.start])
    taken = links - first
    if own.is_within_type:
        taken = torch.cat([taken, taken.flip(1), torch.arange(len(own.source))[:, None].expand(-1, 2)])
    sources = pairs[:, 0] - own.source.start
    targets = draw_targets(rng, sources, len(own.target), taken)
    free = targets >= 0
    if len(pairs) and not bool(free.any()):
        raise ValueError(f"{origin}: every source of a pair for validation or test is linked to all "
                         f"{len(own.target):,} targets of the relation {own.name}, so that no pair without a link "
                         "can be drawn")
    if num_full := int((~free).sum()):
        log.warning("links: no pair without a link is drawn for the sources of %s for validation or test, which are "
                    "linked to all %s targets", count(num_full, "pair"), f"{len(own.target):,}")
    return torch.stack([sources, targets], dim=1)[free] + first


def refill_means(types: GraphTypes, x: Float[Tensor, "num_nodes columns"], edges: Int[Tensor, "2 num_edges"],
                 indptr: Int[Tensor, " num_nodes_plus_1"]) -> Float[Tensor, "num_nodes columns"]:
    """Compute the features that are means over neighbours anew, of the message graph: hidden links must not show."""
    if not types.averaged:
        return x
    own = {name: 0 if name in types.averaged else width
           for name, width in zip(types.names, types.widths, strict=True)}
    out = x.clone()
    for name in types.averaged:
        nodes = types.nodes_of(name)
        out[nodes.start:nodes.stop, :max(types.widths)] = 0

    def write(first: int, column: int, values: Tensor) -> None:
        out[first:first + values.size(0), column:column + values.size(1)] = values

    fill_means(plan_means(own, types.relations), types, edges.numpy(), indptr.numpy(), out.numpy(),
               write)
    return out

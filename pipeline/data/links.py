"""Links of a graph of one's own: its edges divided into pairs for training, validation and test, and a message graph.

As PyG's RandomLinkSplit does, both directions of a link stay together, the message graph has the training links alone,
and as many pairs that are no edges of the whole graph are drawn once for validation and test. If the links are those of
one relation, edges of other relations stay in the message graph, and the edges of the reverse relation are hidden
together with the links. As in PyG's LinkNeighborLoader, pairs without a link then keep the source of a link.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from parallel_epochs.pipeline.data.check import check_pairs
from parallel_epochs.pipeline.data.graph import DataKind, Graph
from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.data.incident import incident_features
from parallel_epochs.pipeline.data.join_types import fill_means, plan_means
from parallel_epochs.pipeline.data.learned import FITTED
from parallel_epochs.pipeline.data.prepare import NAME_KEYS, masks_of_pairs
from parallel_epochs.pipeline.data.relation import (
    REVERSE,
    choose_relation,
    refuse_relation,
    reverses_of,
)
from parallel_epochs.pipeline.data.splits import divide, shuffle_groups
from parallel_epochs.pipeline.graph.pairs import draw_targets, keep_edges
from parallel_epochs.pipeline.names import FIRST_SOURCE, PAIR_TIMES, SPLITS
from parallel_epochs.pipeline.run.seeds import stream
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)
# This is what a graph lacks for a split, and how to give it.
LACKING = {
    "time": (
        "times",
        "Name their column by data.edges.time, or by time in its part of data.schema",
    ),
    "column": (
        "splits",
        "Name their column by data.edges.split_column, or by split_column in its part of data.schema",
    ),
    "group": ("groups", "data.split_by is for one table of edges, without labels of nodes"),
}

# Largest fraction of links that another relation shows by accident.
COPIED = 0.5
# The value of a graph with pairs that holds the number of their relation.
RELATION = "link_relation"
# The metric of pairs that OGB has not divided: unlike hits@K, it does not depend on the number of negative pairs.
METRIC = "rocauc"


@dataclass(frozen=True)
class LinkSplit:
    """How links are divided.

    Attributes:
        kind: "random"; "time", which trains on the earliest; "column", where ``edge_time`` holds the number of the
            split, or "group", where it holds that of a group that stays in one split.
        train_fraction, valid_fraction: of the links; the rest is for the test.
        seed: of a random order, and of the pairs that are drawn.
        node_features: how features are made of edges, see :func:`pipeline.data.incident.incident_features`.
        until: the last time of training and that of validation, for "time", in place of the fractions.
    """

    kind: str
    train_fraction: float
    valid_fraction: float
    seed: int
    node_features: str
    until: tuple[float, float] | None = None


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


def describe_links(data: Graph, split: LinkSplit) -> str:
    """Say how many pairs each split has."""
    counts = ", ".join(
        f"{len(data[f'{part}_pairs']):,} {name}"
        for part, name in zip(SPLITS, ("training", "validation", "test"), strict=True)
    )
    drawn = f"{len(data.valid_negatives):,} and {len(data.test_negatives):,}"
    own = link_relation_of(data)
    return (
        f"{'' if own is None else f'{own.name}, '}{counts} pairs, divided by {split.kind}; {drawn} pairs "
        f"without a link drawn for validation and test; the graph keeps {data.edge_index.size(1):,} directed edges"
    )


def divide_links(
    graph: Graph,
    split: LinkSplit,
    origin: str,
    relation: object = None,
    refit: Callable[[Graph, Tensor], Tensor] | None = None,
) -> Graph:
    """Divide the edges of a prepared graph, or those of one relation.

    A link is a pair of two different nodes with an edge in either direction. Self-loops are no links, and stay. Where
    the features of the nodes are made of their edges, they are made anew, of the message graph.

    Args:
        graph: as :func:`pipeline.data.cache.load` returns it, with ``edge_time`` [num_edges] for a split by time.
        origin: where the graph comes from, for messages.
        relation: that task.relation names; none for a graph with one type of nodes.
        refit: changes features of the edges that are left, so that what they are scaled by is learned of these alone;
            returns the array ``fitted`` that says so.

    Raises:
        ValueError: no link is left for training, there are not as many pairs without a link as are needed, or the
            relation does not fit the graph.
    """
    if graph.kind is DataKind.PAIRS:
        raise ValueError(f"{origin} holds pairs of nodes already. Save its edges without them")
    number, types = name_relation(graph, relation, origin), graph.types
    own = None if number is None else describe_relation(types, number)
    edges = graph.edge_index.as_tensor().long()
    relations = edges.new_empty(0) if own is None else graph.edge_attr[:, 0]
    links, link_of_edge = find_links(edges, graph.num_nodes, own, relations)
    if own is not None:
        warn_of_copies(types, own, links, edges, relations)
    masks, times = _choose(graph, split, links, link_of_edge, own, origin)
    is_other = link_of_edge < 0
    kept = (is_other | masks[0][link_of_edge.clamp(min=0)]).nonzero().squeeze(1)
    edge_index = keep_edges(graph.edge_index, kept)
    edge_attr = None if graph.edge_attr is None else graph.edge_attr.index_select(0, kept)
    fitted = graph.get(FITTED)
    if refit is not None and fitted is not None and edge_attr is not None:
        fitted = refit(graph, edge_attr)
    x, source = graph.x, graph.get("x_source", "data")
    (indptr, _), _ = edge_index.get_csc()
    if not types.homogeneous:
        x = refill_means(types, x, edge_index.as_tensor(), indptr)
    elif source != "data":
        made = incident_features(indptr, edge_attr, split.node_features)
        x = torch.cat([made, x[:, x.size(1) - graph.num_categories :]], dim=1)
    pairs = _make_pairs(split, links, masks, graph.num_nodes, own, origin)
    names = {
        key: graph[key]
        for key in (*NAME_KEYS, "types", FIRST_SOURCE)
        if key in graph and not key.startswith("label")
    }
    if fitted is not None:
        names[FITTED] = fitted
    if own is not None:
        names[RELATION] = own.number
    if times is not None:
        names[PAIR_TIMES] = torch.cat([times[mask] for mask in masks[:2]])
    out = Graph(
        x=x,
        edge_index=edge_index,
        edge_attr=edge_attr,
        num_nodes=graph.num_nodes,
        metric=METRIC,
        num_categories=graph.num_categories,
        x_source=source,
        **names,
        **pairs,
        **masks_of_pairs(pairs, graph.num_nodes),
    )
    check_pairs(out)
    return out


def _make_pairs(
    split: LinkSplit,
    links: Tensor,
    masks: list[Tensor],
    num_nodes: int,
    own: LinkRelation | None,
    origin: str,
) -> dict[str, Tensor]:
    """Return the pairs of each split, and pairs without a link for validation and test."""
    train, valid, test = (links[mask] for mask in masks)
    rng = stream("unlinked pairs", split.seed)
    # The links of the test are not known at the time of the validation.
    known = (links[~masks[2]], links) if split.kind == "time" else (links, links)
    if own is not None:
        negatives = [
            draw_unlinked_targets(rng, pairs, taken, own, origin)
            for pairs, taken in zip((valid, test), known, strict=True)
        ]
    else:
        side = find_sides(links, num_nodes)

        def draw(number: int, taken: Tensor) -> Tensor:
            drawn = None if side is None else draw_across(rng, number, taken, side)
            return draw_unlinked(rng, number, taken, num_nodes, origin) if drawn is None else drawn

        counts = len(valid), len(test)
        if split.kind == "time":
            negatives = [draw(*own_draw) for own_draw in zip(counts, known, strict=True)]
        else:
            negatives = list(draw(sum(counts), links).split(counts))
    return {
        "train_pairs": train,
        "valid_pairs": valid,
        "valid_negatives": negatives[0],
        "test_pairs": test,
        "test_negatives": negatives[1],
    }


def find_links(
    edges: Int[Tensor, "2 num_edges"],
    num_nodes: int,
    own: LinkRelation | None = None,
    relations: Tensor = torch.empty(0),
) -> tuple[Int[Tensor, "num_links 2"], Int[Tensor, " num_edges"]]:
    """Find the pairs of two different nodes that edges link, in either direction.

    Args:
        edges: all edges of the graph.
        own: the relation whose edges are links; those of its reverse between the same nodes belong to them. None: all.
        relations: the number of each edge's relation, float [num_edges], if there are several.

    Returns:
        The links, sorted by their smaller node: from it to the larger one, but the other way round if there is only
        such an edge. And the link of each edge, -1 for edges that belong to none, such as self-loops.
    """
    low, high = edges.amin(0), edges.amax(0)
    keys, is_link = low * num_nodes + high, low != high
    belongs = is_link if own is None else is_link & own.edges_of(relations)
    is_link = is_link if own is None else is_link & (relations == own.number)
    unique = keys[is_link].unique()
    place = torch.searchsorted(unique, keys)
    belongs &= torch.isin(keys, unique)
    pairs = torch.stack([unique // num_nodes, unique % num_nodes], dim=1)
    ascending = torch.zeros(len(unique), dtype=torch.bool)
    ascending[place[is_link & (edges[0] < edges[1])]] = True
    return torch.where(ascending[:, None], pairs, pairs.flip(1)), torch.where(belongs, place, -1)


def _choose(
    graph: Graph,
    split: LinkSplit,
    links: Tensor,
    link_of_edge: Tensor,
    own: LinkRelation | None,
    origin: str,
) -> tuple[list[Bool[Tensor, " num_links"]], Float[Tensor, " num_links"] | None]:
    """Divide the links into training, validation and test; also return their times if these divide them."""
    name = origin if own is None else f"the relation {own.name} of {origin}"
    if not len(links):
        raise ValueError(
            f"{name} has no edge between two different nodes: there is no link to predict"
        )
    sorted_times = groups = None
    if split.kind == "random":
        order = stream("links", split.seed).permutation(len(links))
    else:
        times, is_own = graph.get("edge_time"), link_of_edge >= 0
        if times is None or own and not times[graph.edge_attr[:, 0] == own.number].isfinite().all():
            what, mend = LACKING[split.kind]
            raise ValueError(
                f"data.split={split.kind}: {name} has no {what}. {mend}, or set data.split=random"
            )
        first = torch.full((len(links),), torch.inf, dtype=torch.float64)
        first.scatter_reduce_(0, link_of_edge[is_own], times[is_own].double(), "amin")
    if split.kind == "column":
        masks = [first == number for number in range(3)]
        if not masks[0].any():
            raise ValueError(f"{origin}: no link has train in the column data.edges.split_column")
        return masks, None
    if split.kind == "time":
        order = first.argsort(stable=True).numpy()
        sorted_times = first.numpy()[order]
    if split.kind == "group":
        order, groups = shuffle_groups(np.arange(len(links)), first.numpy(), split.seed)
    masks = divide(
        order,
        len(links),
        split.train_fraction,
        split.valid_fraction,
        unit="link",
        times=sorted_times,
        until=split.until,
        groups=groups,
    )
    rest = 1 - split.train_fraction - split.valid_fraction
    fractions = {"data.valid_fraction": split.valid_fraction, "the rest for the test": rest}
    for mask, (key, fraction) in zip(masks[1:], fractions.items(), strict=True):
        if not mask.any() and fraction > 1e-9 and split.until is None:
            raise ValueError(
                f"{origin}: {key}={fraction:.4g} of {count(len(links), 'link')} is less than one link. Give "
                "more edges or other fractions"
            )
    return masks, first if split.kind == "time" else None


def draw_unlinked(
    rng: np.random.Generator,
    count: int,
    links: Int[Tensor, "num_links 2"],
    num_nodes: int,
    origin: str,
) -> Int[Tensor, "count 2"]:
    """Draw different pairs of two nodes without a link, all with the same probability and in a random order.

    All pairs are numbered, the smaller node first. The k-th number without a link is found by a binary search, so that
    a graph in which nearly all pairs are linked takes no longer.

    Raises:
        ValueError: there are not so many.
    """
    row_starts = torch.arange(num_nodes) * (2 * num_nodes - torch.arange(num_nodes) - 1) // 2
    low, high = links.amin(1), links.amax(1)
    linked = (row_starts[low] + high - low - 1).sort().values
    num_free = num_nodes * (num_nodes - 1) // 2 - len(linked)
    if num_free < count:
        raise ValueError(
            f"{origin}: {num_free:,} pairs of its {num_nodes:,} nodes are not linked, but validation and "
            f"test need {count:,}, one for each of their links. Raise data.train_fraction, or give a "
            "graph with fewer edges"
        )
    numbers = _draw_free(rng, count, linked, num_free)
    low = torch.searchsorted(row_starts, numbers, right=True) - 1
    return torch.stack([low, numbers - row_starts[low] + low + 1], dim=1)


def find_sides(
    links: Int[Tensor, "num_links 2"], num_nodes: int
) -> Int[Tensor, " num_nodes"] | None:
    """Find the two sides of a bipartite graph: 0 and 1, and -1 for nodes without a link; none of any other graph.

    In its double cover, which links each node's first copy to the second copies of its neighbours, both copies of a
    node are in one component if and only if the node is on a cycle of odd length. Of several components each has its
    own sides: they belong together by where its links begin; none if those of one begin on both.
    """
    source, target = links.t().numpy()
    ends = np.concatenate([source, target]), np.concatenate([target, source]) + num_nodes
    cover = scipy.sparse.coo_array(
        (np.ones(len(ends[0]), np.bool_), ends), shape=(2 * num_nodes,) * 2
    )
    copies = connected_components(cover, directed=False)[1].reshape(2, num_nodes)
    is_linked = np.zeros(num_nodes, bool)
    is_linked[links.flatten().numpy()] = True
    if (copies[0] == copies[1])[is_linked].any():
        return None
    side, part = copies[0] > copies[1], copies.min(0)
    if (part[source] != part[source[:1]]).any():
        num_links, num_swapped = (
            np.bincount(part[source]),
            np.bincount(part[source], side[source] != side[source[0]]),
        )
        if ((num_swapped > 0) & (num_swapped < num_links)).any():
            return None
        side[is_linked] ^= num_swapped[part[is_linked]] > 0
    return torch.from_numpy(np.where(is_linked, side.astype(np.int64), -1))


def sides_of(data: Graph) -> Int[Tensor, " num_nodes"] | None:
    """Find the sides between which the pairs without a link of a divided graph are; none where they are of any nodes.

    Args:
        data: as :func:`divide_links` returns it.
    """
    if RELATION in data:
        return None
    links = torch.cat([data[f"{part}_pairs"] for part in SPLITS])
    side, num_drawn = (
        find_sides(links, data.num_nodes),
        len(data.valid_pairs) + len(data.test_pairs),
    )
    if side is None or int((side == 0).sum()) * int((side == 1).sum()) < len(links) + num_drawn:
        return None
    return side


def draw_across(
    rng: np.random.Generator,
    count: int,
    links: Int[Tensor, "num_links 2"],
    side: Int[Tensor, " num_nodes"],
) -> Int[Tensor, "count 2"] | None:
    """Draw different pairs without a link of nodes of different sides, as :func:`draw_unlinked` does of any nodes.

    They go from the side that all links come from; otherwise from the smaller node, as links do. None: there are not so
    many.
    """
    nodes = [(side == number).nonzero().squeeze(1) for number in (0, 1)]
    place = torch.empty_like(side)
    for own in nodes:
        place[own] = torch.arange(len(own))
    ends = torch.where(side[links[:, :1]] == 0, links, links.flip(1))
    linked = (place[ends[:, 0]] * len(nodes[1]) + place[ends[:, 1]]).sort().values
    num_free = len(nodes[0]) * len(nodes[1]) - len(linked)
    if num_free < count:
        log.warning(
            "links: the graph is bipartite, and %s pairs across its sides have no link: pairs within a side, "
            "which are easy to tell from links, are drawn too",
            f"{num_free:,}",
        )
        return None
    numbers = _draw_free(rng, count, linked, num_free)
    log.info(
        "links: the graph is bipartite, with sides of %s and %s nodes; pairs without a link are drawn across them",
        *(f"{len(own):,}" for own in nodes),
    )
    pairs = torch.stack(
        [nodes[0][numbers // len(nodes[1])], nodes[1][numbers % len(nodes[1])]], dim=1
    )
    first = side[links[:, 0]]
    if bool((first == first[0]).all()):
        return pairs if first[0] == 0 else pairs.flip(1)
    return pairs.sort(1).values


def _draw_free(
    rng: np.random.Generator, count: int, linked: Int[Tensor, " num_links"], num_free: int
) -> Int[Tensor, " count"]:
    """Draw different numbers from 0 that are not among the sorted ones of `linked`."""
    chosen = torch.from_numpy(_draw_different(rng, count, num_free))
    return chosen + torch.searchsorted(linked - torch.arange(len(linked)), chosen, right=True)


def _draw_different(rng: np.random.Generator, count: int, end: int) -> np.ndarray:
    """Draw different numbers below `end`, in a random order."""
    if 2 * count >= end:
        return rng.permutation(end)[:count]
    drawn = np.empty(0, np.int64)
    while len(drawn) < count:
        drawn = np.unique(np.concatenate([drawn, rng.integers(end, size=count + count // 4 + 16)]))
    return rng.permutation(drawn)[:count]


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
    reverse = next(
        (own for own, other in reverses_of(types.relations).items() if other == number), None
    )
    return LinkRelation(
        number, reverse, types.nodes_of(source), types.nodes_of(target), types.name_of(number)
    )


def link_relation_of(data: Graph) -> LinkRelation | None:
    """Return the relation of the pairs of a graph; none if it has one type of nodes."""
    return describe_relation(data.types, data[RELATION]) if RELATION in data else None


def warn_of_copies(
    types: GraphTypes,
    own: LinkRelation,
    links: Int[Tensor, "num_links 2"],
    edges: Int[Tensor, "2 num_edges"],
    relation: Float[Tensor, " num_edges"],
) -> None:
    """Warn of other relations that link the same nodes, in either direction: they would show the hidden links.

    Args:
        links: of the relation that is learned.
        edges: all edges of the graph.
        relation: the number of each edge's relation.
    """
    num_nodes = sum(types.counts)
    keys = links.amin(1) * num_nodes + links.amax(1)
    found = edges.amin(0) * num_nodes + edges.amax(0)
    is_copy = torch.isin(found, keys) & ~own.edges_of(relation)
    found, numbers = found[is_copy], relation[is_copy].long()
    for number in numbers.unique().tolist():
        share = len(found[numbers == number].unique()) / len(keys)
        if share > COPIED:
            log.warning(
                "%.0f %% of the links of %s are edges of %s too, which stay in the graph: a model sees the "
                "links that it is to predict. If it is the inverse relation, name it %s%s, and both are "
                "hidden; otherwise leave it out",
                100 * share,
                own.name,
                types.name_of(number),
                REVERSE,
                types.relations[own.number][1],
            )


def draw_unlinked_targets(
    rng: np.random.Generator,
    pairs: Int[Tensor, "num_pairs 2"],
    links: Int[Tensor, "num_links 2"],
    own: LinkRelation,
    origin: str,
) -> Int[Tensor, "num_drawn 2"]:
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
        taken = torch.cat(
            [taken, taken.flip(1), torch.arange(len(own.source))[:, None].expand(-1, 2)]
        )
    sources = pairs[:, 0] - own.source.start
    targets = draw_targets(rng, sources, len(own.target), taken)
    free = targets >= 0
    if len(pairs) and not bool(free.any()):
        raise ValueError(
            f"{origin}: every source of a pair for validation or test is linked to all "
            f"{len(own.target):,} targets of the relation {own.name}, so that no pair without a link "
            "can be drawn"
        )
    if num_full := int((~free).sum()):
        log.warning(
            "links: no pair without a link is drawn for the sources of %s for validation or test, which are "
            "linked to all %s targets",
            count(num_full, "pair"),
            f"{len(own.target):,}",
        )
    return torch.stack([sources, targets], dim=1)[free] + first


def refill_means(
    types: GraphTypes,
    x: Float[Tensor, "num_nodes columns"],
    edges: Int[Tensor, "2 num_edges"],
    indptr: Int[Tensor, " num_nodes_plus_1"],
) -> Float[Tensor, "num_nodes columns"]:
    """Compute the features that are means over neighbours anew, of the message graph: hidden links must not show."""
    if not types.averaged:
        return x
    own = {
        name: 0 if name in types.averaged else width
        for name, width in zip(types.names, types.widths, strict=True)
    }
    out = x.clone()
    for name in types.averaged:
        nodes = types.nodes_of(name)
        out[nodes.start : nodes.stop, : max(types.widths)] = 0
    fill_means(plan_means(own, types.relations), types, edges.numpy(), indptr.numpy(), out.numpy())
    return out

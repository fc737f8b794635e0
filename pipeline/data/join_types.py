"""Graphs with several types of nodes and several relations, as one graph with a type of each node and a relation of
each edge.

The nodes of a type are consecutive. The last columns of ``x`` are the one-hot type; the others are those of the type,
and zeros behind them. The first column of ``edge_attr`` is the number of the relation; the others are features.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from parallel_epochs.models.edge_index import INT32_END, cut_into_blocks
from parallel_epochs.models.messages import update_all
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.data.relation import REVERSE, Relation

# float32, which holds the number of a relation, is exact up to here; more relations than this are ids.
MAX_RELATIONS = 1 << 16
# Edges that are averaged at once, at most; those of one destination are not divided.
EDGES_OF_BLOCK = 1 << 22


def with_reverse(relations: Sequence[Relation]) -> list[Relation]:
    """Return relations and behind them the reverse ones, whose names begin with :data:`REVERSE`.

    Raises:
        ValueError: the name of a reverse relation is taken.
    """
    reverse = [(target, f"{REVERSE}{name}", source) for source, name, target in relations]
    if taken := sorted(set(reverse) & set(relations)):
        source, name, target = taken[0]
        raise ValueError(
            f"the relation {name} from {source} to {target} has the name of the reverse of "
            f"{name.removeprefix(REVERSE)}. Rename it, or set data.reverse_relations=false, which adds "
            "none"
        )
    return [*relations, *reverse]


def check_schema(types: Sequence[str], relations: Sequence[Relation]) -> None:
    """Refuse relations of unknown types, and names that occur twice.

    Raises:
        ValueError: names the type or the relation.
    """
    for source, name, target in relations:
        for end in (source, target):
            if end not in types:
                raise ValueError(
                    f"the relation {name} goes from {source} to {target}, and there is no type {end}; the "
                    f"types of nodes are {', '.join(types)}"
                )
    if twice := [relation for relation, times in Counter(relations).items() if times > 1]:
        source, name, target = twice[0]
        raise ValueError(
            f"the relation {name} from {source} to {target} is there twice. Give each a name of its own"
        )
    if len(relations) > MAX_RELATIONS:
        raise ValueError(
            f"{len(relations):,} relations are more than {MAX_RELATIONS:,}: so many are ids rather than "
            "kinds of edges. For triples of a knowledge graph, set trainer=knowledge"
        )


@dataclass(frozen=True)
class Plan:
    """How the nodes of types without features get them.

    Attributes:
        widths: number of columns of ``x`` that each type has in the end.
        sources: for each such type, in the order in which they are filled: the types of its neighbours whose features
            are averaged. Their means stand side by side.
    """

    widths: dict[str, int]
    sources: dict[str, list[str]]


def plan_means(widths: Mapping[str, int], relations: Sequence[Relation]) -> Plan:
    """Plan the features of types without: the means over the neighbours of each type that has some, or has got them in
    an earlier round.

    Args:
        widths: number of columns of each type; 0 for those without features.
        relations: with the reverse ones.
    """
    known, sources = (
        {name: width for name, width in widths.items() if width},
        dict[str, list[str]](),
    )
    while True:
        found = {}
        for name in (name for name in widths if name not in known):
            near = dict.fromkeys(
                source for source, _, target in relations if target == name and source in known
            )
            if near:
                found[name] = list(near)
        if not found:
            return Plan({name: known.get(name, 0) for name in widths}, sources)
        sources |= found
        known |= {name: sum(known[source] for source in near) for name, near in found.items()}


def fill_means(
    plan: Plan, types: GraphTypes, edge_index: np.ndarray, indptr: np.ndarray, x: np.ndarray
) -> None:
    """Write the features of types without into `x`: means over their incoming edges, some destinations at a time.

    Of a block of destinations the edges are in memory, at most about :data:`EDGES_OF_BLOCK`, and the features of their
    sources.

    Args:
        edge_index: sorted by destination [2, num_edges].
        indptr: first edge of each destination [num_nodes + 1].
        x: the features [num_nodes, columns].
    """
    for name, near in plan.sources.items():
        nodes = types.nodes_of(name)
        for begin, end in cut_into_blocks(
            torch.from_numpy(indptr[nodes.start : nodes.stop + 1]), EDGES_OF_BLOCK
        ):
            first, last = nodes.start + begin, nodes.start + end
            edges, column = np.array(edge_index[:, int(indptr[first]) : int(indptr[last])]), 0
            for source in near:
                of_source, width = types.nodes_of(source), plan.widths[source]
                kept = edges[:, (edges[0] >= of_source.start) & (edges[0] < of_source.stop)]
                sources, place = np.unique(kept[0], return_inverse=True)
                kept = np.stack([place.reshape(-1).astype(kept.dtype), kept[1] - first])
                values = torch.from_numpy(np.array(x[:, :width][sources]))
                x[first:last, column : column + width] = update_all(
                    torch.from_numpy(kept),
                    "copy_u",
                    "mean",
                    u=values,
                    num_src=len(sources),
                    num_dst=last - first,
                )
                column += width


def check_alike(known: Mapping[str, Any] | None, data: Graph) -> None:
    """Refuse a graph whose types and relations are not those of a training.

    Args:
        known: the schema of the training; none if its graph had one type.

    Raises:
        ValueError: says what differs.
    """
    found = None if data.types.homogeneous else data.types.to_value()
    if (known is None) != (found is None):
        raise ValueError(
            f"there {'is one type' if found is None else 'are several types'} of nodes, and the model was "
            f"trained on {'several' if found is None else 'one'}"
        )
    if known is None or found is None:
        return
    for key, what in (
        ("types", "types of nodes"),
        ("relations", "relations"),
        ("widths", "columns of the types"),
        ("averaged", "types whose features are means of those of their neighbours"),
        ("edge_columns", "columns of the features of each relation"),
    ):
        if (expected := known.get(key, [])) != found.get(key, []):
            raise ValueError(
                f"the {what} are {_listed(found[key])}, and the model was trained on {_listed(expected)}"
            )


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(
        ".".join(value) if isinstance(value, (list, tuple)) else str(value) for value in values
    )


def column_ranges(
    types: GraphTypes,
    *,
    num_labels: int = 0,
    num_learned: int = 0,
    learned: Sequence[str] = (),
    replaces: bool = False,
) -> list[list[tuple[int, int]]]:
    """Return the columns that a model reads of each type of nodes, as ranges, without the one-hot ones.

    Args:
        num_labels: columns of labels that are inputs, the first of all; those of the type with labels alone.
        num_learned: columns of a table, behind them.
        learned: types that have rows in it.
        replaces: whether these rows replace the features of such a type.
    """
    own = num_labels + num_learned
    found = []
    for name, width in zip(types.names, types.widths, strict=True):
        ranges = [
            (0, num_labels if name == types.labelled else 0),
            (num_labels, own if name in learned else num_labels),
            (own, own if replaces and name in learned else own + width),
        ]
        found.append([(first, last) for first, last in ranges if last > first])
    return found


def refuse_unread(types: GraphTypes, origin: str) -> None:
    """Refuse to learn labels of nodes, if several types have some and none was chosen.

    Raises:
        ValueError: names the types.
    """
    if types.unread:
        raise ValueError(
            f"{origin} has labels of several types of nodes, {' and '.join(types.unread)}. Choose those "
            f"to learn by task.type={types.unread[0]}"
        )


def edge_features(data: Graph) -> Tensor | None:
    """Return the features of edges [num_edges, columns] without the number of the relation; none without features."""
    if data.edge_attr is None or data.types.homogeneous:
        return data.edge_attr
    return data.edge_attr[:, 1:] if data.edge_attr.size(1) > 1 else None


def refuse_untyped_edges(*, to_undirected: bool, add_self_loops: bool) -> None:
    """Refuse edges that would have no relation.

    Raises:
        ValueError: names the key.
    """
    if to_undirected or add_self_loops:
        name = "to_undirected" if to_undirected else "add_self_loops"
        raise ValueError(
            f"data.{name}=true adds edges without a relation, and this graph has several relations. Leave it "
            "out: data.reverse_relations=true, the default, adds a reverse relation to each, and the models of "
            "typed graphs have a term for the node itself"
        )


def check_counts(counts: Mapping[str, int], origin: str) -> None:
    """Refuse types without nodes, and more nodes than a graph can have.

    Raises:
        ValueError: names the type.
    """
    for name, count in counts.items():
        if not count:
            raise ValueError(
                f"{origin}: there are no nodes of the type {name}. Leave the type and its relations out"
            )
    if (total := sum(counts.values())) >= INT32_END:
        raise ValueError(
            f"{origin}: {total:,} nodes are more than a graph can have here, {INT32_END - 1:,}"
        )


@dataclass
class NodesOfType:
    """The nodes of one type, in memory.

    Attributes:
        num_nodes: their number.
        x: features [num_nodes, columns], or none.
        labels: ``y`` and masks by these names; empty without labels.
    """

    num_nodes: int
    x: Tensor | None = None
    labels: dict[str, Tensor] = field(default_factory=dict)


def join_parts(
    parts: Mapping[str, NodesOfType],
    edges: Mapping[Relation, tuple[Tensor, Tensor | None]],
    *,
    origin: str,
    add_reverse: bool,
    averages: bool,
    metric: str | None,
) -> Graph:
    """Make one graph of the nodes of each type and the edges of each relation.

    Args:
        parts: the nodes of each type; one of them at most has labels.
        edges: the edges of each relation [2, num_edges], numbered within their types, and their features [num_edges,
            columns] or none. The features of different relations stand in columns of their own.
        origin: where the graph comes from, for messages.
        add_reverse: whether each relation gets a reverse one.
        averages: whether types without features get the means of their neighbours' features.
        metric: of the labels.

    Returns:
        What a reader returns, see :func:`pipeline.data.prepare.prepare`, with ``species``, the number of each node's
        type, and the types.

    Raises:
        ValueError: the parts do not fit each other; the message begins with `origin`.
    """
    names, relations = list(parts), list(edges)
    check_counts({name: part.num_nodes for name, part in parts.items()}, origin)
    try:
        check_schema(names, relations)
        numbered = with_reverse(relations) if add_reverse else relations
        check_schema(names, numbered)
        for relation in relations:
            _check_ends(parts, relation, *edges[relation])
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None
    widths = {name: 0 if part.x is None else part.x.size(1) for name, part in parts.items()}
    plan = plan_means(widths, numbered) if averages else Plan(widths, {})
    labelled = [name for name, part in parts.items() if part.labels]
    types = GraphTypes(
        names,
        [part.num_nodes for part in parts.values()],
        list(plan.widths.values()),
        numbered,
        labelled[0] if labelled else None,
        list(plan.sources),
        edge_columns=_edge_columns(edges),
    )
    edge_index, edge_attr = _join_edges(types, edges, add_reverse=add_reverse)
    out = Graph(
        edge_index=edge_index,
        edge_attr=edge_attr,
        num_nodes=sum(types.counts),
        x=_join_features(types, plan, parts, edge_index) if max(types.widths) else None,
        species=torch.arange(len(names)).repeat_interleave(torch.tensor(types.counts)),
        metric=metric,
    )
    out.types = types
    if labelled:
        nodes = types.nodes_of(labelled[0])
        for key, value in parts[labelled[0]].labels.items():
            empty = torch.nan if value.is_floating_point() else 0
            out[key] = value.new_full((out.num_nodes, *value.shape[1:]), empty)
            out[key][nodes.start : nodes.stop] = value
    return out


def _edge_columns(edges: Mapping[Relation, tuple[Tensor, Tensor | None]]) -> list[list[int]]:
    """Return the first column and the number of columns of the features of each relation; they stand side by side."""
    found, column = [], 1
    for _, attr in edges.values():
        num_columns = 0 if attr is None else attr.size(1)
        found.append([column if num_columns else 0, num_columns])
        column += num_columns
    return found


def _check_ends(
    parts: Mapping[str, NodesOfType],
    relation: Relation,
    edge_index: Tensor,
    edge_attr: Tensor | None,
) -> None:
    """Refuse edges that name nodes which are not there, and features of other edges."""
    name = ".".join(relation)
    for row, end in ((0, relation[0]), (1, relation[2])):
        if (
            edge_index.numel()
            and not 0
            <= int(edge_index[row].min())
            <= int(edge_index[row].max())
            < parts[end].num_nodes
        ):
            bad = int(edge_index[row].min() if edge_index[row].min() < 0 else edge_index[row].max())
            raise ValueError(
                f"edge_index of {name} names node {bad} of {end}, whose nodes are 0 to "
                f"{parts[end].num_nodes - 1:,}"
            )
    if edge_attr is not None and len(edge_attr) != edge_index.size(1):
        raise ValueError(
            f"edge_attr of {name} has {len(edge_attr):,} rows for {edge_index.size(1):,} edges"
        )


def _join_edges(
    types: GraphTypes, edges: Mapping[Relation, tuple[Tensor, Tensor | None]], *, add_reverse: bool
) -> tuple[Int[Tensor, "2 num_edges"], Float[Tensor, "num_edges columns"]]:
    """Number the nodes of all edges in the whole graph, and put the number of their relation before their features."""
    first = {name: types.nodes_of(name).start for name in types.names}
    num_columns = sum(0 if attr is None else attr.size(1) for _, attr in edges.values())
    indices, rows, column = [], [], 1
    for number, ((source, _, target), (index, attr)) in enumerate(edges.items()):
        index = index.long() + torch.tensor([[first[source]], [first[target]]])
        features = torch.zeros(index.size(1), 1 + num_columns)
        features[:, 0] = number
        if attr is not None:
            features[:, column : column + attr.size(1)] = attr
            column += attr.size(1)
        indices.append(index)
        rows.append(features)
    if add_reverse:
        reverse = [features.clone() for features in rows]
        for features in reverse:
            features[:, 0] += len(edges)
        indices, rows = indices + [index.flip(0) for index in indices], rows + reverse
    if not indices:
        return torch.empty(2, 0, dtype=torch.int64), torch.empty(0, 1)
    return torch.cat(indices, dim=1), torch.cat(rows)


def _join_features(
    types: GraphTypes, plan: Plan, parts: Mapping[str, NodesOfType], edge_index: Tensor
) -> Tensor:
    """Put the features of all nodes into one matrix; each row ends with zeros."""
    x = torch.zeros(sum(types.counts), max(types.widths))
    for name, part in parts.items():
        nodes = types.nodes_of(name)
        if part.x is not None:
            x[nodes.start : nodes.stop, : part.x.size(1)] = (
                part.x.to_dense() if part.x.layout != torch.strided else part.x
            )
    if plan.sources:
        order = edge_index[1].argsort(stable=True)
        indptr = torch.zeros(x.size(0) + 1, dtype=torch.int64)
        indptr[1:] = torch.bincount(edge_index[1], minlength=x.size(0)).cumsum(0)
        fill_means(plan, types, edge_index[:, order].numpy(), indptr.numpy(), x.numpy())
    return x

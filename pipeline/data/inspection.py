"""Describes an opened dataset for `python -m pipeline.check`: how much of everything there is, and what is odd."""

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from parallel_epochs.pipeline.data.graph import DataKind, Graph
from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.data.join_types import count_relations
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.graph.components import Components, label_components
from parallel_epochs.pipeline.graph.structure import structure_of
from parallel_epochs.pipeline.metrics import CLASS_METRICS, VALUE_METRICS
from parallel_epochs.pipeline.names import MASKS, SPLITS
from parallel_epochs.pipeline.run.words import count

# The name of a line, and its text.
Rows = list[tuple[str, str]]
# Classes or tasks that are listed one by one.
LISTED = 20
# Nodes or edges whose features are compared at a time.
ROWS = 4096


def describe(data: Graph, components: Components | None = None) -> Rows:
    """Describe a dataset as training opens it: a graph, many graphs, pairs to link, triples, or vectors.

    Args:
        components: of a graph, where they have been found already.
    """
    kind = data.kind
    if kind is DataKind.TRIPLES:
        return describe_triples(data.triples, data.triple_ptr, data.num_nodes, data.num_relations)
    if kind is DataKind.VECTORS:
        return describe_vectors(data.x) + describe_labels(data)
    if kind is DataKind.GRAPHS:
        rows = describe_graphs(data.ptr) + describe_edges(data)
    else:
        rows = describe_edges(data) + describe_components(data, components)
    rows += describe_features(data) if data.types.homogeneous else describe_types(data)
    return rows + (describe_pairs(data) if kind is DataKind.PAIRS else describe_labels(data))


def describe_edges(data: Graph) -> Rows:
    """Count the nodes and edges, and what is odd of them."""
    found = structure_of(data)
    rows = [("nodes", f"{data.num_nodes:,}"), ("directed edges", f"{data.num_edges:,}")]
    if found is None:
        return [*rows, ("odd edges", "not counted: the store says nothing of them")]
    kind = (
        "undirected"
        if found.is_undirected
        else f"directed: {found.num_without_reverse:,} edges have no reverse"
    )
    return [
        *rows,
        ("direction", kind),
        ("self-loops", f"{found.num_self_loops:,}"),
        # In a graph with several relations, most of them are edges of different relations.
        (
            "duplicate edges" if data.types.homogeneous else "parallel edges",
            f"{found.num_duplicates:,}",
        ),
        ("isolated nodes", of_all(found.num_isolated, found.num_nodes)),
    ]


def describe_components(data: Graph, components: Components | None) -> Rows:
    """Count the connected components, and say how large the largest is."""
    sizes = (
        np.bincount(label_components(data)[1])
        if components is None
        else np.array([component.num_nodes for component in components.components])
    )
    return [
        (
            "components",
            f"{len(sizes):,}, of which {int((sizes == 1).sum()):,} are single nodes; the largest has "
            f"{sizes.max(initial=0):,} nodes",
        )
    ]


def describe_graphs(ptr: Int[Tensor, " num_graphs_plus_1"]) -> Rows:
    """Say how many graphs there are, and how large.

    Args:
        ptr: where the nodes of each graph begin, and where the last one ends.
    """
    sizes = ptr.diff()
    return [
        ("graphs", f"{len(sizes):,}"),
        (
            "nodes of a graph",
            f"{int(sizes.min()):,} to {int(sizes.max()):,}, "
            f"{float(sizes.double().mean()):.1f} on average",
        ),
    ]


def describe_types(data: Graph) -> Rows:
    """Count the nodes of each type and the edges of each relation of a graph with several types of nodes, and say what
    features they have. The edges of a reverse relation are as many as those of its relation.
    """
    types = data.types
    rows = [("types of nodes", f"{len(types.names):,}")]
    for name, num_nodes, width in zip(types.names[:LISTED], types.counts, types.widths):
        nodes = types.nodes_of(name)
        features = (
            "no features"
            if not width
            else "features: "
            + describe_columns(
                data.x[nodes.start : nodes.stop, :width], count_constant=not data.on_disk
            )
        )
        rows.append(
            (
                f"type {name}",
                f"{count(num_nodes, 'node')}, {features}"
                + ", means of neighbours' features" * (name in types.averaged),
            )
        )
    rows += and_more(len(types.names), "types of nodes")
    counted, reverse = enumerate(count_relations(types, data.edge_attr[:, 0])), types.reverse
    forward = [
        (types.relations[number], num) for number, (_, num) in counted if number not in reverse
    ]
    num_reverse = len(types.relations) - len(forward)
    rows.append(
        (
            "relations",
            f"{len(forward):,}" + f", and {num_reverse:,} reverse ones" * (num_reverse > 0),
        )
    )
    rows += [
        (f"{name}", f"{count(num, 'edge')} from {source} to {target}")
        for (source, name, target), num in forward[:LISTED]
    ]
    rows += and_more(len(forward), "relations")
    features = describe_columns(data.edge_attr[:, 1:], count_constant=not data.on_disk)
    return [*rows, ("features of edges", features if data.edge_attr.size(1) > 1 else "none")]


def describe_features(data: Graph) -> Rows:
    """Say what features nodes and edges have."""
    kind, text = "categories" if "x_tables" in data else "features", "none"
    if data.x is not None:
        source = {
            "degree": "none; the degree takes their place",
            "edges": "none; those of the edges take their place",
        }.get(data.get("x_source"))
        own = data.x.size(1) - data.get("num_categories", 0)
        text = source or describe_columns(data.x[:, :own], count_constant=not data.on_disk)
    rows = [(f"{kind} of nodes", text)]
    if species := data.get("num_categories", 0):
        rows.append(("species", f"{species:,}"))
    edges = (
        "none"
        if data.edge_attr is None
        else describe_columns(data.edge_attr, count_constant=not data.on_disk)
    )
    return [*rows, (f"{'categories' if 'edge_tables' in data else 'features'} of edges", edges)]


def describe_columns(values: Tensor, *, count_constant: bool = True) -> str:
    """Say how many columns there are, and how many hold one number alone, of which nothing can be learned."""
    text = f"{values.size(1):,}"
    if count_constant and len(values) > 1 and (same := _count_constant(values)):
        text += (
            f", of which {same:,} {'holds' if same == 1 else 'hold'} the same number in every row"
        )
    return text


def _count_constant(values: Tensor) -> int:
    """Count the columns that hold one number alone, some rows at a time: the features may be larger than memory."""
    same = torch.ones(values.size(1), dtype=torch.bool)
    for part in values.split(ROWS):
        same &= (part == values[0]).all(0)
    return int(same.sum())


def describe_pairs(data: Graph) -> Rows:
    """Count the pairs of a link task in each split."""
    rows = [(f"{split} pairs", f"{len(data[f'{split}_pairs']):,}") for split in SPLITS]
    return rows + [
        (f"{split} pairs not linked", f"{len(data[f'{split}_negatives']):,}")
        for split in SPLITS[1:]
    ]


def describe_labels(data: Graph) -> Rows:
    """Count the labels of nodes, graphs or vectors: in each split, of each class or task, and those that are missing."""
    y = data.get("y")
    if y is None:
        return [("labels", "none")]
    # Vectors have labels without splits.
    masks = torch.stack([data[mask].bool() for mask in MASKS]) if MASKS[0] in data else None
    parts = {"labelled": ~y.float().isnan().any(1)} if masks is None else dict(zip(SPLITS, masks))
    rows = [
        (
            "rows" if masks is None else "splits",
            per_split({name: int(mask.sum()) for name, mask in parts.items()}),
        )
    ]
    if masks is not None:
        rows.append(_describe_rest(masks, data.types))
    if y.is_floating_point() and data.get("metric") not in CLASS_METRICS:
        return rows + describe_tasks(y, parts, is_value=data.get("metric") in VALUE_METRICS)
    names = unpack_names(data, "label_names") if "label_names" in data else None
    return rows + describe_classes(y[:, 0].long(), parts, names)


def _describe_rest(
    masks: Bool[Tensor, "num_splits num_rows"], types: GraphTypes
) -> tuple[str, str]:
    """Count the rows in no split, of a graph with several types of nodes those of the type with labels."""
    if types.homogeneous or types.labelled is None:
        return "in no split", of_all(int((~masks.any(0)).sum()), masks.size(1))
    nodes = types.nodes_of(types.labelled)
    return (
        f"{types.labelled} in no split",
        of_all(int((~masks[:, nodes.start : nodes.stop].any(0)).sum()), len(nodes)),
    )


def describe_classes(
    y: Int[Tensor, " num_rows"],
    parts: dict[str, Bool[Tensor, " num_rows"]],
    names: list[str] | None,
) -> Rows:
    """Count the rows of each class in each split, the commonest class first.

    Args:
        y: class of each row; one below 0 is none.
        parts: the rows of each split.
        names: of the classes; their numbers if not given.
    """
    num_classes = max(int(y.max()) + 1, 0)
    counts = {
        name: torch.bincount(y[mask & (y >= 0)], minlength=num_classes)
        for name, mask in parts.items()
    }
    order = sum(counts.values(), torch.zeros(num_classes, dtype=torch.int64)).argsort(
        descending=True, stable=True
    )
    rows = [("classes", f"{num_classes:,}")]
    if untrained := int((next(iter(counts.values())) == 0).sum()):
        rows.append(
            (
                f"classes without a {'label' if len(parts) == 1 else 'training label'}",
                f"{untrained:,}",
            )
        )
    rows += [
        (
            f"class {number if names is None else names[number]}",
            per_split({name: int(count[number]) for name, count in counts.items()}),
        )
        for number in order[:LISTED].tolist()
    ]
    return rows + and_more(num_classes, "classes")


def describe_tasks(
    y: Tensor, parts: dict[str, Bool[Tensor, " num_rows"]], *, is_value: bool
) -> Rows:
    """Count the labels of each task in each split, and those that are missing.

    Args:
        y: labels [num_rows, num_tasks]; NaN is unknown.
        is_value: whether they are real values, not 0 and 1.
    """
    known = ~y.isnan()
    missing = per_split(
        {
            name: of_all(int((~known[mask]).sum()), known[mask].numel())
            for name, mask in parts.items()
        }
    )
    rows = [
        ("values" if is_value else "tasks", f"{y.size(1):,}"),
        ("missing labels (NaN)", missing),
    ]
    for number in range(min(y.size(1), LISTED)):
        column, there = y[:, number], known[:, number]
        if is_value:
            text = per_split({name: int((mask & there).sum()) for name, mask in parts.items()})
            if bool(there.any()):
                text += (
                    f"; from {float(column[there].min()):.4g} to {float(column[there].max()):.4g}"
                )
            rows.append((f"value {number}", text))
        else:
            rows.append(
                (
                    f"task {number}",
                    "ones of labels: "
                    + per_split(
                        {
                            name: f"{int((column[mask] == 1).sum()):,} of {int((mask & there).sum()):,}"
                            for name, mask in parts.items()
                        }
                    ),
                )
            )
    return rows + and_more(y.size(1), "values" if is_value else "tasks")


def describe_triples(triples: Tensor, ptr: Tensor, num_entities: int, num_relations: int) -> Rows:
    """Count the triples of a knowledge graph, and those that say nothing new or cannot be learned.

    Args:
        triples: head, relation and tail of each [num_triples, 3], the splits one behind the other.
        ptr: where each split begins, and where the last one ends [4].
    """
    splits = dict(zip(SPLITS, triples.split(ptr.diff().tolist())))
    train = splits["train"]
    used, trained = (
        torch.zeros(num_entities, dtype=torch.bool),
        torch.zeros(num_entities, dtype=torch.bool),
    )
    used[triples[:, [0, 2]].flatten()], trained[train[:, [0, 2]].flatten()] = True, True
    kinds = torch.zeros(num_relations, dtype=torch.bool)
    kinds[train[:, 1]] = True
    twice = {split: len(rows) - count_different(rows) for split, rows in splits.items()}
    different = {split: rows.unique(dim=0) for split, rows in splits.items()}
    leaked = {
        split: len(different["train"])
        + len(rows)
        - count_different(torch.cat([different["train"], rows]))
        for split, rows in different.items()
        if split != "train"
    }
    return [
        ("entities", f"{num_entities:,}"),
        ("relations", f"{num_relations:,}"),
        ("triples", per_split({split: len(rows) for split, rows in splits.items()})),
        ("from an entity to itself", f"{int((triples[:, 0] == triples[:, 2]).sum()):,}"),
        ("duplicate triples", per_split(twice)),
        ("training triples in", per_split(leaked)),
        ("isolated entities", of_all(int((~used).sum()), num_entities)),
        ("entities not trained", of_all(int((~trained).sum()), num_entities)),
        ("relations not trained", of_all(int((~kinds).sum()), num_relations)),
    ]


def describe_vectors(x: Tensor) -> Rows:
    """Count vectors, those that are equal to an earlier one, and their columns."""
    return [
        ("vectors", f"{len(x):,}"),
        ("numbers of each", describe_columns(x)),
        ("equal to an earlier one", of_all(len(x) - count_different(x), len(x))),
    ]


def count_different(rows: Tensor) -> int:
    """Count the different rows of a matrix by their bytes, 0 and -0 being equal."""
    values = np.ascontiguousarray((rows + 0).numpy())
    return len(np.unique(values.view(np.dtype((np.void, values.itemsize * values.shape[1])))))


def of_all(count: int, total: int) -> str:
    """Say how many there are, and which part of all that is."""
    return f"{count:,}" + (f" ({count / total:.1%})" if count else "")


def per_split(counts: dict[str, int] | dict[str, str]) -> str:
    """Name a number for each split."""
    return ", ".join(
        f"{name} {count:,}" if isinstance(count, int) else f"{name} {count}"
        for name, count in counts.items()
    )


def and_more(count: int, what: str) -> Rows:
    """Say how many are not listed."""
    return [("", f"and {count - LISTED:,} more {what}")] if count > LISTED else []

"""Describes an opened dataset for `python -m pipeline.check`: how much of everything there is, and what is odd."""

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.graph import DataKind, Graph
from parallel_epochs.pipeline.data.join_types import count_relations
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.graph.components import Components, label_components
from parallel_epochs.pipeline.graph.structure import structure_of
from parallel_epochs.pipeline.metrics import CLASS_METRICS, VALUE_METRICS
from parallel_epochs.pipeline.names import MASKS, SPLITS
from parallel_epochs.pipeline.run.words import count

# The name of a line, and its text.
Rows = list[tuple[str, str]]
# Classes, tasks, types or relations that are listed one by one.
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
        return describe_triples(data)
    if kind is DataKind.VECTORS:
        different = count_different(data.x)
        return [
            ("vectors", f"{len(data.x):,}"),
            ("numbers of each", describe_columns(data, data.x)),
            ("equal to an earlier one", of_all(len(data.x) - different, len(data.x))),
            *describe_labels(data),
        ]
    rows: Rows = []
    if kind is DataKind.GRAPHS:
        sizes = data.ptr.diff()
        average = f"{float(sizes.double().mean()):.1f} on average"
        rows += [
            ("graphs", f"{len(sizes):,}"),
            ("nodes of a graph", f"{int(sizes.min()):,} to {int(sizes.max()):,}, {average}"),
        ]
    rows += describe_edges(data)
    if kind is not DataKind.GRAPHS:
        rows += describe_components(data, components)
    rows += describe_features(data) if data.types.homogeneous else describe_types(data)
    if kind is not DataKind.PAIRS:
        return rows + describe_labels(data)
    rows += [(f"{split} pairs", f"{len(data[f'{split}_pairs']):,}") for split in SPLITS]
    return rows + [
        (f"{split} pairs not linked", f"{len(data[f'{split}_negatives']):,}")
        for split in SPLITS[1:]
    ]


def describe_edges(data: Graph) -> Rows:
    """Count the nodes and edges, and what is odd of them."""
    found = structure_of(data)
    rows = [("nodes", f"{data.num_nodes:,}"), ("directed edges", f"{data.num_edges:,}")]
    if found is None:
        return [*rows, ("odd edges", "not counted: the store says nothing of them")]
    kind = f"directed: {found.num_without_reverse:,} edges have no reverse"
    # In a graph with several relations, most of them are edges of different relations.
    twice = "duplicate edges" if data.types.homogeneous else "parallel edges"
    return [
        *rows,
        ("direction", "undirected" if found.is_undirected else kind),
        ("self-loops", f"{found.num_self_loops:,}"),
        (twice, f"{found.num_duplicates:,}"),
        ("isolated nodes", of_all(found.num_isolated, found.num_nodes)),
    ]


def describe_components(data: Graph, components: Components | None) -> Rows:
    """Count the connected components, and say how large the largest is."""
    if components is None:
        sizes = np.bincount(label_components(data)[1])
    else:
        sizes = np.array([component.num_nodes for component in components.components])
    single = f"of which {int((sizes == 1).sum()):,} are single nodes"
    largest = f"the largest has {sizes.max(initial=0):,} nodes"
    return [("components", f"{len(sizes):,}, {single}; {largest}")]


def describe_types(data: Graph) -> Rows:
    """Count the nodes of each type and the edges of each relation of a graph with several types of nodes, and say what
    features they have. The edges of a reverse relation are as many as those of its relation.
    """
    types, rows = data.types, Rows()
    for name, num_nodes, width in zip(types.names, types.counts, types.widths):
        nodes = types.nodes_of(name)
        features = "no features"
        if width:
            x = data.x[nodes.start : nodes.stop, :width]
            features = f"features: {describe_columns(data, x)}"
        if name in types.averaged:
            features += ", means of neighbours' features"
        rows.append((f"type {name}", f"{count(num_nodes, 'node')}, {features}"))
    counted = enumerate(count_relations(types, data.edge_attr[:, 0]))
    forward = [
        (types.relations[number], num)
        for number, (_, num) in counted
        if number not in types.reverse
    ]
    num_reverse = len(types.relations) - len(forward)
    reverse = f", and {num_reverse:,} reverse ones" if num_reverse else ""
    relations = [
        (f"{name}", f"{count(num, 'edge')} from {source} to {target}")
        for (source, name, target), num in forward
    ]
    columns = describe_columns(data, data.edge_attr[:, 1:])
    return [
        ("types of nodes", f"{len(types.names):,}"),
        *at_most(rows, "types of nodes"),
        ("relations", f"{len(forward):,}{reverse}"),
        *at_most(relations, "relations"),
        ("features of edges", "none" if columns == "0" else columns),
    ]


def describe_features(data: Graph) -> Rows:
    """Say what features nodes and edges have."""
    num_species = data.get("num_categories", 0)
    places = {"degree": "the degree takes", "edges": "those of the edges take"}
    nodes, edges = "none", "none"
    if place := places.get(data.get("x_source")):
        nodes = f"none; {place} their place"
    elif data.x is not None:
        nodes = describe_columns(data, data.x[:, : data.x.size(1) - num_species])
    if data.edge_attr is not None:
        edges = describe_columns(data, data.edge_attr)
    return [
        ("categories of nodes" if "x_tables" in data else "features of nodes", nodes),
        *([("species", f"{num_species:,}")] if num_species else []),
        ("categories of edges" if "edge_tables" in data else "features of edges", edges),
    ]


def describe_columns(data: Graph, values: Tensor) -> str:
    """Say how many columns there are, and how many hold one number alone, of which nothing can be learned."""
    same = torch.zeros(values.size(1), dtype=torch.bool)
    if len(values) > 1 and not data.get("on_disk", False):
        # Some rows at a time: all of them may be larger than memory.
        parts = [(part == values[0]).all(0) for part in values.split(ROWS)]
        same = torch.stack(parts).all(0)
    text, constant = f"{values.size(1):,}", int(same.sum())
    verb = "holds" if constant == 1 else "hold"
    return text + f", of which {constant:,} {verb} the same number in every row" * bool(constant)


def describe_labels(data: Graph) -> Rows:
    """Count the labels of nodes, graphs or vectors: in each split, of each class or task, and those that are missing."""
    y = data.get("y")
    if y is None:
        return [("labels", "none")]
    rows: Rows = []
    if MASKS[0] in data:
        parts = {split: data[mask].bool() for split, mask in zip(SPLITS, MASKS)}
        rows.append(
            ("splits", per_split({name: f"{int(mask.sum()):,}" for name, mask in parts.items()}))
        )
        rest, unit = ~torch.stack([*parts.values()]).any(0), ""
        if not data.types.homogeneous and data.types.labelled is not None:
            nodes, unit = data.types.nodes_of(data.types.labelled), f"{data.types.labelled} "
            rest = rest[nodes.start : nodes.stop]
        rows.append((f"{unit}in no split", of_all(int(rest.sum()), len(rest))))
    else:  # vectors have labels without splits
        parts = {"labelled": ~y.float().isnan().any(1)}
        rows.append(("rows", f"labelled {int(parts['labelled'].sum()):,}"))
    if y.is_floating_point() and data.get("metric") not in CLASS_METRICS:
        return rows + describe_tasks(y, parts, is_value=data.get("metric") in VALUE_METRICS)
    names = unpack_names(data, "label_names") if "label_names" in data else None
    return rows + describe_classes(y[:, 0].long(), parts, names)


def describe_classes(y: Tensor, parts: dict[str, Tensor], names: list[str] | None) -> Rows:
    """Count the rows of each class in each split, the commonest class first.

    Args:
        y: class of each row, int64 [num_rows]; one below 0 is none.
        parts: the rows of each split, bool [num_rows].
        names: of the classes; their numbers if not given.
    """
    num_classes = max(int(y.max()) + 1, 0)
    counts = {
        name: torch.bincount(y[mask & (y >= 0)], minlength=num_classes)
        for name, mask in parts.items()
    }
    first, *_ = counts.values()
    rows = [("classes", f"{num_classes:,}")]
    if untrained := int((first == 0).sum()):
        kind = "label" if len(parts) == 1 else "training label"
        rows.append((f"classes without a {kind}", f"{untrained:,}"))
    order = torch.stack([*counts.values()]).sum(0).argsort(descending=True, stable=True)
    found = [
        (
            f"class {number if names is None else names[number]}",
            per_split({name: f"{int(own[number]):,}" for name, own in counts.items()}),
        )
        for number in order.tolist()
    ]
    return rows + at_most(found, "classes")


def describe_tasks(y: Tensor, parts: dict[str, Tensor], *, is_value: bool) -> Rows:
    """Count the labels of each task in each split, and those that are missing.

    Args:
        y: labels [num_rows, num_tasks]; NaN is unknown.
        is_value: whether they are real values, not 0 and 1.
    """
    known, rows = ~y.isnan(), Rows()
    for number, (column, there) in enumerate(zip(y.T, known.T)):
        num = {name: f"{int((mask & there).sum()):,}" for name, mask in parts.items()}
        if is_value:
            low, high = (
                (float(bound) for bound in torch.aminmax(column[there])) if there.any() else (0, 0)
            )
            rows.append((f"value {number}", f"{per_split(num)}; from {low:.4g} to {high:.4g}"))
        else:
            ones = {
                name: f"{int((column[mask] == 1).sum()):,} of {num[name]}"
                for name, mask in parts.items()
            }
            rows.append((f"task {number}", f"ones of labels: {per_split(ones)}"))
    missing = {
        name: of_all(int((~known[mask]).sum()), known[mask].numel()) for name, mask in parts.items()
    }
    what = "values" if is_value else "tasks"
    return [
        (what, f"{y.size(1):,}"),
        ("missing labels (NaN)", per_split(missing)),
        *at_most(rows, what),
    ]


def describe_triples(data: Graph) -> Rows:
    """Count the triples of a knowledge graph, and those that say nothing new or cannot be learned."""
    triples, num_entities = data.triples, data.num_nodes
    splits = dict(zip(SPLITS, triples.split(data.triple_ptr.diff().tolist())))
    different = {split: rows.unique(dim=0) for split, rows in splits.items()}

    def count_missing(numbers: Tensor, total: int) -> str:
        return of_all(total - len(numbers.unique()), total)

    def count_known(rows: Tensor) -> int:
        both = torch.cat([different["train"], rows])
        return len(both) - count_different(both)

    twice = {split: f"{len(rows) - len(different[split]):,}" for split, rows in splits.items()}
    leaked = {split: f"{count_known(different[split]):,}" for split in SPLITS[1:]}
    train = splits["train"]
    return [
        ("entities", f"{num_entities:,}"),
        ("relations", f"{data.num_relations:,}"),
        ("triples", per_split({split: f"{len(rows):,}" for split, rows in splits.items()})),
        ("from an entity to itself", f"{int((triples[:, 0] == triples[:, 2]).sum()):,}"),
        ("duplicate triples", per_split(twice)),
        ("training triples in", per_split(leaked)),
        ("isolated entities", count_missing(triples[:, ::2], num_entities)),
        ("entities not trained", count_missing(train[:, ::2], num_entities)),
        ("relations not trained", count_missing(train[:, 1], data.num_relations)),
    ]


def count_different(rows: Tensor) -> int:
    """Count the different rows of a matrix by their bytes, 0 and -0 being equal."""
    values = np.ascontiguousarray((rows + 0).numpy())
    return len(np.unique(values.view(np.dtype((np.void, values.itemsize * values.shape[1])))))


def of_all(count: int, total: int) -> str:
    """Say how many there are, and which part of all that is."""
    return f"{count:,}" + (f" ({count / total:.1%})" if count else "")


def per_split(texts: dict[str, str]) -> str:
    """Name a number for each split."""
    return ", ".join(f"{name} {text}" for name, text in texts.items())


def at_most(rows: Rows, what: str) -> Rows:
    """Return the first rows, and say how many more there are."""
    more = len(rows) - LISTED
    return rows[:LISTED] + ([("", f"and {more} more {what}")] if more > 0 else [])

"""Describes an opened dataset for `python -m pipeline.check`: how much of everything there is, and what is odd."""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.graph import DataKind, Graph
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.graph.components import label_components
from parallel_epochs.pipeline.graph.structure import describe_edges
from parallel_epochs.pipeline.metrics import CLASS_METRICS
from parallel_epochs.pipeline.names import MASKS, SPLITS
from parallel_epochs.pipeline.run.words import count

# The name of a line, and its text.
Rows = list[tuple[str, str]]
# Classes, tasks, types or relations that are listed one by one.
LISTED = 20
# Nodes or edges whose features are compared at a time.
ROWS = 4096
# Edges whose relations are counted at a time.
EDGES = 1 << 22


def describe(data: Graph) -> Rows:
    """Describe a dataset as training opens it: a graph, many graphs, pairs to link, triples, or vectors."""
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
    rows = [("edges", describe_edges(data, several_relations=not data.types.homogeneous))]
    if kind is DataKind.GRAPHS:
        sizes = data.ptr.diff()
        average = f"{float(sizes.double().mean()):.1f} on average"
        text = f"{len(sizes):,} of {int(sizes.min()):,} to {int(sizes.max()):,} nodes, {average}"
        rows.append(("graphs", text))
    else:
        sizes = np.bincount(label_components(data)[1])
        single = f"of which {int((sizes == 1).sum()):,} are single nodes"
        largest = f"the largest has {sizes.max(initial=0):,} nodes"
        rows.append(("components", f"{len(sizes):,}, {single}; {largest}"))
    rows += describe_features(data) if data.types.homogeneous else describe_types(data)
    if kind is not DataKind.PAIRS:
        return rows + describe_labels(data)
    rows += [(f"{split} pairs", f"{len(data[f'{split}_pairs']):,}") for split in SPLITS]
    return rows + [
        (f"{split} pairs not linked", f"{len(data[f'{split}_negatives']):,}")
        for split in SPLITS[1:]
    ]


def describe_types(data: Graph) -> Rows:
    """Count the nodes of each type and the edges of each relation of a graph with several types of nodes, and say what
    features they have. The edges of a reverse relation are as many as those of its relation.
    """
    types, rows, relations = data.types, Rows(), Rows()
    for name, num_nodes, width in zip(types.names, types.counts, types.widths, strict=True):
        nodes = types.nodes_of(name)
        features = describe_columns(data, data.x[nodes.start : nodes.stop, :width])
        text = f"{count(num_nodes, 'node')}, features: {features}"
        means = ", means of neighbours' features" if name in types.averaged else ""
        rows.append((f"type {name}", text + means))
    blocks = data.edge_attr[:, 0].split(EDGES)
    nums = sum(torch.bincount(block.long(), minlength=len(types.relations)) for block in blocks)
    for number, (source, name, target) in enumerate(types.relations):
        if number not in types.reverse:
            num = int(cast(Tensor, nums)[number])
            relations.append((name, f"{count(num, 'edge')} from {source} to {target}"))
    return [
        ("types and relations", str(types)),
        *at_most(rows, "types of nodes"),
        *at_most(relations, "relations"),
        ("features of edges", describe_columns(data, data.edge_attr[:, 1:])),
    ]


def describe_features(data: Graph) -> Rows:
    """Say what features nodes and edges have."""
    num_species, attr = data.get("num_categories", 0), data.edge_attr
    places = {
        "degree": "none; the degree takes their place",
        "edges": "none; those of the edges do",
    }
    nodes = places.get(data.get("x_source"))
    if nodes is None:
        nodes = describe_columns(data, data.x[:, : data.x.size(1) - num_species])
    return [
        ("categories of nodes" if "x_tables" in data else "features of nodes", nodes),
        *([("species", f"{num_species:,}")] if num_species else []),
        (
            "categories of edges" if "edge_tables" in data else "features of edges",
            "0" if attr is None else describe_columns(data, attr),
        ),
    ]


def describe_columns(data: Graph, values: Tensor) -> str:
    """Say how many columns there are, and how many hold one number alone, of which nothing can be learned."""
    constant = 0
    if len(values) > 1 and not data.get("on_disk", False):
        # Some rows at a time: all of them may be larger than memory.
        parts = [(part == values[0]).all(0) for part in values.split(ROWS)]
        constant = int(torch.stack(parts).all(0).sum())
    text = f"{values.size(1):,}"
    if constant:
        verb = "holds" if constant == 1 else "hold"
        text += f", of which {constant:,} {verb} the same number in every row"
    return text


def describe_labels(data: Graph) -> Rows:
    """Count the labels of nodes, graphs or vectors: in each split, of each class or task, and those that are missing."""
    y = data.get("y")
    if y is None:
        return [("labels", "none")]
    if MASKS[0] in data:
        parts = {split: data[mask].bool() for split, mask in zip(SPLITS, MASKS, strict=True)}
    else:  # vectors have labels without splits
        parts = {"labelled": ~y.float().isnan().any(1)}
    rows = [("rows", per_split({name: f"{int(mask.sum()):,}" for name, mask in parts.items()}))]
    if y.is_floating_point() and data.get("metric") not in CLASS_METRICS:
        return rows + describe_tasks(y, parts)
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
    counts = torch.stack(
        [torch.bincount(y[mask & (y >= 0)], minlength=num_classes) for mask in parts.values()]
    )
    rows = [("classes", f"{num_classes:,}")]
    if untrained := int((counts[0] == 0).sum()):
        rows.append(("classes without a training label", f"{untrained:,}"))
    order = counts.sum(0).argsort(descending=True, stable=True)
    found = [
        (
            f"class {number if names is None else names[number]}",
            per_split({name: f"{num:,}" for name, num in zip(parts, own, strict=True)}),
        )
        for number, own in zip(order.tolist(), counts[:, order].T.tolist(), strict=True)
    ]
    return rows + at_most(found, "classes")


def describe_tasks(y: Tensor, parts: dict[str, Tensor]) -> Rows:
    """Describe the labels of each task in each split: how many are known, their mean, and how far they reach.

    Args:
        y: labels [num_rows, num_tasks], 0 and 1 or real values; NaN is unknown.
        parts: the rows of each split, bool [num_rows].
    """
    missing = {
        name: of_all(int(y[mask].isnan().sum()), y[mask].numel()) for name, mask in parts.items()
    }
    rows = Rows()
    for number, column in enumerate(y.T):
        texts = {}
        for name, mask in parts.items():
            known = column[mask & ~column.isnan()]
            texts[name] = f"{len(known):,}"
            if len(known):
                low, high = (float(bound) for bound in torch.aminmax(known))
                texts[name] += f" from {low:.4g} to {high:.4g}, mean {float(known.mean()):.4g}"
        rows.append((f"task {number}", per_split(texts)))
    return [
        ("tasks", f"{y.size(1):,}"),
        ("missing labels (NaN)", per_split(missing)),
        *at_most(rows, "tasks"),
    ]


def describe_triples(data: Graph) -> Rows:
    """Count the triples of a knowledge graph, and those that say nothing new or cannot be learned."""
    triples, num_entities = data.triples, data.num_nodes
    splits = dict(zip(SPLITS, triples.split(data.triple_ptr.diff().tolist()), strict=True))
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
        ("duplicate triples", per_split(twice)),
        ("training triples in", per_split(leaked)),
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
    separator = "; " if any(" " in text for text in texts.values()) else ", "
    return separator.join(f"{name} {text}" for name, text in texts.items())


def at_most(rows: Rows, what: str) -> Rows:
    """Return the first rows, and say how many more there are."""
    more = len(rows) - LISTED
    return rows[:LISTED] + ([("", f"and {more} more {what}")] if more > 0 else [])

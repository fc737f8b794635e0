"""Describes an opened dataset for `python -m pipeline.check`: how much of everything there is, and what is odd."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.graph import DataKind, Graph
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.graph.components import label_components
from parallel_epochs.pipeline.graph.structure import describe_edges
from parallel_epochs.pipeline.metrics import CLASS_METRICS
from parallel_epochs.pipeline.names import MASKS, PAIRS, SPLITS
from parallel_epochs.pipeline.run.words import count

# The name of a line, and its text.
Rows = list[tuple[str, str]]
# Classes, types or relations that are listed one by one.
LISTED = 20


def describe(data: Graph) -> Rows:
    """Describe a dataset as training opens it: a graph, many graphs, pairs to link, triples, or vectors."""
    kind = data.kind
    if kind is DataKind.TRIPLES:
        return describe_triples(data)
    if kind is DataKind.VECTORS:
        size = f"{len(data.x):,}"
        return [("vectors", size), ("numbers of each", describe_columns(data, data.x))] + (
            describe_labels(data)
        )
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
    if kind is DataKind.PAIRS:
        return rows + [(key.replace("_", " "), f"{len(data[key]):,}") for key in PAIRS]
    return rows + describe_labels(data)


def describe_types(data: Graph) -> Rows:
    """Count the nodes of each type and the edges of each relation of a graph with several types of nodes, and say what
    features they have. The edges of a reverse relation are as many as those of its relation.
    """
    types, rows, relations = data.types, Rows(), Rows()
    for name, num_nodes, width in zip(types.names, types.counts, types.widths, strict=True):
        nodes = types.nodes_of(name)
        features = describe_columns(data, data.x[nodes.start : nodes.stop, :width])
        means = ", means of neighbours' features" if name in types.averaged else ""
        text = f"{count(num_nodes, 'node')}, features: {features}{means}"
        rows.append((f"type {name}", text))
    nums = data.edge_attr[:, 0].long().bincount(minlength=len(types.relations)).tolist()
    for number, (source, name, target) in enumerate(types.relations):
        if number not in types.reverse:
            text = f"{count(nums[number], 'edge')} from {source} to {target}"
            relations.append((name, text))
    return [
        ("types and relations", str(types)),
        *at_most(rows, "types of nodes"),
        *at_most(relations, "relations"),
        ("features of edges", describe_columns(data, data.edge_attr[:, 1:])),
    ]


def describe_features(data: Graph) -> Rows:
    """Say what features nodes and edges have."""
    num_species, rows = data.get("num_categories", 0), Rows()
    own = data.x[:, : data.x.size(1) - num_species]
    is_given = data.get("x_source", "data") == "data"
    for of, tables, values in (
        ("nodes", "x_tables", own if is_given else None),
        ("edges", "edge_tables", data.edge_attr),
    ):
        text = "none" if values is None else describe_columns(data, values)
        rows.append((f"{'categories' if tables in data else 'features'} of {of}", text))
    return rows + ([("species", f"{num_species:,}")] if num_species else [])


def describe_columns(data: Graph, values: Tensor) -> str:
    """Say how many columns there are, and how many hold one number alone, of which nothing can be learned."""
    text, constant = f"{values.size(1):,}", 0
    if len(values) > 1 and not data.get("on_disk", False):
        constant = int((values == values[0]).all(0).sum())
    return f"{text}, of which {constant:,} constant" if constant else text


def describe_labels(data: Graph) -> Rows:
    """Count the labels of nodes, graphs or vectors: in each split, of each class, and those that are missing."""
    y = data.get("y")
    if y is None:
        return [("labels", "none")]
    if MASKS[0] in data:
        parts = {split: data[mask].bool() for split, mask in zip(SPLITS, MASKS, strict=True)}
    else:  # vectors have labels without splits
        parts = {"labelled": ~y.float().isnan().any(1)}
    rows = [("rows", per_split({name: int(mask.sum()) for name, mask in parts.items()}))]
    if y.is_floating_point() and data.get("metric") not in CLASS_METRICS:
        missing = {name: int(y[mask].isnan().sum()) for name, mask in parts.items()}
        return [*rows, ("tasks", f"{y.size(1):,}"), ("missing labels (NaN)", per_split(missing))]
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
    order = counts.sum(0).argsort(descending=True, stable=True).tolist()
    found = [
        (
            f"class {number if names is None else names[number]}",
            per_split(dict(zip(parts, counts[:, number].tolist(), strict=True))),
        )
        for number in order[: LISTED + 1]
    ]
    return rows + at_most(found, "classes", num_classes)


def describe_triples(data: Graph) -> Rows:
    """Count the triples of a knowledge graph, and those that say nothing new or cannot be learned."""
    parts = data.triples.split(data.triple_ptr.diff().tolist())
    splits = dict(zip(SPLITS, (pd.DataFrame(part.numpy()) for part in parts), strict=True))
    train = splits["train"].drop_duplicates()
    leaked = {split: len(splits[split].drop_duplicates().merge(train)) for split in SPLITS[1:]}
    entities = len(np.unique(train[[0, 2]]))
    return [
        ("entities", f"{data.num_nodes:,}"),
        ("relations", f"{data.num_relations:,}"),
        ("triples", per_split({split: len(rows) for split, rows in splits.items()})),
        (
            "duplicate triples",
            per_split({split: int(rows.duplicated().sum()) for split, rows in splits.items()}),
        ),
        ("training triples in", per_split(leaked)),
        ("entities not trained", f"{data.num_nodes - entities:,}"),
        ("relations not trained", f"{data.num_relations - train[1].nunique():,}"),
    ]


def per_split(numbers: dict[str, int]) -> str:
    """Name a number for each split."""
    return ", ".join(f"{name} {number:,}" for name, number in numbers.items())


def at_most(rows: Rows, what: str, total: int | None = None) -> Rows:
    """Return the first rows, and say how many more there are."""
    more = (len(rows) if total is None else total) - LISTED
    return rows[:LISTED] + ([("", f"and {more} more {what}")] if more > 0 else [])

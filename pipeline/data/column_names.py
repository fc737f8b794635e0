"""The columns of the user that the features of a prepared graph are made of, by name and for the log."""

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from torch import Tensor

from parallel_epochs.pipeline.data.base_config import DataConfig
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.learned import FITTED
from parallel_epochs.pipeline.run.words import count

if TYPE_CHECKING:
    from parallel_epochs.pipeline.data.tables.columns import NodeColumns
    from parallel_epochs.pipeline.data.tables.config import TablesConfig
    from parallel_epochs.pipeline.data.tables.fitted import Columns
    from parallel_epochs.pipeline.data.tables.values import Values

# Types whose features are listed one by one in the log, and columns of each.
LISTED = 10
# The features of atoms that RDKit gives in OGB's form.
ATOMS = (
    "atomic number",
    "chirality",
    "degree",
    "formal charge",
    "hydrogens",
    "radical electrons",
    "hybridization",
    "is aromatic",
    "is in ring",
)


class Channel(NamedTuple):
    """A column of features.

    Attributes:
        column: of the user, of which it is made.
        text: stands for 1 in it, where it is a category.
        scale, shift: turn its numbers into those of the user; none where nothing simple does.
    """

    column: str
    text: str | None = None
    scale: float | None = None
    shift: float = 0.0


def name_nodes(config: DataConfig, data: Graph) -> list[list[Channel]]:
    """Name the columns of ``x`` that each type of nodes has, without those of a simple method.

    Args:
        data: the prepared graph.
    """
    types, found = data.types, list[list[Channel]]()
    known = _of_tables(config, data)
    for place, width in enumerate(types.widths):
        own = list(known[place]) if known else []
        num_degrees = types.degrees[place] if types.degrees else 0
        if types.homogeneous:
            own = _one_type(data, own, width)
        elif types.names[place] in types.averaged:
            own = [Channel("means of neighbours")] * (width - num_degrees)
        own = _filled(own, width - num_degrees, "x")
        found.append(own + [Channel("degree")] * num_degrees)
    if types.homogeneous:
        found[0] += [
            Channel("species", str(number)) for number in range(data.get("num_categories", 0))
        ]
    return found


def _one_type(data: Graph, own: list[Channel], width: int) -> list[Channel]:
    """Name the columns of the nodes of a graph with one type: degrees stand behind the own ones."""
    if "x_tables" in data:
        is_molecule = width >= len(ATOMS) and data["x_tables"][0] > 100
        return (
            [Channel(name) for name in ATOMS]
            + [Channel("place in the graph")] * (width - len(ATOMS))
            if is_molecule
            else []
        )
    moments = data.get("degree_moments")
    num_degrees = 0 if moments is None else moments.size(1)
    if data.get("x_source", "data") != "data":
        own = [Channel("features of its edges")] * (width - num_degrees)
    return _filled(own, width - num_degrees, "x") + [Channel("degree")] * num_degrees


def _filled(own: list[Channel], width: int, name: str) -> list[Channel]:
    """Return as many channels as there are columns; those that nothing names have numbers."""
    return (own + [Channel(f"{name}[{number}]", scale=1.0) for number in range(len(own), width)])[
        : max(width, 0)
    ]


def _of_tables(config: DataConfig, data: Graph) -> list[list[Channel]]:
    """Name the own columns of each table of nodes; nothing of other sources than tables."""
    if FITTED not in data:
        return []
    from parallel_epochs.pipeline.data.tables.fitted import unpack
    from parallel_epochs.pipeline.data.tables.values import values_of

    schema = cast("TablesConfig", config).tables
    known = unpack(cast(Tensor, data[FITTED]))[0]
    return [
        _of_values(values_of(table), own.columns.mean, own.columns.std)
        + _of_texts(table.columns, own.columns)
        for table, own in zip(schema.nodes.values(), known)
    ]


def _of_values(values: "Values", mean: np.ndarray, std: np.ndarray) -> list[Channel]:
    """Name the columns of numbers and dates."""
    found = list[Channel]()
    for (option, name), (at, end) in zip(values.columns, pairwise(values.first_features)):
        is_plain = option != "dates" and name not in values.log1p and at < len(mean)
        own = Channel(name, None, float(std[at]), float(mean[at])) if is_plain else Channel(name)
        found += [own] * (end - at)
    return found


def _of_texts(keys: "NodeColumns", columns: "Columns") -> list[Channel]:
    """Name the features of texts, and those of categories behind them."""
    found = list[Channel]()
    names = [name for name, _ in keys.text_columns()]
    if columns.scores is not None:
        found = [Channel(" and ".join(names))] * len(columns.scores.bias)
    else:
        for place, (_, terms, _) in enumerate(columns.texts):
            kind = columns.kinds[place] if place < len(columns.kinds) else ""
            if kind == "names" or kind == "ids" and not keys.text_neighbors:
                continue
            vectors = columns.vectors[place] if place < len(columns.vectors) else np.empty((0, 0))
            width = (
                vectors.shape[1] if vectors.size else min(keys.text_channels, max(len(terms), 1))
            )
            found += [Channel("ids of neighbours" if kind == "ids" else names[place])] * width
    return found + [
        Channel(name, value)
        for name, values in zip(keys.categories, columns.categories, strict=True)
        for value in values
    ]


def describe_inputs(
    config: DataConfig,
    data: Graph,
    *,
    num_learned: int = 0,
    concat: bool = False,
    learned_types: list[str] | None = None,
) -> str:
    """Say what a model gets to see of a prepared graph, and what else it could see where that is the degree alone.

    Args:
        num_learned: columns of a table of learned node features; 0 without one.
        concat: whether the model sees it beside the graph's own features, rather than in their place.
        learned_types: types of nodes that have rows in that table; none: all of them.
    """
    types, parts = data.types, []
    for name, channels in zip(types.names[:LISTED], name_nodes(config, data), strict=False):
        learns = num_learned > 0 and (learned_types is None or name in learned_types)
        own = [] if learns and not concat else _list_columns(channels)
        own += [count(num_learned, "learned feature")] * learns
        of_type = "" if types.homogeneous else f" of {name}"
        parts.append(f"x{of_type}: {', '.join(own) or 'one learned vector for all its nodes'}")
    if len(types.names) > LISTED:
        parts.append(f"and {count(len(types.names) - LISTED, 'more type')}")
    if data.edge_attr is not None:
        parts.append(f"{count(data.edge_attr.size(1), 'feature')} of each edge")
    if data.get("x_source") == "degree" and not num_learned:
        parts.append(
            "the graph brings no features of nodes: features=embedding learns a row for each node, and "
            "train.label_input=0.5 shows labels of training nodes"
        )
    return "; ".join(parts)


def _list_columns(channels: list[Channel]) -> list[str]:
    """Name the columns that features are made of, with the number of features of each."""
    counts = Counter(channel.column.partition("[")[0] for channel in channels)
    found = [f"{name} ({number:,})" for name, number in counts.items()]
    more = len(found) - LISTED
    return found[:LISTED] + [f"and {count(more, 'more column')}"] * (more > 0)

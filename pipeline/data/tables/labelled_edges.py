"""Edges with labels: each row of their table is a node of a type of its own, with an edge to the node at either end.

An account that sends money to another becomes ``account <- transaction -> account``. The columns of the edge are
features of its node, so that all that nodes can have, edges have too, and two rows between the same nodes stay two.
"""

import dataclasses
from typing import TYPE_CHECKING

from parallel_epochs.pipeline.data.tables.heads import ROW

if TYPE_CHECKING:
    from parallel_epochs.pipeline.data.tables.config import EdgeColumns, NodeColumns

# The type of the nodes, and the name of the edges with labels, of a graph with one table of each.
NODE_TYPE, EDGE_TYPE = "node", "edge"


def has_labels(edges: "EdgeColumns") -> bool:
    """Tell whether a table of edges has labels."""
    return edges.label is not None or bool(edges.labels)


def without_labels(edges: "EdgeColumns") -> "EdgeColumns":
    """Return the columns of a table of edges whose labels are not learned."""
    return dataclasses.replace(edges, label=None, labels=[], categories=[], text=[])


def as_nodes(edges: "EdgeColumns", usual: "NodeColumns") -> "NodeColumns":
    """Return the columns of a table of edges as those of nodes, whose ids are the numbers of its rows.

    Args:
        usual: the default columns.
    """
    return dataclasses.replace(
        usual,
        path=edges.path,
        table=edges.table,
        id=ROW,
        features=[*_given(edges.weight), *edges.features],
        log1p=edges.log1p,
        standardize=edges.standardize,
        dates=edges.dates,
        text=edges.text,
        label=edges.label,
        categories=[*_given(edges.relation), *edges.categories],
        labels=edges.labels,
        split_column=edges.split_column,
    )


def to_end(edges: "EdgeColumns", end: str, usual: "EdgeColumns") -> "EdgeColumns":
    """Return the columns of the edges from each row to the node at its "source" or "target"; `usual` has defaults."""
    return dataclasses.replace(
        usual, path=edges.path, table=edges.table, source=ROW, target=getattr(edges, end)
    )


def _given(column: str | None) -> list[str]:
    return [] if column is None else [column]

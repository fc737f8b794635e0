"""Describes the inputs of a model, for the log."""

from collections import Counter

from parallel_epochs.pipeline.data.column_names import Channel
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.run.words import count

# Types whose features are listed one by one, and columns of each.
LISTED = 10


def describe_inputs(
    data: Graph,
    named: list[list[Channel]],
    *,
    num_learned: int = 0,
    concat: bool = False,
    learned_types: list[str] | None = None,
) -> str:
    """Say what a model gets to see of a prepared graph, and what else it could see where that is the degree alone.

    Args:
        named: the columns of each type, as :func:`pipeline.data.column_names.name_nodes` names them.
        num_learned: columns of a table of learned node features; 0 without one.
        concat: whether the model sees it beside the graph's own features, rather than in their place.
        learned_types: types of nodes that have rows in that table; none: all of them.
    """
    types, parts = data.types, []
    for name, channels in zip(types.names[:LISTED], named, strict=False):
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

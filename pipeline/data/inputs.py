"""Describes the inputs of a model, for the log."""

from collections.abc import Sequence

from parallel_epochs.pipeline.data.degrees import DEGREE_MOMENTS
from parallel_epochs.pipeline.data.graph import DataKind, Graph
from parallel_epochs.pipeline.run.words import count

# Types whose features are listed one by one.
LISTED = 10


def describe_inputs(
    data: Graph,
    *,
    is_file: bool,
    node_features: str,
    label_input: float,
    num_learned: int = 0,
    concat: bool = False,
    num_hops: int = 0,
    num_walks: int = 0,
    num_vectors: int = 0,
    learned_types: list[str] | None = None,
) -> str:
    """Say what a model gets to see of a prepared graph, and what else it could see where that is the degree alone.

    Args:
        is_file: whether the graph was read from files of the user's.
        node_features: as for :func:`prepare`.
        label_input: fraction of the training labels that are inputs.
        num_learned: columns of a table of learned node features; 0 without one.
        concat: whether the model sees it beside the graph's own features, rather than in their place.
        num_hops: over which the features are averaged.
        num_walks: columns for the probabilities that random walks return.
        num_vectors: columns for the entries in eigenvectors of a Laplacian.
        learned_types: types of nodes that have rows in that table; none: all of them.
    """
    if not data.types.homogeneous:
        return _describe_typed(
            data,
            label_input=label_input,
            num_learned=num_learned,
            concat=concat,
            learned_types=learned_types,
        )
    num_own = data.x.size(1) - data.num_categories - num_walks - num_vectors
    num_features, source = num_own // (num_hops + 1) - _num_degrees(data), data.get("x_source")
    if source == "degree":
        how = {"log_sum": ", its logarithm, standardised"}
        text = f"no node features: degree only{how.get(node_features, '')}"
    else:
        where = {
            "data": " from the file" if is_file else " of the dataset",
            "edges": f" from the edges (data.node_features={node_features})",
        }
        text = (
            f"x: {_columns(num_features, are_categories='x_tables' in data)}{where.get(source, '')}"
        )
    text += _name_degrees(data)
    if num_hops:
        text += (
            f" and {'its' if source == 'degree' else 'their'} means over {'1 to ' * (num_hops > 1)}"
            f"{count(num_hops, 'hop')}"
        )
    more = [f"{data.num_categories} species, one-hot"] * (data.num_categories > 0)
    if num_walks:
        more.append(
            f"whether a random walk is back after {'1 to ' * (num_walks > 1)}{count(num_walks, 'step')}"
        )
    if num_vectors:
        more.append(f"{count(num_vectors, 'eigenvector')} of the Laplacian")
    if num_learned:
        own = [text.removeprefix("no node features: ").removeprefix("x: "), *more] if concat else []
        text, more = f"x: {count(num_learned, 'learned feature')} (features=embedding)", own
    if data.edge_attr is not None:
        more.append(
            f"{_columns(data.edge_attr.size(1), are_categories='edge_tables' in data)} of each edge"
        )
    if label_input:
        more.append(f"labels of training nodes (train.label_input={label_input:g})")
    text = " + ".join([text, *more])
    if source == "degree" and not more and not num_learned:
        better = [
            "give the file an x",
            "features=embedding learns a table with a row for each node",
        ]
        if data.kind is not DataKind.PAIRS:
            better.append("train.label_input=0.5 shows training labels to the model")
        if node_features == "sum":
            better.append("data.node_features=log_sum takes the degree's logarithm, standardised")
        text += f". Better: {'; '.join(better)}"
    return text


def _columns(number: int, *, are_categories: bool) -> str:
    return count(number, *(("category", "categories") if are_categories else ("feature",)))


def _name_degrees(data: Graph) -> str:
    one = " and the out-degree" if data.get("x_source") == "degree" else " and the degree"
    return ("", one, ", in- and out-degree")[_num_degrees(data)]


def _num_degrees(data: Graph) -> int:
    return data[DEGREE_MOMENTS].size(1) if DEGREE_MOMENTS in data else 0


def _describe_typed(
    data: Graph,
    *,
    label_input: float = 0,
    num_learned: int = 0,
    concat: bool = False,
    learned_types: Sequence[str] | None = None,
) -> str:
    """Say what a model gets to see of the nodes of each type and of the edges.

    Args:
        label_input: fraction of the training labels that are inputs.
        num_learned: columns of a table of learned node features; 0 without one.
        concat: whether the model sees the table in addition to the features of a type, rather than in their place.
        learned_types: types that have rows in the table; none: all of them.
    """
    parts, types, num_edge_features = [], data.types, data.edge_attr.size(1) - 1
    degrees = types.degrees or [0] * len(types.names)
    for name, width, num_degrees in zip(types.names[:LISTED], types.widths, degrees):
        width -= num_degrees
        learns = num_learned > 0 and (learned_types is None or name in learned_types)
        own = [
            count(width, "mean", "means") + " of neighbours' features"
            if name in types.averaged
            else count(width, "feature")
        ] * (width > 0)
        own += [count(num_degrees, "degree")] * (num_degrees > 0)
        own = [] if learns and not concat else own
        learned = [f"{count(num_learned, 'learned feature')} of each node"] if learns else []
        parts.append(
            f"{name}: {' and '.join([*own, *learned]) or 'one learned vector for all its nodes'}"
        )
    if len(types.names) > LISTED:
        parts.append(f"and {count(len(types.names) - LISTED, 'more type')}")
    edges = "the relation" + (
        f" and {count(num_edge_features, 'feature')}" if num_edge_features else ""
    )
    labels = f"; labels of training nodes of {types.labelled} (train.label_input={label_input:g})"
    return f"x of {'; '.join(parts)}; of each edge: {edges}" + (labels if label_input else "")

"""Describes the inputs of a model on a graph with several types of nodes, for the log."""

from collections.abc import Sequence

from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.run.words import count

# Types whose features are listed one by one.
LISTED = 10


def describe_typed_inputs(types: GraphTypes, *, num_edge_features: int = 0, label_input: float = 0,
                          num_learned: int = 0, concat: bool = False,
                          learned_types: Sequence[str] | None = None) -> str:
    """Say what a model gets to see of the nodes of each type and of the edges.

    Args:
        num_edge_features: columns of features of an edge, its relation not counted.
        label_input: fraction of the training labels that are inputs.
        num_learned: columns of a table of learned node features; 0 without one.
        concat: whether the model sees the table in addition to the features of a type, rather than in their place.
        learned_types: types that have rows in the table; none: all of them.
    """
    parts = []
    for name, width in zip(types.names[:LISTED], types.widths):
        learns = num_learned > 0 and (learned_types is None or name in learned_types)
        own = [count(width, "mean", "means") + " of neighbours' features" if name in types.averaged else
               count(width, "feature")] if width and not (learns and not concat) else []
        learned = [f"{count(num_learned, 'learned feature')} of each node"] if learns else []
        parts.append(f"{name}: {' and '.join([*own, *learned]) or 'one learned vector for all its nodes'}")
    if len(types.names) > LISTED:
        parts.append(f"and {count(len(types.names) - LISTED, 'more type')}")
    edges = "the relation" + (f" and {count(num_edge_features, 'feature')}" if num_edge_features else "")
    labels = f"; labels of training nodes of {types.labelled} (train.label_input={label_input:g})"
    return f"x of {'; '.join(parts)}; of each edge: {edges}" + (labels if label_input else "")

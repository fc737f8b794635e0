"""Names the kinds of datasets."""

from enum import StrEnum

from torch_geometric.data import Data


class DataKind(StrEnum):
    """The kind of an opened dataset.

    Attributes:
        GRAPH: one graph, perhaps with labels of its nodes.
        PAIRS: one graph, with pairs of nodes to be linked in place of labels.
        GRAPHS: many graphs in one, each with its own labels.
        TRIPLES: a knowledge graph.
        VECTORS: points without edges.
    """

    GRAPH = "graph"
    PAIRS = "pairs"
    GRAPHS = "graphs"
    TRIPLES = "triples"
    VECTORS = "vectors"


def data_kind(data: Data) -> DataKind:
    """Tell what a dataset is, by the attributes that the readers of one kind alone write."""
    if "triples" in data:
        return DataKind.TRIPLES
    if "ptr" in data:
        return DataKind.GRAPHS
    if "train_pairs" in data:
        return DataKind.PAIRS
    return DataKind.VECTORS if data.edge_index is None else DataKind.GRAPH

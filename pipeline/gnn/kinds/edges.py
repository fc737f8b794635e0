"""The labels of edges, each of which is a node between the nodes at its ends."""

import numpy as np
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.contract import Loader
from parallel_epochs.pipeline.gnn.kinds.nodes import NodeKind
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.gnn.loaders.edges import EdgeLoader
from parallel_epochs.pipeline.gnn.predict import ids
from parallel_epochs.pipeline.gnn.tasks.edge import (
    EdgeTask,
    find_ends,
    relations_of,
    with_both_ways,
)
from parallel_epochs.pipeline.metrics import kind_of
from parallel_epochs.pipeline.names import PAIR_COLUMNS
from parallel_epochs.pipeline.run.tables import Columns


class EdgeKind(NodeKind):
    """Predicts the labels of the edges of one table, which are the nodes of a type."""

    unit, learns = "edges", EdgeTask
    instead_of_pairs = (
        "For new edges give a table of all edges as data.edges.path=FILE, without labels of the new "
        "ones, and data.known_labels=all"
    )

    def check_data(self, data: Data) -> None:
        super().check_data(data)
        relations_of(data)
        if kind_of(data.metric) == "classes" and data.get("out_channels", 2) < 2:
            raise ValueError(
                f"all labelled edges of {self.config.data.origin()} have one class: there is nothing to "
                "learn. Give labels of two classes or more"
            )

    def loader(self, clusters: ClusterLoader) -> Loader:
        return EdgeLoader(clusters, find_ends(clusters.data))

    def undirected(self, data: Data) -> EdgeIndex:
        if data.on_disk:
            raise ValueError(
                f"partition={self.config.partition.name} with task=edge cuts a graph in memory, and "
                "data.on_disk=true leaves it on the disk. Set partition=random or whole"
            )
        return with_both_ways(data)

    def describe_ends(self, numbers: np.ndarray, data: Data) -> Columns:
        ends = find_ends(data)[numbers - data.types.nodes_of(data.types.labelled).start].numpy()
        names = np.append(
            ids.ids_of(data, None).astype(object), ""
        )  # the last is that of an end that no node has
        return dict(zip(PAIR_COLUMNS, names[ends].T, strict=True))

"""The labels of a label table, each of a node at a time."""

import numpy as np
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.config import GNNPredictConfig
from parallel_epochs.pipeline.gnn.contract import Loader
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.kinds.nodes import NodeKind
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.gnn.loaders.edges import EdgeLoader
from parallel_epochs.pipeline.gnn.predict import ids
from parallel_epochs.pipeline.gnn.tasks.edge import find_ends, with_both_ways
from parallel_epochs.pipeline.gnn.tasks.row import RowTask
from parallel_epochs.pipeline.names import ROW_SEPARATOR
from parallel_epochs.pipeline.run.tables import Columns


class RowKind(NodeKind):
    """Predicts the labels of the rows of a label table, which are the nodes of a type."""

    unit, learns = "rows", RowTask
    instead_of_pairs = (
        "For other rows give a label table as data.label_table=FILE; it needs no labels"
    )

    def check(self) -> None:
        super().check()
        if self.config.train.label_input:
            raise ValueError(
                f"train.label_input={self.config.train.label_input:g} shows labels to neighbours, and the "
                "rows of a label table have none to show them to. Leave it out"
            )

    def loader(self, clusters: ClusterLoader) -> Loader:
        return EdgeLoader(clusters, find_ends(clusters.data))

    def undirected(self, data: Data) -> EdgeIndex:
        return with_both_ways(data)

    def ids(self, predicted: Predicted) -> np.ndarray:
        return _part(super().ids(predicted), 0)

    def read(self, asked: GNNPredictConfig, run: str, *, is_new: bool) -> list[str] | None:
        if asked.output_nodes is not None:
            raise ValueError(
                f"output_nodes={asked.output_nodes} lists nodes, and this run predicts rows of a node and "
                "a time. Name a table of the rows to predict by data.label_table=FILE"
            )
        if asked.output_type is not None:
            raise ValueError(
                f"output_type={asked.output_type}: vectors of nodes are those of a time, and only rows of "
                "a label table have one. Leave it out"
            )
        return super().read(asked, run, is_new=is_new)

    def describe_ends(self, numbers: np.ndarray, data: Data) -> Columns:
        names = ids.ids_of(data, None)[numbers]
        return {ids.ID: _part(names, 0), "time": _part(names, 1)}


def _part(names: np.ndarray, place: int) -> np.ndarray:
    """Return the id or the time in the names of rows."""
    return np.array(
        [name.split(ROW_SEPARATOR)[place if ROW_SEPARATOR in name else 0] for name in names], object
    )

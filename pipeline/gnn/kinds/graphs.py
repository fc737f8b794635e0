"""The labels of whole graphs."""

from typing import Any

import numpy as np
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.cache import name_graphs
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.kinds.labels import LabelKind
from parallel_epochs.pipeline.gnn.tasks.graph import GraphTask


class GraphKind(LabelKind):
    """Predicts the labels of graphs, which are one disjoint union."""

    unit, is_one_graph, learns = "graphs", False, GraphTask

    def sizes(self, data: Data) -> dict[str, Any]:
        return {
            "pool": self.config.task.pool,
            "node_tables": data.get("x_tables"),
            "edge_tables": data.get("edge_tables"),
        }

    def task(self, data: Data) -> GraphTask:
        task = super().task(data)
        assert isinstance(task, GraphTask)
        task.num_last = self.config.data.num_last
        return task

    def models(self, data: Data) -> dict[str, dict]:
        pyg: dict[str, Any] = {"name": "pyg", "norm": "batch"}
        return {
            "gatedgcn": {**pyg, "conv": "GatedGCNConv", "feed_forward": True},
            "gin": {**pyg, "conv": "GINConv" if data.edge_attr is None else "GINEConv"},
            "gatv2": {**pyg, "conv": "GATv2Conv", "kwargs": {"heads": 4}},
            "deepergcn": {"name": "deepergcn", "norm": "batch"},
        }

    def num_rows(self, data: Data) -> int:
        return len(data.ptr) - 1

    def ids(self, predicted: Predicted) -> np.ndarray:
        names = name_graphs(self.config.data)
        return (
            np.arange(self.num_rows(predicted.graph)) if names is None else np.array(names, object)
        )

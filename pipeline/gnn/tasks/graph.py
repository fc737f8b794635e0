"""The labels of whole graphs."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.tasks.node import NodeTask


class GraphTask(NodeTask):
    """Predicts the labels of graphs as :class:`NodeTask` does those of nodes.

    The model pools the nodes of each graph in front of its head.

    Args:
        data: a union of graphs as :func:`pipeline.data.cache.load` returns it: ``ptr`` says where each begins, labels
            and masks have a row for each graph.
        options: as of :class:`NodeTask`.

    Attributes:
        num_rows: number of graphs to predict.
        num_last: number of the last columns of ``x`` that say where a node stands in its graph.
    """

    def __init__(self, data: Data, **options: Any):
        super().__init__(data, **options)
        self.num_rows, self.num_last = data.ptr.numel() - 1, 0

    def _predict(
        self, model: torch.nn.Module, batch: Data, shown: Bool[Tensor, " num_graphs"]
    ) -> Float[Tensor, "num_graphs out_channels"]:
        return model(batch.x, batch.edge_index, batch.edge_attr, ptr=batch.ptr)

    def _rows_of(self, batch: Data) -> Int[Tensor, " num_graphs"]:
        return batch.graph_id

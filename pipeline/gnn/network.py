"""The trained network of a run alone: a module that reads tensors, and nothing of the data."""

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.networks.link_predictor import LinkModel
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask


class Network(torch.nn.Module):
    """The trained network of a run, without its data.

    Args:
        model: with its weights.
        task: what it learned.
    """

    def __init__(self, model: torch.nn.Module, task: NodeTask):
        super().__init__()
        self.model, self._task = model, task.alone()
        self.eval()

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        ptr: Tensor | None = None,
    ) -> Tensor:
        """Compute logits, or values in their own unit [num_rows, columns].

        Args:
            x: [num_nodes, channels], as :meth:`pipeline.gnn.setup.Setup.inputs` returns them.
            edge_index: [2, num_edges], int64.
            edge_attr: [num_edges, edge_dim]; none without features of edges.
            ptr: of a model of graphs, the first node of each graph, and the number of nodes [num_graphs + 1].
        """
        num_rows = x.size(0) if ptr is None else ptr.size(0) - 1
        batch = Data(
            x=x,
            edge_index=edge_index,
            edge_attr=edge_attr,
            ptr=ptr,
            train_mask=x.new_ones(num_rows, dtype=torch.bool),
        )
        return self._task.predict_all(self.model, batch)


class LinkNetwork(torch.nn.Module):
    """The encoder and the predictor of a model of links, from a graph and pairs to logits [num_pairs].

    Raises:
        ValueError: the predictor reads common neighbours.
    """

    def __init__(self, model: LinkModel):
        if model.predictor.reads_index:
            raise ValueError(
                "the predictor reads common neighbours (task.common_neighbors=true), which are no "
                "input of a network alone; train without them, or export a file that ends with .pe"
            )
        super().__init__()
        self.model = model.eval()

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None, *, pairs: Tensor
    ) -> Tensor:
        """Compute the logits of pairs of nodes [num_pairs, 2]; the other arguments are those of the encoder."""
        return self.model.decode(self.model(x, edge_index, edge_attr), pairs)

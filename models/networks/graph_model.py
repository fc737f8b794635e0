"""The parts that DeeperGCN, RevGNN and the models of typed graphs share: checks, encoder and head."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.networks.encoders import (
    NodeEncoder,
    check_inputs,
    create_node_encoders,
    encode_nodes,
)
from parallel_epochs.models.networks.heads import pool_graphs
from parallel_epochs.models.networks.options import LayerOptions, ModelOptions


class GraphModel(torch.nn.Module):
    """A model with a linear encoder of the nodes and a linear head.

    A subclass creates the `head` after its layers, so that all weights are drawn in the order of their use. The
    constructors of the models have these arguments, and the fields of `options` as keywords.

    Args:
        in_channels: Number of node features, without the one-hot columns of `num_categories`.
        hidden_channels: Width of every layer.
        out_channels: Number of classes or tasks.
        num_layers: Number of layers; see the options of the model.

    Raises:
        ValueError: an argument has another type or is out of its range; the message begins with its name.
    """

    takes_int32_edges = True  # not every layer of PyG's does
    head: torch.nn.Linear
    # Computes the inputs of the head [num_nodes, channels], before they are pooled; see :meth:`forward`.
    compute: Callable[..., Tensor]

    def __init__(
        self, in_channels: int, hidden_channels: int, options: ModelOptions | LayerOptions
    ):
        super().__init__()
        self.num_columns, self.num_edge_columns = (
            in_channels + options.num_categories,
            options.edge_dim or 0,
        )
        self.num_relations, self.pool, self.kernel = (
            options.num_relations,
            options.pool,
            options.kernel,
        )
        self.dropout, self.input_dropout = options.dropout, options.input_dropout
        self.edge_dropout = options.edge_dropout
        self.category_encoder: torch.nn.Linear | None = None
        self.node_encoder: NodeEncoder | None = None
        if getattr(options, "encode_x", True):
            self.category_encoder, self.node_encoder = create_node_encoders(
                in_channels,
                options.num_categories,
                hidden_channels,
                options.node_tables,
                options.type_columns,
            )

    def forward(
        self,
        x: Num[Tensor, "num_nodes in_channels_and_categories"],
        edge_index: Int[Tensor, "2 num_edges"],
        edge_attr: Num[Tensor, "num_edges edge_dim"] | None = None,
        ptr: Int[Tensor, " num_graphs_plus_1"] | None = None,
        *more: Tensor | None,
        **named: Tensor | None,
    ) -> Float[Tensor, "num_rows out_channels"]:
        """Predict logits.

        Args:
            x: [num_nodes, in_channels + num_categories]
            edge_index: [2, num_edges], a tensor or an ``EdgeIndex``.
            edge_attr: [num_edges, edge_dim] or none. Column 0 is the relation of the edge if the model has relations.
            ptr: index of each graph's first node [num_graphs + 1], for virtual nodes and `pool`. None: one graph.
            more, named: further arguments of :meth:`compute`.

        Returns:
            [num_nodes, out_channels]; with `pool` [num_graphs, out_channels]

        Raises:
            ValueError: the features do not have the width that the model was built for.
            IndexError: an edge has a relation or an end that does not exist.
        """
        check_inputs(self, x, edge_attr)
        return self.head(
            pool_graphs(self.compute(x, edge_index, edge_attr, ptr, *more, **named), ptr, self.pool)
        )

    def encode_nodes(self, x: Tensor) -> Tensor:
        """Encode node features for the first layer [num_nodes, channels]."""
        h = (
            x
            if self.node_encoder is None
            else encode_nodes(x, self.node_encoder, self.category_encoder)
        )
        return F.dropout(h, self.input_dropout, self.training)

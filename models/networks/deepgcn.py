"""DeeperGCN: very deep graph convolutions with residual blocks (https://arxiv.org/abs/2006.07739)."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.aggregate.relation_table import check as check_relations
from parallel_epochs.models.convs.activation import norm_relu_dropout
from parallel_epochs.models.convs.edge_dropout import drop_edges
from parallel_epochs.models.networks.categories import TableEncoder
from parallel_epochs.models.networks.encoders import (
    create_edge_encoder,
    fold,
    prepare_edges,
)
from parallel_epochs.models.networks.gen_layers import create_conv
from parallel_epochs.models.networks.graph_model import GraphModel
from parallel_epochs.models.networks.options import DeeperGCNOptions, takes_options
from parallel_epochs.models.networks.virtual import VirtualNode, spread
from parallel_epochs.models.plain import is_plain
from parallel_epochs.models.residual import NORMS, recompute


class DeeperGCN(GraphModel):
    """A stack of :class:`~models.convs.gen_conv.GENConv` layers between a linear encoder and a linear head.

    A layer is a block ``res+``: it computes ``h + conv(dropout(relu(norm(h))))``.

    Edge features go through one linear map that all layers share, then through one of each layer. There is no
    nonlinearity between the two, so `forward` folds them into a single map from `edge_dim` to `hidden_channels` for
    each layer. Parameters and function stay the same, but no encoded tensor of edges x channels exists. Categories of
    edges (`edge_tables`) have tables in each layer and no shared map; the aggregation reads their one-hot columns.
    Relations of edges (`num_relations`) have a table in each layer too, and the aggregation reads its rows.

    Each layer draws anew which edges `edge_dropout` removes.

    With `pool`, the nodes of each graph become one row in front of the head, and the last norm has no ReLU after it,
    as in DeepGCN's models of whole graphs.

    Its arguments are those of :class:`GraphModel`, and as keywords those of
    :class:`models.networks.options.DeeperGCNOptions`.
    """

    @takes_options(DeeperGCNOptions)
    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        options: DeeperGCNOptions,
    ):
        super().__init__(in_channels, hidden_channels, options)
        num_relations, virtual_node = options.num_relations, options.virtual_node
        self.gradient_checkpointing = options.gradient_checkpointing

        if options.num_edge_features:
            self._create_edge_encoders(
                options.num_edge_features, hidden_channels, num_layers, options.edge_tables
            )
        if num_relations:
            self.relations = torch.nn.ModuleList(
                TableEncoder([num_relations], hidden_channels) for _ in range(num_layers)
            )

        self.convs = torch.nn.ModuleList(
            create_conv(options, hidden_channels, hidden_channels) for _ in range(num_layers)
        )
        self.norms = torch.nn.ModuleList(
            NORMS[options.norm](hidden_channels) for _ in range(num_layers)
        )
        self.virtual = (
            None
            if virtual_node == "none"
            else VirtualNode(
                hidden_channels,
                num_layers - 1,
                pool=virtual_node,
                norm=options.norm,
                dropout=options.dropout,
            )
        )
        self.head = torch.nn.Linear(hidden_channels, out_channels)

    def _create_edge_encoders(
        self, edge_dim: int, channels: int, num_layers: int, tables: Sequence[int] | None
    ) -> None:
        if tables is None:
            self.edge_encoder = torch.nn.Linear(edge_dim, channels)
        self.edge_lins = torch.nn.ModuleList(
            torch.nn.Linear(channels, channels)
            if tables is None
            else create_edge_encoder(edge_dim, channels, tables)
            for _ in range(num_layers)
        )

    def compute(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None,
        ptr: Tensor | None,
    ) -> Tensor:
        """Compute the inputs of the head [num_nodes, channels].

        Args:
            x, edge_attr, ptr: as for :meth:`forward`.
            edge_index: as for :meth:`forward`.
        """
        h = self.encode_nodes(x)
        edge_attr = None if edge_attr is None else self.encode_edges(edge_attr)
        state = None
        if self.virtual is not None:
            ptr = torch.tensor([0, h.size(0)], device=h.device) if ptr is None else ptr
            state = self.virtual.start(ptr)
            h = h + spread(state, ptr, h.size(0))
        for layer in range(len(self.convs)):
            if self.gradient_checkpointing and torch.is_grad_enabled():
                h, state = recompute(
                    self,
                    self._apply_layer,
                    layer,
                    h,
                    edge_index,
                    edge_attr,
                    state,
                    ptr,
                )
            else:
                h, state = self._apply_layer(layer, h, edge_index, edge_attr, state, ptr)
        if self.pool == "none":
            return self._activate(self.norms[-1], h)
        return F.dropout(self.norms[-1](h), self.dropout, self.training)

    def encode_edges(self, edge_attr: Tensor) -> Tensor:
        """Encode edge features for all layers [num_edges, columns]. Relations stay in column 0."""
        if not hasattr(self, "edge_lins"):
            return edge_attr
        return cast(Tensor, prepare_edges(edge_attr, self.edge_lins[0]))

    def _apply_layer(
        self,
        layer: int,
        h: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None,
        state: Tensor | None = None,
        ptr: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        edge_index, edge_attr = drop_edges(
            edge_index, edge_attr, dropout=self.edge_dropout, training=self.training
        )
        if layer == 0:  # the norm that is left over stands in front of the head
            return self._convolve(layer, h, edge_index=edge_index, edge_attr=edge_attr), state
        source = self._activate(self.norms[layer - 1], h)
        if self.virtual is not None and state is not None:
            state = self.virtual(layer - 1, state, source, ptr)
            source = source + spread(state, cast(Tensor, ptr), h.size(0))
        return h + self._convolve(layer, source, edge_index=edge_index, edge_attr=edge_attr), state

    def _activate(self, norm: torch.nn.Module, h: Tensor) -> Tensor:
        return norm_relu_dropout(
            h, norm, dropout=self.dropout, training=self.training, kernel=self.kernel
        )

    def _convolve(
        self,
        layer: int,
        h: Tensor | tuple[Tensor, Tensor],
        *,
        edge_index: Tensor,
        edge_attr: Tensor | None,
    ) -> Tensor:
        conv = self.convs[layer]
        if edge_attr is None:
            return conv(h, edge_index)
        if self.num_relations:
            return self._convolve_related(layer, conv, h, edge_index, edge_attr)
        lin = self.edge_lins[layer]
        if isinstance(lin, TableEncoder):
            return conv(h, edge_index, edge_attr, edge_encoder=(lin.weight.t(), None))
        if not (is_plain(lin, torch.nn.Linear) and is_plain(self.edge_encoder, torch.nn.Linear)):
            return conv(h, edge_index, lin(self.edge_encoder(edge_attr)))
        return conv(h, edge_index, edge_attr, edge_encoder=fold(lin, self.edge_encoder))  # type: ignore[arg-type]

    def _convolve_related(
        self,
        layer: int,
        conv: Callable[..., Tensor],
        h: Tensor | tuple[Tensor, Tensor],
        edge_index: Tensor,
        edge_attr: Tensor,
    ) -> Tensor:
        """Convolve with relations in column 0 of `edge_attr`, whose other columns are there if there are encoders."""
        relations = self.relations[layer]
        lin = cast(torch.nn.Linear, self.edge_lins[layer]) if hasattr(self, "edge_lins") else None
        is_foldable = (
            lin is None
            or is_plain(lin, torch.nn.Linear)
            and is_plain(self.edge_encoder, torch.nn.Linear)
        )
        if is_plain(relations, TableEncoder) and is_foldable:
            edge_encoder = None if lin is None else fold(lin, self.edge_encoder)
            return conv(
                h, edge_index, edge_attr, edge_encoder=edge_encoder, edge_table=relations.weight
            )
        check_relations(edge_attr[:, 0], self.num_relations)
        encoded = relations(edge_attr[:, :1].long())
        if lin is not None:
            features = edge_attr[:, 1:]
            encoded = encoded + lin(self.edge_encoder(features))
        return conv(h, edge_index, encoded)

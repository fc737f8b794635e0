"""DeeperGCN: very deep graph convolutions with residual blocks (https://arxiv.org/abs/2006.07739)."""
# ruff: noqa: F722 (shapes are strings)

from functools import partial
from typing import cast

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor
from torch.nn import functional as F

from .activation import norm_relu_dropout
from .blocks import BLOCKS, NORMS, recompute
from .conv import GENConv
from .encoders import create_edge_encoder, create_node_encoders, encode_nodes, fold, prepare_edges
from .heads import pool_graphs
from .nearest import dilated_neighbors
from .options import check_inputs, check_options
from .plain import is_plain
from .tables import TableEncoder
from .virtual import VirtualNode, spread


class DeeperGCN(torch.nn.Module):
    """A stack of :class:`~models.conv.GENConv` layers between a linear encoder and a linear head.

    ``res+`` computes ``h + conv(dropout(relu(norm(h))))``, ``res`` ``h + dropout(relu(norm(conv(h))))``, ``plain``
    the same without ``h +``, ``dense`` concatenates each layer's output to its input.

    Edge features go through one linear map shared by all layers and one of each layer. There is no nonlinearity
    between the two, so `forward` folds them into a single map from `edge_dim` to `hidden_channels` for each layer:
    same parameters and same function, but no encoded tensor of edges x channels shared by the layers. Categories of
    edges (`edge_tables`) have tables in each layer and no shared map; the aggregation reads their one-hot columns.

    With `knn` each layer convolves over the nodes that lie nearest to each node in the space of the layer's input,
    found anew in each step, instead of the given edges: the dynamic, dilated graphs of "DeepGCNs: Can GCNs Go as Deep
    as CNNs?" (https://arxiv.org/abs/1904.03751). See :func:`models.nearest.dilated_neighbors`.

    With `pool` the nodes of each graph become one row in front of the head, and ``res+`` has no relu after its last
    norm, as DeepGCN's models of whole graphs.

    Args:
        in_channels: number of node features, without the one-hot columns of `num_categories`.
        hidden_channels: width of every layer.
        out_channels: number of classes or tasks.
        num_layers: number of convolutions.
        edge_dim: number of edge features, or none.
        num_categories: number of the last columns of `x` that hold a one-hot category (a protein's species), which
            has a linear encoder of its own before the node encoder; 0 means no category.
        node_tables: for an `x` of categories, their number in each column; none if it holds numbers.
        edge_tables: the same of `edge_attr`.
        pool: what makes one row of each graph's nodes, "mean", "sum" or "max"; "none" for a row of each node.
        block: how a layer's output joins its input: "res+", "res", "plain" or "dense".
        aggr: aggregation of the messages: "softmax", "softmax_sg", "softmax_sum", "power", "power_sum", "powermean",
            "mean", "max" or "add".
        t: initial inverse temperature of the softmax aggregations.
        learn_t: whether each layer learns its `t`; softmax_sg has no gradient for it.
        p: initial exponent of the power aggregations, not 0.
        learn_p: whether each layer learns its `p`.
        y: initial logit of the degree's exponent in softmax_sum and power_sum.
        learn_y: whether each layer learns its `y`.
        msg_norm: whether each layer scales its aggregated messages to the norm of the node's own features.
        learn_msg_scale: whether each layer learns the factor of `msg_norm`.
        norm: norm between the layers and in their MLPs: "layer" or "batch".
        knn: number of nearest nodes that each layer links to a node, in place of the given edges, which then must
            have no features; 0 for the given edges.
        knn_dilation: layer l, from 1, takes every l-th of the nearest, but no more than every `knn_dilation`-th.
        knn_epsilon: probability, of each node in training, that random ones of its dilated neighbourhood are taken.
        num_mlp_layers: number of linear layers in each convolution's MLP; beyond one, hidden ones have
            `2 * hidden_channels` channels.
        virtual_node: what a virtual node, which all nodes read, reads of each graph's nodes: their sum ("add"), their
            "mean", which clusters of any size have alike, or "none" for no virtual node.
        dropout: probability that an activation between two layers is dropped in training, in [0, 1).
        gradient_checkpointing: whether backward recomputes each layer, so that forward need not keep its activations.
        encode_x: whether a linear encoder reads `x`; without it the first layer does, and `x` must have
            `hidden_channels` columns.
        fold_edge_encoder: whether the edge encoders are folded as described; otherwise each layer builds a tensor of
            edges x channels.
        kernel: what aggregates and normalises, "auto", "fused" or "reference": see
            :func:`models.aggregate.aggregate` and :func:`models.activation.norm_relu_dropout`.

    Raises:
        ValueError: an argument has another type or is out of its range; the message begins with its name.
    """

    takes_int32_edges = True  # not every layer of PyG's does

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        edge_dim: int | None = None,
        num_categories: int = 0,
        node_tables: list[int] | None = None,
        edge_tables: list[int] | None = None,
        pool: str = "none",
        block: str = "res+",
        aggr: str = "softmax",
        t: float = 1.0,
        learn_t: bool = True,
        p: float = 1.0,
        learn_p: bool = False,
        y: float = 0.0,
        learn_y: bool = False,
        msg_norm: bool = False,
        learn_msg_scale: bool = False,
        norm: str = "layer",
        knn: int = 0,
        knn_dilation: int = 1,
        knn_epsilon: float = 0.0,
        num_mlp_layers: int = 2,
        virtual_node: str = "none",
        dropout: float = 0.1,
        gradient_checkpointing: bool = False,
        encode_x: bool = True,
        fold_edge_encoder: bool = True,
        kernel: str = "auto",
    ):
        check_options({name: value for name, value in locals().items() if name not in ("self", "__class__")})
        super().__init__()
        self.block, self.dropout, self.pool = block, dropout, pool
        self.num_columns, self.num_edge_columns = in_channels + num_categories, edge_dim or 0
        self.gradient_checkpointing = gradient_checkpointing
        self.fold_edge_encoder = fold_edge_encoder
        self.kernel = kernel
        self.knn, self.knn_dilation, self.knn_epsilon = knn, knn_dilation, knn_epsilon

        self.category_encoder, self.node_encoder = create_node_encoders(
            in_channels, num_categories, hidden_channels, node_tables) if encode_x else (None, None)
        if edge_dim:
            self._create_edge_encoders(edge_dim, hidden_channels, num_layers, edge_tables)

        # In a dense block layer l reads the encoder's output and that of the l layers before it.
        growth = hidden_channels if block == "dense" else 0
        self.convs = torch.nn.ModuleList(
            GENConv(hidden_channels + layer * growth, hidden_channels, aggr, t=t, learn_t=learn_t, p=p, learn_p=learn_p,
                    y=y, learn_y=learn_y, msg_norm=msg_norm, learn_msg_scale=learn_msg_scale, norm=norm,
                    num_layers=num_mlp_layers, bias=True, kernel=kernel)
            for layer in range(num_layers))
        self.norms = torch.nn.ModuleList(NORMS[norm](hidden_channels) for _ in range(num_layers))
        self.virtual = None if virtual_node == "none" else VirtualNode(
            hidden_channels, num_layers - 1, pool=virtual_node, norm=norm, dropout=dropout)
        self.head = torch.nn.Linear(hidden_channels + num_layers * growth, out_channels)

    def _create_edge_encoders(self, edge_dim: int, channels: int, num_layers: int, tables: list[int] | None) -> None:
        if tables is None:
            self.edge_encoder = torch.nn.Linear(edge_dim, channels)
        self.edge_lins = torch.nn.ModuleList(
            torch.nn.Linear(channels, channels) if tables is None else create_edge_encoder(edge_dim, channels, tables)
            for _ in range(num_layers))

    def forward(
        self,
        x: Num[Tensor, "num_nodes in_channels_and_categories"],
        edge_index: Int[Tensor, "2 num_edges"],
        edge_attr: Num[Tensor, "num_edges edge_dim"] | None = None,
        ptr: Int[Tensor, " num_graphs_plus_1"] | None = None,
        degree_ratio: Float[Tensor, " num_nodes"] | None = None,
    ) -> Float[Tensor, "num_rows out_channels"]:
        """Predict logits.

        Args:
            x: [num_nodes, in_channels + num_categories]
            edge_index: [2, num_edges], a tensor or an ``EdgeIndex``; not looked at with `knn`.
            edge_attr: [num_edges, edge_dim] or none.
            ptr: where each graph's nodes begin [num_graphs + 1], for the virtual nodes and `pool`; none: one graph.
            degree_ratio: [num_nodes] or none, by which sums are scaled: see :class:`~models.conv.GENConv`.

        Returns:
            [num_nodes, out_channels]; with `pool` [num_graphs, out_channels]

        Raises:
            ValueError: features of other widths than the model was made for.
        """
        check_inputs(self, x, edge_attr)
        h = self.encode_nodes(x)
        edge_attr = None if edge_attr is None else self.encode_edges(edge_attr)
        state = None
        if self.virtual is not None:
            ptr = torch.tensor([0, h.size(0)], device=h.device) if ptr is None else ptr
            state = self.virtual.start(ptr)
            h = h + spread(state, ptr, h.size(0))
        for layer in range(len(self.convs)):
            if self.gradient_checkpointing and torch.is_grad_enabled():
                h, state = recompute(self, self._apply_layer, layer, h, edge_index, edge_attr, state, ptr,
                                     degree_ratio)
            else:
                h, state = self._apply_layer(layer, h, edge_index, edge_attr, state, ptr, degree_ratio)
        if self.block == "res+" and self.pool == "none":
            h = self._activate(self.norms[-1], h)
        elif self.block == "res+":
            h = F.dropout(self.norms[-1](h), self.dropout, self.training)
        return self.head(pool_graphs(h, ptr, self.pool))

    def encode_nodes(self, x: Tensor) -> Tensor:
        """Return what the first layer reads of node features [num_nodes, channels]."""
        return x if self.node_encoder is None else encode_nodes(x, self.node_encoder, self.category_encoder)

    def encode_edges(self, edge_attr: Tensor) -> Tensor:
        """Return what the layers read of edge features [num_edges, channels]."""
        if self.fold_edge_encoder:
            return prepare_edges(edge_attr, self.edge_lins[0])
        return self.edge_encoder(edge_attr) if hasattr(self, "edge_encoder") else edge_attr

    def apply_layer(self, layer: int, h: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """Apply one layer, counted from 0, with its norm, activation, dropout and residual connection.

        Args:
            layer: number of the layer.
            h: input of the layer [num_nodes, channels].
            edge_index: as for :meth:`forward`.
            edge_attr: as for :meth:`forward`, categories as one-hot columns; encoded [num_edges, hidden_channels]
                without `fold_edge_encoder`, where categories stay as they are.
        """
        return self._apply_layer(layer, h, edge_index, edge_attr)[0]

    def _apply_layer(self, layer: int, h: Tensor, edge_index: Tensor, edge_attr: Tensor | None,
                     state: Tensor | None = None, ptr: Tensor | None = None,
                     degree_ratio: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if self.knn:
            edge_index = dilated_neighbors(h, self.knn, dilation=min(layer + 1, self.knn_dilation), ptr=ptr,
                                           epsilon=self.knn_epsilon if self.training else 0.0)

        def convolve(h: Tensor) -> Tensor:
            nonlocal state
            if self.virtual is not None and layer and state is not None:
                state = self.virtual(layer - 1, state, h, ptr)
                h = h + spread(state, cast(Tensor, ptr), h.size(0))
            return self._convolve(layer, h, edge_index=edge_index, edge_attr=edge_attr, degree_ratio=degree_ratio)

        if self.block == "res+" and layer == 0:
            return convolve(h), state  # the last of the norms comes before the head instead
        norm = self.norms[layer - 1 if self.block == "res+" else layer]
        return BLOCKS[self.block](h, convolve, partial(self._activate, norm)), state

    def channels_of(self, layer: int) -> int:
        """Return the columns of what a layer reads, counted from 0; of what the head reads with the number of layers.
        """
        hidden = cast(Tensor, self.norms[0].weight).numel()
        return hidden * (1 + layer) if self.block == "dense" else hidden

    def _activate(self, norm: torch.nn.Module, h: Tensor) -> Tensor:
        return norm_relu_dropout(h, norm, dropout=self.dropout, training=self.training, kernel=self.kernel)

    def _convolve(self, layer: int, h: Tensor | tuple[Tensor, Tensor], *, edge_index: Tensor, edge_attr: Tensor | None,
                  degree_ratio: Tensor | None) -> Tensor:
        conv = self.convs[layer]
        if degree_ratio is not None:
            conv = partial(conv, degree_ratio=degree_ratio)
        if edge_attr is None:
            return conv(h, edge_index)
        lin = self.edge_lins[layer]
        if not self.fold_edge_encoder:
            return conv(h, edge_index, lin(edge_attr))
        if isinstance(lin, TableEncoder):
            return conv(h, edge_index, edge_attr, edge_encoder=(lin.weight.t(), None))
        if not (is_plain(lin, torch.nn.Linear) and is_plain(self.edge_encoder, torch.nn.Linear)):
            return conv(h, edge_index, lin(self.edge_encoder(edge_attr)))
        return conv(h, edge_index, edge_attr, edge_encoder=fold(lin, self.edge_encoder))  # type: ignore[arg-type]

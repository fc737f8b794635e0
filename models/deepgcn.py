"""DeeperGCN: very deep graph convolutions with residual blocks (https://arxiv.org/abs/2006.07739)."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from models.activation import norm_relu_dropout
from models.aggregate import AGGREGATIONS
from models.conv import GENConv

BLOCKS = ("res+", "res", "plain", "dense")
NORMS = {"layer": torch.nn.LayerNorm, "batch": torch.nn.BatchNorm1d}


class DeeperGCN(torch.nn.Module):
    """A stack of :class:`~models.conv.GENConv` layers between a linear encoder and a linear head.

    ``res+`` computes ``h + conv(dropout(relu(norm(h))))``, ``res`` ``h + dropout(relu(norm(conv(h))))``, ``plain``
    the same without ``h +``, ``dense`` concatenates each layer's output to its input.

    Edge features go through one linear map shared by all layers and one of each layer. There is no nonlinearity
    between the two, so `forward` folds them into a single map from `edge_dim` to `hidden_channels` for each layer:
    same parameters and same function, but no encoded tensor of edges x channels shared by the layers.

    Args:
        in_channels: node features, without the one-hot columns of `num_categories`.
        hidden_channels: width of every layer.
        out_channels: number of classes or tasks.
        num_layers: number of convolutions, at least 1.
        edge_dim: number of edge features, or none.
        num_categories: the last columns of `x` are a one-hot category (a protein's species), encoded by a linear map
            of its own before the node encoder.
        block: one of "res+", "res", "plain", "dense".
        aggr, t, learn_t, p, learn_p, y, learn_y, msg_norm, learn_msg_scale: see :class:`~models.conv.GENConv`.
        norm: "layer" or "batch".
        num_mlp_layers: linear layers in each convolution's MLP; with 2, its hidden width is `2 * hidden_channels`.
        dropout: probability in [0, 1).
        gradient_checkpointing: recompute each layer in backward instead of keeping its activations.
        fold_edge_encoder: fold the edge encoders as described; without it, edges x channels tensors are built.
        kernel: what aggregates and normalises, "auto", "fused" or "reference", see
            :func:`models.aggregate.aggregate` and :func:`models.activation.norm_relu_dropout`.

    Raises:
        ValueError: a name or a size outside of the above.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        edge_dim: int | None = None,
        num_categories: int = 0,
        block: str = "res+",
        aggr: str = "softmax",
        t: float = 1.0,
        learn_t: bool = False,
        p: float = 1.0,
        learn_p: bool = False,
        y: float = 0.0,
        learn_y: bool = False,
        msg_norm: bool = False,
        learn_msg_scale: bool = False,
        norm: str = "layer",
        num_mlp_layers: int = 2,
        dropout: float = 0.0,
        gradient_checkpointing: bool = False,
        fold_edge_encoder: bool = True,
        kernel: str = "auto",
    ):
        super().__init__()
        if block not in BLOCKS:
            raise ValueError(f"unknown block '{block}'; choose one of {', '.join(BLOCKS)}")
        if aggr not in AGGREGATIONS:
            raise ValueError(f"unknown aggregation '{aggr}'; choose one of {', '.join(AGGREGATIONS)}")
        if norm not in NORMS:
            raise ValueError(f"unknown norm '{norm}'; choose one of {', '.join(NORMS)}")
        if num_layers < 1 or hidden_channels < 1 or num_mlp_layers < 1:
            raise ValueError(f"num_layers, hidden_channels and num_mlp_layers must be at least 1, "
                             f"not {num_layers}, {hidden_channels} and {num_mlp_layers}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), not {dropout}")
        self.block = block
        self.dropout = dropout
        self.num_categories = num_categories
        self.gradient_checkpointing = gradient_checkpointing
        self.fold_edge_encoder = fold_edge_encoder
        self.kernel = kernel

        if num_categories:
            self.category_encoder = torch.nn.Linear(num_categories, in_channels)
            self.node_encoder = torch.nn.Linear(2 * in_channels, hidden_channels)
        else:
            self.node_encoder = torch.nn.Linear(in_channels, hidden_channels)
        if edge_dim:
            self.edge_encoder = torch.nn.Linear(edge_dim, hidden_channels)
            self.edge_lins = torch.nn.ModuleList(
                torch.nn.Linear(hidden_channels, hidden_channels) for _ in range(num_layers))

        # In a dense block layer l reads the encoder's output and that of the l layers before it.
        growth = hidden_channels if block == "dense" else 0
        self.convs = torch.nn.ModuleList(
            GENConv(hidden_channels + layer * growth, hidden_channels, aggr, t=t, learn_t=learn_t, p=p, learn_p=learn_p,
                    y=y, learn_y=learn_y, msg_norm=msg_norm, learn_msg_scale=learn_msg_scale, norm=norm,
                    num_layers=num_mlp_layers, bias=True, kernel=kernel)
            for layer in range(num_layers))
        self.norms = torch.nn.ModuleList(NORMS[norm](hidden_channels) for _ in range(num_layers))
        self.head = torch.nn.Linear(hidden_channels + num_layers * growth, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        """Predict logits.

        Args:
            x: [num_nodes, in_channels + num_categories]
            edge_index: [2, num_edges], a tensor or an ``EdgeIndex``.
            edge_attr: [num_edges, edge_dim] or none.

        Returns:
            [num_nodes, out_channels]
        """
        if self.num_categories:
            features, category = x.split([x.size(1) - self.num_categories, self.num_categories], dim=1)
            x = torch.cat([features, self.category_encoder(category)], dim=1)
        h = self.node_encoder(x)
        if edge_attr is not None and not self.fold_edge_encoder:
            edge_attr = self.edge_encoder(edge_attr)
        for layer in range(len(self.convs)):
            if self.gradient_checkpointing and torch.is_grad_enabled():
                h = checkpoint(self._layer, layer, h, edge_index, edge_attr, use_reentrant=False,
                               context_fn=lambda: (contextlib.nullcontext(), self._fixed_statistics()))
            else:
                h = self._layer(layer, h, edge_index, edge_attr)
        if self.block == "res+":
            h = self._activate(self.norms[-1], h)
        return self.head(h)

    def _layer(self, layer: int, h: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        if self.block == "res+":
            if layer == 0:
                return self._conv(layer, h, edge_index, edge_attr)
            return h + self._conv(layer, self._activate(self.norms[layer - 1], h), edge_index, edge_attr)
        out = self._activate(self.norms[layer], self._conv(layer, h, edge_index, edge_attr))
        if self.block == "res":
            return h + out
        return torch.cat([h, out], dim=1) if self.block == "dense" else out

    @contextlib.contextmanager
    def _fixed_statistics(self) -> Iterator[None]:
        """While a layer is recomputed for backward, its batch norms must not count the same batch again."""
        norms = [module for module in self.modules() if isinstance(module, torch.nn.BatchNorm1d)]
        before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        try:
            yield
        finally:
            for norm, (momentum, num_batches_tracked) in zip(norms, before):
                norm.momentum, norm.num_batches_tracked = momentum, num_batches_tracked

    def _activate(self, norm: torch.nn.Module, h: Tensor) -> Tensor:
        return norm_relu_dropout(h, norm, dropout=self.dropout, training=self.training, kernel=self.kernel)

    def _conv(self, layer: int, h: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        conv = self.convs[layer]
        if edge_attr is None:
            return conv(h, edge_index)
        lin = self.edge_lins[layer]
        if not self.fold_edge_encoder:
            return conv(h, edge_index, lin(edge_attr))
        weight = lin.weight @ self.edge_encoder.weight
        bias = torch.addmv(lin.bias, lin.weight, self.edge_encoder.bias)
        return conv(h, edge_index, edge_attr, edge_encoder=(weight, bias))

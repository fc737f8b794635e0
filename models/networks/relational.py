"""Models of typed graphs, with several types of nodes and relations: R-GCN and the heterogeneous graph transformer."""

from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.convs.edge_dropout import drop_edges
from parallel_epochs.models.convs.expanded_edges import Relations, convolve
from parallel_epochs.models.convs.hgt_conv import HGTConv
from parallel_epochs.models.convs.typed_linear import NodeTypes
from parallel_epochs.models.networks.graph_model import GraphModel
from parallel_epochs.models.networks.options import (
    HGTOptions,
    LayerOptions,
    RGCNOptions,
    check_multiple,
    takes_options,
)
from parallel_epochs.models.networks.pyg import ACTIVATIONS, create_norm


class TypedModel(GraphModel):
    """The parts that models of typed graphs share: relations, norms and dropout.

    A subclass fills `layers` and computes one of them, with its norm and dropout, in :meth:`convolve`.
    """

    convolve: Callable[..., Tensor]

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        options: LayerOptions,
    ):
        super().__init__(in_channels, hidden_channels, options)
        self.num_types = options.num_categories
        self.layers = torch.nn.ModuleList()
        self.norms = torch.nn.ModuleList(
            create_norm(options.norm, hidden_channels) for _ in range(num_layers)
        )
        self.head = torch.nn.Linear(hidden_channels, out_channels)

    def compute(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, ptr: Tensor | None
    ) -> Tensor:
        """Compute the inputs of the head [num_nodes, channels]. Only the relation is read of the features of edges."""
        relation = (
            cast(Tensor, edge_attr)[:, 0]
            if self.num_relations
            else torch.zeros(edge_index.size(1), dtype=torch.int32, device=edge_index.device)
        )
        kept, relation = drop_edges(
            edge_index, relation, dropout=self.edge_dropout, training=self.training
        )
        relations = Relations(
            kept, cast(Tensor, relation), max(self.num_relations, 1), x.size(0), x.size(0)
        )
        types = NodeTypes.read(x, self.num_types) if self.num_types > 1 else None
        h = self.encode_nodes(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            h = self.convolve(layer, norm, h, relations, types)
        return h


class RGCN(TypedModel):
    """A relational graph convolutional network: each relation has its own weights.

    A layer computes ``dropout(activation(norm(W x_i + b + sum_r mean_j W_r x_j)))``, where j are the neighbours of i by
    the relation r, and adds its input if `residual`. With `num_bases`, the matrices W_r are learned mixtures of that
    many. It is the model of Schlichtkrull et al. (2018, https://arxiv.org/abs/1703.06103). Edge features other than
    the relation are not read. A graph without relations has one.

    Its arguments are those of :class:`GraphModel`, and as keywords those of
    :class:`models.networks.options.RGCNOptions`.
    """

    @takes_options(RGCNOptions)
    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        options: RGCNOptions,
    ):
        super().__init__(in_channels, hidden_channels, out_channels, num_layers, options=options)
        self._activate, self.residual = ACTIVATIONS[options.activation], options.residual
        num_relations, num_bases = max(options.num_relations, 1), options.num_bases
        self.layers.extend(
            RelationLayer(
                hidden_channels, num_relations, num_bases=num_bases, kernel=options.kernel
            )
            for _ in range(num_layers)
        )
        bases = f", {num_bases} bases" if num_bases else ""
        self.title = f"R-GCN: {num_layers} layers x {hidden_channels} channels, {num_relations} relations{bases}"

    def convolve(
        self,
        layer: torch.nn.Module,
        norm: torch.nn.Module,
        h: Tensor,
        relations: Relations,
        types: NodeTypes | None,
    ) -> Tensor:
        """Compute a layer with its norm and dropout."""
        new = F.dropout(self._activate(norm(layer(h, relations))), self.dropout, self.training)
        return h + new if self.residual else new


class RelationLayer(torch.nn.Module):
    """Computes ``W x_i + b + sum_r mean_j W_r x_j``, with edges that were expanded by relation beforehand.

    Args:
        channels: number of inputs and outputs.
        num_relations: number of relations.
        num_bases: number of matrices of which those of the relations are mixed. 0: each has its own.
        kernel: as for :func:`models.messages.update_all`.

    Attributes:
        weight: [num_relations or num_bases, channels, channels], Glorot and Bengio's uniform numbers.
        comp: shares of the bases [num_relations, num_bases], or none.
        root: the linear map W, b.
    """

    def __init__(
        self, channels: int, num_relations: int, *, num_bases: int = 0, kernel: str = "auto"
    ):
        super().__init__()
        self.kernel, bound = kernel, (3 / channels) ** 0.5
        self.weight = torch.nn.Parameter(
            torch.empty(num_bases or num_relations, channels, channels)
        )
        torch.nn.init.uniform_(self.weight, -bound, bound)
        self.comp = torch.nn.Parameter(torch.empty(num_relations, num_bases)) if num_bases else None
        if self.comp is not None:
            torch.nn.init.xavier_uniform_(self.comp)
        self.root = torch.nn.Linear(channels, channels)

    def forward(
        self, x: Float[Tensor, "num_nodes channels"], relations: Relations
    ) -> Float[Tensor, "num_nodes channels"]:
        """Convolve once."""
        weight = (
            self.weight
            if self.comp is None
            else torch.einsum("rb,bio->rio", self.comp, self.weight)
        )
        return self.root(x) + convolve(x, weight, relations, kernel=self.kernel)


class HGT(TypedModel):
    """A heterogeneous graph transformer: attention with linear maps of node types and matrices of relations.

    A layer computes ``norm(conv(h))``, where :class:`models.convs.hgt_conv.HGTConv` adds its input by a learned share
    for each node type and the new features are dropped out. It is the model of Hu et al. (2020,
    https://arxiv.org/abs/2003.01332) without its encoding of time. Edge features other than the relation are not read.
    A graph without relations has one, and a graph without node types has one.

    Its arguments are those of :class:`GraphModel`, and as keywords those of
    :class:`models.networks.options.HGTOptions`.
    """

    @takes_options(HGTOptions)
    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        *,
        options: HGTOptions,
    ):
        super().__init__(in_channels, hidden_channels, out_channels, num_layers, options=options)
        heads = options.heads
        check_multiple(hidden_channels, "heads", heads)
        num_types, num_relations = max(options.num_categories, 1), max(options.num_relations, 1)
        self.layers.extend(
            HGTConv(
                hidden_channels,
                hidden_channels,
                num_types,
                num_relations,
                heads,
                dropout=options.dropout,
                kernel=options.kernel,
            )
            for _ in range(num_layers)
        )
        self.title = (
            f"HGT: {num_layers} layers x {hidden_channels} channels, {heads} heads, {num_types} node types, "
            f"{num_relations} relations"
        )

    def convolve(
        self,
        layer: torch.nn.Module,
        norm: torch.nn.Module,
        h: Tensor,
        relations: Relations,
        types: NodeTypes | None,
    ) -> Tensor:
        """Compute a layer with its norm."""
        return norm(layer(h, relations, types))

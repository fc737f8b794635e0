"""Encoders of node and edge features, in front of the convolutions."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Num
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.convs.typed_linear import NodeTypes
from parallel_epochs.models.networks.categories import TableEncoder


class TypeEncoder(torch.nn.Module):
    """Encodes nodes of several types: each type has a linear map of its own columns.

    Args:
        type_columns: for each type the ranges [first, end) of the columns of `x` that its nodes have. A type without
            columns has only a bias, a learned vector.
        hidden_channels: width of the encoding.

    Attributes:
        weights: for each type [hidden_channels, columns of the type], initialised as those of ``torch.nn.Linear``.
        bias: [num_types, hidden_channels], initialised likewise; that of a type without columns is uniform in [-1, 1].
        in_channels: number of columns of `x` without the one-hot types.
    """

    def __init__(
        self,
        type_columns: Sequence[Sequence[tuple[int, int]]],
        hidden_channels: int,
        *,
        in_channels: int | None = None,
    ):
        super().__init__()
        self.type_columns = [
            [(int(first), int(end)) for first, end in ranges] for ranges in type_columns
        ]
        ends = [end for ranges in self.type_columns for _, end in ranges]
        self.in_channels = max(ends, default=0) if in_channels is None else in_channels
        self._check_columns()
        widths = [sum(end - first for first, end in ranges) for ranges in self.type_columns]
        self.weights = torch.nn.ParameterList(
            torch.empty(hidden_channels, width) for width in widths
        )
        self.bias = torch.nn.Parameter(torch.empty(len(widths), hidden_channels))
        with torch.no_grad():
            for weight, bias in zip(self.weights, self.bias, strict=True):
                bound = max(weight.size(1), 1) ** -0.5
                weight.uniform_(-bound, bound)
                bias.uniform_(-bound, bound)

    def forward(
        self, x: Float[Tensor, "num_nodes in_channels_and_types"]
    ) -> Float[Tensor, "num_nodes hidden"]:
        """Encode nodes.

        Args:
            x: [num_nodes, in_channels + num_types]; the last num_types columns are the one-hot type.

        Raises:
            ValueError: `x` has another number of columns, or a row has no one-hot type, see :meth:`NodeTypes.read`.
        """
        num_types = len(self.type_columns)
        if x.dim() != 2 or x.size(1) != self.in_channels + num_types:
            raise ValueError(
                f"x has shape {tuple(x.shape)}, but {num_types} node types were given columns of "
                f"{self.in_channels} features and a one-hot type: {self.in_channels + num_types} columns"
            )
        types, parts, is_exporting = NodeTypes.read(x, num_types), [], torch.compiler.is_exporting()
        for number, (ranges, weight, bias) in enumerate(
            zip(self.type_columns, self.weights, self.bias, strict=True)
        ):
            own = [
                x[:, first:end] if is_exporting else types.take(x[:, first:end], number)
                for first, end in ranges or [(0, 0)]
            ]
            parts.append(F.linear(torch.cat(own, dim=1), weight, bias))
        return types.choose(parts) if is_exporting else types.put_back(torch.cat(parts))

    def _check_columns(self) -> None:
        if not self.type_columns:
            raise ValueError("type_columns is empty: give the columns of at least one node type")
        for number, ranges in enumerate(self.type_columns):
            for first, end in ranges:
                if not 0 <= first <= end <= self.in_channels:
                    raise ValueError(
                        f"type_columns: node type {number} has the columns [{first}, {end}), but x has "
                        f"{self.in_channels} without the one-hot types"
                    )


NodeEncoder = torch.nn.Linear | TableEncoder | TypeEncoder
EdgeEncoder = torch.nn.Linear | TableEncoder


def create_node_encoders(
    in_channels: int,
    num_categories: int,
    hidden_channels: int,
    tables: Sequence[int] | None = None,
    type_columns: Sequence[Sequence[tuple[int, int]]] | None = None,
) -> tuple[torch.nn.Linear | None, NodeEncoder]:
    """Create the category encoder, None without a category, and the node encoder, both for :func:`encode_nodes`.

    A model keeps them in this order, because the digest of its weights depends on it.

    Args:
        tables: number of categories in each of the `in_channels` columns. None: the columns hold numbers.
        type_columns: for each of the `num_categories` node types the ranges [first, end) of the columns that its nodes
            have, see :class:`TypeEncoder`, which needs no category encoder. None: all nodes have all columns.

    Raises:
        ValueError: `type_columns` goes with `tables`, is not as long as `num_categories`, or has a range outside of x.
    """
    if type_columns is not None:
        if tables is not None:
            raise ValueError(
                "type_columns needs an x of numbers, but node_tables says that x holds categories"
            )
        if len(type_columns) != num_categories:
            raise ValueError(
                f"type_columns has the columns of {len(type_columns)} node types, but x has "
                f"num_categories={num_categories} one-hot columns: give the columns of each type"
            )
        return None, TypeEncoder(type_columns, hidden_channels, in_channels=in_channels)
    if tables is not None:
        return None, TableEncoder(tables, hidden_channels)
    if not num_categories:
        return None, torch.nn.Linear(in_channels, hidden_channels)
    category_encoder = torch.nn.Linear(num_categories, in_channels)
    return category_encoder, torch.nn.Linear(2 * in_channels, hidden_channels)


def create_edge_encoder(
    edge_dim: int, hidden_channels: int, tables: Sequence[int] | None = None
) -> EdgeEncoder:
    """Create the encoder of edge features: a linear map, or tables for columns with these numbers of categories."""
    return (
        torch.nn.Linear(edge_dim, hidden_channels)
        if tables is None
        else TableEncoder(tables, hidden_channels)
    )


def encode_nodes(
    x: Num[Tensor, "num_nodes in_channels"],
    node_encoder: NodeEncoder,
    category_encoder: torch.nn.Linear | None,
) -> Float[Tensor, "num_nodes hidden_channels"]:
    """Encode node features. With a `category_encoder` their last columns are a one-hot category.

    The category encoder is a linear map. The node encoder reads its result together with the other features.
    """
    if category_encoder is not None:
        num_categories = category_encoder.in_features
        features, category = x.split([x.size(1) - num_categories, num_categories], dim=1)
        x = torch.cat([features, category_encoder(category)], dim=1)
    return node_encoder(x)


def check_inputs(model: Any, x: Tensor, edge_attr: Tensor | None) -> None:
    """Refuse features whose width is not the one that a model was built for.

    Args:
        model: a module with the attributes ``num_columns`` (columns of `x`) and ``num_edge_columns`` (columns of
            `edge_attr`, or 0), and possibly ``num_relations``.

    Raises:
        ValueError: names both widths.
    """
    if x.dim() != 2 or x.size(1) != model.num_columns:
        raise ValueError(
            f"x has shape {tuple(x.shape)}, but the model was built for {model.num_columns} columns "
            f"(in_channels + num_categories)"
        )
    if edge_attr is None and getattr(model, "num_relations", None):
        raise ValueError(
            f"the model was built for num_relations={model.num_relations}, but there is no edge_attr, "
            "whose column 0 holds the relation of each edge"
        )
    if edge_attr is not None and not model.num_edge_columns:
        raise ValueError(
            f"edge_attr has shape {tuple(edge_attr.shape)}, but the model was built without edge_dim"
        )
    if edge_attr is not None and (
        edge_attr.dim() != 2 or edge_attr.size(1) != model.num_edge_columns
    ):
        raise ValueError(
            f"edge_attr has shape {tuple(edge_attr.shape)}, but the model was built for "
            f"edge_dim={model.num_edge_columns}"
        )


def prepare_edges(
    edge_attr: Num[Tensor, "num_edges edge_dim"] | None, encoder: torch.nn.Module | None
) -> Float[Tensor, "num_edges columns"] | None:
    """Return edge features for a linear `encoder`: categories become one-hot columns, numbers stay as they are."""
    if edge_attr is None or not isinstance(encoder, TableEncoder):
        return edge_attr
    return encoder.one_hot(edge_attr)


def fold(lin: torch.nn.Linear, edge_encoder: EdgeEncoder) -> tuple[Tensor, Tensor]:
    """Compose ``lin(edge_encoder(edge_attr))`` into one linear map, for the edge features of :func:`prepare_edges`.

    Returns:
        Its weight [hidden_channels, edge_dim] and its bias [hidden_channels].
    """
    if isinstance(edge_encoder, TableEncoder):
        return lin.weight @ edge_encoder.weight.t(), lin.bias
    return lin.weight @ edge_encoder.weight, torch.addmv(lin.bias, lin.weight, edge_encoder.bias)

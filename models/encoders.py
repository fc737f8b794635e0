"""Encoders of node and edge features, in front of the convolutions."""
# ruff: noqa: F722 (shapes are strings)

from collections.abc import Sequence

import torch
from jaxtyping import Float, Num
from torch import Tensor

from parallel_epochs.models.categories import TableEncoder

NodeEncoder = torch.nn.Linear | TableEncoder
EdgeEncoder = torch.nn.Linear | TableEncoder


def create_node_encoders(in_channels: int, num_categories: int, hidden_channels: int,
                         tables: Sequence[int] | None = None) -> tuple[torch.nn.Linear | None, NodeEncoder]:
    """Create the category encoder, None without a category, and the node encoder, both for :func:`encode_nodes`.

    A model keeps them in this order, because the digest of its weights depends on it.

    Args:
        tables: number of categories in each of the `in_channels` columns. None: the columns hold numbers.
    """
    if tables is not None:
        return None, TableEncoder(tables, hidden_channels)
    if not num_categories:
        return None, torch.nn.Linear(in_channels, hidden_channels)
    category_encoder = torch.nn.Linear(num_categories, in_channels)
    return category_encoder, torch.nn.Linear(2 * in_channels, hidden_channels)


def create_edge_encoder(edge_dim: int, hidden_channels: int, tables: Sequence[int] | None = None) -> EdgeEncoder:
    """Create the encoder of edge features: a linear map, or tables for columns with these numbers of categories."""
    return torch.nn.Linear(edge_dim, hidden_channels) if tables is None else TableEncoder(tables, hidden_channels)


def encode_nodes(x: Num[Tensor, "num_nodes in_channels"], node_encoder: NodeEncoder,
                 category_encoder: torch.nn.Linear | None) -> Float[Tensor, "num_nodes hidden_channels"]:
    """Encode node features. With a `category_encoder` their last columns are a one-hot category.

    The category encoder is a linear map. The node encoder reads its result together with the other features.
    """
    if category_encoder is not None:
        num_categories = category_encoder.in_features
        features, category = x.split([x.size(1) - num_categories, num_categories], dim=1)
        x = torch.cat([features, category_encoder(category)], dim=1)
    return node_encoder(x)


def prepare_edges(edge_attr: Num[Tensor, "num_edges edge_dim"] | None,
                  encoder: torch.nn.Module | None) -> Float[Tensor, "num_edges columns"] | None:
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

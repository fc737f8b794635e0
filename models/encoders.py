"""What turns the features of nodes and edges into those that the convolutions read."""
# ruff: noqa: F722 (shapes are strings)

from collections.abc import Sequence

import torch
from jaxtyping import Float, Num
from torch import Tensor

from .tables import TableEncoder

NodeEncoder = torch.nn.Linear | TableEncoder
EdgeEncoder = torch.nn.Linear | TableEncoder


def create_node_encoders(in_channels: int, num_categories: int, hidden_channels: int,
                         tables: Sequence[int] | None = None) -> tuple[torch.nn.Linear | None, NodeEncoder]:
    """Create what :func:`encode_nodes` takes: the category encoder, if there is a category, and the node encoder.

    A model keeps them in this order: the digest of its weights depends on it.

    Args:
        tables: the number of categories in each of `in_channels` columns; none if these are numbers.
    """
    if tables is not None:
        return None, TableEncoder(tables, hidden_channels)
    if not num_categories:
        return None, torch.nn.Linear(in_channels, hidden_channels)
    category_encoder = torch.nn.Linear(num_categories, in_channels)
    return category_encoder, torch.nn.Linear(2 * in_channels, hidden_channels)


def create_edge_encoder(edge_dim: int, hidden_channels: int, tables: Sequence[int] | None = None) -> EdgeEncoder:
    """Create a map of edge features: linear, or of tables with the number of categories in each of their columns."""
    return torch.nn.Linear(edge_dim, hidden_channels) if tables is None else TableEncoder(tables, hidden_channels)


def encode_nodes(x: Num[Tensor, "num_nodes in_channels"], node_encoder: NodeEncoder,
                 category_encoder: torch.nn.Linear | None) -> Float[Tensor, "num_nodes hidden_channels"]:
    """Encode node features, whose last columns are a one-hot category if there is a `category_encoder`.

    The category has a linear map of its own. Its result and the other features go through the node encoder together.
    """
    if category_encoder is not None:
        num_categories = category_encoder.in_features
        features, category = x.split([x.size(1) - num_categories, num_categories], dim=1)
        x = torch.cat([features, category_encoder(category)], dim=1)
    return node_encoder(x)


def prepare_edges(edge_attr: Num[Tensor, "num_edges edge_dim"] | None,
                  encoder: torch.nn.Module | None) -> Float[Tensor, "num_edges columns"] | None:
    """Return edge features of which `encoder` is a linear map: categories become one-hot columns."""
    if edge_attr is None or not isinstance(encoder, TableEncoder):
        return edge_attr
    return encoder.one_hot(edge_attr)


def fold(lin: torch.nn.Linear, edge_encoder: EdgeEncoder) -> tuple[Tensor, Tensor]:
    """Compose ``lin(edge_encoder(edge_attr))`` into one linear map of what :func:`prepare_edges` returns.

    Returns:
        Its weight [hidden_channels, edge_dim] and its bias [hidden_channels].
    """
    if isinstance(edge_encoder, TableEncoder):
        return lin.weight @ edge_encoder.weight.t(), lin.bias
    return lin.weight @ edge_encoder.weight, torch.addmv(lin.bias, lin.weight, edge_encoder.bias)

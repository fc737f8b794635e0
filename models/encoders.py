"""What turns the features of nodes and edges into those that the convolutions read."""
# ruff: noqa: F722 (shapes are strings)

import torch
from jaxtyping import Float
from torch import Tensor


def create_node_encoders(in_channels: int, num_categories: int,
                         hidden_channels: int) -> tuple[torch.nn.Linear | None, torch.nn.Linear]:
    """Create what :func:`encode_nodes` takes: the category encoder, if there is a category, and the node encoder.

    A model keeps them in this order: the digest of its weights depends on it.
    """
    if not num_categories:
        return None, torch.nn.Linear(in_channels, hidden_channels)
    category_encoder = torch.nn.Linear(num_categories, in_channels)
    return category_encoder, torch.nn.Linear(2 * in_channels, hidden_channels)


def encode_nodes(x: Float[Tensor, "num_nodes in_channels"], node_encoder: torch.nn.Linear,
                 category_encoder: torch.nn.Linear | None) -> Float[Tensor, "num_nodes hidden_channels"]:
    """Encode node features, whose last columns are a one-hot category if there is a `category_encoder`.

    The category has a linear map of its own. Its result and the other features go through the node encoder together.
    """
    if category_encoder is not None:
        num_categories = category_encoder.in_features
        features, category = x.split([x.size(1) - num_categories, num_categories], dim=1)
        x = torch.cat([features, category_encoder(category)], dim=1)
    return node_encoder(x)


def fold(lin: torch.nn.Linear, edge_encoder: torch.nn.Linear) -> tuple[Tensor, Tensor]:
    """Compose ``lin(edge_encoder(edge_attr))`` into one linear map.

    Returns:
        Its weight [hidden_channels, edge_dim] and its bias [hidden_channels].
    """
    return lin.weight @ edge_encoder.weight, torch.addmv(lin.bias, lin.weight, edge_encoder.bias)

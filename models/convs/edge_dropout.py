"""Edge dropout: edges that a layer does not see in a training step."""

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from parallel_epochs.models.edge_index import keep_edges
from parallel_epochs.models.kernels.hash import GOLDEN, mix_tensor, shift_right, signed

# A random number has so many bits, as many as a float32 holds exactly.
BITS = 24


def drop_edges(
    edge_index: Int[Tensor, "2 num_edges"],
    edge_attr: Shaped[Tensor, "num_edges ..."] | None,
    *,
    dropout: float,
    training: bool,
) -> tuple[Tensor, Tensor | None]:
    """Drop edges, and their features, in front of a layer's aggregation and of its softmax.

    Each call in training draws one number from torch's global random state. Which edges are dropped is a function of
    that number and of each edge's position. Nothing is rescaled: attention and means need no factor.

    Args:
        edge_index: [2, num_edges], a tensor or an ``EdgeIndex``, which keeps its sorted orders.
        edge_attr: [num_edges, ...] or none.
        dropout: probability in [0, 1) that an edge is dropped.
        training: whether edges are dropped.

    Returns:
        The edges that are kept, in their order, and their features.
    """
    if not (training and dropout):
        return edge_index, edge_attr
    kept = draw_from_global(edge_index.size(1), dropout, edge_index.device)
    position = kept.nonzero().squeeze(1)
    return keep_edges(edge_index, kept), None if edge_attr is None else edge_attr.index_select(
        0, position
    )


def draw_from_global(
    num_edges: int, dropout: float, device: torch.device
) -> Bool[Tensor, " num_edges"]:
    """Tell which edges are kept, by one number from torch's global random state."""
    return draw_kept(torch.randint(2**62, (1,)).to(device), num_edges, dropout)


def draw_kept(
    seed: Int[Tensor, " one"], num_edges: int, dropout: float
) -> Bool[Tensor, " num_edges"]:
    """Tell which edges are kept: a function of the seed and of the number of each edge."""
    number = torch.arange(num_edges, device=seed.device)
    return shift_right(mix_tensor(seed + number * signed(GOLDEN)), 64 - BITS) >= round(
        dropout * 2**BITS
    )

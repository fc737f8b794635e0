"""Layouts on the tiles of a launch by torch operations: the reference of :mod:`models.embedding.layout_gpu`."""

import torch
from torch import Tensor

from parallel_epochs.models.embedding.layout import LayoutOptions
from parallel_epochs.models.embedding.pair_tiles import TILE, Tiles
from parallel_epochs.models.embedding.skipgram_tiles import equal_rows, lockstep


def train(
    positions: Tensor,
    tiles: Tiles,
    launch: int,
    options: LayoutOptions,
    loss: Tensor,
    *,
    lr: float,
    attraction: float,
) -> None:
    """Move the points of the pairs of a launch in place, see :func:`models.embedding.layout.train`.

    Args:
        loss: sum over the pairs of each program [num_parts], float64; added to.
    """
    for programs, ends, there, drawn in lockstep(tiles, launch):
        loss[programs] += _train_tiles(positions, ends, there, drawn, options, lr, attraction)


def _train_tiles(
    positions: Tensor,
    ends: Tensor,
    there: Tensor,
    drawn: Tensor,
    options: LayoutOptions,
    lr: float,
    attraction: float,
) -> Tensor:
    """Move all points of tiles that share none; return the loss of each tile. The arguments are those of skip-gram."""
    head, tail = ends.unbind(-1)
    others, each = torch.cat([tail, drawn], 1), options.negative_weight / drawn.size(1)
    own = torch.eye(TILE, dtype=torch.bool, device=head.device).expand(
        len(head), -1, -1
    ) & there.unsqueeze(2)
    # A tail is no negative of its own pairs.
    negative = (drawn.unsqueeze(1) != tail.unsqueeze(2)) & there.unsqueeze(2)
    apart = positions[head].unsqueeze(2) - positions[others].unsqueeze(1)
    square = (apart**2).sum(3)
    pull, push = (
        -2 * attraction / (1 + square),
        2 * each / ((options.smooth + square) * (1 + square)),
    )
    pull, push = pull[:, :, :TILE] * own, push[:, :, TILE:] * negative
    step = lr * (torch.cat([pull, push], 2).unsqueeze(3) * apart).clamp(-options.clip, options.clip)
    for rows, exist, move in (
        (head, there, step.sum(2)),
        (others, torch.cat([there, torch.ones_like(drawn, dtype=torch.bool)], 1), -step.sum(1)),
    ):
        same, first = equal_rows(rows, exist)
        positions[rows[first]] += (same @ move)[first]
    loss = (torch.log1p(square[:, :, :TILE]) * own).sum((1, 2), dtype=torch.float64)
    square = square[:, :, TILE:]
    return loss + each * (torch.log((1 + square) / (options.smooth + square)) * negative).sum(
        (1, 2), dtype=torch.float64
    )

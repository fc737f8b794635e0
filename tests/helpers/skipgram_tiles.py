"""Skip-gram on the tiles of a launch by torch operations: the reference of :mod:`models.embedding.skipgram_gpu`."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from parallel_epochs.models.embedding.pair_tiles import TILE, Tiles
from parallel_epochs.models.embedding.skipgram import MOST_PER_TILE, SkipGramOptions, Table
from tests.helpers.tiles_in_torch import equal_rows, lockstep


def train(heads: Table, tails: Table, tiles: Tiles, launch: int, options: SkipGramOptions, loss: Tensor, *,
          lr: float) -> None:
    """Train the pairs of a launch in place, see :func:`models.embedding.skipgram.train`.

    Args:
        loss: sum over the pairs of each program [num_parts], float64; added to.
    """
    for programs, ends, there, drawn in lockstep(tiles, launch):
        loss[programs] += _train_tiles(heads, tails, ends, there, drawn, options, lr)


def _train_tiles(heads: Table, tails: Table, ends: Tensor, there: Tensor, drawn: Tensor, options: SkipGramOptions,
                 lr: float) -> Tensor:
    """Move all rows of tiles that share none by their gradients at the present values; return the loss of each tile.

    Args:
        ends: rows of heads and tails [num_tiles, TILE, 2].
        there: tells which of the pairs exist [num_tiles, TILE].
        drawn: rows of the negatives [num_tiles, num_negatives].
    """
    head, tail = ends.unbind(-1)
    others = torch.cat([tail, drawn], 1)
    u, v = heads.rows[head], tails.rows[others]
    x = u @ v.mT
    # A tail is no negative of its own pairs.
    each = options.negative_weight / drawn.size(1)
    weight = torch.cat([-torch.eye(TILE, device=x.device).expand(len(x), -1, -1),
                        each * (drawn.unsqueeze(1) != tail.unsqueeze(2))], 2) * there.unsqueeze(2)
    pull = -weight * torch.sigmoid(x * weight.sign())
    there = torch.cat([there, torch.ones_like(drawn, dtype=torch.bool)], 1)
    mass = torch.cat([there[:, :TILE].to(x.dtype), each * there[:, :TILE].sum(1, keepdim=True).expand_as(drawn)], 1)
    moves = torch.full_like(x[:, :, 0], 1 + options.negative_weight)
    for table, rows, values, exist, gradient, many in (
            (heads, head, u, there[:, :TILE], lambda same: (same @ pull) @ v, moves),
            (tails, others, v, there, lambda same: (same @ pull.mT) @ u, mass)):
        same, first = equal_rows(rows, exist)
        total = gradient(same) - options.weight_decay * same.sum(2, keepdim=True) * values
        rate = lr * torch.ones_like(many)
        if options.optimizer == "sgd":  # adagrad and adam bring the length of a move to scale
            rate = (MOST_PER_TILE / (same @ many.unsqueeze(2)).squeeze(2).clamp(min=1e-30)).clamp(max=lr)
        _move(table, rows[first], values[first], total[first], rate[first].unsqueeze(1), options)
    return (weight.abs() * softplus(x * weight.sign())).sum((1, 2), dtype=torch.float64)


def _move(table: Table, rows: Tensor, x: Tensor, gradient: Tensor, rate: Tensor, options: SkipGramOptions) -> None:
    """Move different rows along their gradients."""
    if options.optimizer == "sgd":
        x = x + rate * gradient
    elif options.optimizer == "adagrad":
        square = table.moments[rows] + gradient**2
        table.moments[rows] = square
        x = x + rate * gradient / (square.sqrt() + options.eps)
    else:
        step = table.steps[rows] + 1
        mean, square = table.moments[rows].chunk(2, 1)
        mean = options.beta1 * mean + (1 - options.beta1) * gradient
        square = options.beta2 * square + (1 - options.beta2) * gradient**2
        table.steps[rows], table.moments[rows] = step, torch.cat([mean, square], 1)
        corrected, spread = ((1 - beta**step).unsqueeze(1) for beta in (options.beta1, options.beta2))
        x = x + rate * mean / corrected / ((square / spread).sqrt() + options.eps)
    table.rows[rows] = x

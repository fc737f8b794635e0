"""Skip-gram on the tiles of a launch by torch operations: the reference of :mod:`models.embedding.skipgram_gpu`.

All programs train their first tiles, then their second ones, and so on. As no two programs of a launch share a row,
this gives what they give one by one.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import softplus

from parallel_epochs.models.embedding.pair_tiles import TILE, Tiles
from parallel_epochs.models.embedding.skipgram import MOST_PER_TILE, SkipGramOptions, Table


def train(
    heads: Table,
    tails: Table,
    tiles: Tiles,
    launch: int,
    options: SkipGramOptions,
    loss: Tensor,
    *,
    lr: float,
) -> None:
    """Train the pairs of a launch in place, see :func:`models.embedding.skipgram.train`.

    Args:
        loss: sum over the pairs of each program [num_parts], float64; added to.
    """
    for programs, ends, there, drawn in lockstep(tiles, launch):
        loss[programs] += _train_tiles(heads, tails, ends, there, drawn, options, lr)


def _train_tiles(
    heads: Table,
    tails: Table,
    ends: Tensor,
    there: Tensor,
    drawn: Tensor,
    options: SkipGramOptions,
    lr: float,
) -> Tensor:
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
    weight = torch.cat(
        [
            -torch.eye(TILE, device=x.device).expand(len(x), -1, -1),
            each * (drawn.unsqueeze(1) != tail.unsqueeze(2)),
        ],
        2,
    ) * there.unsqueeze(2)
    pull = -weight * torch.sigmoid(x * weight.sign())
    there = torch.cat([there, torch.ones_like(drawn, dtype=torch.bool)], 1)
    mass = torch.cat(
        [there[:, :TILE].to(x.dtype), each * there[:, :TILE].sum(1, keepdim=True).expand_as(drawn)],
        1,
    )
    moves = torch.full_like(x[:, :, 0], 1 + options.negative_weight)
    for table, rows, values, exist, gradient, many in (
        (heads, head, u, there[:, :TILE], lambda same: (same @ pull) @ v, moves),
        (tails, others, v, there, lambda same: (same @ pull.mT) @ u, mass),
    ):
        same, first = equal_rows(rows, exist)
        total = gradient(same) - options.weight_decay * same.sum(2, keepdim=True) * values
        rate = lr * torch.ones_like(many)
        if options.optimizer == "sgd":  # adagrad and adam bring the length of a move to scale
            rate = (MOST_PER_TILE / (same @ many.unsqueeze(2)).squeeze(2).clamp(min=1e-30)).clamp(
                max=lr
            )
        _move(table, rows[first], values[first], total[first], rate[first].unsqueeze(1), options)
    return (weight.abs() * softplus(x * weight.sign())).sum((1, 2), dtype=torch.float64)


def _move(
    table: Table, rows: Tensor, x: Tensor, gradient: Tensor, rate: Tensor, options: SkipGramOptions
) -> None:
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
        corrected, spread = (
            (1 - beta**step).unsqueeze(1) for beta in (options.beta1, options.beta2)
        )
        x = x + rate * mean / corrected / ((square / spread).sqrt() + options.eps)
    table.rows[rows] = x


def lockstep(tiles: Tiles, launch: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Go through the tiles of a launch: the first ones of all programs, which share no row, then their second ones.

    Yields:
        The programs that have such a tile [n]; rows of heads and tails [n, TILE, 2]; which of the pairs exist [n,
        TILE]; rows of the negatives [n, num_negatives].
    """
    device, first_block = tiles.pairs.device, launch * tiles.num_parts
    blocks, place = (
        first_block + torch.arange(tiles.num_parts, device=device),
        torch.arange(TILE, device=device),
    )
    for turn in range(int((tiles.tile_ptr[blocks + 1] - tiles.tile_ptr[blocks]).max())):
        blocks = blocks[tiles.tile_ptr[blocks] + turn < tiles.tile_ptr[blocks + 1]]
        at = tiles.pair_ptr[blocks, None] + TILE * turn + place
        there = at < tiles.pair_ptr[blocks + 1, None]
        yield (
            blocks - first_block,
            tiles.pairs[at.where(there, at[:, :1])].long(),
            there,
            tiles.negatives[tiles.tile_ptr[blocks] + turn].long(),
        )


def equal_rows(rows: Tensor, exist: Tensor) -> tuple[Tensor, Tensor]:
    """Find equal rows of a tile: the first of them moves for all.

    Args:
        rows, exist: rows of tiles, and whether there are such [num_tiles, n].

    Returns:
        1 where two rows are equal [num_tiles, n, n], float32; whether each is the first one [num_tiles, n].
    """
    same = (
        (rows.unsqueeze(2) == rows.unsqueeze(1)) & exist.unsqueeze(1) & exist.unsqueeze(2)
    ).float()
    return same, (same.tril(-1).sum(2) == 0) & exist

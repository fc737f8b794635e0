"""Skip-gram in plain numpy: the same pairs, negatives and order of updates as in skipgram.h."""

from collections.abc import Iterator

import numpy as np
from scipy.special import expit
from torch import Tensor

from parallel_epochs.models.embedding.skipgram import (
    GROUP,
    MOST_PER_TILE,
    Negatives,
    PairBlock,
    SkipGramOptions,
    VectorTable,
)
from parallel_epochs.models.kernels.hash import GOLDEN, MASK, mix
from tests.helpers.random_bits import draw_row, random_bits

# As in skipgram.h.
TILES, LOSS_EVERY = 8, 16


def train(
    heads: VectorTable, tails: VectorTable, tasks: list[list[PairBlock]], *arguments, **options
) -> tuple[float, float]:
    """Train blocks of pairs in place, see :func:`models.embedding.skipgram.train`."""
    losses = [
        train_block(heads, tails, block, *arguments, **options) for task in tasks for block in task
    ]
    return sum(loss for loss, _ in losses), sum(count for _, count in losses)


def train_block(
    heads: VectorTable,
    tails: VectorTable,
    block: PairBlock,
    pairs: Tensor,
    negatives: Negatives,
    options: SkipGramOptions,
    *,
    lr: float,
    key: int,
) -> tuple[float, float]:
    """Train the pairs of a block, see :func:`models.embedding.skipgram.train`."""
    block_pairs = pairs[block.first_pair : block.last_pair].numpy()
    block_pairs = block_pairs[block_pairs[:, 0].argsort(kind="stable")]
    if not len(block_pairs):
        return 0.0, 0.0
    bits = random_bits(mix(key + (block.number + 1) * GOLDEN & MASK))
    groups = _shuffled(_groups(block_pairs), bits)
    tails_of_block = slice(block.first_tail, block.first_tail + block.num_tails)
    table = negatives.accept[tails_of_block].numpy(), negatives.alias[tails_of_block].numpy()
    head_lr, tail_lr = (
        bound_steps(moves, lr)
        for moves in count_moves(
            block_pairs, block.num_heads, *table, negative_weight=options.negative_weight
        )
    )
    loss = count = 0.0
    for number, first in enumerate(range(0, len(groups), TILES)):
        drawn = [draw_row(next(bits), *table) for _ in range(options.num_negatives)]
        tile_loss, tile_count = _train_tile(
            groups[first : first + TILES],
            drawn,
            _Rows(heads, block.first_head, options, head_lr),
            _Rows(tails, block.first_tail, options, tail_lr),
            options,
        )
        if number % LOSS_EVERY == 0:
            loss, count = loss + tile_loss, count + tile_count
    return loss, count


def count_moves(
    pairs: np.ndarray,
    num_heads: int,
    accept: np.ndarray,
    alias: np.ndarray,
    *,
    negative_weight: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute how many pairs of a tile are expected to move each row, where negatives count by their weight.

    Args:
        pairs: all pairs of a block [num_pairs, 2].
        accept, alias: alias table of its tails [num_tails].

    Returns:
        Numbers for the heads [num_heads] and for the tails [num_tails], float64.
    """
    of_tile, num_tails = GROUP * TILES, len(accept)
    heads = np.bincount(pairs[:, 0], minlength=num_heads) * (of_tile / len(pairs))
    tails = np.bincount(pairs[:, 1], minlength=num_tails) * (of_tile / len(pairs))
    drawn = accept.astype(np.float64)
    np.add.at(drawn, alias, 1.0 - accept)
    return heads * (1 + negative_weight), tails + drawn * (of_tile * negative_weight / num_tails)


def bound_steps(moves: np.ndarray, lr: float) -> np.ndarray:
    """Lower the learning rate of rows that many pairs of a tile move: otherwise small blocks and hubs diverge.

    Such pairs all see the same value of the other rows. Their number times the learning rate is at most MOST_PER_TILE.

    Args:
        moves: numbers of pairs, see :func:`count_moves`.

    Returns:
        The learning rate of each row [num_rows], float32.
    """
    return np.where(
        moves * lr > MOST_PER_TILE, MOST_PER_TILE / np.maximum(moves, 1e-300), lr
    ).astype(np.float32)


def _groups(pairs: np.ndarray) -> list[np.ndarray]:
    ends = np.flatnonzero(np.diff(pairs[:, 0])) + 1
    return [
        run[first : first + GROUP]
        for run in np.split(pairs, ends)
        for first in range(0, len(run), GROUP)
    ]


def _shuffled(groups: list[np.ndarray], bits: Iterator[int]) -> list[np.ndarray]:
    for i in range(len(groups) - 1, 0, -1):
        j = next(bits) * (i + 1) >> 64
        groups[i], groups[j] = groups[j], groups[i]
    return groups


class _Rows:
    """The rows of a partition and their optimizer."""

    def __init__(self, table: VectorTable, first: int, options: SkipGramOptions, lr: np.ndarray):
        self.rows = table.rows.numpy()[first:]
        self._moments, self._steps = table.moments.numpy()[first:], table.steps.numpy()[first:]
        self._options, self._lr = options, lr

    def move(self, row: int, gradient: np.ndarray) -> None:
        options, x, lr = self._options, self.rows[row], self._lr[row]
        gradient = gradient - options.weight_decay * x
        if options.optimizer == "sgd":
            x += lr * gradient
        elif options.optimizer == "adagrad":
            self._moments[row] += gradient**2
            x += lr * gradient / (np.sqrt(self._moments[row]) + options.eps)
        else:
            self._steps[row] += 1
            mean, square = np.split(self._moments[row], 2)  # views
            mean += (1 - options.beta1) * (gradient - mean)
            square += (1 - options.beta2) * (gradient**2 - square)
            corrected = mean / (1 - options.beta1 ** self._steps[row])
            x += (
                lr
                * corrected
                / (np.sqrt(square / (1 - options.beta2 ** self._steps[row])) + options.eps)
            )


def _train_tile(
    groups: list[np.ndarray], drawn: list[int], heads: _Rows, tails: _Rows, options: SkipGramOptions
) -> tuple[float, float]:
    u = np.stack([heads.rows[group[0, 0]] for group in groups])
    gradient, loss = np.zeros_like(u), 0.0
    for i, group in enumerate(groups):
        x = tails.rows[group[:, 1]] @ u[i]  # before the group moves them
        loss += float(np.logaddexp(0, -x).sum())
        for pull, row in zip(1 - expit(x), group[:, 1], strict=True):
            gradient[i] += pull * tails.rows[row]
            tails.move(row, pull * u[i])
    n = tails.rows[drawn]
    weight = (
        options.negative_weight * np.array([len(group) for group in groups]) / options.num_negatives
    )
    x = u @ n.T
    loss += float((weight[:, None] * np.logaddexp(0, x)).sum())
    push = -weight[:, None].astype(np.float32) * expit(x)
    gradient += push @ n
    for k, row in enumerate(drawn):
        tails.move(row, push[:, k] @ u)
    for i, group in enumerate(groups):
        heads.move(group[0, 0], gradient[i])
    return loss, sum(map(len, groups))

"""Layouts in plain numpy: the same pairs, negatives and order of updates as in layout.h."""

import numpy as np
from torch import Tensor

from parallel_epochs.models.embedding.layout import Drawn, EdgeBlock, LayoutOptions
from parallel_epochs.models.kernels.hash import GOLDEN, MASK, mix
from tests.helpers.random_bits import draw_row, random_bits

# As in layout.h.
TILE, LOSS_EVERY = 16, 64


def train(
    positions: Tensor, tasks: list[list[EdgeBlock]], *arguments, attraction: float = 1.0, **options
) -> tuple[float, float]:
    """Train blocks of edges in place, see :func:`models.embedding.layout.train`."""
    losses = [
        train_block(positions, block, *arguments, attraction=attraction, **options)
        for task in tasks
        for block in task
    ]
    return sum(loss for loss, _ in losses), sum(count for _, count in losses)


def train_block(
    positions: Tensor,
    block: EdgeBlock,
    drawn: Drawn,
    options: LayoutOptions,
    *,
    lr: float,
    key: int,
    attraction: float,
) -> tuple[float, float]:
    """Train the pairs of a block, see :func:`models.embedding.layout.train`."""
    if not block.num_edges:
        return 0.0, 0.0
    bits = random_bits(mix(key + (block.number + 1) * GOLDEN & MASK))
    edges = slice(block.first_edge, block.first_edge + block.num_edges)
    tails = slice(block.first_tail, block.first_tail + block.num_tails)
    edge_table = drawn.edge_accept[edges].numpy(), drawn.edge_alias[edges].numpy()
    tail_table = drawn.accept[tails].numpy(), drawn.alias[tails].numpy()
    edge_ends, rows = drawn.edges[edges].numpy().astype(np.int64), positions.numpy()
    loss = count = 0.0
    for number, first in enumerate(range(0, block.num_pairs, TILE)):
        pairs = edge_ends[
            [draw_row(next(bits), *edge_table) for _ in range(min(TILE, block.num_pairs - first))]
        ]
        head, tail = block.first_head + pairs[:, 0], block.first_tail + pairs[:, 1]
        negatives = [draw_row(next(bits), *tail_table) for _ in range(options.num_negatives)]
        tile_loss = _train_tile(
            rows, head, tail, block.first_tail + np.array(negatives), options, lr, attraction
        )
        if number % LOSS_EVERY == 0:
            loss, count = loss + tile_loss, count + len(pairs)
    return loss, count


def _train_tile(
    rows: np.ndarray,
    head: np.ndarray,
    tail: np.ndarray,
    negative: np.ndarray,
    options: LayoutOptions,
    lr: float,
    attraction: float,
) -> float:
    """Move the points of a tile by their gradients before the tile; return the loss before it."""
    each = options.negative_weight / options.num_negatives
    apart = rows[head] - rows[tail]
    square = (apart**2).sum(1, keepdims=True)
    pull = lr * np.clip(-2 * attraction / (1 + square) * apart, -options.clip, options.clip)
    loss = np.log1p(square).sum()
    apart = rows[head][:, None] - rows[negative][None]
    square = (apart**2).sum(2, keepdims=True)
    push = lr * np.clip(
        2 * each / ((options.smooth + square) * (1 + square)) * apart, -options.clip, options.clip
    )
    loss += each * np.log((1 + square) / (options.smooth + square)).sum()
    np.subtract.at(rows, tail, pull)
    np.add.at(rows, head, pull + push.sum(1))
    np.subtract.at(rows, negative, push.sum(0))
    return float(loss)

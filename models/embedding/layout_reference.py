"""What layout.h computes, in plain numpy: the same pairs, negatives and order of updates."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from models.embedding.reference import GOLDEN, MASK, mix, random_bits

if TYPE_CHECKING:
    from models.embedding.layout import Block, Drawn, Options

TILE, LOSS_EVERY = 16, 64


def train_block(positions: Tensor, block: "Block", drawn: "Drawn", options: "Options", *, lr: float, key: int,
                attraction: float) -> tuple[float, float]:
    """Train the pairs of a block; see :func:`models.embedding.layout.train`."""
    if not block.num_edges:
        return 0.0, 0.0
    bits = random_bits(mix(key + (block.number + 1) * GOLDEN & MASK))
    edges = slice(block.first_edge, block.first_edge + block.num_edges)
    tails = slice(block.first_tail, block.first_tail + block.num_tails)
    edge_table = drawn.edge_accept[edges].numpy(), drawn.edge_alias[edges].numpy()
    tail_table = drawn.accept[tails].numpy(), drawn.alias[tails].numpy()
    own, rows = drawn.edges[edges].numpy().astype(np.int64), positions.numpy()
    loss = count = 0.0
    for number, first in enumerate(range(0, block.num_pairs, TILE)):
        pairs = own[[_draw(bits, *edge_table) for _ in range(min(TILE, block.num_pairs - first))]]
        head, tail = block.first_head + pairs[:, 0], block.first_tail + pairs[:, 1]
        negative = block.first_tail + np.array([_draw(bits, *tail_table) for _ in range(options.num_negatives)])
        found = _train_tile(rows, head, tail, negative, options, lr, attraction)
        if number % LOSS_EVERY == 0:
            loss, count = loss + found, count + len(pairs)
    return loss, count


def _draw(bits: Iterator[int], accept: np.ndarray, alias: np.ndarray) -> int:
    drawn = next(bits)
    at = (drawn >> 32) * len(accept) >> 32
    return at if ((drawn & 0xffffffff) >> 8) / 2**24 < accept[at] else int(alias[at])


def _train_tile(rows: np.ndarray, head: np.ndarray, tail: np.ndarray, negative: np.ndarray, options: "Options",
                lr: float, attraction: float) -> float:
    """Move the points of a tile, all by what they see before it; returns the loss before it."""
    each = options.negative_weight / options.num_negatives
    apart = rows[head] - rows[tail]
    square = (apart**2).sum(1, keepdims=True)
    pull = lr * np.clip(-2 * attraction / (1 + square) * apart, -options.clip, options.clip)
    loss = np.log1p(square).sum()
    apart = rows[head][:, None] - rows[negative][None]
    square = (apart**2).sum(2, keepdims=True)
    push = lr * np.clip(2 * each / ((options.smooth + square) * (1 + square)) * apart, -options.clip, options.clip)
    loss += each * np.log((1 + square) / (options.smooth + square)).sum()
    np.subtract.at(rows, tail, pull)
    np.add.at(rows, head, pull + push.sum(1))
    np.subtract.at(rows, negative, push.sum(0))
    return float(loss)

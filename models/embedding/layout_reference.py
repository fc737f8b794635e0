"""Layouts in plain numpy: the same pairs, negatives and order of updates as in layout.h; and its data types."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from parallel_epochs.models.kernels.hash import GOLDEN, MASK, draw_row, mix, random_bits

# As in layout.h.
TILE, LOSS_EVERY = 16, 64


@dataclass(frozen=True)
class EdgeBlock:
    """The edges between a partition of heads and a partition of tails.

    Attributes:
        number: number of the block, on which its random numbers depend.
        first_head, first_tail: first rows of the two partitions.
        num_tails: number of rows of the partition of tails.
        first_edge, num_edges: its first edge and its number of edges.
        num_pairs: number of edges to sample.
    """

    number: int
    first_head: int
    first_tail: int
    num_tails: int
    first_edge: int
    num_edges: int
    num_pairs: int


@dataclass(frozen=True)
class Drawn:
    """The edges, and the alias tables from which edges and negatives are drawn.

    See :func:`pipeline.graph.walks.alias_tables`.

    Attributes:
        edges: rows of head and tail within their partitions [num_edges, 2], int32, block by block.
        edge_accept, edge_alias: alias table of the edges of each block [num_edges], float32 and int32.
        accept, alias: alias table of the negatives of each partition [num_rows], float32 and int32.
    """

    edges: Tensor = field(repr=False)
    edge_accept: Tensor = field(repr=False)
    edge_alias: Tensor = field(repr=False)
    accept: Tensor = field(repr=False)
    alias: Tensor = field(repr=False)


@dataclass(frozen=True)
class LayoutOptions:
    """The options of layout training.

    Attributes:
        num_negatives: number of negatives for each tile of sixteen pairs.
        negative_weight: weight of all negatives together, relative to a pair.
        smooth: number that is added to the squared distance in the divisor of the repulsion.
        clip: largest move of a pair along an axis, before it is multiplied by the learning rate.
    """

    num_negatives: int = 8
    negative_weight: float = 5.0
    smooth: float = 1.0
    clip: float = 5.0


def train_block(positions: Tensor, block: EdgeBlock, drawn: Drawn, options: LayoutOptions, *, lr: float, key: int,
                attraction: float) -> tuple[float, float]:
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
        pairs = edge_ends[[draw_row(next(bits), *edge_table) for _ in range(min(TILE, block.num_pairs - first))]]
        head, tail = block.first_head + pairs[:, 0], block.first_tail + pairs[:, 1]
        negatives = [draw_row(next(bits), *tail_table) for _ in range(options.num_negatives)]
        tile_loss = _train_tile(rows, head, tail, block.first_tail + np.array(negatives), options, lr, attraction)
        if number % LOSS_EVERY == 0:
            loss, count = loss + tile_loss, count + len(pairs)
    return loss, count


def _train_tile(rows: np.ndarray, head: np.ndarray, tail: np.ndarray, negative: np.ndarray, options: LayoutOptions,
                lr: float, attraction: float) -> float:
    """Move the points of a tile by their gradients before the tile; return the loss before it."""
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

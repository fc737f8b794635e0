"""What skipgram.h computes, in plain numpy: the same pairs, negatives and order of updates."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from scipy.special import expit
from torch import Tensor

if TYPE_CHECKING:
    from models.embedding.skipgram import Block, Negatives, Options, Table

Bits = TypeVar("Bits", int, np.ndarray)
GROUP, TILES, LOSS_EVERY = 8, 8, 16
MASK = 2**64 - 1
GOLDEN = 0x9e3779b97f4a7c15


def mix(z: Bits) -> Bits:
    """Compute the finaliser of SplitMix64, of a number or of an array, uint64."""
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9 & MASK
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb & MASK
    return z ^ (z >> 31)


def random_bits(key: int) -> Iterator[int]:
    """Go through the numbers of a sequence, each a hash of the key and its place."""
    place = 0
    while True:
        place += 1
        yield mix(key + place * GOLDEN & MASK)


def train_block(heads: "Table", tails: "Table", block: "Block", pairs: Tensor, negatives: "Negatives",
                options: "Options", *, lr: float, key: int) -> tuple[float, float]:
    """Train the pairs of a block; see :func:`models.embedding.skipgram.train`."""
    own = pairs[block.first_pair:block.last_pair].numpy()
    own = own[own[:, 0].argsort(kind="stable")]
    if not len(own):
        return 0.0, 0.0
    bits = random_bits(mix(key + (block.number + 1) * GOLDEN & MASK))
    groups = _shuffled(_groups(own), bits)
    loss = count = 0.0
    for number, first in enumerate(range(0, len(groups), TILES)):
        drawn = [_draw(next(bits), block, negatives) for _ in range(options.num_negatives)]
        tile_loss, tile_count = _train_tile(
            groups[first:first + TILES], drawn, _Rows(heads, block.first_head, options, lr),
            _Rows(tails, block.first_tail, options, lr), options)
        if number % LOSS_EVERY == 0:
            loss, count = loss + tile_loss, count + tile_count
    return loss, count


def _groups(pairs: np.ndarray) -> list[np.ndarray]:
    ends = np.flatnonzero(np.diff(pairs[:, 0])) + 1
    return [run[first:first + GROUP] for run in np.split(pairs, ends) for first in range(0, len(run), GROUP)]


def _shuffled(groups: list[np.ndarray], bits: Iterator[int]) -> list[np.ndarray]:
    for i in range(len(groups) - 1, 0, -1):
        j = next(bits) * (i + 1) >> 64
        groups[i], groups[j] = groups[j], groups[i]
    return groups


def _draw(bits: int, block: "Block", negatives: "Negatives") -> int:
    at = (bits >> 32) * block.num_tails >> 32
    uniform = ((bits & 0xffffffff) >> 8) / 2**24
    row = block.first_tail + at
    return at if uniform < negatives.accept[row] else int(negatives.alias[row])


class _Rows:
    """Rows of a partition, and how they move along a gradient."""

    def __init__(self, table: "Table", first: int, options: "Options", lr: float):
        self.rows = table.rows.numpy()[first:]
        self._moments, self._steps = table.moments.numpy()[first:], table.steps.numpy()[first:]
        self._options, self._lr = options, lr

    def move(self, row: int, gradient: np.ndarray) -> None:
        options, x = self._options, self.rows[row]
        gradient = gradient - options.weight_decay * x
        if options.optimizer == "sgd":
            x += self._lr * gradient
        elif options.optimizer == "adagrad":
            self._moments[row] += gradient**2
            x += self._lr * gradient / (np.sqrt(self._moments[row]) + options.eps)
        else:
            self._steps[row] += 1
            mean, square = np.split(self._moments[row], 2)  # views
            mean += (1 - options.beta1) * (gradient - mean)
            square += (1 - options.beta2) * (gradient**2 - square)
            corrected = mean / (1 - options.beta1 ** self._steps[row])
            x += self._lr * corrected / (np.sqrt(square / (1 - options.beta2 ** self._steps[row])) + options.eps)


def _train_tile(groups: list[np.ndarray], drawn: list[int], heads: _Rows, tails: _Rows,
                options: "Options") -> tuple[float, float]:
    u = np.stack([heads.rows[group[0, 0]] for group in groups])
    gradient, loss = np.zeros_like(u), 0.0
    for i, group in enumerate(groups):
        x = tails.rows[group[:, 1]] @ u[i]  # as the group finds them
        loss += float(np.logaddexp(0, -x).sum())
        for pull, row in zip(1 - expit(x), group[:, 1], strict=True):
            gradient[i] += pull * tails.rows[row]
            tails.move(row, pull * u[i])
    n = tails.rows[drawn]
    weight = options.negative_weight * np.array([len(group) for group in groups]) / options.num_negatives
    x = u @ n.T
    loss += float((weight[:, None] * np.logaddexp(0, x)).sum())
    push = -weight[:, None].astype(np.float32) * expit(x)
    gradient += push @ n
    for k, row in enumerate(drawn):
        tails.move(row, push[:, k] @ u)
    for i, group in enumerate(groups):
        heads.move(group[0, 0], gradient[i])
    return loss, sum(map(len, groups))

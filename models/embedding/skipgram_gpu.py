"""Skip-gram on the tiles of a launch in Triton; :mod:`models.embedding.skipgram_tiles` computes the same by torch.

A program owns the rows of its block, so nothing here is atomic, and every sum has one order: the same bits in any run
on GPUs of a kind. Equal rows of a tile are found by comparison, and the matrix of these adds up their gradients.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from parallel_epochs.models.embedding.pair_tiles import TILE, Tiles
from parallel_epochs.models.embedding.skipgram import (
    MOST_PER_TILE,
    OPTIMIZERS,
    SkipGramOptions,
    Table,
)

SGD, ADAGRAD = tl.constexpr(OPTIMIZERS.index("sgd")), tl.constexpr(OPTIMIZERS.index("adagrad"))
LIMIT = tl.constexpr(MOST_PER_TILE)
# Products of a tile: tf32 rounds factors to 11 bits, as tensor cores take them; ieee is float32.
PRECISION = "tf32"


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
    stride, count = heads.rows.size(1), tiles.negatives.size(1)
    run(
        _train,
        tiles.num_parts,
        *heads.tensors().values(),
        *tails.tensors().values(),
        tiles.pairs,
        tiles.negatives,
        tiles.pair_ptr,
        tiles.tile_ptr,
        loss,
        launch * tiles.num_parts,
        lr,
        options.negative_weight,
        options.negative_weight / count,
        options.weight_decay,
        options.beta1,
        options.beta2,
        options.eps,
        OPTIMIZER=OPTIMIZERS.index(options.optimizer),
        D=stride,
        K=count,
        T=TILE,
        BLOCK_D=triton.next_power_of_2(stride),
        S=triton.next_power_of_2(TILE + count),
        PRECISION=PRECISION,
        num_warps=4 if stride <= 256 else 8,
    )


def run(kernel, num_programs: int, *args, num_warps: int, **constants) -> None:
    """Run a kernel; tests replace this function."""
    with torch.cuda.device_of(args[0]):
        kernel[(num_programs,)](*args, num_warps=num_warps, enable_fp_fusion=True, **constants)


@triton.jit
def _train(
    heads,
    head_moments,
    head_steps,
    tails,
    tail_moments,
    tail_steps,
    pairs,
    negatives,
    pair_ptr,
    tile_ptr,
    loss,
    first_block,
    lr,
    negative_weight,
    each,
    decay,
    beta1,
    beta2,
    eps,
    OPTIMIZER: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
    T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    S: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Train the tiles of a program, one after the other.

    Args:
        each: weight of a negative.
        D: numbers between two rows of a table; BLOCK_D is a power of two that is not smaller.
        K: negatives of a tile; S is a power of two that is not smaller than T + K.
    """
    block = first_block + tl.program_id(0)
    first, last, tile = (
        tl.load(pair_ptr + block),
        tl.load(pair_ptr + block + 1),
        tl.load(tile_ptr + block),
    )
    column, p, s = tl.arange(0, BLOCK_D), tl.arange(0, T), tl.arange(0, S)
    is_negative, own = (s >= T) & (s < T + K), p[:, None] == s[None, :]
    total = 0.0
    for start in range(first, last, T):
        there, head, tail, exists, other = load_ends(
            pairs, negatives, start, last, tile, p, s, K, T
        )
        u, v = _load(heads, head, there, column, D, D), _load(tails, other, exists, column, D, D)
        x = tl.dot(u, tl.trans(v), input_precision=PRECISION)
        # A tail is no negative of its own pairs.
        weight = tl.where(
            own, -1.0, tl.where(is_negative[None, :] & (other[None, :] != tail[:, None]), each, 0.0)
        )
        weight = tl.where(there[:, None], weight, 0.0)
        sign = tl.where(weight < 0, -1.0, 1.0)
        pull = -weight / (1 + tl.exp(-sign * x))
        x = sign * x
        total += tl.sum(
            tl.sum(tl.abs(weight) * (tl.maximum(x, 0.0) + tl.log(1 + tl.exp(-tl.abs(x)))), 1), 0
        )
        num_pairs = tl.minimum(last - start, T)
        to_u, mass_u = pull, tl.where(there, 1 + negative_weight, 0.0)
        mass_v = tl.where(is_negative, each * num_pairs, tl.where(exists, 1.0, 0.0))
        same_u = (head[:, None] == head[None, :]) & there[:, None] & there[None, :]
        same_v = (other[:, None] == other[None, :]) & exists[:, None] & exists[None, :]
        to_u = tl.dot(
            tl.dot(same_u.to(tl.float32), pull, input_precision=PRECISION),
            v,
            input_precision=PRECISION,
        )
        to_v = tl.dot(
            tl.dot(same_v.to(tl.float32), tl.trans(pull), input_precision=PRECISION),
            u,
            input_precision=PRECISION,
        )
        tl.debug_barrier()  # all threads have read the rows before the first one of equal rows moves
        _move(
            heads,
            head_moments,
            head_steps,
            head,
            to_u,
            same_u,
            mass_u,
            p,
            column,
            lr,
            decay,
            beta1,
            beta2,
            eps,
            OPTIMIZER,
            D,
        )
        _move(
            tails,
            tail_moments,
            tail_steps,
            other,
            to_v,
            same_v,
            mass_v,
            s,
            column,
            lr,
            decay,
            beta1,
            beta2,
            eps,
            OPTIMIZER,
            D,
        )
        tl.debug_barrier()  # the next tile reads the rows that this one moved
        tile += 1
    at = loss + tl.program_id(0)
    tl.store(at, tl.load(at) + total)


@triton.jit
def load_ends(pairs, negatives, start, last, tile, p, s, K: tl.constexpr, T: tl.constexpr):
    """Load the rows of a tile.

    Returns:
        For each pair whether it exists, its head and its tail [T]; whether there is such a row, and the rows of the
        tails and behind them of the negatives [S].
    """
    there, is_tail, is_negative = (
        start + p < last,
        (s < T) & (start + s < last),
        (s >= T) & (s < T + K),
    )
    head = tl.load(pairs + 2 * (start + p), mask=there, other=-1)
    tail = tl.load(pairs + 2 * (start + p) + 1, mask=there, other=-1)
    other = tl.where(
        is_negative,
        tl.load(negatives + tile * K + s - T, mask=is_negative, other=-1),
        tl.load(pairs + 2 * (start + s) + 1, mask=is_tail, other=-1),
    )
    return there, head, tail, is_tail | is_negative, other


@triton.jit
def find_first(same, place):
    """Tell which rows are the first of equal ones; a row that does not exist is not even equal to itself."""
    before = tl.sum(tl.where(place[None, :] < place[:, None], same, 0.0), 1)
    return (tl.sum(same, 1) > 0) & (before == 0)


@triton.jit
def store_first(table, row, same, place, column, stride, values):
    """Store a number of each row; the first of equal rows stores it."""
    tl.store(table + row.to(tl.int64) * stride + column, values, mask=find_first(same, place))


@triton.jit
def _load(table, row, exists, column, stride, D: tl.constexpr):
    """Load the first D numbers of some rows."""
    at = table + row.to(tl.int64)[:, None] * stride + column[None, :]
    return tl.load(at, mask=exists[:, None] & (column < D)[None, :], other=0.0)


@triton.jit
def _store(table, row, exists, column, stride, D: tl.constexpr, values):
    """Store the first D numbers of some rows."""
    at = table + row.to(tl.int64)[:, None] * stride + column[None, :]
    tl.store(at, values, mask=exists[:, None] & (column < D)[None, :])


@triton.jit
def _move(
    table,
    moments,
    steps,
    row,
    gradient,
    same,
    mass,
    place,
    column,
    lr,
    decay,
    beta1,
    beta2,
    eps,
    OPTIMIZER: tl.constexpr,
    D: tl.constexpr,
):
    """Move rows along their gradients: the first of equal rows moves for all.

    Args:
        same: tells which rows are equal; false for those that do not exist.
        mass: how many pairs move each, where negatives count by their weight.
    """
    equal = same.to(tl.float32)
    is_first = find_first(equal, place)
    x = _load(
        table, row, is_first, column, D, D
    )  # again, which takes fewer registers than to keep it
    gradient -= decay * tl.sum(equal, 1)[:, None] * x
    if OPTIMIZER == SGD:
        rate = tl.minimum(lr, LIMIT / tl.maximum(tl.sum(equal * mass[None, :], 1), 1e-30))
        x += rate[:, None] * gradient
    elif OPTIMIZER == ADAGRAD:
        square = _load(moments, row, is_first, column, D, D) + gradient * gradient
        _store(moments, row, is_first, column, D, D, square)
        x += lr * gradient / (tl.sqrt(square) + eps)
    else:
        step = tl.load(steps + row, mask=is_first, other=0.0) + 1
        mean = beta1 * _load(moments, row, is_first, column, 2 * D, D) + (1 - beta1) * gradient
        square = (
            beta2 * _load(moments + D, row, is_first, column, 2 * D, D)
            + (1 - beta2) * gradient * gradient
        )
        _store(moments, row, is_first, column, 2 * D, D, mean)
        _store(moments + D, row, is_first, column, 2 * D, D, square)
        tl.debug_barrier()  # every warp has read the steps of its rows, and one stores those of all
        tl.store(steps + row, step, mask=is_first)
        corrected, spread = 1 - tl.exp(step * tl.log(beta1)), 1 - tl.exp(step * tl.log(beta2))
        x += lr * (mean / corrected[:, None]) / (tl.sqrt(square / spread[:, None]) + eps)
    _store(table, row, is_first, column, D, D, x)

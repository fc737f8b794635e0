"""Layouts on the tiles of a launch in Triton; tests/helpers/layout_tiles.py computes the same by torch."""

import triton
import triton.language as tl
from torch import Tensor

from parallel_epochs.models.embedding import skipgram_gpu
from parallel_epochs.models.embedding.layout import LayoutOptions
from parallel_epochs.models.embedding.pair_tiles import TILE, Tiles


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
    count = tiles.negatives.size(1)
    slots = triton.next_power_of_2(TILE + count)
    skipgram_gpu.run(
        _train,
        tiles.num_parts,
        positions,
        tiles.pairs,
        tiles.negatives,
        tiles.pair_ptr,
        tiles.tile_ptr,
        loss,
        launch * tiles.num_parts,
        lr,
        attraction,
        options.negative_weight / count,
        options.smooth,
        options.clip,
        DIM=positions.size(1),
        K=count,
        T=TILE,
        S=slots,
        num_warps=1 if slots <= 32 else 4,
    )


@triton.jit
def _train(
    positions,
    pairs,
    negatives,
    pair_ptr,
    tile_ptr,
    loss,
    first_block,
    lr,
    attraction,
    each,
    smooth,
    clip,
    DIM: tl.constexpr,
    K: tl.constexpr,
    T: tl.constexpr,
    S: tl.constexpr,
):
    """Train the tiles of a program, one after the other; see :func:`skipgram_gpu._train`."""
    block = first_block + tl.program_id(0)
    first, last, tile = (
        tl.load(pair_ptr + block),
        tl.load(pair_ptr + block + 1),
        tl.load(tile_ptr + block),
    )
    p, s = tl.arange(0, T), tl.arange(0, S)
    is_negative, own = (s >= T) & (s < T + K), p[:, None] == s[None, :]
    total = 0.0
    for start in range(first, last, T):
        there, head, tail, exists, other = skipgram_gpu.load_ends(
            pairs, negatives, start, last, tile, p, s, K, T
        )
        square = tl.zeros((T, S), tl.float32)
        for c in tl.static_range(DIM):
            apart = (
                _load(positions, head, there, c, DIM)[:, None]
                - _load(positions, other, exists, c, DIM)[None, :]
            )
            square += apart * apart
        own_pair = own & there[:, None]
        pushed = is_negative[None, :] & (other[None, :] != tail[:, None]) & there[:, None]
        factor = tl.where(
            own_pair,
            -2 * attraction / (1 + square),
            tl.where(pushed, 2 * each / ((smooth + square) * (1 + square)), 0.0),
        )
        cost = tl.where(
            own_pair,
            tl.log(1 + square),
            tl.where(pushed, each * tl.log((1 + square) / (smooth + square)), 0.0),
        )
        total += tl.sum(tl.sum(cost, 1), 0)
        same_u = ((head[:, None] == head[None, :]) & there[:, None] & there[None, :]).to(tl.float32)
        same_v = ((other[:, None] == other[None, :]) & exists[:, None] & exists[None, :]).to(
            tl.float32
        )
        for c in tl.static_range(DIM):
            u, v = _load(positions, head, there, c, DIM), _load(positions, other, exists, c, DIM)
            step = lr * tl.minimum(tl.maximum(factor * (u[:, None] - v[None, :]), -clip), clip)
            to_u, to_v = tl.sum(step, 1), -tl.sum(step, 0)
            # The axes are independent, so that each moves as soon as its numbers are read.
            tl.debug_barrier()
            skipgram_gpu.store_first(
                positions, head, same_u, p, c, DIM, u + tl.sum(same_u * to_u[None, :], 1)
            )
            skipgram_gpu.store_first(
                positions, other, same_v, s, c, DIM, v + tl.sum(same_v * to_v[None, :], 1)
            )
        tl.debug_barrier()  # the next tile reads the points that this one moved
        tile += 1
    at = loss + tl.program_id(0)
    tl.store(at, tl.load(at) + total)


@triton.jit
def _load(positions, row, exists, c, DIM: tl.constexpr):
    return tl.load(positions + row.to(tl.int64) * DIM + c, mask=exists, other=0.0)

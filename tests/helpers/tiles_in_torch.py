"""The tiles of a launch by torch operations: all programs train their first tiles, then their second ones, and so on.

As no two programs of a launch share a row, this gives what they give one by one.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from parallel_epochs.models.embedding.pair_tiles import TILE, Tiles


def lockstep(tiles: Tiles, launch: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Go through the tiles of a launch: the first ones of all programs, which share no row, then their second ones.

    Yields:
        The programs that have such a tile [n]; rows of heads and tails [n, TILE, 2]; which of the pairs exist [n,
        TILE]; rows of the negatives [n, num_negatives].
    """
    device, first_block = tiles.pairs.device, launch * tiles.num_parts
    blocks, place = first_block + torch.arange(tiles.num_parts, device=device), torch.arange(TILE, device=device)
    for turn in range(int((tiles.tile_ptr[blocks + 1] - tiles.tile_ptr[blocks]).max())):
        blocks = blocks[tiles.tile_ptr[blocks] + turn < tiles.tile_ptr[blocks + 1]]
        at = tiles.pair_ptr[blocks, None] + TILE * turn + place
        there = at < tiles.pair_ptr[blocks + 1, None]
        yield (blocks - first_block, tiles.pairs[at.where(there, at[:, :1])].long(), there,
               tiles.negatives[tiles.tile_ptr[blocks] + turn].long())


def equal_rows(rows: Tensor, exist: Tensor) -> tuple[Tensor, Tensor]:
    """Find equal rows of a tile: the first of them moves for all.

    Args:
        rows, exist: rows of tiles, and whether there are such [num_tiles, n].

    Returns:
        1 where two rows are equal [num_tiles, n, n], float32; whether each is the first one [num_tiles, n].
    """
    same = ((rows.unsqueeze(2) == rows.unsqueeze(1)) & exist.unsqueeze(1) & exist.unsqueeze(2)).float()
    return same, (same.tril(-1).sum(2) == 0) & exist

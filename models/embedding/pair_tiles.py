"""Pairs of rows in tiles, for a GPU: which program trains which pairs, and against which negatives.

The rows of a table are dealt out to P parts, anew in every round. Block (i, j) has the pairs of heads of part i and
tails of part j, and its negatives are rows of part j (the blocks of GraphVite, https://arxiv.org/abs/1903.00757, at the
size of a multiprocessor). A *launch* is a set of blocks that share no part, with a program for each. A program trains
tile by tile: the pairs of a tile read the same values of their rows, and share their negatives. Everything here is a
function of a key, and has the same bits on every device.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from parallel_epochs.models.kernels.hash import GOLDEN, mix_tensor, shift_right, signed

STRIDE = signed(GOLDEN)
# Separates the random numbers of negatives from those of the order of pairs, and these from those of parts.
NEGATIVES, ORDER = signed(0x94D049BB133111EB), signed(0xBF58476D1CE4E5B9)
# Bytes that a pair takes at most on a GPU, while pairs are sorted.
PAIR_BYTES = 160
# Number of pairs of a tile.
TILE = 16
# Numbers of a row that a GPU trains, at most, as the rows of a tile lie in registers.
MOST_NUMBERS = 512
# Rows of tails and negatives of a tile times numbers of a row, both rounded up to powers of two, that a multiprocessor
# of an H100 holds at most.
MOST_HELD = 2**14
# A part has at least so many rows, a block so many pairs on average, and there are at most so many parts.
LEAST_ROWS, LEAST_PAIRS, MOST_PARTS = 64, 64, 1024
# Sum of the weights by which negatives are drawn, as whole numbers: sums of these have the same bits in any order.
TOTAL_WEIGHT = 2**31 - 1


@dataclass(frozen=True)
class Deal:
    """Parts of the rows of a table.

    Attributes:
        rows: sorted by their parts [num_rows], int64.
        part: of each row [num_rows], int64.
        ptr: part i has rows[ptr[i]:ptr[i + 1]] [num_parts + 1], int64.
    """

    rows: Tensor
    part: Tensor
    ptr: Tensor

    @property
    def num_parts(self) -> int:
        return len(self.ptr) - 1


@dataclass(frozen=True)
class Tiles:
    """The pairs of a round, in the order in which programs train them.

    Program p of launch l trains the pairs from pair_ptr[l * num_parts + p] on, in tiles from tile_ptr[l * num_parts +
    p] on.

    Attributes:
        pairs: rows of head and tail [num_pairs, 2], int32.
        negatives: rows that each tile draws [num_tiles, num_negatives], int32.
        pair_ptr, tile_ptr: [num_launches * num_parts + 1], int64.
        num_parts: programs of a launch.
    """

    pairs: Tensor
    negatives: Tensor
    pair_ptr: Tensor
    tile_ptr: Tensor
    num_parts: int

    @property
    def num_launches(self) -> int:
        return (len(self.pair_ptr) - 1) // self.num_parts

    def train(
        self, step: int, num_steps: int, train_launch: Callable[[int, Tensor], None]
    ) -> tuple[float, float]:
        """Train a share of the launches: step `step`, from 0, of `num_steps`.

        Args:
            train_launch: function of the number of a launch and of the loss of each program [num_parts], which it adds
                to.

        Returns:
            The loss, summed over the pairs, and the number of these.
        """
        first, last = (self.num_launches * number // num_steps for number in (step, step + 1))
        loss = torch.zeros(self.num_parts, dtype=torch.float64, device=self.pairs.device)
        for launch in range(first, last):
            train_launch(launch, loss)
        ends = torch.tensor([first, last], device=loss.device) * self.num_parts
        begin, end = self.pair_ptr[ends].tolist()
        return float(loss.sum()), float(end - begin)


def choose_num_parts(num_rows: int, num_pairs: int) -> int:
    """Choose P for a table and the pairs of a round: a power of two, at least 2."""
    most = min(MOST_PARTS, num_rows / LEAST_ROWS, (num_pairs / LEAST_PAIRS) ** 0.5)
    return 1 << max(int(most).bit_length() - 1, 1)


def fits_tile(dim: int, num_negatives: int) -> bool:
    """Tell whether a tile of vectors of this many numbers, with this many negatives, fits into a multiprocessor."""
    slots, width = (1 << (size - 1).bit_length() for size in (TILE + num_negatives, dim))
    return dim <= MOST_NUMBERS and slots * width <= MOST_HELD


def whole_weights(weight: Tensor) -> Tensor:
    """Round the weights by which negatives are drawn [num_rows] to whole numbers, int64; none above 0 becomes 0."""
    weight = weight.double()
    scale = (TOTAL_WEIGHT - len(weight)) / weight.sum().clamp(min=torch.finfo(torch.float64).tiny)
    return (weight * scale).long() + (weight > 0)


def deal_rows(by_degree: Tensor, num_parts: int, key: int) -> Deal:
    """Deal rows out to parts at random, so that all parts have rows of like degrees.

    Args:
        by_degree: rows, those of the largest degree first [num_rows], int64.
        key: 64 bits. The parts are a hash of them.
    """
    place = torch.arange(len(by_degree), device=by_degree.device)
    # Each part gets one of `num_parts` rows of like degree.
    order = ((place // num_parts << 32) | draw_chances(key, len(place), by_degree.device)).argsort(
        stable=True
    )
    dealt, part = place % num_parts, torch.empty_like(place)
    part[by_degree[order]] = dealt
    ptr = torch.nn.functional.pad(torch.bincount(dealt, minlength=num_parts).cumsum(0), (1, 0))
    return Deal(by_degree[order[dealt.argsort(stable=True)]], part, ptr)


def pair_up(walks: Tensor, distance: int, both: bool) -> Tensor:
    """Collect the pairs of rows at most `distance` steps apart on a walk.

    Args:
        walks: rows [num_walks, nodes], -1 behind the last one of each.
        both: also the later with the earlier one.

    Returns:
        [num_pairs, 2].
    """
    found = []
    for apart in range(1, min(distance, walks.size(1) - 1) + 1):
        ends = torch.stack([walks[:, :-apart].flatten(), walks[:, apart:].flatten()], 1)
        ends = ends[(ends[:, 1] >= 0) & (ends[:, 0] != ends[:, 1])]
        found += [ends, ends.flip(1)] if both else [ends]
    return torch.cat(found) if found else walks.new_empty(0, 2)


def arrange(
    pairs: Tensor, deal: Deal, weight: Tensor, num_negatives: int, key: int, *, tied: bool
) -> Tiles:
    """Sort pairs by the programs that train them, in a random order for each, and draw their negatives.

    Args:
        pairs: rows of head and tail [num_pairs, 2].
        weight: of each row as a negative [num_rows], see :func:`whole_weights`.
        key: 64 bits. Every random number is a hash of them.
        tied: whether heads and tails are rows of one table. Pairs of two rows of one part are then left out.
    """
    head, tail = (deal.part[ends] for ends in pairs.long().unbind(1))
    num_parts = deal.num_parts
    if tied:
        apart = head != tail
        pairs, head, tail = pairs[apart], head[apart], tail[apart]
        low, high = torch.minimum(head, tail), torch.maximum(head, tail)
        # The rounds of a tournament: in each, every part meets one other.
        turn = torch.where(high == num_parts - 1, 2 * low, low + high) % max(num_parts - 1, 1)
        block, num_launches = (2 * turn + (head > tail)) * num_parts + low, 2 * (num_parts - 1)
    else:
        block, num_launches = (tail - head) % num_parts * num_parts + head, num_parts
    chances = draw_chances(key + ORDER, len(pairs), pairs.device)
    pairs = pairs[((block << 32) | chances).argsort(stable=True)].int()
    counts = torch.bincount(block, minlength=num_launches * num_parts)
    pair_ptr, tile_ptr = (
        torch.nn.functional.pad(sizes.cumsum(0), (1, 0)) for sizes in (counts, -(-counts // TILE))
    )
    block_of = torch.repeat_interleave(
        torch.arange(len(counts), device=pairs.device), tile_ptr.diff()
    )
    first = pair_ptr[block_of] + TILE * (
        torch.arange(len(block_of), device=pairs.device) - tile_ptr[block_of]
    )
    part = deal.part[pairs[first, 1].long()]
    return Tiles(
        pairs, _draw(part, deal, weight, num_negatives, key), pair_ptr, tile_ptr, num_parts
    )


def _draw(part: Tensor, deal: Deal, weight: Tensor, count: int, key: int) -> Tensor:
    """Draw rows of the part of each tile by their weights [num_tiles, count], int32."""
    summed = torch.nn.functional.pad(weight[deal.rows].cumsum(0), (1, 0))
    first, last = deal.ptr[part].unsqueeze(1), deal.ptr[part + 1].unsqueeze(1)
    chances = draw_chances(key + NEGATIVES, len(part) * count, part.device).view(-1, count)
    wanted = summed[first] + (chances * (summed[last] - summed[first]) >> 32)
    place = torch.searchsorted(summed[1:], wanted, right=True)
    return deal.rows[torch.minimum(torch.maximum(place, first), last - 1)].int()


def draw_chances(key: int, count: int, device: torch.device) -> Tensor:
    """Draw whole numbers below 2^32 by a key of 64 bits [count], int64."""
    base = mix_tensor(torch.tensor(signed(key % 2**64), device=device))
    return shift_right(mix_tensor(base + torch.arange(1, count + 1, device=device) * STRIDE), 32)

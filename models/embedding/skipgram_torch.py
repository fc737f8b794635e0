"""Skip-gram by torch operations, for tables on a GPU: the blocks of skipgram.h, trained in larger steps.

Groups, tiles and shared negatives are as in :mod:`models.embedding.skipgram`, but drawn differently. C++ trains one
tile after the other. This code trains as many tiles at a time as the block has rows for, all from the same values, and
sums the updates of a row. No operation here depends on the order of threads.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from parallel_epochs.models.embedding.skipgram import Negatives, PairBlock, SkipGramOptions, Table
from parallel_epochs.models.embedding.skipgram_reference import GROUP, TILES, bound_steps, count_moves
from parallel_epochs.models.kernels.hash import GOLDEN, mix_tensor, shift_right, signed

STRIDE = signed(GOLDEN)
# Separates the random numbers of the negatives from those of the shuffle, which begin at the hash of the block.
NEGATIVES = signed(0x94d049bb133111eb)
# Largest number of tiles at a time, as their rows are copied.
MAX_TILES = 1024


def train(heads: Table, tails: Table, tasks: list[list[PairBlock]], pairs: Tensor, negatives: Negatives,
          options: SkipGramOptions, *, lr: float, key: int) -> tuple[float, float]:
    """Train blocks of pairs in place, see :func:`models.embedding.skipgram.train`.

    Args:
        heads, tails: tables on any device; `pairs` and `negatives` may be on another one.

    Returns:
        The loss, summed over all pairs, and the number of pairs.
    """
    device = heads.rows.device
    there = Negatives(negatives.accept.to(device), negatives.alias.to(device))
    loss, count = torch.zeros((), dtype=torch.float64, device=device), 0
    for block in (block for task in tasks for block in task):
        block_pairs = pairs[block.first_pair:block.last_pair]
        if len(block_pairs):
            rates = _bound_steps(block, block_pairs, negatives, options, lr)
            loss += _train_block(heads, tails, block, block_pairs.to(device, non_blocking=True).long(), there, options,
                                 rates=[rate.to(device, non_blocking=True) for rate in rates], key=key)
            count += len(block_pairs)
    return float(loss), float(count)


def _tiles_at_once(block: PairBlock) -> int:
    return min(max(min(block.num_heads, block.num_tails) // (GROUP * TILES), 1), MAX_TILES)


def _bound_steps(block: PairBlock, pairs: Tensor, negatives: Negatives, options: SkipGramOptions,
                 lr: float) -> list[Tensor]:
    """Choose the learning rates of the heads and of the tails of a block.

    All tiles that are trained at a time move a row once. Adagrad and adam bring the length of this move to scale.
    """
    if options.optimizer != "sgd":
        return [torch.full((num_rows,), lr) for num_rows in (block.num_heads, block.num_tails)]
    tails = slice(block.first_tail, block.first_tail + block.num_tails)
    moves = count_moves(pairs.cpu().numpy(), block.num_heads, negatives.accept[tails].cpu().numpy(),
                        negatives.alias[tails].cpu().numpy(), negative_weight=options.negative_weight)
    return [torch.from_numpy(bound_steps(_tiles_at_once(block) * some, lr)) for some in moves]


def _train_block(heads: Table, tails: Table, block: PairBlock, pairs: Tensor, negatives: Negatives,
                 options: SkipGramOptions, *, rates: list[Tensor], key: int) -> Tensor:
    base = mix_tensor(signed(key) + torch.tensor(block.number + 1, device=pairs.device) * STRIDE)
    head, tail, there = _tiles(pairs, base)
    head, tail = head + block.first_head, tail + block.first_tail
    drawn = block.first_tail + _draw(mix_tensor(base + NEGATIVES), len(head), block, negatives, options.num_negatives)
    loss = torch.zeros((), dtype=torch.float64, device=pairs.device)
    for some in torch.arange(len(head), device=pairs.device).split(_tiles_at_once(block)):
        loss += _train_tiles(heads, tails, head[some], tail[some], there[some], drawn[some], options,
                             rates, (block.first_head, block.first_tail))
    return loss


def _tiles(pairs: Tensor, base: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cut pairs into groups of one head and shuffle the groups.

    Returns:
        Heads [num_tiles, TILES], their tails [num_tiles, TILES, GROUP], and a mask of the tails that exist.
    """
    pairs = pairs[pairs[:, 0].argsort(stable=True)]
    _, run, length = pairs[:, 0].unique_consecutive(return_inverse=True, return_counts=True)
    place = torch.arange(len(pairs), device=pairs.device) - (length.cumsum(0) - length)[run]
    group = (place % GROUP == 0).cumsum(0) - 1
    num_groups = int(group[-1]) + 1
    # The new position of each group. The last tile is filled with empty groups.
    bits = mix_tensor(base + torch.arange(1, num_groups + 1, device=pairs.device) * STRIDE)
    to = bits.argsort(stable=True).argsort()[group]
    size = -(-num_groups // TILES) * TILES
    head, tail = pairs.new_zeros(size), pairs.new_zeros(size, GROUP)
    there = torch.zeros(size, GROUP, dtype=torch.bool, device=pairs.device)
    head[to], tail[to, place % GROUP], there[to, place % GROUP] = pairs[:, 0], pairs[:, 1], True
    return head.view(-1, TILES), tail.view(-1, TILES, GROUP), there.view(-1, TILES, GROUP)


def _draw(base: Tensor, num_tiles: int, block: PairBlock, negatives: Negatives, count: int) -> Tensor:
    """Draw negatives for each tile, as rows of the block's partition of tails [num_tiles, count]."""
    bits = mix_tensor(base + torch.arange(1, num_tiles * count + 1, device=base.device) * STRIDE)
    at = shift_right(bits, 32) * block.num_tails >> 32
    uniform = shift_right(bits & 0xffffffff, 8).float() * 2**-24
    row = block.first_tail + at
    return torch.where(uniform < negatives.accept[row], at, negatives.alias[row].long()).view(num_tiles, count)


def _train_tiles(heads: Table, tails: Table, head: Tensor, tail: Tensor, there: Tensor, drawn: Tensor,
                 options: SkipGramOptions, rates: list[Tensor], firsts: tuple[int, int] = (0, 0)) -> Tensor:
    """Update all rows of some tiles by their gradients at the present values.

    Args:
        rates: learning rates of the rows of heads and of tails,
        firsts: and the first row of each that has one.
    """
    u, v, n = heads.rows[head], tails.rows[tail], tails.rows[drawn]
    x = (v @ u.unsqueeze(-1)).squeeze(-1)
    pull = torch.sigmoid(-x) * there
    weight = options.negative_weight / options.num_negatives * there.sum(-1, keepdim=True)
    y = u @ n.mT
    push = -weight * torch.sigmoid(y)
    to_u = (pull.unsqueeze(-2) @ v).squeeze(-2) + push @ n
    to_v, to_n = pull.unsqueeze(-1) * u.unsqueeze(-2), push.mT @ u
    _move(tails, torch.cat([tail[there], drawn.flatten()]), torch.cat([to_v[there], to_n.flatten(0, 1)]), options,
          rates[1], firsts[1])
    used = there.any(-1)
    _move(heads, head[used], to_u[used], options, rates[0], firsts[0])
    return (softplus(-x) * there).sum(dtype=torch.float64) + (weight * softplus(y)).sum(dtype=torch.float64)


def _move(table: Table, rows: Tensor, gradient: Tensor, options: SkipGramOptions, rates: Tensor,
          first: int) -> None:
    """Update rows by the sums of their gradients, which are added in a fixed order."""
    rows, order = rows.sort(stable=True)
    rows, count = rows.unique_consecutive(return_counts=True)
    offsets = torch.cat([count.new_zeros(1), count.cumsum(0)])
    total = torch.segment_reduce(gradient[order], "sum", offsets=offsets, axis=0)
    x, lr = table.rows[rows], rates[rows - first].unsqueeze(1)
    total = total - options.weight_decay * count.unsqueeze(1) * x
    if options.optimizer == "sgd":
        x = x + lr * total
    elif options.optimizer == "adagrad":
        square = table.moments[rows] + total**2
        table.moments[rows] = square
        x = x + lr * total / (square.sqrt() + options.eps)
    else:
        step = table.steps[rows] + 1
        mean, square = table.moments[rows].chunk(2, 1)
        mean = options.beta1 * mean + (1 - options.beta1) * total
        square = options.beta2 * square + (1 - options.beta2) * total**2
        table.steps[rows], table.moments[rows] = step, torch.cat([mean, square], 1)
        corrected, spread = ((1 - beta**step).unsqueeze(1) for beta in (options.beta1, options.beta2))
        x = x + lr * mean / corrected / ((square / spread).sqrt() + options.eps)
    table.rows[rows] = x


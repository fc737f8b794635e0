"""Skip-gram with negative sampling in compiled C++; :mod:`models.embedding.skipgram_reference` computes it in numpy.

The objective is that of word2vec (https://arxiv.org/abs/1310.4546), and the blocks are those of GraphVite
(https://arxiv.org/abs/1903.00757). The groups of a tile share their negatives, so that most of the work is small matrix
products; see skipgram.h.
"""

from pathlib import Path

from torch import Tensor

from parallel_epochs.models.embedding.blocks import train_tasks
from parallel_epochs.models.embedding.skipgram_reference import (
    OPTIMIZERS,
    Negatives,
    PairBlock,
    SkipGramOptions,
    Table,
    train_block,
)
from parallel_epochs.models.kernels.layout import read_structure
from parallel_epochs.models.kernels.native import NativeLibrary

SkipGramProblem = read_structure(Path(__file__).with_name("skipgram.h"), "SkipGramProblem")
LIBRARY = NativeLibrary("skip-gram", Path(__file__).with_name("skipgram.cpp"), otherwise="numpy trains instead")


def train(heads: Table, tails: Table, tasks: list[list[PairBlock]], pairs: Tensor, negatives: Negatives,
          options: SkipGramOptions, *, lr: float, key: int, native: bool = True) -> tuple[float, float]:
    """Train blocks of pairs in place: the vectors of a pair are pulled together, those of negatives pushed apart.

    Args:
        heads, tails: the two tables, which may be the same.
        tasks: lists of blocks. The blocks of a task are trained in order. Blocks of different tasks share no rows.
        pairs: [num_pairs, 2], int32: rows of head and tail within their partitions.
        lr: learning rate.
        key: 64 bits. Every random number is a hash of them.
        native: whether C++ trains if it compiles. The results of numpy differ only by rounding.

    Returns:
        The loss, summed over every 16th tile: -log sigma(x) of pairs and weighted -log sigma(-x) of negatives. And the
        number of pairs in these tiles.
    """
    library = LIBRARY.get() if native else None
    return train_tasks(
        None if library is None else library.skipgram_train,
        lambda block: train_block(heads, tails, block, pairs, negatives, options, lr=lr, key=key),
        SkipGramProblem, tasks, dict(
            heads=heads.rows, tails=tails.rows, head_moments=heads.moments, tail_moments=tails.moments,
            head_steps=heads.steps, tail_steps=tails.steps, pairs=pairs, accept=negatives.accept,
            alias=negatives.alias), stride=heads.rows.size(1), key=key, lr=lr,
        **vars(options) | {"optimizer": OPTIMIZERS.index(options.optimizer)})

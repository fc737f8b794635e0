"""Skip-gram with negative sampling in compiled C++; :mod:`models.embedding.skipgram_reference` computes it in numpy.

The objective is that of word2vec (https://arxiv.org/abs/1310.4546), and the blocks are those of GraphVite
(https://arxiv.org/abs/1903.00757). The groups of a tile share their negatives, so that most of the work is small matrix
products; see skipgram.h.
"""

import ctypes
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

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
    blocks = [block for task in tasks for block in task]
    library = LIBRARY.get() if native else None
    if library is None:
        losses = [train_block(heads, tails, block, pairs, negatives, options, lr=lr, key=key)
                  for block in blocks]
        return sum(loss for loss, _ in losses), sum(count for _, count in losses)
    fields = np.array([tuple(vars(block).values()) for block in blocks], np.int64).reshape(len(blocks), 7)
    ptr = np.cumsum([0, *(len(task) for task in tasks)], dtype=np.int64)
    loss = np.zeros((len(blocks), 2))
    library.skipgram_train(ctypes.byref(SkipGramProblem(
        stride=heads.rows.size(1), num_tasks=len(tasks), num_negatives=options.num_negatives,
        num_threads=torch.get_num_threads(), optimizer=OPTIMIZERS.index(options.optimizer), key=key, lr=lr,
        weight_decay=options.weight_decay, negative_weight=options.negative_weight, beta1=options.beta1,
        beta2=options.beta2, eps=options.eps, heads=heads.rows.data_ptr(), tails=tails.rows.data_ptr(),
        head_moments=heads.moments.data_ptr(), tail_moments=tails.moments.data_ptr(),
        head_steps=heads.steps.data_ptr(), tail_steps=tails.steps.data_ptr(), task_ptr=ptr.ctypes.data,
        blocks=fields.ctypes.data, pairs=pairs.data_ptr(), accept=negatives.accept.data_ptr(),
        alias=negatives.alias.data_ptr(), loss=loss.ctypes.data)))
    total, count = loss.sum(0)
    return float(total), float(count)

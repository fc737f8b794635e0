"""Skip-gram with negative sampling in compiled C++; tests/helpers/skipgram_numpy.py computes the same in numpy.

The objective is that of word2vec (https://arxiv.org/abs/1310.4546), and the blocks are those of GraphVite
(https://arxiv.org/abs/1903.00757). The groups of a tile share their negatives, so that most of the work is small matrix
products; see skipgram.h.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from parallel_epochs.models.embedding.blocks import train_tasks
from parallel_epochs.models.kernels.layout import read_structure
from parallel_epochs.models.kernels.native import NativeLibrary

SkipGramProblem = read_structure(Path(__file__).with_name("skipgram.h"), "SkipGramProblem")
LIBRARY = NativeLibrary(
    "skip-gram", Path(__file__).with_name("skipgram.cpp"), otherwise="no vectors are trained then"
)

OPTIMIZERS = ("sgd", "adagrad", "adam")
# Rows of a table are whole lines of the cache.
LINE = 16
# As in skipgram.h.
GROUP = 8
MOST_PER_TILE = 1.0


@dataclass
class VectorTable:
    """A table of vectors with the state of its optimizer.

    Attributes:
        rows: [num_rows, stride], float32. The columns beyond the vectors are zero.
        moments: [num_rows, stride] for adagrad, [num_rows, 2 * stride] for adam, otherwise empty.
        steps: number of updates of each row so far [num_rows], float32, for adam, otherwise empty.
    """

    rows: Tensor
    moments: Tensor
    steps: Tensor

    @classmethod
    def zeros(cls, num_rows: int, dim: int, optimizer: str = "sgd") -> "VectorTable":
        """Make a table of zeros for vectors of `dim` numbers."""
        stride = -(-dim // LINE) * LINE
        width = {"sgd": 0, "adagrad": stride, "adam": 2 * stride}[optimizer]
        return cls(
            torch.zeros(num_rows, stride),
            torch.zeros(num_rows if width else 0, width),
            torch.zeros(num_rows if optimizer == "adam" else 0),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the table by name, for a checkpoint."""
        return {"rows": self.rows, "moments": self.moments, "steps": self.steps}


@dataclass(frozen=True)
class PairBlock:
    """The pairs of a partition of heads and a partition of tails.

    Attributes:
        number: number of the block, on which its random numbers depend.
        first_head, first_tail: first rows of the two partitions.
        num_heads, num_tails: numbers of rows of the two partitions.
        first_pair, last_pair: range of its pairs.
    """

    number: int
    first_head: int
    first_tail: int
    num_heads: int
    num_tails: int
    first_pair: int
    last_pair: int


@dataclass(frozen=True)
class SkipGramOptions:
    """The options of skip-gram training.

    Attributes:
        num_negatives: number of negatives for each tile of eight groups of pairs.
        negative_weight: weight of all negatives together, relative to a pair.
        optimizer: "sgd", "adagrad" or "adam".
        weight_decay: weight decay of a row, applied each time that the row is used.
        beta1, beta2, eps: options of adam. adagrad reads eps too.
    """

    num_negatives: int = 32
    negative_weight: float = 5.0
    optimizer: str = "sgd"
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


@dataclass
class Negatives:
    """Alias tables from which the negatives of each partition are drawn.

    Attributes:
        accept: [num_rows], float32: the probability of keeping a row that was drawn uniformly from its partition.
        alias: [num_rows], int32: the row of the partition, counted from 0, that replaces it otherwise.
    """

    accept: Tensor
    alias: Tensor = field(repr=False)


def train(
    heads: VectorTable,
    tails: VectorTable,
    tasks: list[list[PairBlock]],
    pairs: Tensor,
    negatives: Negatives,
    options: SkipGramOptions,
    *,
    lr: float,
    key: int,
) -> tuple[float, float]:
    """Train blocks of pairs in place: the vectors of a pair are pulled together, those of negatives pushed apart.

    Args:
        heads, tails: the two tables, which may be the same.
        tasks: lists of blocks. The blocks of a task are trained in order. Blocks of different tasks share no rows.
        pairs: [num_pairs, 2], int32: rows of head and tail within their partitions.
        lr: learning rate.
        key: 64 bits. Every random number is a hash of them.

    Returns:
        The loss, summed over every 16th tile: -log sigma(x) of pairs and weighted -log sigma(-x) of negatives. And the
        number of pairs in these tiles.
    """
    return train_tasks(
        LIBRARY,
        "skipgram_train",
        SkipGramProblem,
        tasks,
        dict(
            heads=heads.rows,
            tails=tails.rows,
            head_moments=heads.moments,
            tail_moments=tails.moments,
            head_steps=heads.steps,
            tail_steps=tails.steps,
            pairs=pairs,
            accept=negatives.accept,
            alias=negatives.alias,
        ),
        stride=heads.rows.size(1),
        key=key,
        lr=lr,
        **vars(options) | {"optimizer": OPTIMIZERS.index(options.optimizer)},
    )

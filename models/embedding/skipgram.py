"""Skip-gram with negative sampling on blocks of pairs, compiled from C++, beside :mod:`models.embedding.reference`.

The objective is that of word2vec (https://arxiv.org/abs/1310.4546), the blocks are those of GraphVite
(https://arxiv.org/abs/1903.00757). Negatives are shared by the groups of a tile, so that most of the work is small
matrix products; see skipgram.h.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.kernels.native import NativeLibrary

OPTIMIZERS = ("sgd", "adagrad", "adam")
# Rows of a table are whole lines of the cache.
LINE = 16


class Problem(ctypes.Structure):
    """Arguments of a call, field by field as in skipgram.h."""

    _fields_ = ([(name, ctypes.c_int64) for name in (
        "stride", "num_tasks", "num_negatives", "num_threads", "optimizer")]
                + [("key", ctypes.c_uint64)]
                + [(name, ctypes.c_float) for name in (
                    "lr", "weight_decay", "negative_weight", "beta1", "beta2", "eps")]
                + [(name, ctypes.c_void_p) for name in (
                    "heads", "tails", "head_moments", "tail_moments", "head_steps", "tail_steps", "task_ptr", "blocks",
                    "pairs", "accept", "alias", "loss")])


LIBRARY = NativeLibrary("skip-gram", Path(__file__).with_name("skipgram.cpp"), otherwise="numpy trains instead",
                        structures={"skipgram_problem_size": Problem})


@dataclass
class Table:
    """A table of vectors, and what its optimizer keeps of them.

    Attributes:
        rows: [num_rows, stride], float32; columns beyond the vectors are zero.
        moments: [num_rows, stride] of adagrad, [num_rows, 2 * stride] of adam, else empty.
        steps: updates of each row so far, of adam [num_rows], float32, else empty.
    """

    rows: Tensor
    moments: Tensor
    steps: Tensor

    @classmethod
    def zeros(cls, num_rows: int, dim: int, optimizer: str = "sgd", *,
              make: Callable[..., Tensor] = torch.zeros) -> "Table":
        """Make a table of zeros with room for `dim` numbers a row.

        Args:
            make: makes tensors of zeros.
        """
        stride = -(-dim // LINE) * LINE
        width = {"sgd": 0, "adagrad": stride, "adam": 2 * stride}[optimizer]
        return cls(make(num_rows, stride), make(num_rows if width else 0, width),
                   make(num_rows if optimizer == "adam" else 0))

    def to(self, device: torch.device) -> "Table":
        """Return it on a device."""
        return Table(*(tensor.to(device) for tensor in self.tensors().values()))

    @staticmethod
    def numbers_per_row(dim: int, optimizer: str) -> int:
        """Count the float32 numbers that a table keeps for each row."""
        return -(-dim // LINE) * LINE * {"sgd": 1, "adagrad": 2, "adam": 3}[optimizer] + (optimizer == "adam")

    def tensors(self) -> dict[str, Tensor]:
        """Return its tensors by name, for a checkpoint."""
        return {"rows": self.rows, "moments": self.moments, "steps": self.steps}


@dataclass(frozen=True)
class Block:
    """Pairs of a partition of heads and one of tails.

    Attributes:
        number: of the block, which its random numbers depend on.
        first_head, first_tail: first rows of the two partitions.
        num_heads, num_tails: rows of each.
        first_pair, last_pair: where its pairs begin and end.
    """

    number: int
    first_head: int
    first_tail: int
    num_heads: int
    num_tails: int
    first_pair: int
    last_pair: int


@dataclass(frozen=True)
class Options:
    """How pairs are trained.

    Attributes:
        num_negatives: tails drawn for each tile of eight groups of pairs.
        negative_weight: what they weigh together beside a pair.
        optimizer: "sgd", "adagrad" or "adam".
        weight_decay: decay of a row, each time that it is used.
        beta1, beta2, eps: of adam; eps also of adagrad.
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
    """How the tails of each partition are drawn.

    Attributes:
        accept: [num_rows], float32: the probability to keep a row that was drawn evenly in its partition.
        alias: [num_rows], int32: the row of the partition, from 0, that is taken instead.
    """

    accept: Tensor
    alias: Tensor = field(repr=False)


def train(heads: Table, tails: Table, tasks: list[list[Block]], pairs: Tensor, negatives: Negatives,
          options: Options, *, lr: float, key: int, native: bool = True) -> tuple[float, float]:
    """Train blocks of pairs, changing the tables: each pair is pulled together, and drawn ones are pushed apart.

    Args:
        heads, tails: the tables, or the same twice.
        tasks: lists of blocks, each trained in its order; those of different tasks share no rows.
        pairs: [num_pairs, 2], int32: rows of head and tail within their partitions.
        lr: learning rate.
        key: 64 bits, of which every random number is a hash.
        native: whether C++ does it, where it compiles; numpy comes to the same within rounding.

    Returns:
        The loss, -log sigma(x) of pairs and weighted -log sigma(-x) of negatives, summed over every 16th tile; and
        the number of pairs in these.
    """
    blocks = [block for task in tasks for block in task]
    library = LIBRARY.get() if native else None
    if library is None:
        from models.embedding import reference
        losses = [reference.train_block(heads, tails, block, pairs, negatives, options, lr=lr, key=key)
                  for block in blocks]
        return sum(loss for loss, _ in losses), sum(count for _, count in losses)
    fields = np.array([tuple(vars(block).values()) for block in blocks], np.int64).reshape(len(blocks), 7)
    ptr = np.cumsum([0, *(len(task) for task in tasks)], dtype=np.int64)
    loss = np.zeros((len(blocks), 2))
    library.skipgram_train(ctypes.byref(Problem(
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

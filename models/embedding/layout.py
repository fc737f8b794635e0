"""Layouts in two or three dimensions: drawn pairs are pulled together, others pushed apart; compiled from C++, beside
:mod:`models.embedding.layout_reference`.

The objective is that of LargeVis (https://arxiv.org/abs/1602.00370): two points are linked with the probability
1 / (1 + d^2) of their distance d. See layout.h for the order of the updates.
"""

import ctypes
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.kernels.native import NativeLibrary

# As in layout.h.
MAX_NEGATIVES = 64


class Problem(ctypes.Structure):
    """Arguments of a call, field by field as in layout.h."""

    _fields_ = ([(name, ctypes.c_int64) for name in ("dim", "num_tasks", "num_negatives", "num_threads")]
                + [("key", ctypes.c_uint64)]
                + [(name, ctypes.c_float) for name in ("lr", "attraction", "negative_weight", "smooth", "clip")]
                + [(name, ctypes.c_void_p) for name in (
                    "positions", "task_ptr", "blocks", "edges", "edge_accept", "edge_alias", "accept", "alias",
                    "loss")])


LIBRARY = NativeLibrary("layout", Path(__file__).with_name("layout.cpp"), otherwise="numpy trains instead",
                        structures={"layout_problem_size": Problem})


@dataclass(frozen=True)
class Block:
    """Edges between a partition of heads and one of tails.

    Attributes:
        number: of the block, which its random numbers depend on.
        first_head, first_tail: first rows of the two partitions.
        num_tails: rows of the second.
        first_edge, num_edges: where its edges begin, and their number.
        num_pairs: edges to draw.
    """

    number: int
    first_head: int
    first_tail: int
    num_tails: int
    first_edge: int
    num_edges: int
    num_pairs: int


@dataclass(frozen=True)
class Drawn:
    """What is drawn: alias tables, see :func:`pipeline.graph.walks.alias_tables`.

    Attributes:
        edges: rows of head and tail within their partitions [num_edges, 2], int32, block by block.
        edge_accept, edge_alias: of the edges of each block [num_edges], float32 and int32.
        accept, alias: of the negatives of each partition [num_rows], float32 and int32.
    """

    edges: Tensor = field(repr=False)
    edge_accept: Tensor = field(repr=False)
    edge_alias: Tensor = field(repr=False)
    accept: Tensor = field(repr=False)
    alias: Tensor = field(repr=False)


@dataclass(frozen=True)
class Options:
    """How pairs are trained.

    Attributes:
        num_negatives: tails drawn for each tile of sixteen pairs.
        negative_weight: what they weigh together beside a pair.
        smooth: is added to a squared distance before what pushes apart is divided by it.
        clip: largest move along an axis, before the learning rate, for a pair.
    """

    num_negatives: int = 8
    negative_weight: float = 5.0
    smooth: float = 1.0
    clip: float = 5.0


def train(positions: Tensor, tasks: list[list[Block]], drawn: Drawn, options: Options, *, lr: float, key: int,
          attraction: float = 1.0, native: bool = True) -> tuple[float, float]:
    """Train blocks, changing the positions.

    Args:
        positions: [num_rows, dim], float32, contiguous; dim is 2 or 3.
        tasks: lists of blocks, each trained in its order; those of different tasks share no rows.
        lr: learning rate.
        key: 64 bits, of which every random number is a hash.
        attraction: factor on what pulls pairs together.
        native: whether C++ does it, where it compiles; numpy comes to the same within rounding.

    Returns:
        The loss, log(1 + d^2) of pairs and weighted log(1 + d^2) - log(smooth + d^2) of negatives, summed over every
        64th tile; and the number of pairs in these.
    """
    blocks = [block for task in tasks for block in task]
    library = LIBRARY.get() if native else None
    if library is None:
        from models.embedding import layout_reference
        losses = [layout_reference.train_block(positions, block, drawn, options, lr=lr, key=key, attraction=attraction)
                  for block in blocks]
        return sum(loss for loss, _ in losses), sum(count for _, count in losses)
    fields = np.array([tuple(vars(block).values()) for block in blocks], np.int64).reshape(len(blocks), 7)
    ptr = np.cumsum([0, *(len(task) for task in tasks)], dtype=np.int64)
    loss = np.zeros((len(blocks), 2))
    tensors = {name: tensor.data_ptr() for name, tensor in vars(drawn).items()}
    library.layout_train(ctypes.byref(Problem(
        dim=positions.size(1), num_tasks=len(tasks), num_threads=torch.get_num_threads(),
        key=key, lr=lr, attraction=attraction, **vars(options), positions=positions.data_ptr(),
        task_ptr=ptr.ctypes.data, blocks=fields.ctypes.data, loss=loss.ctypes.data, **tensors)))
    total, count = loss.sum(0)
    return float(total), float(count)

"""Layouts in two or three dimensions, trained by compiled C++; :mod:`models.embedding.layout_reference` uses numpy.

The objective is that of LargeVis (https://arxiv.org/abs/1602.00370): two points at distance d are linked with the
probability 1 / (1 + d^2). Sampled edges are pulled together, negatives are pushed apart. See layout.h for the order of
the updates.
"""

from pathlib import Path

from torch import Tensor

from parallel_epochs.models.embedding.blocks import train_tasks
from parallel_epochs.models.embedding.layout_reference import Drawn, EdgeBlock, LayoutOptions, train_block
from parallel_epochs.models.kernels.layout import read_structure
from parallel_epochs.models.kernels.native import NativeLibrary

LayoutProblem = read_structure(Path(__file__).with_name("layout.h"), "LayoutProblem")
LIBRARY = NativeLibrary("layout", Path(__file__).with_name("layout.cpp"), otherwise="numpy trains instead")


def train(positions: Tensor, tasks: list[list[EdgeBlock]], drawn: Drawn, options: LayoutOptions, *, lr: float, key: int,
          attraction: float = 1.0, native: bool = True) -> tuple[float, float]:
    """Train blocks of edges, moving the positions in place.

    Args:
        positions: [num_rows, dim], float32, contiguous; dim is 2 or 3.
        tasks: lists of blocks. The blocks of a task are trained in order. Blocks of different tasks share no rows.
        lr: learning rate.
        key: 64 bits. Every random number is a hash of them.
        attraction: factor on the attraction of pairs.
        native: whether C++ trains if it compiles. The results of numpy differ only by rounding.

    Returns:
        The loss, summed over every 64th tile: log(1 + d^2) of pairs and weighted log(1 + d^2) - log(smooth + d^2) of
        negatives. And the number of pairs in these tiles.
    """
    library = LIBRARY.get() if native else None
    return train_tasks(
        None if library is None else library.layout_train,
        lambda block: train_block(positions, block, drawn, options, lr=lr, key=key, attraction=attraction),
        LayoutProblem, tasks, {"positions": positions, **vars(drawn)}, dim=positions.size(1), key=key, lr=lr,
        attraction=attraction, **vars(options))

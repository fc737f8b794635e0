"""Layouts in two or three dimensions, trained by compiled C++; tests/helpers/layout_numpy.py uses numpy.

The objective is that of LargeVis (https://arxiv.org/abs/1602.00370): two points at distance d are linked with the
probability 1 / (1 + d^2). Sampled edges are pulled together, negatives are pushed apart. See layout.h for the order of
the updates.
"""

from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from parallel_epochs.models.embedding.blocks import train_tasks
from parallel_epochs.models.kernels.layout import read_structure
from parallel_epochs.models.kernels.native import NativeLibrary

LayoutProblem = read_structure(Path(__file__).with_name("layout.h"), "LayoutProblem")
LIBRARY = NativeLibrary(
    "layout", Path(__file__).with_name("layout.cpp"), otherwise="no points are placed then"
)


@dataclass(frozen=True)
class EdgeBlock:
    """The edges between a partition of heads and a partition of tails.

    Attributes:
        number: number of the block, on which its random numbers depend.
        first_head, first_tail: first rows of the two partitions.
        num_tails: number of rows of the partition of tails.
        first_edge, num_edges: its first edge and its number of edges.
        num_pairs: number of edges to sample.
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
    """The edges, and the alias tables from which edges and negatives are drawn.

    See :func:`pipeline.graph.walks.alias_tables`.

    Attributes:
        edges: rows of head and tail within their partitions [num_edges, 2], int32, block by block.
        edge_accept, edge_alias: alias table of the edges of each block [num_edges], float32 and int32.
        accept, alias: alias table of the negatives of each partition [num_rows], float32 and int32.
    """

    edges: Tensor = field(repr=False)
    edge_accept: Tensor = field(repr=False)
    edge_alias: Tensor = field(repr=False)
    accept: Tensor = field(repr=False)
    alias: Tensor = field(repr=False)


@dataclass(frozen=True)
class LayoutOptions:
    """The options of layout training.

    Attributes:
        num_negatives: number of negatives for each tile of sixteen pairs.
        negative_weight: weight of all negatives together, relative to a pair.
        smooth: number that is added to the squared distance in the divisor of the repulsion.
        clip: largest move of a pair along an axis, before it is multiplied by the learning rate.
    """

    num_negatives: int = 8
    negative_weight: float = 5.0
    smooth: float = 1.0
    clip: float = 5.0


def train(
    positions: Tensor,
    tasks: list[list[EdgeBlock]],
    drawn: Drawn,
    options: LayoutOptions,
    *,
    lr: float,
    key: int,
    attraction: float = 1.0,
) -> tuple[float, float]:
    """Train blocks of edges, moving the positions in place.

    Args:
        positions: [num_rows, dim], float32, contiguous; dim is 2 or 3.
        tasks: lists of blocks. The blocks of a task are trained in order. Blocks of different tasks share no rows.
        lr: learning rate.
        key: 64 bits. Every random number is a hash of them.
        attraction: factor on the attraction of pairs.

    Returns:
        The loss, summed over every 64th tile: log(1 + d^2) of pairs and weighted log(1 + d^2) - log(smooth + d^2) of
        negatives. And the number of pairs in these tiles.
    """
    return train_tasks(
        LIBRARY,
        "layout_train",
        LayoutProblem,
        tasks,
        {"positions": positions, **vars(drawn)},
        dim=positions.size(1),
        key=key,
        lr=lr,
        attraction=attraction,
        **vars(options),
    )

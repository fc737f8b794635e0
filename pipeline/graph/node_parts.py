"""Partitions of the nodes for tables of vectors, and the order in which their blocks are trained.

Block (i, j) trains heads of partition i against tails of partition j: blocks that share neither run at the same time
(orthogonal blocks of GraphVite, https://arxiv.org/abs/1903.00757).
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor


@dataclass
class NodeParts:
    """Partitions of the nodes; those of one are rows in a row.

    Attributes:
        ptr: partition i has the rows ptr[i] to ptr[i + 1] [num_parts + 1], int64.
        row: of each node [num_nodes], int32.
        part: of each node [num_nodes], int32.
        node: in each row [num_nodes], int64.
    """

    ptr: Tensor
    row: Tensor
    part: Tensor
    node: Tensor

    @property
    def num_parts(self) -> int:
        return self.ptr.numel() - 1


def check_parts(num_nodes: int, num_parts: int) -> None:
    """Refuse more partitions than nodes.

    Raises:
        ValueError: names the key.
    """
    if num_parts > num_nodes:
        raise ValueError(
            f"trainer.num_parts={num_parts} is more than the {num_nodes:,} nodes: lower it"
        )


def deal_nodes(degree: Tensor, num_parts: int) -> NodeParts:
    """Deal nodes out to partitions, those of the largest degree first, to and fro: all get about the same sum.

    Args:
        degree: of each node [num_nodes].

    Raises:
        ValueError: there are fewer nodes than partitions.
    """
    num_nodes = degree.numel()
    check_parts(num_nodes, num_parts)
    by_degree = degree.argsort(descending=True, stable=True)
    turn = torch.arange(num_nodes) % (2 * num_parts)
    dealt = torch.minimum(turn, 2 * num_parts - 1 - turn)  # 0, 1, 2, 2, 1, 0, 0, ...
    order = dealt.argsort(stable=True)
    node, part = by_degree[order], torch.empty(num_nodes, dtype=torch.int32)
    part[by_degree] = dealt.int()
    row = torch.empty(num_nodes, dtype=torch.int32)
    row[node] = torch.arange(num_nodes, dtype=torch.int32)
    ptr = torch.cat(
        [torch.zeros(1, dtype=torch.int64), torch.bincount(dealt, minlength=num_parts).cumsum(0)]
    )
    return NodeParts(ptr, row, part, node)


@dataclass
class BlockEdges:
    """Edges sorted by the partitions of their two nodes: those of block i * num_parts + j lead from i to j.

    Attributes:
        edges: rows of the two nodes, each in its partition [num_edges, 2], int32.
        weight: of each [num_edges], float32.
        ptr: block b has the edges ptr[b] to ptr[b + 1] [num_parts**2 + 1], int64.
        mass: summed weights of each block [num_parts**2], float64.
    """

    edges: Tensor
    weight: Tensor
    ptr: Tensor
    mass: np.ndarray


def sort_into_blocks(matrix: sp.csr_array, parts: NodeParts) -> BlockEdges:
    """Sort the entries of a matrix of weights [num_nodes, num_nodes] by their blocks, in each as they were."""
    entries, num_blocks = matrix.tocoo(), parts.num_parts**2
    part, row, first = parts.part.numpy().astype(np.int64), parts.row.numpy(), parts.ptr.numpy()
    head, tail = entries.coords
    block = part[head] * parts.num_parts + part[tail]
    order = block.argsort(kind="stable")
    head, tail, block, weight = head[order], tail[order], block[order], entries.data[order]
    edges = np.stack([row[head] - first[part[head]], row[tail] - first[part[tail]]], axis=1).astype(
        np.int32
    )
    ptr = np.concatenate([[0], np.bincount(block, minlength=num_blocks).cumsum()]).astype(np.int64)
    mass = np.bincount(block, weights=weight, minlength=num_blocks)
    return BlockEdges(
        torch.from_numpy(edges),
        torch.from_numpy(weight.astype(np.float32)),
        torch.from_numpy(ptr),
        mass,
    )


def orthogonal_rounds(num_parts: int) -> list[list[list[tuple[int, int]]]]:
    """Arrange all blocks of two tables in rounds.

    Returns:
        For each of `num_parts` rounds its tasks, which share no partition of either table; a task is a list of blocks
        (head partition, tail partition), here of one.
    """
    return [
        [[(i, (i + shift) % num_parts)] for i in range(num_parts)] for shift in range(num_parts)
    ]


def tied_rounds(num_parts: int) -> list[list[list[tuple[int, int]]]]:
    """Arrange all blocks of one table, whose rows are heads and tails, in rounds: those of a tournament.

    Returns:
        As :func:`orthogonal_rounds`; in the first round each partition meets itself, in the others a task is both
        blocks of two partitions.
    """
    rounds = [[[(i, i)] for i in range(num_parts)]]
    size = num_parts + num_parts % 2  # with an odd number, one rests in each round
    for turn in range(size - 1):
        # The last one stays in its place, the others go round.
        circle = [(turn + i) % (size - 1) for i in range(size - 1)] + [size - 1]
        matches = [(circle[i], circle[size - 1 - i]) for i in range(size // 2)]
        matches = [(min(match), max(match)) for match in matches if max(match) < num_parts]
        rounds.append([[(a, b), (b, a)] for a, b in matches])
    return rounds

"""Where a node stands in its graph: the probabilities that a random walk from it is back after 1, 2, ... steps."""
# ruff: noqa: F722 (shapes are strings)

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.pipeline.graph.union import expand
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.memory import format_bytes, machine_memory

# Equal parts of [0, 1] that a probability is told apart by, where the other features of nodes are categories.
LEVELS = 32
# Numbers of the matrices of the graphs that are walked at a time, padded to the largest, all powers together.
NUMBERS = 1 << 24
# Rounding must not move a probability that is a multiple of 1 / LEVELS to the level below.
ROUNDING = 1e-9


def return_probabilities(edge_index: EdgeIndex, ptr: Int[Tensor, " num_graphs_plus_1"], num_steps: int,
                         convert: Callable[[Tensor], Tensor] = Tensor.float) -> Tensor:
    """Compute the probability that a walk along the edges, each equally likely, is back after 1 to `num_steps` steps.

    It is the diagonal of the powers of the matrix of transitions, the "RWSE" of GraphGPS (Rampasek et al. 2022,
    https://arxiv.org/abs/2205.12454). A walk from a node without an edge to go along is nowhere after a step.

    Args:
        edge_index: of all graphs, sorted by destination.
        ptr: where the nodes of each graph begin.
        convert: makes what is returned of the probabilities of some nodes, float64.

    Returns:
        [num_nodes, num_steps]

    Raises:
        ValueError: the matrices of a graph do not fit into memory.
    """
    sizes, first_node, num_kept = np.diff(ptr.numpy()), ptr.numpy()[:-1], math.ceil(num_steps / 2)
    largest = int(sizes.max(initial=0))
    if (needed := 8 * largest ** 2 * (num_kept + 2)) > machine_memory() // 2:
        raise ValueError(f"data.random_walk={num_steps}: a graph of {largest:,} nodes takes {format_bytes(needed)}, "
                         f"but this machine has {format_bytes(machine_memory())}: leave it out, or lower it")
    src, dst = edge_index.as_tensor()
    share = 1 / torch.bincount(src, minlength=int(ptr[-1])).double()
    first_edge = torch.searchsorted(dst, ptr.to(dst.dtype)).numpy()
    out = convert(torch.empty(0, num_steps, dtype=torch.float64)).new_empty(int(ptr[-1]), num_steps)
    for graphs in _cut(sizes, NUMBERS // (num_kept + 2)):
        pulse.renew()
        first, size, width = first_node[graphs], sizes[graphs], int(sizes[graphs].max())
        edges, edge_ptr = expand(first_edge[graphs], first_edge[graphs + 1])
        graph = torch.arange(len(graphs)).repeat_interleave(torch.from_numpy(np.diff(edge_ptr)))
        source, target = (part[torch.from_numpy(edges)].long() for part in (src, dst))
        begin = torch.from_numpy(first)[graph]
        steps = torch.zeros(len(graphs), width, width, dtype=torch.float64)
        steps.index_put_((graph, source - begin, target - begin), share[source], accumulate=True)
        found = torch.stack(list(_diagonals(steps, num_steps, num_kept)), dim=2)
        nodes, _ = expand(first, first + size)
        out[torch.from_numpy(nodes)] = convert(found[torch.arange(width) < torch.from_numpy(size).unsqueeze(1)])
    return out


def as_levels(probabilities: Float[Tensor, "num_nodes num_steps"]) -> UInt8[Tensor, "num_nodes num_steps"]:
    """Make categories of probabilities: the numbers of the :data:`LEVELS` equal parts of [0, 1] that they lie in."""
    return ((probabilities + ROUNDING) * LEVELS).clamp(max=LEVELS - 1).to(torch.uint8)


def _diagonals(steps: Tensor, num_steps: int, num_kept: int) -> Iterator[Tensor]:
    """Compute the diagonals of the powers 1 to `num_steps`; those of large ones from two smaller powers."""
    powers = [steps]
    for _ in range(num_kept - 1):
        powers.append(torch.bmm(powers[-1], steps))
    for power in powers:
        yield power.diagonal(dim1=1, dim2=2)
    for power in powers[:num_steps - num_kept]:
        yield (powers[-1] * power.mT).sum(2)


def _cut(sizes: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Cut the graphs, the smallest first, so that their padded matrices have at most `most` numbers, or one graph."""
    order = np.argsort(sizes, kind="stable")
    first = 0
    while first < len(order):
        # The matrices of the graphs up to each one, padded to its size, grow from graph to graph.
        padded = np.arange(1, len(order) - first + 1) * sizes[order[first:]].astype(np.int64) ** 2
        last = first + max(int(np.searchsorted(padded, most, side="right")), 1)
        yield order[first:last]
        first = last

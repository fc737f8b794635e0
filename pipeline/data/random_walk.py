"""Where a node stands in its graph: the probabilities that a random walk from it is back after 1, 2, ... steps."""

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.pipeline.data.dense_graphs import each_block

# Equal parts of [0, 1] that a probability is told apart by, where the other features of nodes are categories.
LEVELS = 32
# Rounding must not move a probability that is a multiple of 1 / LEVELS to the level below.
ROUNDING = 1e-9


def return_probabilities(
    edge_index: EdgeIndex,
    ptr: Int[Tensor, " num_graphs_plus_1"],
    num_steps: int,
    convert: Callable[[Tensor], Tensor] = Tensor.float,
) -> Tensor:
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
    num_nodes, num_kept = int(ptr[-1]), math.ceil(num_steps / 2)
    share = 1 / torch.bincount(edge_index.as_tensor()[0], minlength=num_nodes).double()
    out = convert(torch.empty(0, num_steps, dtype=torch.float64)).new_empty(num_nodes, num_steps)
    for block in each_block(
        edge_index,
        ptr,
        num_kept + 2,
        f"data.random_walk={num_steps}",
        mend="set it to null, or lower it",
    ):
        steps = block.matrices().index_put_(block.place, share[block.source], accumulate=True)
        found = torch.stack(list(_diagonals(steps, num_steps, num_kept)), dim=2)
        out[block.nodes] = convert(found[block.is_node])
    return out


def as_levels(
    probabilities: Float[Tensor, "num_nodes num_steps"],
) -> UInt8[Tensor, "num_nodes num_steps"]:
    """Make categories of probabilities: the numbers of the :data:`LEVELS` equal parts of [0, 1] that they lie in."""
    return ((probabilities + ROUNDING) * LEVELS).clamp(max=LEVELS - 1).to(torch.uint8)


def _diagonals(steps: Tensor, num_steps: int, num_kept: int) -> Iterator[Tensor]:
    """Compute the diagonals of the powers 1 to `num_steps`; those of large ones from two smaller powers."""
    powers = [steps]
    for _ in range(num_kept - 1):
        powers.append(torch.bmm(powers[-1], steps))
    for power in powers:
        yield power.diagonal(dim1=1, dim2=2)
    for power in powers[: num_steps - num_kept]:
        yield (powers[-1] * power.mT).sum(2)

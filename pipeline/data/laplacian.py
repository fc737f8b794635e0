"""Where a node stands in its graph: its entries in eigenvectors of the graph's Laplacian."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.pipeline.data.dense_graphs import each_block

# Levels of an entry on each side of 0, where the other features of nodes are categories, and the entry of the last.
SIDE, LARGEST = 16, 2.0
LEVELS = 2 * SIDE + 1
# An eigenvalue below this is 0, and entries that differ by less are equal.
ZERO = 1e-6
# Eigenvalues lie between 0 and 2; this is that of the rows which pad a matrix.
_PADDING = 4.0


def laplacian_eigenvectors(
    edge_index: EdgeIndex,
    ptr: Int[Tensor, " num_graphs_plus_1"],
    num_vectors: int,
    convert: Callable[[Tensor], Tensor] = Tensor.float,
) -> Tensor:
    """Compute eigenvectors of the Laplacian of each graph, of the smallest eigenvalues above 0.

    The Laplacian is ``I - D^-1/2 A D^-1/2``; A is 1 for two nodes with an edge in either direction. These are the
    "LapPE" of Dwivedi et al. 2023 (https://arxiv.org/abs/2003.00982). A vector is scaled to a mean square of 1 over the
    nodes of its graph. Both it and its negative are eigenvectors; the largest entry is positive here, the first of
    several. Where eigenvalues are equal, the vectors are one basis of several.

    Args:
        edge_index: of all graphs, sorted by destination.
        ptr: where the nodes of each graph begin.
        convert: makes what is returned of the entries of some nodes, float64.

    Returns:
        [num_nodes, num_vectors]; columns are 0 in graphs that have fewer vectors.

    Raises:
        ValueError: the matrix of a graph does not fit into memory.
    """
    out = convert(torch.zeros(1, num_vectors, dtype=torch.float64)).repeat(int(ptr[-1]), 1)
    for block in each_block(edge_index, ptr, 4, f"data.laplacian={num_vectors}"):
        graph, source, target = block.place
        other, matrices = source != target, block.matrices()
        matrices[graph[other], source[other], target[other]] = 1
        matrices = torch.maximum(matrices, matrices.mT)
        scale = matrices.sum(2).rsqrt()
        scale[scale.isinf()] = 0
        matrices.mul_(-scale.unsqueeze(1)).mul_(scale.unsqueeze(2))
        matrices.diagonal(dim1=1, dim2=2).copy_(
            torch.where(block.is_node, (scale > 0).double(), _PADDING)
        )
        out[block.nodes] = convert(
            _first_vectors(matrices, block.is_node, num_vectors)[block.is_node]
        )
    return out


def as_levels(
    entries: Float[Tensor, "num_nodes num_vectors"],
) -> UInt8[Tensor, "num_nodes num_vectors"]:
    """Make categories of entries: 0 to 2 SIDE for -LARGEST to LARGEST. The negative of a level is 2 SIDE minus it."""
    return (entries / LARGEST).clamp(-1, 1).mul(SIDE).round().add(SIDE).to(torch.uint8)


def flip(x: Tensor, signs: Int[Tensor, "num_nodes num_vectors"]) -> Tensor:
    """Multiply the last columns of features, entries or their levels, by signs of 1 and -1."""
    own, entries = x[:, : -signs.size(1)], x[:, -signs.size(1) :]
    flipped = (
        entries * signs
        if x.is_floating_point()
        else torch.where(signs < 0, 2 * SIDE - entries, entries)
    )
    return torch.cat([own, flipped.to(x.dtype)], dim=1)


def _first_vectors(matrices: Tensor, is_node: Tensor, num_vectors: int) -> Tensor:
    """Return the vectors of the smallest eigenvalues above 0, [num_graphs, width, num_vectors]."""
    values, vectors = torch.linalg.eigh(matrices)
    width = values.size(1)
    first = (values < ZERO).sum(1, keepdim=True)
    column = first + torch.arange(num_vectors)
    there = column < is_node.sum(1, keepdim=True)
    column = column.clamp(max=width - 1).unsqueeze(1).expand(-1, width, -1)
    found = (
        vectors.gather(2, column)
        * there.unsqueeze(1)
        * is_node.sum(1).double().sqrt().view(-1, 1, 1)
    )
    size = found.abs()
    # The first of the entries that are the largest but for rounding.
    place = (size >= size.amax(1, keepdim=True) - ZERO).int().argmax(1, keepdim=True)
    return found * torch.where(found.gather(1, place) < 0, -1.0, 1.0)

"""Where a node stands in its graph: PyG's encodings by random walks and by eigenvectors of the graph's Laplacian."""

from itertools import pairwise

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from parallel_epochs.pipeline.run import pulse

# Levels of an entry in an eigenvector on each side of 0, and the entry of the last one.
SIDE, LARGEST = 16, 2.0
# Levels of each encoding, where the other features of nodes are categories.
LEVELS = {"random_walk": 32, "laplacian": 2 * SIDE + 1}
# Rounding must not move a probability that is a multiple of 1 / 32 to the level below.
ROUNDING = 1e-5
# Entries whose sizes differ by less are equal.
EQUAL = 1e-5


def encode(
    name: str, edge_index: EdgeIndex, ptr: Int[Tensor, " num_graphs_plus_1"], num_columns: int
) -> Float[Tensor, "num_nodes num_columns"]:
    """Compute an encoding of the nodes of many graphs.

    Args:
        name: "random_walk", the probabilities that a walk, which goes to each neighbour alike, is back after 1 to
            `num_columns` steps; or "laplacian",
            entries in as many eigenvectors, which have a mean square of 1 over the graph and a positive largest entry.
        edge_index: of all graphs, sorted by destination.
        ptr: where the nodes of each graph begin.
    """
    compute = {"random_walk": _walk, "laplacian": _decompose}[name]
    edges = edge_index.as_tensor().long()
    ends = torch.searchsorted(edges[1].contiguous(), ptr).tolist()
    out = torch.zeros(int(ptr[-1]), num_columns)
    with torch.random.fork_rng(devices=[]):  # PyG draws signs, which mean nothing here
        for (first, last), (begin, end) in zip(pairwise(ptr.tolist()), pairwise(ends), strict=True):
            found = compute(edges[:, begin:end] - first, last - first, num_columns)
            out[first:last, : found.size(1)] = found
            pulse.renew()
    return out


def _walk(edges: Tensor, num_nodes: int, num_steps: int) -> Tensor:
    graph = Data(edge_index=coalesce(edges, num_nodes=num_nodes), num_nodes=num_nodes)
    return AddRandomWalkPE(num_steps)(graph).random_walk_pe


def _decompose(edges: Tensor, num_nodes: int, num_vectors: int) -> Tensor:
    edges = to_undirected(remove_self_loops(edges)[0], num_nodes=num_nodes)
    transform = AddLaplacianEigenvectorPE(min(num_vectors, num_nodes - 1), is_undirected=True)
    transform.SPARSE_THRESHOLD = num_nodes + 1  # sparse eigenvectors depend on a random beginning
    graph = transform(Data(edge_index=edges, num_nodes=num_nodes))
    found = graph.laplacian_eigenvector_pe
    size = found.abs()
    place = (size >= size.amax(0) - EQUAL).int().argmax(0, keepdim=True)
    return found * torch.where(found.gather(0, place) < 0, -1, 1) * num_nodes**0.5


def as_levels(
    name: str, values: Float[Tensor, "num_nodes num_columns"]
) -> UInt8[Tensor, "num_nodes num_columns"]:
    """Make categories of an encoding: equal parts of [0, 1], or of -2 to 2."""
    if name == "laplacian":
        return (values / LARGEST).clamp(-1, 1).mul(SIDE).round().add(SIDE).to(torch.uint8)
    num_levels = LEVELS[name]
    return ((values + ROUNDING) * num_levels).clamp(max=num_levels - 1).to(torch.uint8)


def flip(x: Tensor, signs: Int[Tensor, "num_nodes num_vectors"]) -> Tensor:
    """Multiply the last columns of features, entries in eigenvectors or their levels, by signs of 1 and -1."""
    own, entries = x[:, : -signs.size(1)], x[:, -signs.size(1) :]
    if x.is_floating_point():
        return torch.cat([own, entries * signs], dim=1)
    flipped = torch.where(signs < 0, 2 * SIDE - entries, entries)
    return torch.cat([own, flipped.to(x.dtype)], dim=1)

"""The adjacency matrices of many small graphs, some at a time, as dense matrices that are padded to one size."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.pipeline.graph.union import expand
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.memory import format_bytes, machine_memory

# Numbers of the matrices that are there at a time.
NUMBERS = 1 << 24


@dataclass(frozen=True)
class Block:
    """Some graphs of a union, and where their edges stand in padded matrices [num_graphs, width, width].

    Attributes:
        nodes: their nodes in the union, graph by graph [num_nodes].
        is_node: which rows of the matrices are nodes, in the order of `nodes` [num_graphs, width].
        place: graph, source and destination of each edge within the matrices.
        source: of each edge, in the union.
    """

    nodes: Int[Tensor, " num_nodes"]
    is_node: Bool[Tensor, "num_graphs width"]
    place: tuple[Tensor, Tensor, Tensor]
    source: Int[Tensor, " num_edges"]

    def matrices(self) -> Tensor:
        """Return matrices of zeros, float64."""
        return torch.zeros(*self.is_node.shape, self.is_node.size(1), dtype=torch.float64)


def each_block(
    edge_index: EdgeIndex,
    ptr: Int[Tensor, " num_graphs_plus_1"],
    num_matrices: int,
    setting: str,
    *,
    mend: str = "leave it out",
) -> Iterator[Block]:
    """Cut a union of graphs into blocks whose matrices fit into memory, the smallest graphs first.

    Args:
        edge_index: of all graphs, sorted by destination.
        ptr: where the nodes of each graph begin.
        num_matrices: how many float64 matrices the caller has of each graph at a time.
        setting: key and value that ask for it, as "data.random_walk=4", for the error.
        mend: what the error asks for.

    Raises:
        ValueError: the matrices of a graph do not fit into memory.
    """
    sizes, first_node = np.diff(ptr.numpy()), ptr.numpy()[:-1]
    largest = int(sizes.max(initial=0))
    if (needed := 8 * largest**2 * num_matrices) > machine_memory() // 2:
        raise ValueError(
            f"{setting}: a graph of {largest:,} nodes takes {format_bytes(needed)}, but this machine has "
            f"{format_bytes(machine_memory())}: {mend}"
        )
    src, dst = edge_index.as_tensor()
    first_edge = torch.searchsorted(dst, ptr.to(dst.dtype)).numpy()
    for graphs in _cut(sizes, NUMBERS // num_matrices):
        pulse.renew()
        first, size = first_node[graphs], sizes[graphs]
        edges, edge_ptr = expand(first_edge[graphs], first_edge[graphs + 1])
        graph = torch.arange(len(graphs)).repeat_interleave(torch.from_numpy(np.diff(edge_ptr)))
        source, target = (part[torch.from_numpy(edges)].long() for part in (src, dst))
        begin = torch.from_numpy(first)[graph]
        nodes, _ = expand(first, first + size)
        yield Block(
            torch.from_numpy(nodes),
            torch.arange(int(size.max())) < torch.from_numpy(size).unsqueeze(1),
            (graph, source - begin, target - begin),
            source,
        )


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

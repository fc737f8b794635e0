"""Random walks on a graph, and the pairs of nodes that lie close together on them.

The walks of DeepWalk (https://arxiv.org/abs/1403.6652) and, by rejection instead of a table for every edge, of
node2vec (https://arxiv.org/abs/1607.00653); pairs are drawn on the fly as in GraphVite
(https://arxiv.org/abs/1903.00757). A walk is a function of a key and its number alone: no draw depends on threads or on
the walks before it.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.models.kernels.layout import read_structure
from parallel_epochs.models.kernels.native import NativeLibrary, pointer
from parallel_epochs.pipeline.graph.edges import transpose
from parallel_epochs.pipeline.graph.node_parts import NodeParts

WalkProblem = read_structure(Path(__file__).with_name("walks.cpp"), "WalkProblem")
LIBRARY = NativeLibrary(
    "random walks", Path(__file__).with_name("walks.cpp"), otherwise="there are no walks then"
)
# Walks are divided into so many chunks. The order of pairs depends on it, and not on the number of threads.
NUM_CHUNKS = 64
# A node is drawn as a negative with a probability proportional to this power of its degree.
EXPONENT = 0.75


def alias_tables(ptr: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Build tables to draw from rows of weights in constant time (Vose's alias method).

    Args:
        ptr: where each row begins [num_rows + 1], int64.
        weight: not negative [ptr[-1]], float32.

    Returns:
        The probability to keep a place that was drawn evenly [ptr[-1]], float32; and the place in its row, from 0, that
        is taken instead [ptr[-1]], int32.
    """
    accept, alias = torch.empty_like(weight), torch.empty(weight.numel(), dtype=torch.int32)
    library().walks_alias(
        pointer(ptr),
        _int(ptr.numel() - 1),
        pointer(weight),
        _int(torch.get_num_threads()),
        pointer(accept),
        pointer(alias),
    )
    return accept, alias


def negative_tables(ptr: Tensor, degree: Tensor) -> tuple[Tensor, Tensor]:
    """Build the tables from which negatives are drawn, in proportion to a power of the degree.

    Args:
        ptr: where each partition begins [num_parts + 1], int64.
        degree: of each row [ptr[-1]], not negative.

    Returns:
        See :func:`alias_tables`.
    """
    return alias_tables(ptr, degree.double().pow(EXPONENT).float().contiguous())


@dataclass
class Pairs:
    """Pairs of nodes in blocks.

    Attributes:
        pairs: rows of head and tail, each in its partition [num_pairs, 2], int32.
        ptr: those of head partition i and tail partition j are pairs[ptr[i, j]:ptr[i, j] + counts[i, j]].
        counts: pairs of each block [num_parts, num_parts].
    """

    pairs: Tensor
    ptr: np.ndarray
    counts: np.ndarray


class WalkSampler:
    """Draws walks.

    Args:
        edge_index: sorted by destination; a walk goes from the source of an edge to its destination.
        weight: of the edges, not negative, float32; none: all alike.
        length: steps of a walk.
        p: a walk of node2vec goes back in proportion to 1/p,
        q: and away from the neighbours of the last node in proportion to 1/q.
        symmetric: whether each edge is known to have its reverse, which spares sorting them.
        random_starts: whether walks begin at random nodes, in proportion to the weight of their edges, so that their
            steps are random edges; otherwise at each node that has an edge in turn.

    Raises:
        ValueError: no edge has a weight above 0.
    """

    def __init__(
        self,
        edge_index: EdgeIndex,
        weight: Tensor | None = None,
        *,
        length: int,
        p: float = 1.0,
        q: float = 1.0,
        symmetric: bool = False,
        random_starts: bool = False,
    ):
        if symmetric and weight is None:
            (ptr, neighbor), perm = (
                edge_index.get_csc()[0],
                None,
            )  # the sources of a node are its destinations
        else:
            (ptr, neighbor), perm = transpose(edge_index).get_csr()
        self.length, self.num_nodes = length, ptr.numel() - 1
        self._ptr, self._neighbor = ptr.long().contiguous(), neighbor.int().contiguous()
        degree = self._ptr.diff()
        self.starts = degree.nonzero().squeeze(1).int()
        tensors: dict[str, Tensor] = {
            "ptr": self._ptr,
            "neighbor": self._neighbor,
            "starts": self.starts,
        }
        strength = degree.double()
        if weight is not None:
            tensors["weight"] = weight.float()[perm].contiguous()
            strength = tensors["strength"] = torch.segment_reduce(
                tensors["weight"].double(), "sum", offsets=self._ptr, initial=0
            )
            # A walk cannot leave a node by edges that all weigh nothing.
            tensors["starts"] = self.starts = (strength > 0).nonzero().squeeze(1).int()
            tensors["accept"], tensors["alias"] = alias_tables(self._ptr, tensors["weight"])
        if not self.starts.numel():
            raise ValueError(
                f"no walk can begin: none of the {neighbor.numel():,} edges has a weight above 0. Choose "
                "another graph, or hold out fewer of its edges"
            )
        if random_starts:
            whole = torch.tensor([0, self.starts.numel()])
            tensors["start_accept"], tensors["start_alias"] = alias_tables(
                whole, strength[self.starts.long()].float().contiguous()
            )
        self._tensors = tensors
        self._options = {
            "num_nodes": self.num_nodes,
            "num_starts": self.starts.numel(),
            "length": length,
            "p": p,
            "q": q,
            "random_starts": random_starts,
        }

    def draw(self, first: int, num_walks: int, key: int, *, num_threads: int = 1) -> Tensor:
        """Draw the walks number `first` and those after it.

        Args:
            key: 64 bits, of which every random number is a hash.

        Returns:
            Nodes [num_walks, length + 1], int32; -1 behind a node that no edge leaves.
        """
        walks = torch.empty(num_walks, self.length + 1, dtype=torch.int32)
        pointers = {name: tensor.data_ptr() for name, tensor in self._tensors.items()}
        problem = WalkProblem(**self._options, key=key, num_threads=num_threads, **pointers)
        library().walks_draw(ctypes.byref(problem), _int(first), _int(num_walks), pointer(walks))
        return walks


def collect_pairs(
    walks: Tensor, parts: NodeParts, *, distance: int, both: bool, num_threads: int = 1
) -> Pairs:
    """Collect the pairs of nodes at most `distance` steps apart on a walk, sorted by the partitions of the two.

    Args:
        walks: [num_walks, nodes], int32, -1 behind the last node of each.
        both: also the later with the earlier one, not only the earlier with the later.
    """
    num_parts = parts.num_parts
    counts = np.zeros((NUM_CHUNKS, num_parts, num_parts), np.int64)

    def call(offsets: np.ndarray, pairs: Tensor | None) -> None:
        library().walks_pairs(
            pointer(walks),
            _int(walks.size(0)),
            _int(walks.size(1)),
            _int(distance),
            _int(both),
            pointer(parts.row),
            pointer(parts.ptr),
            pointer(parts.part),
            _int(num_parts),
            _int(NUM_CHUNKS),
            _int(num_threads),
            ctypes.c_void_p(offsets.ctypes.data),
            None if pairs is None else pointer(pairs),
        )

    call(counts, None)
    # Block by block, and in each chunk by chunk.
    by_block = counts.reshape(NUM_CHUNKS, -1).T
    ends = by_block.cumsum().reshape(by_block.shape)
    offsets = np.ascontiguousarray((ends - by_block).T)
    first = offsets[0].reshape(num_parts, num_parts).copy()
    pairs = torch.empty(int(counts.sum()), 2, dtype=torch.int32)
    call(offsets, pairs)
    return Pairs(pairs, first, counts.sum(0))


def library() -> ctypes.CDLL:
    """Return the compiled functions.

    Raises:
        ValueError: they cannot be compiled here; the message says why.
    """
    return LIBRARY.require("embeddings are trained")


def _int(number: int) -> ctypes.c_int64:
    return ctypes.c_int64(int(number))

"""Clusters of a graph on disk: one pass over its edges, in their order, hands each cluster its part."""

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.kernels.native import NativeLibrary, pointer
from parallel_epochs.pipeline.graph.edges import counting_sort
from parallel_epochs.pipeline.graph.partition import Partition, Quality, assignment
from parallel_epochs.pipeline.graph.reading import BLOCK_BYTES, edge_blocks, read_rows
from parallel_epochs.pipeline.graph.subgraph import attach_nodes, induce_sorted
from parallel_epochs.pipeline.graph.waiting import Selected, Waiting
from parallel_epochs.pipeline.run.memory import machine_memory

LIBRARY = NativeLibrary(
    "streamed clusters", Path(__file__).with_name("stream.cpp"), otherwise="numpy selects instead"
)


def buffer_bytes() -> int:
    """Return the bytes of clusters to come that stay in memory if nothing else is said: 1 GiB, or a sixteenth of the
    machine's memory.
    """
    return min(1 << 30, machine_memory() // 16)


def waiting_bytes(data: Data, num_edges: float) -> float:
    """Return the bytes that a pass holds in memory: clusters to come, and blocks of what is read.

    Args:
        num_edges: within the clusters.
    """
    buffer, attr = buffer_bytes(), data.edge_attr
    features = 0 if attr is None else attr.size(1) * attr.element_size()
    x = 0 if data.x is None else data.x.numel() * data.x.element_size()
    blocks = 2 * min(data.num_edges * (data.edge_index.element_size() + features), BLOCK_BYTES)
    return min(num_edges * (8 + features), buffer) + (buffer if x > buffer else 0) + blocks


class ClusterStream:
    """Builds the subgraphs that clusters induce, of a graph that lies in a store.

    They are those of :func:`pipeline.graph.subgraph.induced_subgraph`, bit for bit. Memory holds 8 bytes a node, two
    blocks of the edges, a cluster, and what waits for the clusters to come: of E edges those within some cluster, E
    divided by the number of clusters if they are random. What exceeds `buffer` bytes waits in a file without a name.

    Args:
        data: the graph, as :func:`pipeline.data.graph.open_graph` returns it.
        spill: a folder for what exceeds `buffer`.
        buffer: bytes; :func:`buffer_bytes` if not given.
        block: bytes that are read at a time.
    """

    def __init__(
        self,
        data: Data,
        *,
        spill: Path,
        buffer: int | None = None,
        block: int = BLOCK_BYTES,
    ):
        self._data, self._spill, self._block = data, spill, block
        self._buffer = buffer_bytes() if buffer is None else buffer

    def induce(self, partition: Partition, clusters: Sequence[int]) -> Iterator[Data]:
        """Build the subgraphs of some clusters in turn, with ``n_id``; one that comes again takes another pass.

        Raises:
            FileError: the store cannot be read, or there is no room for what waits.
        """
        first = 0
        while first < len(clusters):
            seen: set[int] = set()
            while first + len(seen) < len(clusters) and clusters[first + len(seen)] not in seen:
                seen.add(clusters[first + len(seen)])
            yield from self._pass(partition, clusters[first : first + len(seen)])
            first += len(seen)

    def measure(self, partition: Partition, seconds: float) -> Quality:
        """Count the edges that a partition keeps, in one pass over their ends; see
        :func:`pipeline.graph.partition.measure_partition`.
        """
        part, kept = assignment(partition), np.zeros(partition.num_parts, np.int64)
        for first, ptr, src in edge_blocks(self._data, self._block):
            _, _, owner, _ = _select(src, ptr, first, part, part)
            kept += np.bincount(owner, minlength=partition.num_parts)
        return Quality(partition.ptr.diff().tolist(), kept.tolist(), self._data.num_edges, seconds)

    def _pass(self, partition: Partition, clusters: Sequence[int]) -> Iterator[Data]:
        """Build the subgraphs of different clusters in one pass."""
        part = np.full(self._data.num_nodes, -1, np.int32)
        local = np.empty(self._data.num_nodes, np.int32)
        for place, cluster in enumerate(clusters):
            nodes = np.sort(partition.nodes(cluster).numpy())
            part[nodes], local[nodes] = place, np.arange(len(nodes), dtype=np.int32)
        with contextlib.ExitStack() as stack:
            waiting = stack.enter_context(Waiting(self._spill, self._buffer))
            for selected in self._select_edges(part, local, len(clusters)):
                waiting.add(selected)
            features = self._select_features(part, len(clusters), stack)
            del part, local
            for place, cluster in enumerate(clusters):
                yield self._build(
                    partition.nodes(cluster),
                    waiting.take(place),
                    None if features is None else features.take(place)[0],
                )

    def _build(self, nodes: Tensor, edges: list[np.ndarray], x: np.ndarray | None) -> Data:
        """Build the subgraph of a cluster: as a graph of its nodes in ascending order first, then in the order given."""
        src, dst, *attr = edges
        order = torch.empty_like(nodes)
        order[nodes.argsort()] = torch.arange(len(nodes))
        batch = induce_sorted(src, dst, attr[0] if attr else None, order)
        return attach_nodes(
            batch,
            self._data,
            nodes,
            None if x is None else torch.from_numpy(x).index_select(0, order),
        )

    def _select_edges(
        self, part: np.ndarray, local: np.ndarray, num_parts: int
    ) -> Iterator[Selected]:
        """Read the edges once, in order; of each block yield those within a cluster: source, destination, features."""
        for first, ptr, src, *attr in edge_blocks(self._data, self._block, features=True):
            *ends, owner, position = _select(src, ptr, first, part, local)
            order, ptr_of_parts = counting_sort(owner, num_parts)
            position = position[order]
            yield Selected(
                ptr_of_parts, [end[order] for end in ends] + [values[position] for values in attr]
            )

    def _select_features(
        self, part: np.ndarray, num_parts: int, stack: contextlib.ExitStack
    ) -> Waiting | None:
        """Read the features of all nodes once, in order; none if they are so few that each cluster fetches its own."""
        x = self._data.x
        if x is None or x.numel() * x.element_size() <= self._buffer:
            return None
        rows = max(self._block // (x.size(1) * x.element_size()), 1)
        spans = [(first, min(first + rows, len(part))) for first in range(0, len(part), rows)]
        waiting = stack.enter_context(Waiting(self._spill, self._buffer))
        for (first, last), (values,) in zip(
            spans, read_rows(self._data.store, {"x": x}, spans), strict=True
        ):
            asked = np.flatnonzero(part[first:last] >= 0)
            order, ptr = counting_sort(part[first:last][asked], num_parts)
            waiting.add(Selected(ptr, [values[asked[order]]]))
        return waiting


def _select(
    src: np.ndarray, ptr: np.ndarray, first: int, part: np.ndarray, local: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Select the edges of a block that lie within a cluster.

    Args:
        src: sources of the block's edges.
        ptr: where the edges of each of its destinations begin in it, int64.
        first: the first destination.
        part: cluster of each node, negative for those not asked for, [num_nodes], int32.
        local: number of each node in its cluster, [num_nodes], int32.

    Returns:
        Sources and destinations by their numbers in the cluster, the cluster, and the position in the block, int32.
    """
    library = LIBRARY.get()
    if library is None:
        owner = np.repeat(part[first : first + len(ptr) - 1], np.diff(ptr))
        position = np.flatnonzero((part[src] == owner) & (owner >= 0))
        dst = np.repeat(local[first : first + len(ptr) - 1], np.diff(ptr))
        return local[src[position]], dst[position], owner[position], position.astype(np.int32)
    select = library.stream_select_32 if src.dtype == np.int32 else library.stream_select_64
    select.restype = ctypes.c_int64
    out = np.empty((4, len(src) + 1), np.int32)
    arrays = [torch.from_numpy(array) for array in (src, ptr, part, local, *out)]
    kept = select(
        pointer(arrays[0]),
        pointer(arrays[1]),
        ctypes.c_int64(first),
        ctypes.c_int64(len(ptr) - 1),
        *map(pointer, arrays[2:]),
    )
    return out[0, :kept], out[1, :kept], out[2, :kept], out[3, :kept]

"""A graph on disk with its nodes in the order of micro-clusters: a cluster of them is a few contiguous reads."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.graph import store
from parallel_epochs.pipeline.graph.edges import counting_sort
from parallel_epochs.pipeline.graph.partition import Partition
from parallel_epochs.pipeline.graph.ranges import check_ends, check_numbers
from parallel_epochs.pipeline.graph.reading import Reader, edge_blocks
from parallel_epochs.pipeline.graph.subgraph import attach_nodes, induce_sorted
from parallel_epochs.pipeline.graph.waiting import Selected, Waiting
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.errors import DamagedFile

log = logging.getLogger(__name__)


class LaidOut:
    """Reads clusters that were put together of micro-clusters, from a copy of the graph in their order.

    Each destination's edges keep the order that they have in the graph, so that the subgraphs are those of
    :func:`pipeline.graph.subgraph.induced_subgraph`, bit for bit.

    Args:
        data: the graph in its store, with ``content_hash``.
        micro: the micro-clusters.
        folder: where the copy is kept, under digests of the graph and of the micro-clusters.
        spill, buffer: see :class:`pipeline.graph.stream.ClusterStream`.
    """

    def __init__(self, data: Data, micro: Partition, folder: Path, *, spill: Path, buffer: int):
        self._data, self._order = data, micro.perm
        self._place = np.empty(data.num_nodes, np.int32)
        self._place[micro.perm.numpy()] = np.arange(data.num_nodes, dtype=np.int32)
        self._num_runs = micro.num_parts
        self._spill, self._buffer = spill, buffer
        digest = hashlib.blake2b(self._place.data, digest_size=8)
        digest.update(data.store.name.encode())  # components of a graph have its hash
        self.path = (
            folder / f"laid-out-{data.get('content_hash', 'graph')}-{digest.hexdigest()}.store"
        )

    def holds(self, partition: Partition) -> bool:
        """Tell whether the clusters of a partition are made of these micro-clusters."""
        positions = self._place[partition.perm.numpy()]
        return int((np.diff(positions) != 1).sum()) < self._num_runs

    def write(self) -> None:
        """Write the copy, unless it is there.

        Raises:
            FileError: there is no room for it, or it cannot be written.
        """
        if store.is_store(self.path):
            try:
                return self._check()
            except DamagedFile as error:
                log.warning("%s; laying the graph out again", error)
        log.info(
            "graph: laying it out by %s micro-clusters in %s", f"{self._num_runs:,}", self.path
        )
        with store.StoreWriter(self.path, self.path.name) as writer:
            indptr = torch.zeros(self._data.num_nodes + 1, dtype=torch.int64)
            torch.cumsum(
                self._data.edge_index.get_csc()[0][0].diff()[self._order], 0, out=indptr[1:]
            )
            writer.put("indptr", indptr)
            if not writer.has("src"):
                self._write_edges(writer, indptr.numpy())
            x = store.open_store(self._data.store, verify=False)[0]["x"]
            store.write_rows(writer, "x", x, self._order)
            writer.finish({})

    def _check(self) -> None:
        """Refuse numbers out of range in a copy that is there."""
        arrays, _ = store.open_store(self.path)

        def check() -> None:
            check_ends(self.path, "indptr", arrays["indptr"], self._data.num_edges, "edges")
            check_numbers(self.path, "src", arrays["src"], self._data.num_nodes, "node")

        store.check_once(self.path, ("indptr", "src"), check)

    def _write_edges(self, writer: store.StoreWriter, indptr: np.ndarray) -> None:
        """Hand the edges to groups of places that fit into memory, in one pass; then sort each and write it."""
        num_edges, attr = self._data.num_edges, self._data.edge_attr
        row_bytes = 8 + (0 if attr is None else attr.size(1) * attr.element_size())
        num_groups = max(-(-num_edges * row_bytes * 2 // max(self._buffer, 1)), 1)
        num_groups = min(num_groups, len(indptr) - 1, 4096)
        bounds = np.searchsorted(indptr, np.arange(num_groups + 1) * num_edges // num_groups)
        bounds[0], bounds[-1] = 0, len(indptr) - 1
        shapes = {"src": ((num_edges,), torch.int32)}
        if attr is not None:
            shapes["edge_attr"] = (tuple(attr.shape), attr.dtype)
        with writer.write(**shapes) as arrays, Waiting(self._spill, self._buffer) as waiting:
            for first, ptr, src, *features in edge_blocks(self._data, features=True):
                place = self._place[first : first + len(ptr) - 1]
                dst = np.repeat(place, np.diff(ptr))
                order, ptr_of_groups = counting_sort(
                    np.searchsorted(bounds, dst, side="right") - 1, num_groups
                )
                waiting.add(
                    Selected(
                        ptr_of_groups,
                        [
                            self._place[src][order],
                            dst[order],
                            *(values[order] for values in features),
                        ],
                    )
                )
            for group, (first, last) in enumerate(pairwise(bounds)):
                src, dst, *features = waiting.take(group)
                order, _ = counting_sort(dst - first, max(int(last - first), 1))
                arrays["src"].write(int(indptr[first]), src[order])
                for values in features:
                    arrays["edge_attr"].write(int(indptr[first]) * values.shape[1], values[order])
                pulse.renew()

    def induce(self, partition: Partition, clusters: Sequence[int]) -> Iterator[Data]:
        """Build the subgraphs of some clusters in turn, with ``n_id``.

        Raises:
            FileError: the copy cannot be read.
        """
        arrays, _ = store.open_store(self.path)
        indptr = arrays["indptr"]
        local = np.full(len(self._place), -1, np.int32)
        runs = [_runs(self._place[partition.nodes(cluster).numpy()]) for cluster in clusters]
        rows = [run for runs_of_cluster in runs for run in runs_of_cluster]
        edges: dict[str, Tensor] = {
            name: arrays[name] for name in ("src", "edge_attr") if name in arrays
        }
        features = (
            {} if self._data.x is None else {"x": arrays["x"]}
        )  # which a learned table may stand in place of
        with Reader(self.path, edges) as edge_reader, Reader(self.path, features) as node_reader:
            edge_runs = edge_reader.read(
                [(int(indptr[first]), int(indptr[last])) for first, last in rows]
            )
            node_runs = node_reader.read(rows)
            for cluster, runs_of_cluster in zip(clusters, runs):
                src, *attr = (
                    np.concatenate(values)
                    for values in zip(*(next(edge_runs) for _ in runs_of_cluster))
                )
                x = [
                    np.concatenate(values)
                    for values in zip(*(next(node_runs) for _ in runs_of_cluster))
                ]
                degrees = np.concatenate(
                    [indptr[first : last + 1].diff().numpy() for first, last in runs_of_cluster]
                )
                nodes = partition.nodes(cluster)
                batch = _induce(self._place[nodes.numpy()], degrees, src, attr, local)
                yield attach_nodes(batch, self._data, nodes, torch.from_numpy(x[0]) if x else None)


def _induce(
    rows: np.ndarray,
    degrees: np.ndarray,
    src: np.ndarray,
    attr: list[np.ndarray],
    local: np.ndarray,
) -> Data:
    """Build a subgraph of all edges into some places.

    Args:
        local: -1 everywhere, here and afterwards, [num_nodes].
    """
    local[rows] = np.arange(len(rows), dtype=np.int32)
    local_src = local[src]
    local[rows] = -1
    kept = np.flatnonzero(local_src >= 0)
    dst = np.repeat(np.arange(len(rows), dtype=np.int32), degrees)[kept]
    return induce_sorted(
        local_src[kept], dst, attr[0][kept] if attr else None, torch.arange(len(rows))
    )


def _runs(rows: np.ndarray) -> list[tuple[int, int]]:
    """Divide places into runs of consecutive ones: the first of each, and the place behind its last."""
    ends = np.flatnonzero(np.diff(rows) != 1) + 1
    return [
        (int(rows[first]), int(rows[last - 1]) + 1)
        for first, last in pairwise([0, *ends.tolist(), len(rows)])
    ]

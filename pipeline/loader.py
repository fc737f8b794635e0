"""Clusters to batches, drawn by a thread in the background while the device works on the ones before."""

import queue
import threading
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch_geometric.data import Data

from pipeline import graph
from pipeline.partition import Partition


class ClusterLoader:
    """Builds the batches of a partition: the subgraphs that its clusters induce.

    A batch is a ``Data`` with ``n_id`` (numbers of its nodes in the graph), ``cluster`` (its place in the partition),
    and an int64 ``EdgeIndex`` sorted by destination with CSC and CSR filled, which any PyG layer takes. All batches
    of a partition together cost one pass over the edges.

    Args:
        data: a graph whose ``edge_index`` is an ``EdgeIndex`` sorted by destination.
        pin_memory: put the batches into page-locked memory, for a GPU to copy from.
    """

    def __init__(self, data: Data, *, pin_memory: bool = False):
        self.data = data
        self.pin_memory = pin_memory
        self._matrix = graph.adjacency(data.edge_index)
        self._whole: Data | None = None

    def batches(self, partition: Partition) -> Iterator[Data]:
        """The batch of each cluster in turn."""
        for cluster in range(partition.num_parts):
            yield self._whole_batch() if partition.num_parts == 1 else self._batch(partition.nodes(cluster), cluster)

    def _batch(self, nodes: Tensor, cluster: int) -> Data:
        # int64, since SAGEConv and GINConv of PyG 2.8 fail on an int32 EdgeIndex.
        batch = graph.induced_subgraph(self.data, nodes, self._matrix, dtype=torch.int64)
        graph.fill_transpose(batch.edge_index)
        batch.cluster = cluster
        return batch.pin_memory() if self.pin_memory else batch

    def _whole_batch(self) -> Data:
        """One cluster of all nodes is built once, in the nodes' own order: any other order would round differently."""
        if self._whole is None:
            self._whole = self._batch(torch.arange(self.data.num_nodes), 0)
        return self._whole


class BackgroundEpochs:
    """Draws and builds the epochs [first, last) in a thread, a few batches ahead of who consumes them.

    Use it in a ``with`` statement, which stops the thread. What goes wrong in the thread is raised by :meth:`epoch`.

    Args:
        draw: the partition of an epoch.
        prefetch: number of batches that may be ready and waiting.

    Attributes:
        busy_seconds: time that the thread needed for the epoch consumed last.
        wait_seconds: the part of it that the consumer had to wait.
    """

    def __init__(self, loader: ClusterLoader, draw: Callable[[int], Partition], first: int, last: int, *,
                 prefetch: int = 4):
        self._loader, self._draw, self._first, self._last = loader, draw, first, last
        self._queue: queue.Queue = queue.Queue(maxsize=prefetch)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="next-epoch", daemon=True)
        self.busy_seconds = self.wait_seconds = 0.0

    def __enter__(self) -> "BackgroundEpochs":
        self._thread.start()
        return self

    def __exit__(self, *exc) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def hidden(self) -> float:
        """Fraction of the thread's work of the last epoch that nobody had to wait for."""
        return 1 - min(self.wait_seconds / self.busy_seconds, 1) if self.busy_seconds else 1.0

    def epoch(self, epoch: int) -> Iterator[Data]:
        """The batches of the next epoch, which must be `epoch`."""
        self.busy_seconds = self.wait_seconds = 0.0
        while True:
            start = time.perf_counter()
            of_epoch, batch, seconds = self._queue.get()
            self.wait_seconds += time.perf_counter() - start
            if isinstance(batch, BaseException):
                raise batch
            assert of_epoch == epoch, f"epoch {epoch} was asked for, {of_epoch} is next"
            self.busy_seconds += seconds
            if batch is None:
                return
            yield batch

    def _produce(self) -> None:
        try:
            for epoch in range(self._first, self._last):
                start = time.perf_counter()
                batches = self._loader.batches(self._draw(epoch))
                while True:
                    batch = next(batches, None)
                    if not self._put((epoch, batch, time.perf_counter() - start)):
                        return
                    if batch is None:
                        break
                    start = time.perf_counter()
            # While this thread lives, the OpenMP runtime counts more threads than processors and spins only briefly. Were
            # it to end before the last epoch, that epoch would take 4 s instead of 0.16 s on a machine that is shared.
            self._stopped.wait()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer raises it
            self._put((None, error, 0.0))

    def _put(self, item: tuple) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

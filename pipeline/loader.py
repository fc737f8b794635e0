"""Clusters to batches, drawn by a thread in the background while the device works on the ones before."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch_geometric.data import Data

from pipeline import graph
from pipeline.partition import Partition

Draw = tuple[Partition, Iterable[int] | None]


class ClusterLoader:
    """Builds the batches of a partition: the subgraphs that its clusters induce.

    A batch is a ``Data`` with ``n_id`` (numbers of its nodes in the graph), ``cluster`` (its place in the partition),
    and an int64 ``EdgeIndex`` sorted by destination with CSC and CSR filled, which any PyG layer takes. All batches
    of a partition together cost one pass over the edges.

    Args:
        data: a graph whose ``edge_index`` is an ``EdgeIndex`` sorted by destination.
        device: where the batches will be used; for a GPU they are put into page-locked memory.
    """

    def __init__(self, data: Data, *, device: torch.device = torch.device("cpu")):
        self.data = data
        self.device = device
        self._whole: Data | None = None

    def batches(self, partition: Partition, clusters: Iterable[int] | None = None) -> Iterator[Data]:
        """The batch of each cluster in turn, or of those given."""
        for cluster in range(partition.num_parts) if clusters is None else clusters:
            yield self._whole_batch() if partition.num_parts == 1 else self._batch(partition.nodes(cluster), cluster)

    def _batch(self, nodes: Tensor, cluster: int) -> Data:
        # int64, since SAGEConv and GINConv of PyG 2.8 fail on an int32 EdgeIndex.
        batch = graph.induced_subgraph(self.data, nodes, dtype=torch.int64)
        batch.cluster = cluster
        return batch.pin_memory() if self.device.type == "cuda" else batch

    def _whole_batch(self) -> Data:
        """One cluster of all nodes is built once, in the nodes' own order: any other order would round differently."""
        if self._whole is None:
            self._whole = self._batch(torch.arange(self.data.num_nodes), 0)
        return self._whole


class BackgroundEpochs:
    """Draws and builds epochs in a thread, a few batches ahead of who consumes them.

    Use it in a ``with`` statement, which stops the thread. What goes wrong in the thread is raised by :meth:`epoch`.
    Beside a model on the CPU the thread computes alone, without OpenMP threads of its own: with those, OpenMP counts
    more threads than processors and puts the model's threads to sleep at every barrier.

    Args:
        draws: the number of each epoch, and a function that draws it: the partition, and which of its clusters to
            build (none for all).
        prefetch: number of batches that may be ready and waiting.

    Attributes:
        busy_seconds: time that the thread needed for the epoch consumed last.
        wait_seconds: the part of it that the consumer had to wait.
    """

    def __init__(self, loader: ClusterLoader, draws: Iterable[tuple[int, Callable[[], Draw]]], *, prefetch: int = 2):
        self._loader, self._draws = loader, draws
        self._queue: queue.Queue = queue.Queue(maxsize=prefetch)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="next-epoch", daemon=True)
        self._num_threads = torch.get_num_threads()
        self.busy_seconds = self.wait_seconds = 0.0

    def __enter__(self) -> "BackgroundEpochs":
        self._thread.start()
        return self

    def __exit__(self, *exc) -> None:
        self._stopped.set()
        self._thread.join()
        torch.set_num_threads(self._num_threads)

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
            if self._loader.device.type == "cpu":
                torch.set_num_threads(1)  # of this thread, and of threads that begin later
            for epoch, draw in self._draws:
                start = time.perf_counter()
                batches = self._loader.batches(*draw())
                while True:
                    batch = next(batches, None)
                    if not self._put((epoch, batch, time.perf_counter() - start)):
                        return
                    if batch is None:
                        break
                    start = time.perf_counter()
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

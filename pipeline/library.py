"""Partitions, loaders and the exchange of gradients for loops of your own: pe.partition, pe.ClusterLoader,
pe.NeighborLoader and pe.GradientSync. The batches and the exchange are those of the training.
"""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, distributed as dist
from torch.utils.data import IterableDataset, get_worker_info
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline.gnn.loaders import cluster, neighbor
from parallel_epochs.pipeline.graph.edges import sort_edges, with_reverse
from parallel_epochs.pipeline.graph.partition import assignment
from parallel_epochs.pipeline.graph.partitioner import PARTITIONS, Partitioner
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.seeds import stream
from parallel_epochs.pipeline.run.sync import GradientSync as Exchange

# Partitions by what cuts them; those that are cut need both directions of each edge.
METHODS = tuple(name for name in PARTITIONS if name != "whole")


def partition(
    edge_index: Tensor,
    num_parts: int,
    method: str = "metis",
    *,
    seed: int = 0,
    num_nodes: int | None = None,
) -> Int[Tensor, " num_nodes"]:
    """Cut a graph into clusters.

    Args:
        edge_index: [2, num_edges], integers, a tensor or an ``EdgeIndex``. The direction of edges does not matter.
        num_parts: number of clusters.
        method: "metis" or "random"; "metis_random" puts clusters together at random
            of 20 times as many that were cut.
        seed: the result is a function of it and of the graph.
        num_nodes: number of nodes. None: one more than the largest number in `edge_index`.

    Returns:
        The cluster of each node, int64, from 0.

    Raises:
        ValueError: an unknown method, edges that are none, or more clusters than nodes.
    """
    drawn = _partitioner(_sorted(edge_index, num_nodes)[0], num_parts, method, seed).draw(0)
    return torch.from_numpy(assignment(drawn)).long()


def _partitioner(edges: EdgeIndex, num_parts: int, method: str, seed: int) -> Partitioner:
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; choose one of {', '.join(METHODS)}")
    most = edges.get_sparse_size(1)
    if _whole("num_parts", num_parts, 1) > most:
        raise ValueError(f"num_parts={num_parts}, and there are {most:,} nodes")
    if method != "random":
        edges = with_reverse(plain_edges(edges), most)
    return Partitioner(edges, name=method, num_parts=int(num_parts), seed=_whole("seed", seed))


def _whole(name: str, value: Any, least: int = 0) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")
    return number


def _integers(name: str, values: Any) -> Tensor:
    """Read an argument that holds whole numbers or a mask."""
    found = torch.as_tensor(values)
    if found.is_floating_point():
        raise ValueError(f"{name} must hold integers, not {found.dtype}")
    return found


def _sorted(edge_index: Any, num_nodes: int | None) -> tuple[EdgeIndex, Tensor]:
    """Sort edges by destination; returns their places before, too."""
    edges = plain_edges(_integers("edge_index", edge_index))
    if edges.dim() != 2 or len(edges) != 2 or edges.dtype == torch.bool:
        raise ValueError(
            f"edge_index must hold integers of shape [2, num_edges], not {edges.dtype} of shape "
            f"{list(edges.shape)}"
        )
    least, most = (int(edges.min()), int(edges.max())) if edges.numel() else (0, -1)
    num_nodes = most + 1 if num_nodes is None else _whole("num_nodes", num_nodes)
    if least < 0 or most >= num_nodes:
        raise ValueError(
            f"edge_index names node {least if least < 0 else most}, and there are {num_nodes:,} nodes"
        )
    return sort_edges(edges, num_nodes)


class Batches(IterableDataset[Data]):
    """Batches of a graph, of which each pass is a function of the seed and the epoch alone.

    Other processes can build them: ``torch.utils.data.DataLoader(batches, batch_size=None, num_workers=2)`` has the
    same batches in the same order. Call :meth:`set_epoch` before each pass then.

    Args:
        data: a graph. Attributes of nodes and of edges are those that PyG takes for such; others, and the labels of
            edges of RandomLinkSplit, are in each batch.
        seed: of the random numbers.
        share: the rank and the number of ranks that share the batches of a pass; of these, each has every
            number-of-ranks-th.
    """

    _loader: cluster.ClusterLoader | neighbor.NeighborLoader  # that of the training

    def __init__(self, data: Data, *, seed: int, share: tuple[int, int]):
        if not isinstance(data, Data):
            raise ValueError(
                f"data is a {type(data).__name__}, and must be a torch_geometric.data.Data; "
                "data.to_homogeneous() makes one of a HeteroData"
            )
        if data.edge_index is None:
            raise ValueError("data has no edge_index")
        self._rank, self._num_ranks = share
        if not 0 <= self._rank < self._num_ranks:
            raise ValueError(
                f"share={share} must be (rank, ranks), where rank is from 0 to ranks - 1"
            )
        self._data, self._seed = data, _whole("seed", seed)
        self._edges, place = _sorted(data.edge_index, data.num_nodes)
        # Batches are made from this graph, whose edges have their places in `data` as a feature.
        self._graph = Data(
            edge_index=self._edges,
            num_nodes=self._edges.get_sparse_size(1),
            edge_attr=place.unsqueeze(1),
        )
        # Workers that persist read it too.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Choose which pass comes next; without it each pass is that of the next epoch."""
        self._epoch.fill_(_whole("epoch", epoch))

    def __len__(self) -> int:
        return len(range(self._rank, self._loader.num_batches, self._num_ranks))

    def __iter__(self) -> Iterator[Data]:
        epoch, worker = int(self._epoch), get_worker_info()
        numbers = range(self._rank, self._loader.num_batches, self._num_ranks)
        if worker is None:
            self._epoch += 1
        else:
            numbers = numbers[worker.id :: worker.num_workers]
        return map(self._complete, self._batches(epoch, numbers))

    def _batches(self, epoch: int, numbers: range) -> Iterator[Data]:
        """Build some batches of a pass."""
        raise NotImplementedError

    def _complete(self, batch: Data) -> Data:
        """Give a batch of the training what belongs to its nodes and edges."""
        data, nodes, edges = self._data, batch.n_id, batch.edge_attr[:, 0]
        found = Data(edge_index=batch.edge_index, num_nodes=len(nodes))
        for key, value in data:
            if key not in ("edge_index", "num_nodes"):
                rows = None
                if data.__cat_dim__(key, value) == 0 and not key.startswith("edge_label"):
                    if data.is_node_attr(key):
                        rows = nodes
                    elif data.is_edge_attr(key):
                        rows = edges
                found[key] = value if rows is None else _rows_of(value, rows)
        found.n_id, found.e_id = nodes, edges
        return found


def _rows_of(value: Any, rows: Tensor) -> Any:
    if isinstance(value, (Tensor, np.ndarray)):
        return value[rows]
    return [value[row] for row in rows.tolist()]


class ClusterLoader(Batches):
    """Yields the subgraphs that clusters of nodes induce, of a partition that is drawn anew in each epoch.

    A batch is a ``Data`` with ``n_id``, the numbers of its nodes, and ``e_id``, those of its edges. Its ``edge_index``
    is an int64 ``EdgeIndex`` sorted by destination.

    Args:
        data: see :class:`Batches`.
        num_parts: number of clusters.
        method: as for :func:`partition`. Clusters of METIS are cut once, and shuffled.
        batch_size: clusters in a batch; edges between them are kept.
        seed: of the partition. With parallel epochs, ranks have the same seed, and each another `draw`.
        draw: which of the partitions of an epoch. Ranks with draws of their own go through the whole graph each.
        share: see :class:`Batches`. Ranks share out one draw.
    """

    def __init__(
        self,
        data: Data,
        num_parts: int,
        *,
        method: str = "random",
        batch_size: int = 1,
        seed: int = 0,
        draw: int = 0,
        share: tuple[int, int] = (0, 1),
    ):
        super().__init__(data, seed=seed, share=share)
        self._draw = Share(_whole("draw", draw))
        self._loader: cluster.ClusterLoader = cluster.ClusterLoader(
            self._graph,
            _partitioner(self._edges, num_parts, method, seed),
            clusters_per_step=_whole("batch_size", batch_size, 1),
        )

    def _batches(self, epoch: int, numbers: range) -> Iterator[Data]:
        return self._loader.batches_of(self._loader.draw(epoch, self._draw), numbers)


class NeighborLoader(Batches):
    """Yields nodes with neighbours that are drawn hop by hop, without pyg-lib.

    A batch is a ``Data`` with ``n_id``, the seeds first, ``e_id``, ``batch_size``, the number of its seeds, and
    ``input_id``, their places in `input_nodes`, as of PyG's loader of this name.

    Args:
        data: see :class:`Batches`.
        num_neighbors: neighbours of a node at each hop, at most; -1: all.
        input_nodes: numbers of the seeds, or a mask [num_nodes]. None: all nodes.
        batch_size: seeds of a batch.
        shuffle: whether the seeds have another order in each epoch.
        seed, share: see :class:`Batches`.
    """

    def __init__(
        self,
        data: Data,
        num_neighbors: Sequence[int],
        *,
        input_nodes: Tensor | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        share: tuple[int, int] = (0, 1),
    ):
        super().__init__(data, seed=seed, share=share)
        num_nodes = self._edges.get_sparse_size(1)
        fan_outs = _integers("num_neighbors", num_neighbors).tolist()
        if not fan_outs or not all(most == -1 or most > 0 for most in fan_outs):
            raise ValueError(
                f"num_neighbors={fan_outs} must be positive numbers, or -1 for all neighbours"
            )
        nodes = torch.arange(num_nodes)
        if input_nodes is not None:
            nodes = _integers("input_nodes", input_nodes)
        if nodes.dtype == torch.bool:
            nodes = nodes.nonzero().squeeze(1)
        if wrong := nodes[(nodes < 0) | (nodes >= num_nodes)].tolist():
            raise ValueError(
                f"input_nodes names node {wrong[0]}, and there are {num_nodes:,} nodes"
            )
        if len(nodes.unique()) < len(nodes):
            raise ValueError("input_nodes names a node twice")
        self._nodes, self._shuffles = nodes.long(), shuffle
        self._size = _whole("batch_size", batch_size, 1)
        self._loader: neighbor.NeighborLoader = neighbor.NeighborLoader(
            self._graph, fan_outs, batch_size=self._size, nodes=self._nodes, seed=self._seed
        )

    def _batches(self, epoch: int, numbers: range) -> Iterator[Data]:
        order = torch.arange(len(self._nodes))
        if self._shuffles:
            rng = stream("train seeds", self._seed, epoch, 0)
            order = torch.from_numpy(rng.permutation(len(order)))
        drawn = neighbor.SeedOrder(self._nodes[order], (epoch, 0))
        places = order.split(self._size)
        for number, batch in zip(numbers, self._loader.batches_of(drawn, numbers), strict=True):
            batch.input_id = places[number]
            yield batch

    def _complete(self, batch: Data) -> Data:
        found = super()._complete(batch)
        found.batch_size, found.input_id = len(batch.input_id), batch.input_id
        return found


class GradientSync:
    """Makes the gradients of all ranks those of one loss, the mean over all their labels.

    Call it on every rank after ``backward`` of the loss that is summed over the rank's labels. A rank that has no batch
    left takes part with ``sync()``, so ranks may have different numbers of batches.

    Args:
        model: its parameters have the same values on all ranks, and its running statistics become the mean.
    """

    def __init__(self, model: torch.nn.Module):
        has_others = dist.is_available() and dist.is_initialized()
        ranks = Ranks(dist.get_rank(), dist.get_world_size()) if has_others else Ranks()
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._exchange = Exchange(model, ranks)

    def __call__(self, loss_sum: Tensor | None = None, count: int = 0) -> float:
        """Exchange gradients, and divide them by the number of labels of all ranks.

        Args:
            loss_sum: the loss, summed over the labels of this rank's batch; none without a batch.
            count: number of these labels.

        Returns:
            The mean loss over the labels of all ranks.

        Raises:
            ValueError: a loss of several numbers, or a count that is none.
            FloatingPointError: a rank's loss or gradient is not finite; names the ranks.
        """
        if loss_sum is not None and not (isinstance(loss_sum, Tensor) and loss_sum.numel() == 1):
            raise ValueError(
                "loss_sum must be a tensor of one number, the loss summed over the labels of the batch"
            )
        labels = torch.tensor(float(_whole("count", count)), device=self._parameters[0].device)
        found = self._exchange(loss_sum, None if loss_sum is None else labels)
        own = [each.grad for each in self._parameters if each.grad is not None]
        broken = found.broken
        if loss_sum is not None and not bool(
            (torch.nn.utils.get_total_norm(own) + loss_sum.detach()).isfinite()
        ):
            broken = broken or [0]  # a single rank checks its own
        if broken:
            raise FloatingPointError(
                f"the loss or a gradient of rank {', '.join(map(str, broken))} is not finite"
            )
        for gradient in own:
            gradient /= max(found.count, 1.0)
        return found.loss_sum / max(found.count, 1.0)

"""Partitions, loaders and the exchange of gradients for loops of your own: pe.partition, pe.ClusterLoader,
pe.NeighborLoader and pe.GradientSync.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor, distributed as dist
from torch.utils.data import IterableDataset, get_worker_info
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline.graph import subgraph
from parallel_epochs.pipeline.graph.edges import sort_edges, with_reverse
from parallel_epochs.pipeline.graph.partition import assignment
from parallel_epochs.pipeline.graph.partitioner import PARTITIONS, Partitioner
from parallel_epochs.pipeline.graph.sampling import NeighborSampler
from parallel_epochs.pipeline.run.ranks import Ranks
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
        method: "metis", "kaminpar" or "random"; "metis_random" and "kaminpar_random" put clusters together at random
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
    num_parts, seed = _whole("num_parts", num_parts, 1, most, " nodes"), _whole("seed", seed)
    if method != "random":
        edges = with_reverse(plain_edges(edges), edges.get_sparse_size(1))
    return Partitioner(edges, name=method, num_parts=num_parts, seed=seed)


def _whole(
    name: str, value: object, least: int = 0, most: int | None = None, unit: str = ""
) -> int:
    """Read an argument that is a whole number.

    Raises:
        ValueError: it is none, or out of range.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least or most is not None and number > most:
        allowed = (
            f"number of at least {least}"
            if most is None
            else f"number from {least} to the {most:,}{unit}"
        )
        raise ValueError(f"{name}={value!r} must be a whole {allowed}")
    return number


def _integers(name: str, values: object, shape: str) -> Tensor:
    """Read an argument that holds whole numbers or a mask: a tensor, an array or a list.

    Raises:
        ValueError: it holds other values.
    """
    try:
        found = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"{name} must hold integers of shape {shape}, not a {type(values).__name__}"
        ) from None
    if found.dim() != 1 + shape.count(",") or found.is_floating_point() or found.is_complex():
        raise ValueError(
            f"{name} must hold integers of shape {shape}, not {found.dtype} of shape {list(found.shape)}"
        )
    return found


def _sorted(edge_index: object, num_nodes: int | None) -> tuple[EdgeIndex, Tensor]:
    """Sort edges by destination; returns their places before, too."""
    edges = plain_edges(_integers("edge_index", edge_index, "[2, num_edges]"))
    num_nodes = None if num_nodes is None else _whole("num_nodes", num_nodes)
    if len(edges) != 2 or edges.dtype == torch.bool:
        raise ValueError(
            f"edge_index must hold integers of shape [2, num_edges], not {edges.dtype} of shape "
            f"{list(edges.shape)}"
        )
    least, most = (int(edges.min()), int(edges.max())) if edges.numel() else (0, -1)
    num_nodes = most + 1 if num_nodes is None else num_nodes
    if least < 0 or most >= num_nodes:
        raise ValueError(
            f"edge_index names node {least if least < 0 else most}, and there are {num_nodes:,} nodes"
        )
    return sort_edges(edges, num_nodes)


class Batches(IterableDataset[Data], ABC):
    """Batches of a graph, of which each pass is a function of the seed and the epoch alone.

    Other processes can build them: ``torch.utils.data.DataLoader(batches, batch_size=None, num_workers=2)`` has the
    same batches in the same order. Call :meth:`set_epoch` before each pass then.

    Args:
        data: a graph. Attributes of nodes and of edges are those that PyG takes for such; others are in each batch.
        seed: of the random numbers.
        share: the rank and the number of ranks that share the batches of a pass; of these, each has every
            number-of-ranks-th.
    """

    def __init__(self, data: Data, *, seed: int, share: tuple[int, int]):
        try:
            self._rank, self._num_ranks = map(operator.index, share)
        except (TypeError, ValueError):
            self._rank, self._num_ranks = 0, 0
        if not 0 <= self._rank < self._num_ranks:
            raise ValueError(
                f"share={share} must be (rank, ranks), where rank is from 0 to ranks - 1"
            )
        if not isinstance(data, Data):
            raise ValueError(
                f"data is a {type(data).__name__}, and must be a torch_geometric.data.Data"
                + (". Give data.to_homogeneous()" if hasattr(data, "to_homogeneous") else "")
            )
        if data.edge_index is None:
            raise ValueError("data has no edge_index")
        self._data, self._seed, self._epoch = data, _whole("seed", seed), 0
        self._edges, self._place = _sorted(data.edge_index, data.num_nodes)

    def set_epoch(self, epoch: int) -> None:
        """Choose which pass comes next; without it each pass is that of the next epoch."""
        self._epoch = _whole("epoch", epoch)

    def __len__(self) -> int:
        return len(range(self._rank, self._num_batches, self._num_ranks))

    def __iter__(self) -> Iterator[Data]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        numbers, worker = range(self._rank, self._num_batches, self._num_ranks), get_worker_info()
        return self._batches(
            epoch, numbers if worker is None else numbers[worker.id :: worker.num_workers]
        )

    @property
    @abstractmethod
    def _num_batches(self) -> int:
        """The number of batches of all ranks."""

    @abstractmethod
    def _batches(self, epoch: int, numbers: range) -> Iterator[Data]:
        """Build some batches of a pass."""

    def _attach(self, edges: EdgeIndex, nodes: Tensor, position: Tensor) -> Data:
        """Build a part of the graph: some edges between some nodes, and what belongs to them."""
        batch, place = Data(edge_index=edges, num_nodes=len(nodes)), self._place[position.long()]
        for key, value in self._data:
            if key == "edge_index" or key == "num_nodes":
                continue
            batch[key] = (
                value[nodes]
                if self._data.is_node_attr(key)
                else (value[place] if self._data.is_edge_attr(key) else value)
            )
        batch.n_id, batch.e_id = nodes, place
        return batch


class ClusterLoader(Batches):
    """Yields the subgraphs that clusters of nodes induce, of a partition that is drawn anew in each epoch.

    A batch is a ``Data`` with ``n_id``, the numbers of its nodes, and ``e_id``, those of its edges. Its ``edge_index``
    is an int64 ``EdgeIndex`` sorted by destination.

    Args:
        data: see :class:`Batches`.
        num_parts: number of clusters.
        method: as for :func:`partition`. Clusters of METIS and KaMinPar are cut once, and shuffled.
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
        self._size, self._draw = _whole("batch_size", batch_size, 1), _whole("draw", draw)
        self._partitioner = _partitioner(self._edges, num_parts, method, seed)

    @property
    def _num_batches(self) -> int:
        return -(-self._partitioner.num_parts // self._size)

    def _batches(self, epoch: int, numbers: range) -> Iterator[Data]:
        clusters = self._partitioner.draw(epoch, self._draw).merge(self._size)
        for number in numbers:
            nodes = clusters.nodes(number)
            edges, position = (
                subgraph.induce(self._edges, nodes)
                if subgraph.can_run(self._edges)
                else subgraph.induce_with_torch(self._edges, nodes)
            )
            yield self._attach(edges, nodes, position)


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
        self._size, self._shuffles = _whole("batch_size", batch_size, 1), shuffle
        num_nodes = self._edges.get_sparse_size(1)
        self._fan_outs = _integers("num_neighbors", num_neighbors, "[num_hops]").tolist()
        if not self._fan_outs or not all(most == -1 or most > 0 for most in self._fan_outs):
            raise ValueError(
                f"num_neighbors={self._fan_outs} must be positive numbers, or -1 for all neighbours"
            )
        nodes = _integers(
            "input_nodes",
            torch.arange(num_nodes) if input_nodes is None else input_nodes,
            "[num_seeds]",
        )
        if nodes.dtype == torch.bool and len(nodes) != num_nodes:
            raise ValueError(
                f"input_nodes is a mask of {len(nodes):,} nodes, and there are {num_nodes:,}"
            )
        self._nodes = nodes.nonzero().squeeze(1) if nodes.dtype == torch.bool else nodes.long()
        if wrong := self._nodes[(self._nodes < 0) | (self._nodes >= num_nodes)].tolist():
            raise ValueError(
                f"input_nodes names node {wrong[0]}, and there are {num_nodes:,} nodes"
            )
        if len(self._nodes.unique()) < len(self._nodes):
            raise ValueError("input_nodes names a node twice")

    @property
    def _num_batches(self) -> int:
        return -(-len(self._nodes) // self._size)

    def _batches(self, epoch: int, numbers: range) -> Iterator[Data]:
        order, sampler = (
            torch.arange(len(self._nodes)),
            NeighborSampler(self._edges, self._fan_outs),
        )
        if self._shuffles:
            order = torch.from_numpy(
                stream("training seeds", self._seed, epoch).permutation(len(order))
            )
        for number in numbers:
            places = order[number * self._size : (number + 1) * self._size]
            key = stream(
                "training neighbours", self._seed, epoch, number
            ).bit_generator.random_raw()
            batch = self._attach(*sampler.sample(self._nodes[places], int(key)))
            batch.batch_size, batch.input_id = len(places), places
            yield batch


class GradientSync:
    """Makes the gradients of all ranks those of one loss, the mean over all their labels.

    Call it on every rank after ``backward`` of the loss that is summed over the rank's labels. A rank that has no batch
    left takes part with ``sync()``, so ranks may have different numbers of batches.

    Args:
        model: its parameters have the same values on all ranks, and its running statistics become the mean.
    """

    def __init__(self, model: torch.nn.Module):
        has_others = dist.is_available() and dist.is_initialized()
        parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        if not self._parameters:
            raise ValueError(
                f"model is a {type(model).__name__}, and must be a torch.nn.Module with parameters that "
                "need gradients"
            )
        self._exchange = Exchange(
            model, Ranks(dist.get_rank(), dist.get_world_size()) if has_others else Ranks()
        )

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
        count, device = _whole("count", count), self._parameters[0].device
        found = self._exchange(
            loss_sum, None if loss_sum is None else torch.tensor(float(count), device=device)
        )
        broken, own = (
            found.broken,
            [parameter.grad for parameter in self._parameters if parameter.grad is not None],
        )
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

"""Predicts what a run will hold in memory, from small batches of its own model, before it starts."""

import bisect
import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.gnn.contract import autocast
from parallel_epochs.pipeline.gnn.estimate import machine_of
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.gnn.model import build_table
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.graph.edges import sort_edges
from parallel_epochs.pipeline.graph.partition import whole_partition
from parallel_epochs.pipeline.graph.stream import waiting_bytes
from parallel_epochs.pipeline.graph.subgraph import attach_nodes
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.allocations import Allocations
from parallel_epochs.pipeline.run.memory import format_bytes, resident_bytes
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)
# Nodes of the batches that are measured: so few that it takes a second at most, so many that the rest is proportion.
FEW, MORE = 256, 512
# partition.num_parts=auto: the whole graph has so many edges at most; others, and METIS, have so many clusters at least.
MOST_WHOLE_EDGES, NUM_PARTS = 1 << 18, 4
# Batches that are ready before the model asks for them, as BackgroundRounds makes them.
PREFETCH = 2
# Bytes of a node of the graph for a partition while it is drawn, on top of those of a step.
BYTES_PER_NODE_DRAWN = 32
# Bytes that a CPU's allocator takes for each that is asked of it: what lies between blocks of other sizes (measured).
ALLOCATED = 1.1


@dataclass(frozen=True)
class Linear:
    """Bytes as a function of nodes and edges: a constant, and bytes for each of both."""

    constant: float
    per_node: float
    per_edge: float

    def __call__(self, num_nodes: float, num_edges: float) -> float:
        return max(self.constant + self.per_node * num_nodes + self.per_edge * num_edges, 0.0)

    @classmethod
    def through(cls, points: list[tuple[int, int]], values: Sequence[float]) -> "Linear":
        """Find the function that has these values at three points, numbers of nodes and edges."""
        # Least squares, for the points of a graph of one node are not three.
        return cls(*np.linalg.lstsq([[1.0, *point] for point in points], values, rcond=None)[0])


@dataclass(frozen=True)
class Footprint:
    """The bytes that a rank holds in training; on a GPU, those that lie there.

    Attributes:
        fixed: what does not depend on the clusters: process, graph, weights and what the optimizer keeps of them.
        batch: a batch.
        step: what a step holds at most beside batch and weights: activations, and gradients of them.
        clusters_per_step: clusters of a batch.
        is_random: whether a cluster is a random choice of nodes.
        held: batches that are held at a time.
    """

    num_nodes: int
    num_edges: int
    fixed: float
    batch: Linear
    step: Linear
    clusters_per_step: int
    is_random: bool
    held: int

    def batch_size(self, num_parts: int) -> tuple[float, float]:
        """Return the nodes and edges of a batch: the mean of random clusters, at most of others."""
        share = min(self.clusters_per_step / num_parts, 1.0)
        num_nodes = min(np.ceil(self.num_nodes * share), self.num_nodes)
        kept = share if self.is_random else 1.0
        return num_nodes, self.num_edges * share * kept

    def total(self, num_parts: int) -> float:
        """Return the bytes for so many clusters."""
        size = self.batch_size(num_parts)
        held = 1 if size[0] == self.num_nodes else self.held
        return self.fixed + held * self.batch(*size) + self.step(*size)


def choose_num_parts(setups: Sequence[Setup]) -> int:
    """Choose the number of clusters: as few as the memory holds, so that most edges are kept.

    Ranks and METIS need several clusters, and on a large graph several steps an epoch learn sooner.

    Raises:
        ValueError: even the most clusters take more; the message says what is too large.
    """
    setup = max(setups, key=lambda setup: setup.data.num_nodes)
    config = setup.config
    is_whole = config.partition.num_clusters == 1 or (
        config.partition.is_random
        and config.partition.clusters_per_step == config.parallel.num_ranks == 1
        and setup.data.num_edges <= MOST_WHOLE_EDGES
    )
    fewest = 1 if is_whole else min(NUM_PARTS, setup.data.num_nodes)
    least = _fit(setup) if is_known(setup) else 1
    chosen = max(least, fewest)
    what = "the whole graph" if chosen == 1 else f"{chosen:,} clusters"
    if chosen > 1 and config.partition.is_random:
        what += f", which keep about {1 / chosen:.0%} of the edges,"
    why = f"for {machine_of(config).describe_budget()}"
    if least < fewest:
        why = "so that an epoch has several steps (partition=whole keeps all edges)"
    if type(setup.loader) is ClusterLoader:
        log.info("partition.num_parts=auto: %s %s", what, why)
    return chosen


def _fit(setup: Setup) -> int:
    """Return the fewest clusters that memory holds."""
    found, machine = measure(setup), machine_of(setup.config)
    # Two nodes to a cluster: batch norm needs them.
    most = max(setup.data.num_nodes // (2 * found.clusters_per_step), 1)
    least = 1 + bisect.bisect_left(
        range(1, most + 1), True, key=lambda parts: found.total(parts) <= machine.budget
    )
    if least > most:
        raise ValueError(
            f"partition.num_parts=auto: {machine.describe_budget()} is too little: even clusters of two "
            f"nodes take {format_bytes(found.total(most))} a rank"
        )
    return least


def describe(setup: Setup) -> str:
    """Say in one line what a rank will hold in training, and what it may use."""
    if not is_known(setup):
        return "not known beforehand"
    total = measure(setup).total(setup.config.partition.num_clusters)
    return f"about {format_bytes(total)} a rank, which may use {format_bytes(machine_of(setup.config).budget)}"


def is_known(setup: Setup) -> bool:
    """Tell whether the memory of a run is known beforehand: that of clusters of a graph with one type of nodes."""
    return type(setup.loader) is ClusterLoader and setup.data.types.homogeneous


def measure(setup: Setup) -> Footprint:
    """Take a step with small batches of a graph, and count the bytes of its tensors.

    Three batches tell what each node and each edge takes.
    """
    pulse.beat("estimating the memory")
    config, data, on_cpu = setup.config, setup.data, setup.device.type == "cpu"
    num_nodes, num_edges, is_random = data.num_nodes, data.num_edges, config.partition.is_random
    few, more = min(FEW, max(num_nodes // 2, 1)), min(MORE, num_nodes)
    degree = max(num_edges / num_nodes * (0.25 if is_random else 1.0), 1.0)
    points = [
        (few, round(few * degree)),
        (more, round(more * degree)),
        (few, round(2 * few * degree)),
    ]
    model = copy.deepcopy(setup.model)  # whose gradients and running statistics are its own
    with torch.random.fork_rng():
        taken = np.array([_take_step(setup, model, *point) for point in points])
    factor = ALLOCATED if on_cpu else 1
    batch, step = (Linear.through(points, factor * values) for values in taken.T)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    ranks = config.parallel.num_ranks > 1  # the gradients once more, side by side
    fixed = (4 + ranks + bool(config.train.ema)) * weights
    if config.learned_channels:
        fixed += 12 * num_nodes * config.features.channels  # with two moments of each number
    if on_cpu:
        fixed += resident_bytes(besides=config.cache_dir) + num_nodes * BYTES_PER_NODE_DRAWN
        fixed += waiting_bytes(data, num_edges) if data.on_disk else bytes_of(data)
    return Footprint(
        num_nodes,
        num_edges,
        fixed,
        batch,
        step,
        config.partition.clusters_per_step,
        is_random,
        held=PREFETCH + 2 if on_cpu else 1,
    )


def _take_step(
    setup: Setup, model: torch.nn.Module, num_nodes: int, num_edges: int
) -> tuple[float, float]:
    """Return the bytes of a batch, and of a step beside it without gradients of weights."""
    config, device = setup.config, setup.device
    small = sample(setup.data, num_nodes, num_edges)
    table = build_table(config, small, device)
    (batch,) = ClusterLoader(small).batches_of(whole_partition(num_nodes))
    size, rng = bytes_of(batch), torch.Generator().manual_seed(0)
    model.train()
    with Allocations() as step:
        given = batch.to(device) if table is None else table.attach(batch, device, rng)
        with autocast(device, config.train.precision):
            loss, _ = setup.task.loss(model, given, rng)
        loss.backward()
    gradients = sum(
        p.grad.numel() * p.grad.element_size() for p in model.parameters() if p.grad is not None
    )
    model.zero_grad()
    return size, step.peak - gradients


def sample(data: Data, num_nodes: int, num_edges: int) -> Data:
    """Take some nodes of a graph, with edges between them that are drawn at random."""
    rng = stream("memory", num_nodes, num_edges)
    nodes = torch.from_numpy(np.sort(rng.choice(data.num_nodes, num_nodes, replace=False)))
    ends = torch.from_numpy(rng.integers(num_nodes, size=(2, num_edges)))
    edge_index, _ = sort_edges(ends, num_nodes)
    small = attach_nodes(Graph(edge_index=edge_index, num_nodes=num_nodes), data, nodes)
    if (
        data.edge_attr is not None
    ):  # those of the graph, perhaps on a disk, would be read one by one
        small.edge_attr = data.edge_attr.new_zeros(num_edges, *data.edge_attr.shape[1:])
    return small


def bytes_of(data: Data) -> float:
    """Return the bytes of all tensors of a graph, with both orders of its edges."""
    total = 0
    for key, value in data.to_dict().items():
        if key == "edge_index":
            # Both ends, those of the other order with their positions, and two arrays of pointers: nothing is sorted.
            total += (4 * value.size(1) + 2 * (value.get_sparse_size(1) + 1)) * value.element_size()
        elif isinstance(value, torch.Tensor):
            total += value.numel() * value.element_size()
    return total

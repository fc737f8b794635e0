"""Loaders by name: what each asks of a configuration, and how it is built."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.contract import Loader
from parallel_epochs.pipeline.gnn.kinds.base import Kind
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.gnn.loaders.fan_outs import fan_outs_of
from parallel_epochs.pipeline.gnn.loaders.graph import GraphLoader
from parallel_epochs.pipeline.gnn.loaders.neighbor import NeighborLoader
from parallel_epochs.pipeline.gnn.loaders.snapshots import SnapshotLoader
from parallel_epochs.pipeline.graph.partitioner import Partitioner, check_engine
from parallel_epochs.pipeline.graph.stream import ClusterStream
from parallel_epochs.pipeline.names import SNAPSHOT


@dataclass(frozen=True)
class LoaderKind:
    """A loader.

    Attributes:
        build: builds it for a graph; a ValueError if it does not fit.
        check: refuses a configuration that it cannot serve here.
        num_nodes: the least number of nodes of a batch, and the key to change where that is too many; None if it is
            not known yet.
    """

    build: Callable[[GNNConfig, Data, Kind, torch.device], Loader]
    check: Callable[[GNNConfig], None]
    num_nodes: Callable[[GNNConfig, Data], tuple[int, str] | None]


def check_evaluation(config: GNNConfig, data: Data) -> None:
    """Refuse numbers of neighbours for an evaluation that do not fit the relations of a graph.

    Raises:
        ValueError: names the relation.
    """
    if config.evaluation.samples:
        fan_outs_of(config.evaluation_fan_outs, data)


def build_partitioner(config: GNNConfig, data: Data, edges: EdgeIndex | None = None) -> Partitioner:
    """Build what draws the partitions of a run.

    Args:
        edges: that are cut. None: those of the graph.

    Raises:
        ValueError: the configured partition does not fit the graph.
    """
    num_parts = config.partition.num_parts
    return Partitioner(
        data.edge_index if edges is None else edges,
        name=config.partition.name,
        num_parts=1 if num_parts == keys.AUTO else num_parts,
        seed=config.seed,
        cache=Path(config.cache_dir) / "partitions",
    )


def build_stream(config: GNNConfig, data: Data) -> ClusterStream | None:
    """Build what reads clusters of a graph on disk in one pass; none for a graph in memory."""
    if not data.on_disk:
        return None
    return ClusterStream(data, spill=Path(config.cache_dir) / "spill")


def build_loader(
    config: GNNConfig, data: Data, kind: Kind, device: torch.device = torch.device("cpu")
) -> Loader:
    """Build what makes the batches.

    Raises:
        ValueError: it does not fit the graph.
    """
    build = LOADERS[config.loader.name].build
    if SNAPSHOT not in data:
        return build(config, data, kind, device)
    return SnapshotLoader(
        data, lambda view: build(config, view, kind, device), device=device, seed=config.seed
    )


def of_clusters(loader: type[ClusterLoader]) -> LoaderKind:
    """Return the record of a loader of clusters, from which a kind may make batches of its own."""

    def build(config: GNNConfig, data: Data, kind: Kind, device: torch.device) -> Loader:
        partitioner = build_partitioner(
            config, data, kind.undirected(data) if config.partition.is_cut else None
        )
        return kind.loader(
            loader(
                data,
                partitioner,
                device=device,
                stream=build_stream(config, data),
                clusters_per_step=config.partition.clusters_per_step,
            )
        )

    return LoaderKind(build, lambda config: check_engine(config.partition.name), _nodes_of_clusters)


def _nodes_of_clusters(config: GNNConfig, data: Data) -> tuple[int, str] | None:
    partition = config.partition
    if partition.num_parts == keys.AUTO:  # until the number is chosen
        return None
    num_parts = partition.num_clusters
    return math.ceil(data.num_nodes / num_parts) * min(
        partition.clusters_per_step, num_parts
    ), "raise partition.num_parts"


def _build_neighbor_loader(
    config: GNNConfig, data: Data, kind: Kind, device: torch.device
) -> NeighborLoader:
    return NeighborLoader(
        data,
        config.fan_outs,
        batch_size=config.loader.batch_size,
        seed=config.seed,
        device=device,
    )


def _nodes_of_seeds(config: GNNConfig, data: Data) -> tuple[int, str]:
    # And their neighbours, if there are any.
    return min(config.loader.batch_size, int(data.train_mask.sum())), "lower loader.batch_size"


def _build_graph_loader(
    config: GNNConfig, data: Data, kind: Kind, device: torch.device
) -> GraphLoader:
    return GraphLoader(
        data,
        batch_size=config.loader.batch_size,
        seed=config.seed,
        num_vectors=config.data.num_vectors,
        device=device,
    )


def _nodes_of_graphs(config: GNNConfig, data: Data) -> tuple[int, str]:
    return math.ceil(
        data.num_nodes / (data.ptr.numel() - 1) * config.loader.batch_size
    ), "lower loader.batch_size"


# One line for each member of loaders/.
LOADERS: dict[str, LoaderKind] = {
    "cluster": of_clusters(ClusterLoader),
    "neighbor": LoaderKind(_build_neighbor_loader, lambda config: None, _nodes_of_seeds),
    "graph": LoaderKind(_build_graph_loader, lambda config: None, _nodes_of_graphs),
}

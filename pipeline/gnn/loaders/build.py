"""Loaders by name: what each asks of a configuration, and how it is built."""

from collections.abc import Callable
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
from parallel_epochs.pipeline.graph.partitioner import Partitioner
from parallel_epochs.pipeline.graph.stream import ClusterStream
from parallel_epochs.pipeline.names import SNAPSHOT

# Builds the loader of a graph; a ValueError if it does not fit.
Builder = Callable[[GNNConfig, Data, Kind, torch.device], Loader]


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
    build = LOADERS[config.loader.name]
    if SNAPSHOT not in data:
        return build(config, data, kind, device)
    return SnapshotLoader(
        data, lambda view: build(config, view, kind, device), device=device, seed=config.seed
    )


def of_clusters(loader: type[ClusterLoader]) -> Builder:
    """Return what builds a loader of clusters, from which a kind may make batches of its own."""

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

    return build


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


def _build_graph_loader(
    config: GNNConfig, data: Data, kind: Kind, device: torch.device
) -> GraphLoader:
    return GraphLoader(
        data,
        batch_size=config.loader.batch_size,
        seed=config.seed,
        device=device,
    )


# One line for each member of loaders/.
LOADERS: dict[str, Builder] = {
    "cluster": of_clusters(ClusterLoader),
    "neighbor": _build_neighbor_loader,
    "graph": _build_graph_loader,
}

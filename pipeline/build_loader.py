"""From a configuration to what makes the batches of a graph."""

from pathlib import Path

import torch
from torch_geometric.data import Data

from pipeline import keys
from pipeline.config import Config
from pipeline.graph.laid_out import LaidOut
from pipeline.graph.partitioner import Partitioner
from pipeline.graph.stream import ClusterStream
from pipeline.loaders.cluster import ClusterLoader
from pipeline.loaders.graph import GraphLoader
from pipeline.loaders.neighbor import NeighborLoader
from pipeline.loaders.pairs import PairLoader
from pipeline.trainers.gnn import Loader

# One line for each member of loaders/.
LOADERS: dict[str, type] = {"cluster": ClusterLoader, "neighbor": NeighborLoader, "graph": GraphLoader}


def build_partitioner(config: Config, data: Data) -> Partitioner:
    """Build what draws the partitions of a run.

    Raises:
        ValueError: the configured partition does not fit the graph.
    """
    num_parts = config.partition.num_parts
    return Partitioner(
        data.edge_index, name=config.partition.name, num_parts=1 if num_parts == keys.AUTO else num_parts,
        seed=config.seed, num_micro_parts=config.partition.num_micro_parts,
        cache=Path(config.cache_dir) / "partitions")


def build_stream(config: Config, data: Data, partitioner: Partitioner | None = None) -> ClusterStream | None:
    """Build what reads clusters of a graph on disk in one pass; none for a graph in memory.

    Args:
        partitioner: of the clusters; if it puts them together of micro-clusters, a copy of the graph is laid out by
            these.
    """
    if "store" not in data:
        return None
    cache_dir = Path(config.cache_dir)

    def lay_out(buffer: int) -> LaidOut:
        return LaidOut(data, partitioner.micro_clusters(), cache_dir / "graphs", spill=cache_dir / "spill",
                       buffer=buffer)

    has_micro = partitioner is not None and partitioner.has_micro_clusters
    return ClusterStream(data, spill=cache_dir / "spill", lay_out=lay_out if has_micro else None)


def build_loader(config: Config, data: Data, device: torch.device = torch.device("cpu")) -> Loader:
    """Build what makes the batches.

    Raises:
        ValueError: it does not fit the graph.
    """
    loader = LOADERS[config.loader.name]
    if loader is NeighborLoader:
        return NeighborLoader(data, config.loader.num_neighbors, batch_size=config.loader.batch_size, seed=config.seed,
                              backend=config.loader.backend, device=device)
    if loader is GraphLoader:
        return _build_graph_loader(config, data, device)
    partitioner = build_partitioner(config, data)
    clusters = loader(data, partitioner, device=device, stream=build_stream(config, data, partitioner),
                      clusters_per_step=config.partition.clusters_per_step, scale_sums=config.partition.scale_sums)
    if config.task.name != "link":
        return clusters
    task = config.task
    return PairLoader(clusters, pairs_per_step=task.pairs_per_step, num_negatives=task.num_negatives,
                      strict=task.strict_negatives, hide=task.hide_pairs, seed=config.seed)


def _build_graph_loader(config: Config, data: Data, device: torch.device) -> GraphLoader:
    loader = GraphLoader(data, batch_size=config.loader.batch_size, pack=config.loader.pack, seed=config.seed,
                         device=device)
    if getattr(config.model, "norm", None) == "batch" and loader.least_graphs < 2:
        raise ValueError(f"loader.batch_size={config.loader.batch_size}: of {int(data.train_mask.sum()):,} training "
                         "graphs a batch holds one alone, and batch norm needs two to train. Raise loader.batch_size, "
                         "or set model.norm=layer")
    return loader

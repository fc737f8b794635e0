"""Predictions of every row: averaged over random partitions, or exact on the whole graph."""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch_geometric.data import Data

from pipeline.graph.partition import random_partition
from pipeline.loaders.background import BackgroundRounds
from pipeline.loaders.cluster import ClusterLoader
from pipeline.run.ranks import Ranks
from pipeline.run.seeds import stream
from pipeline.run.threads import borrowed_threads

# Row numbers [n] and their predictions [n, out_channels] for a batch, by a model in evaluation mode.
Predict = Callable[[Data], tuple[Tensor, Tensor]]


@torch.no_grad()
def predict_views(predict: Predict, loader: ClusterLoader, *, num_rows: int, out_channels: int, num_views: int,
                  num_parts: int, seed: int, round_: int, prefetch: int = 2, ranks: Ranks = Ranks()) -> Tensor:
    """Predict every row once in each view, a random partition, and average the predictions over the views.

    The result is a function of `predict`, `seed` and `round_`. The clusters of all views are shared out among the
    ranks, and their predictions summed.

    Args:
        num_rows: number of rows to predict.
        out_channels: columns of the predictions.
        num_views: number of partitions.
        num_parts: clusters of each; no more than there are nodes are made.

    Returns:
        Predictions in order, [num_rows, out_channels], float32, on the CPU.
    """
    num_nodes = loader.data.num_nodes
    num_parts = min(num_parts, num_nodes)

    def start_view(view: int) -> Iterator[Data]:
        mine = [part for part in range(num_parts) if (view * num_parts + part) % ranks.num_ranks == ranks.rank]
        return loader.batches_of(random_partition(num_nodes, num_parts, stream("view", seed, round_, view)), mine)

    views = [(view, lambda view=view: start_view(view)) for view in range(num_views)]
    total = torch.zeros(num_rows, out_channels)
    with BackgroundRounds(views, device=loader.device, prefetch=prefetch) as background:
        for view in range(num_views):
            for batch in background.batches(view):
                rows, predictions = predict(batch.to(loader.device, non_blocking=True))
                total[rows.cpu()] += predictions.float().cpu()
    ranks.sum_(total)
    return total / num_views


@torch.no_grad()
def predict_exact(predict: Predict, data: Data, *, num_rows: int, out_channels: int, device: torch.device,
                  ranks: Ranks = Ranks()) -> Tensor:
    """Predict every row from the whole graph, layer by layer.

    The aggregation takes a bounded number of edges at a time, so that memory holds a few tensors of nodes x channels
    beside the graph. One pass can not be shared out: rank 0 makes it, on a CPU with the threads of all ranks of its
    machine, while the others wait.

    Returns:
        Predictions in order, [num_rows, out_channels], float32, on the CPU; on other ranks than the first nothing is
        computed, and the result is empty.
    """
    if not ranks.is_first:
        ranks.wait()
        return torch.empty(0)
    # Data.to works in place; the graph itself stays where it is.
    batch = copy.copy(data)
    batch.n_id, batch.target = torch.arange(data.num_nodes), torch.ones(data.num_nodes, dtype=torch.bool)
    with borrowed_threads(ranks.num_local):
        rows, predictions = predict(batch.to(device))
        total = torch.zeros(num_rows, out_channels)
        total[rows.cpu()] = predictions.float().cpu()
    ranks.wait()
    return total

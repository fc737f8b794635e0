"""Predictions for every node: averaged over random partitions, or exact on the whole graph."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.data import Data

from pipeline.loader import BackgroundEpochs, ClusterLoader
from pipeline.partition import random_partition, stream


@torch.no_grad()
def predict_views(predict: Callable[[Data], Tensor], loader: ClusterLoader, *, num_views: int, num_parts: int, seed: int,
                  epoch: int, device: torch.device, prefetch: int = 4) -> Tensor:
    """Predict every node once in each view, a random partition, and average the logits over the views.

    A function of `predict`, `seed` and `epoch`.

    Args:
        predict: the logits of a batch, by a model in evaluation mode.
        num_views: number of partitions.
        num_parts: clusters of each; no more than there are nodes are made.

    Returns:
        Logits in node order, [num_nodes, out_channels], float32, on the CPU.
    """
    num_nodes = loader.data.num_nodes

    def draw(view: int):
        return random_partition(num_nodes, min(num_parts, num_nodes), stream("view", seed, epoch, view))

    total = None
    with BackgroundEpochs(loader, draw, 0, num_views, prefetch=prefetch) as views:
        for view in range(num_views):
            for batch in views.epoch(view):
                n_id = batch.n_id
                batch = batch.to(device, non_blocking=True)
                logits = predict(batch).float().cpu()
                if total is None:
                    total = logits.new_zeros(num_nodes, logits.size(1))
                total[n_id] += logits
    return total / num_views


@torch.no_grad()
def predict_exact(predict: Callable[[Data], Tensor], data: Data, *, device: torch.device) -> Tensor:
    """Predict every node from the whole graph, layer by layer.

    The aggregation takes a bounded number of edges at a time, so that memory holds a few tensors of nodes x channels
    beside the graph.

    Args:
        predict: the logits of a batch, by a model in evaluation mode.

    Returns:
        Logits, [num_nodes, out_channels], float32, on the CPU.
    """
    # Data.to works in place; the graph itself stays where it is.
    return predict(copy.copy(data).to(device)).float().cpu()

"""Predictions for every node: averaged over random partitions, or exact on the whole graph."""

import torch
from torch import Tensor
from torch_geometric.data import Data

from pipeline.loader import BackgroundEpochs, ClusterLoader
from pipeline.partition import random_partition, stream


@torch.no_grad()
def predict_views(model: torch.nn.Module, loader: ClusterLoader, *, num_views: int, num_parts: int, seed: int,
                  epoch: int, device: torch.device, prefetch: int = 4) -> Tensor:
    """Predict every node once in each view, a random partition, and average the logits over the views.

    A function of the model, `seed` and `epoch`.

    Args:
        num_views: number of partitions.
        num_parts: clusters of each; no more than there are nodes are made.

    Returns:
        Logits in node order, [num_nodes, out_channels], float32, on the CPU.
    """
    num_nodes = loader.data.num_nodes

    def draw(view: int):
        return random_partition(num_nodes, min(num_parts, num_nodes), stream("view", seed, epoch, view))

    model.eval()
    total = None
    with BackgroundEpochs(loader, draw, 0, num_views, prefetch=prefetch) as views:
        for view in range(num_views):
            for batch in views.epoch(view):
                n_id = batch.n_id
                batch = batch.to(device, non_blocking=True)
                logits = model(batch.x, batch.edge_index, batch.edge_attr).float().cpu()
                if total is None:
                    total = logits.new_zeros(num_nodes, logits.size(1))
                total[n_id] += logits
    return total / num_views


@torch.no_grad()
def predict_exact(model: torch.nn.Module, data: Data, *, device: torch.device) -> Tensor:
    """Predict every node from the whole graph, layer by layer.

    The aggregation takes a bounded number of edges at a time, so that memory holds a few tensors of nodes x channels
    beside the graph.

    Returns:
        Logits, [num_nodes, out_channels], float32, on the CPU.
    """
    model.eval()
    edge_attr = None if data.edge_attr is None else data.edge_attr.to(device)
    return model(data.x.to(device), data.edge_index.to(device), edge_attr).float().cpu()

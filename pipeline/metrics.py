"""Predictions for every node, averaged over random partitions or exact on the whole graph, and how good they are."""

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor
from torch_geometric.data import Data

from pipeline.distributed import Ranks
from pipeline.loader import BackgroundEpochs, ClusterLoader, Draw
from pipeline.partition import random_partition, stream


@torch.no_grad()
def predict_views(predict: Callable[[Data], Tensor], loader: ClusterLoader, *, out_channels: int, num_views: int,
                  num_parts: int, seed: int, epoch: int, prefetch: int = 2, ranks: Ranks = Ranks()) -> Tensor:
    """Predict every node once in each view, a random partition, and average the logits over the views.

    A function of `predict`, `seed` and `epoch`. The clusters of all views are shared out among the ranks, and their logits
    summed.

    Args:
        predict: the logits of a batch, by a model in evaluation mode.
        out_channels: columns of the logits.
        num_views: number of partitions.
        num_parts: clusters of each; no more than there are nodes are made.

    Returns:
        Logits in node order, [num_nodes, out_channels], float32, on the CPU.
    """
    num_nodes = loader.data.num_nodes
    num_parts = min(num_parts, num_nodes)

    def draw(view: int) -> Draw:
        mine = [part for part in range(num_parts) if (view * num_parts + part) % ranks.num_ranks == ranks.rank]
        return random_partition(num_nodes, num_parts, stream("view", seed, epoch, view)), mine

    draws = [(view, partial(draw, view)) for view in range(num_views)]
    total = torch.zeros(num_nodes, out_channels)
    with BackgroundEpochs(loader, draws, prefetch=prefetch) as views:
        for view in range(num_views):
            for batch in views.epoch(view):
                n_id = batch.n_id.cpu()
                batch = batch.to(loader.device, non_blocking=True)
                total[n_id] += predict(batch).float().cpu()
    ranks.sum_(total)
    return total / num_views


@torch.no_grad()
def predict_exact(predict: Callable[[Data], Tensor], data: Data, *, device: torch.device, ranks: Ranks = Ranks()) -> Tensor:
    """Predict every node from the whole graph, layer by layer.

    The aggregation takes a bounded number of edges at a time, so that memory holds a few tensors of nodes x channels
    beside the graph. One pass can not be shared out: rank 0 makes it, on a CPU with the threads of all ranks of its
    machine, while the others wait.

    Args:
        predict: the logits of a batch, by a model in evaluation mode.

    Returns:
        Logits, [num_nodes, out_channels], float32, on the CPU; on other ranks than the first nothing is computed, and
        the result is empty.
    """
    if not ranks.is_first:
        ranks.wait()
        return torch.empty(0)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(num_threads * ranks.num_local)
    try:
        # Data.to works in place; the graph itself stays where it is.
        logits = predict(copy.copy(data).to(device)).float().cpu()
    finally:
        torch.set_num_threads(num_threads)
    ranks.wait()
    return logits


def rocauc(y_true: Tensor, y_pred: Tensor) -> float:
    """Mean over the tasks of the area under the ROC curve, as OGB defines it.

    A task without labels of both kinds is left out; labels that are NaN do not count. Computed for many tasks at once
    from the ranks of the positive nodes (the statistic of Mann and Whitney, 1947), a tenth of the time of OGB's
    Evaluator.

    Args:
        y_true: 0, 1 or NaN, [num_nodes, num_tasks]
        y_pred: finite, of the same shape.

    Returns:
        In [0, 1], or NaN if no task has labels of both kinds.
    """
    # A few tasks at a time: the float64 ranks of ogbn-proteins' 112 would take half a gigabyte.
    areas = np.concatenate([_areas(truth.numpy(), predicted.numpy())
                            for truth, predicted in zip(y_true.split(16, dim=1), y_pred.split(16, dim=1))])
    return float(areas.mean()) if len(areas) else float("nan")


def _areas(y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
    """The areas of those tasks that have one."""
    # What has no label goes behind all that has one, where it changes no rank.
    ranks = rankdata(np.where(np.isnan(y_true), np.inf, y_pred), axis=0)
    positive, num_negative = y_true == 1, (y_true == 0).sum(0)
    num_positive = positive.sum(0)
    defined = (num_positive > 0) & (num_negative > 0)
    wins = np.where(positive, ranks, 0).sum(0) - num_positive * (num_positive + 1) / 2
    return wins[defined] / (num_positive * num_negative)[defined]

"""Metrics: numbers from tensors, no model; more is better."""

import re
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.stats import rankdata
from torch import Tensor


def accuracy(y_true: Int[Tensor, "num_nodes 1"], y_pred: Float[Tensor, "num_nodes num_classes"]) -> float:
    """Compute the fraction of the nodes whose largest logit is that of their class, in [0, 1]."""
    return float((y_pred.argmax(1, keepdim=True) == y_true).double().mean())


def rocauc(y_true: Float[Tensor, "num_nodes num_tasks"], y_pred: Float[Tensor, "num_nodes num_tasks"]) -> float:
    """Compute the mean over the tasks of the area under the ROC curve, as OGB defines it.

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
                            for truth, predicted in zip(y_true.split(16, dim=1), y_pred.split(16, dim=1), strict=True)])
    return float(areas.mean()) if len(areas) else float("nan")


def _areas(y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
    """Compute the areas of those tasks that have one."""
    # What has no label goes behind all that has one, where it changes no rank.
    ranks = rankdata(np.where(np.isnan(y_true), np.inf, y_pred), axis=0)
    positive, num_negative = y_true == 1, (y_true == 0).sum(0)
    num_positive = positive.sum(0)
    defined = (num_positive > 0) & (num_negative > 0)
    wins = np.where(positive, ranks, 0).sum(0) - num_positive * (num_positive + 1) / 2
    return wins[defined] / (num_positive * num_negative)[defined]


def hits(y_pred_pos: Float[Tensor, " num_positive"], y_pred_neg: Float[Tensor, " num_negative"], k: int) -> float:
    """Compute Hits@K as OGB defines it: the fraction of the positive pairs above the k-th best of all negative ones.

    A tie does not count. OGB says 1 for fewer negatives than `k`; here that is a mistake of the caller's.

    Args:
        y_pred_pos, y_pred_neg: scores, of which more means more likely; at least one positive and `k` negatives.

    Returns:
        In [0, 1].
    """
    return float((y_pred_pos > y_pred_neg.topk(k).values[-1]).double().mean())


def reciprocal_rank(y_pred_pos: Float[Tensor, " num_positive"], y_pred_neg: Float[Tensor, " num_negative"]) -> float:
    """Compute the mean reciprocal rank (MRR) of each positive pair among all negative ones, as OGB defines it.

    The rank of a pair among equal ones is the mean of the best and the worst that it could have.

    Returns:
        In (0, 1].
    """
    ordered = y_pred_neg.sort().values
    worse_or_equal = torch.searchsorted(ordered, y_pred_pos, right=True)
    worse = torch.searchsorted(ordered, y_pred_pos)
    rank = len(ordered) - 0.5 * (worse + worse_or_equal) + 1
    return float(rank.double().reciprocal().mean())


def hits_at(metric: str) -> int:
    """Read K of "hits@K"; 0 for "mrr".

    Raises:
        ValueError: it is neither.
    """
    if metric == "mrr":
        return 0
    if not (found := re.fullmatch(r"hits@([1-9]\d{0,8})", metric)):
        raise ValueError(f"the metric {metric} of links is unknown; choose mrr or hits@K, such as hits@50")
    return int(found[1])


def link_metric(metric: str, y_pred_pos: Float[Tensor, " num_positive"],
                y_pred_neg: Float[Tensor, " num_negative"]) -> float:
    """Compute "hits@K", for any K, or "mrr"."""
    k = hits_at(metric)
    return hits(y_pred_pos, y_pred_neg, k) if k else reciprocal_rank(y_pred_pos, y_pred_neg)


# One line for each metric: of binary tasks, [num_nodes, num_tasks] of 0, 1 and NaN; of one class for each node,
# [num_nodes, 1]. The second argument are logits.
TASK_METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"rocauc": rocauc}
CLASS_METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"acc": accuracy}
METRICS = TASK_METRICS | CLASS_METRICS

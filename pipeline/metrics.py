"""Metrics: numbers from tensors, no model; more is better."""

from collections.abc import Callable

import numpy as np
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


def average_precision(y_true: Float[Tensor, "num_rows num_tasks"],
                      y_pred: Float[Tensor, "num_rows num_tasks"]) -> float:
    """Compute the mean over the tasks of the average precision, as OGB and scikit-learn define it.

    That of a task is the mean, over its positive rows, of the precision among the rows that score at least as high. A
    task without labels of both kinds is left out; labels that are NaN do not count.

    Args:
        y_true: 0, 1 or NaN, [num_rows, num_tasks]
        y_pred: finite, of the same shape.

    Returns:
        In [0, 1], or NaN if no task has labels of both kinds.
    """
    each = []
    for truth, predicted in zip(y_true.t().numpy(), y_pred.t().numpy(), strict=True):
        positive, known = truth == 1, ~np.isnan(truth)
        if positive.any() and (truth == 0).any():
            rank = rankdata(np.where(known, -predicted, np.inf), method="max")[positive]
            each.append(np.mean(rankdata(-predicted[positive], method="max") / rank))
    return float(np.mean(each)) if each else float("nan")


# One line for each metric: of binary tasks, [num_nodes, num_tasks] of 0, 1 and NaN; of one class for each node,
# [num_nodes, 1]. The second argument are logits.
TASK_METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"rocauc": rocauc, "ap": average_precision}
CLASS_METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"acc": accuracy}
METRICS = TASK_METRICS | CLASS_METRICS

"""Metrics of predictions. Higher is better, except for the metrics in LOWER_IS_BETTER of :mod:`pipeline.names`."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.stats import rankdata
from torch import Tensor

from parallel_epochs.pipeline.names import ranks_at


def check_finite(
    predictions: Float[Tensor, "*shape"],
    then: str = "try a lower train.lr or train.clip_grad_norm, or another train.precision than fp16",
) -> None:
    """Check that all predictions are finite, without the copy that ``torch.isfinite`` makes of a contiguous tensor.

    Args:
        then: end of the message.

    Raises:
        FloatingPointError: one is infinite or NaN.
    """
    if predictions.numel() and not all(bool(end.isfinite()) for end in predictions.aminmax()):
        raise FloatingPointError(f"the model's predictions are not finite; {then}")


def accuracy(
    y_true: Int[Tensor, "num_nodes 1"], y_pred: Float[Tensor, "num_nodes num_classes"]
) -> float:
    """Compute the fraction of the nodes whose largest logit is that of their class, in [0, 1]."""
    return float((y_pred.argmax(1, keepdim=True) == y_true).double().mean())


def rocauc(
    y_true: Float[Tensor, "num_nodes num_tasks"], y_pred: Float[Tensor, "num_nodes num_tasks"]
) -> float:
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
    areas = np.concatenate(
        [
            _areas(truth.numpy(), predicted.numpy())
            for truth, predicted in zip(
                y_true.split(16, dim=1), y_pred.split(16, dim=1), strict=True
            )
        ]
    )
    return float(areas.mean()) if len(areas) else float("nan")


def _areas(y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
    """Compute the areas of those tasks that have one."""
    # Rows without a label go behind all others, where they change no rank.
    ranks = rankdata(np.where(np.isnan(y_true), np.inf, y_pred), axis=0)
    positive, num_negative = y_true == 1, (y_true == 0).sum(0)
    num_positive = positive.sum(0)
    defined = (num_positive > 0) & (num_negative > 0)
    wins = np.where(positive, ranks, 0).sum(0) - num_positive * (num_positive + 1) / 2
    return wins[defined] / (num_positive * num_negative)[defined]


def average_precision(
    y_true: Float[Tensor, "num_rows num_tasks"], y_pred: Float[Tensor, "num_rows num_tasks"]
) -> float:
    """Compute the mean over the tasks of the average precision, as OGB and scikit-learn define it.

    That of a task is the mean over its positive rows of the precision among all rows that score at least as high: the
    area under the precision-recall curve by steps. A task without labels of both kinds is left out; labels that are NaN
    do not count.

    Args:
        y_true: 0, 1 or NaN, [num_rows, num_tasks]
        y_pred: finite, of the same shape.

    Returns:
        In [0, 1], or NaN if no task has labels of both kinds.
    """
    each = [
        _average_precision(truth, predicted)
        for truth, predicted in zip(y_true.t().numpy(), y_pred.t().numpy(), strict=True)
        if (truth == 1).any() and (truth == 0).any()
    ]
    return float(np.mean(each)) if each else float("nan")


def _average_precision(y_true: np.ndarray, y_pred: np.ndarray) -> float:
    known, positive = np.sort(y_pred[~np.isnan(y_true)]), np.sort(y_pred[y_true == 1])
    rank = len(known) - np.searchsorted(known, positive)
    return float(((len(positive) - np.searchsorted(positive, positive)) / rank).mean())


def micro_f1(
    y_true: Float[Tensor, "num_rows num_tasks"], y_pred: Float[Tensor, "num_rows num_tasks"]
) -> float:
    """Compute F1 over the labels of all tasks together, as scikit-learn's micro average of a multilabel problem.

    A positive logit predicts the label 1. Labels that are NaN do not count. Of one class a row, the micro average of F1
    is the accuracy.

    Args:
        y_true: 0, 1 or NaN, [num_rows, num_tasks]
        y_pred: logits of the same shape.

    Returns:
        In [0, 1]; 0 without any positive label or prediction, NaN without any label.
    """
    known, predicted = ~y_true.isnan(), y_pred > 0
    if not known.any():
        return float("nan")
    hits = int((predicted & (y_true == 1)).sum())
    return 2 * hits / max(int((predicted & known).sum()) + int((y_true == 1).sum()), 1)


def macro_f1_of_tasks(
    y_true: Float[Tensor, "num_rows num_tasks"], y_pred: Float[Tensor, "num_rows num_tasks"]
) -> float:
    """Compute the mean over the tasks of F1, as scikit-learn's macro average of a multilabel problem.

    A positive logit predicts the label 1. Labels that are NaN do not count. A task without any label is left out; a
    task without any positive label or prediction counts as 0.

    Args:
        y_true: 0, 1 or NaN, [num_rows, num_tasks]
        y_pred: logits of the same shape.

    Returns:
        In [0, 1], or NaN without any label.
    """
    known, predicted = ~y_true.isnan(), y_pred > 0
    hits = (predicted & (y_true == 1)).sum(0)
    return _mean_f1(hits, (y_true == 1).sum(0), (predicted & known).sum(0), known.any(0))


def read_threshold(rule: str) -> tuple[str, float]:
    """Read the key task.threshold: "none", "f1", "cost" with its cost, or "fixed" with a probability.

    Raises:
        ValueError: it is something else.
    """
    name, _, cost = rule.partition(":")
    if rule in ("none", "f1"):
        return rule, 0.0
    try:
        value = float(cost if name == "cost" else rule)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf and (name == "cost" or value < 1)):
        raise ValueError(
            f"task.threshold={rule} is no threshold. Give f1, cost:C with the cost of a missed positive "
            "over that of a false alarm, as in cost:5, a probability in (0, 1), or none"
        )
    return ("cost", value) if name == "cost" else ("fixed", value)


def choose_thresholds(
    y_true: Float[Tensor, "num_rows num_tasks"],
    y_pred: Float[Tensor, "num_rows num_tasks"],
    rule: str,
) -> Float[Tensor, " num_tasks"]:
    """Choose, for each binary task, the number that the logit of a positive row exceeds; float64.

    It is halfway between two logits: the one with the best F1, or the least cost. A task without labels of both kinds
    has 0, the probability one half.

    Args:
        y_true: 0, 1 or NaN.
        y_pred: finite logits.
        rule: as :func:`read_threshold` reads it.
    """
    name, value = read_threshold(rule)
    found = torch.full(
        (y_true.size(1),),
        math.log(value / (1 - value)) if name == "fixed" else 0.0,
        dtype=torch.float64,
    )
    for task, (truth, predicted) in enumerate(
        zip(y_true.unbind(1), y_pred.double().unbind(1), strict=True)
    ):
        known = ~truth.isnan()
        order = predicted[known].argsort(descending=True)
        ordered, positive = predicted[known][order], (truth[known] == 1)[order]
        num_positive = int(positive.sum())
        if name == "fixed" or num_positive in (0, len(positive)):
            continue
        ends = torch.cat([ordered[:1] + 1, ordered, ordered[-1:] - 1])
        hits = torch.cat(
            [torch.zeros(1), positive.cumsum(0)]
        ).double()  # of the first 0, 1, ... rows
        num = torch.arange(len(hits), dtype=torch.float64)
        merit = (
            2 * hits / (num + num_positive)
            if name == "f1"
            else hits - num - value * (num_positive - hits)
        )
        best = int(merit.where(ends[:-1] > ends[1:], -torch.inf).argmax())
        found[task] = (ends[best] + ends[best + 1]) / 2
    return found


def score_decisions(
    y_true: Float[Tensor, "num_rows num_tasks"],
    y_pred: Float[Tensor, "num_rows num_tasks"],
    thresholds: Float[Tensor, " num_tasks"],
) -> dict[str, float]:
    """Compute the means over the tasks with labels of both kinds of precision, recall and F1 at thresholds, and of
    precision at K: the share of positive rows among the K with the highest logits, for each K of NUM_FIRST that all of
    these tasks have rows for. Rows with the K-th highest logit count alike. Without such a task, there is nothing.
    """
    found: dict[str, list[float]] = {}
    for truth, predicted, threshold in zip(
        y_true.unbind(1), y_pred.double().unbind(1), thresholds, strict=True
    ):
        known = ~truth.isnan()
        positive, logits = truth[known] == 1, predicted[known]
        if not positive.any() or positive.all():
            continue
        chosen, firsts = logits > threshold, [k for k in NUM_FIRST if k <= len(logits)]
        hits, num = int((chosen & positive).sum()), int(chosen.sum())
        own = {
            "precision": hits / max(num, 1),
            "recall": hits / int(positive.sum()),
            "f1": 2 * hits / (num + int(positive.sum())),
            **{f"precision@{k}": _precision_of_first(positive, logits, k) for k in firsts},
        }
        for name, score in own.items():
            found.setdefault(name, []).append(score)
    most = len(found.get("f1", ()))
    return {name: float(np.mean(scores)) for name, scores in found.items() if len(scores) == most}


def _precision_of_first(positive: Tensor, logits: Tensor, k: int) -> float:
    least = logits.topk(k).values[-1]
    above, equal = logits > least, logits == least
    return float(positive[above].sum() + (k - above.sum()) * positive[equal].double().mean()) / k


def macro_f1(
    y_true: Int[Tensor, "num_nodes 1"], y_pred: Float[Tensor, "num_nodes num_classes"]
) -> float:
    """Compute the mean of F1 over the classes that some node has or is predicted to have, as scikit-learn does.

    Args:
        y_true: classes, [num_nodes, 1]
        y_pred: logits; the largest of a node predicts its class.

    Returns:
        In [0, 1]
    """
    hits, true, predicted = _count_classes(y_true, y_pred)
    return _mean_f1(hits, true, predicted, true + predicted > 0)


def balanced_accuracy(
    y_true: Int[Tensor, "num_nodes 1"], y_pred: Float[Tensor, "num_nodes num_classes"]
) -> float:
    """Compute the mean over the classes that some node has of the fraction of their nodes that are predicted right.

    It is scikit-learn's ``balanced_accuracy_score``, and the accuracy where all classes are equally frequent.

    Args:
        y_true: classes, [num_nodes, 1]
        y_pred: logits; the largest of a node predicts its class.

    Returns:
        In [0, 1]
    """
    hits, true, _ = _count_classes(y_true, y_pred)
    return float((hits.double() / true)[true > 0].mean())


def _count_classes(y_true: Tensor, y_pred: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count, for each class, the nodes predicted right, those that have it, and those predicted to have it."""
    true, predicted = y_true[:, 0], y_pred.argmax(1)
    return tuple(
        torch.bincount(classes, minlength=y_pred.size(1))  # type: ignore[return-value]
        for classes in (true[true == predicted], true, predicted)
    )


def _mean_f1(hits: Tensor, true: Tensor, predicted: Tensor, counts: Tensor) -> float:
    """Compute the mean of F1 over the labels that count; 0 for those without any true or predicted row."""
    return float((2 * hits.double() / (true + predicted).clamp(min=1))[counts].mean())


def mean_absolute_error(
    y_true: Float[Tensor, "num_rows num_tasks"], y_pred: Float[Tensor, "num_rows num_tasks"]
) -> float:
    """Compute the mean over the targets of each one's mean absolute error, as scikit-learn does.

    A target without any value is left out; values that are NaN do not count.

    Returns:
        In the targets' own unit, or NaN if no target has a value.
    """
    return float((y_pred.double() - y_true.double()).abs().nanmean(0).nanmean())


def root_mean_squared_error(
    y_true: Float[Tensor, "num_rows num_tasks"], y_pred: Float[Tensor, "num_rows num_tasks"]
) -> float:
    """Compute the mean over the targets of each one's root mean squared error, as OGB and scikit-learn do.

    A target without any value is left out; values that are NaN do not count.

    Returns:
        In the targets' own unit, or NaN if no target has a value.
    """
    return float((y_pred.double() - y_true.double()).square().nanmean(0).sqrt().nanmean())


def values_of_pairs(
    metric: str, y_pred_pos: Float[Tensor, " num_positive"], y_pred_neg: Float[Tensor, "..."]
) -> Float[Tensor, " num_positive"]:
    """Compute what each positive pair adds to a metric of links: the metric is the mean over these pairs, float64.

    Of "rocauc" it is the fraction of the negatives below the pair, of "ap" the precision of all pairs that are not
    below it. Other metrics and arguments as of :func:`link_metric`.
    """
    if k := hits_at(metric):
        return (y_pred_pos > y_pred_neg.topk(k).values[..., -1]).double()
    if y_pred_neg.dim() == 2:
        own = y_pred_pos.unsqueeze(1)
        better, equal = (compared.sum(1) for compared in (y_pred_neg > own, y_pred_neg == own))
    else:
        ordered = y_pred_neg.sort().values
        own = y_pred_pos.contiguous()
        not_better = torch.searchsorted(ordered, own, right=True)
        better, equal = len(ordered) - not_better, not_better - torch.searchsorted(ordered, own)
    if metric == "mrr":
        return (1 + better + 0.5 * equal).double().reciprocal()
    if metric == "rocauc":
        return 1 - (better + 0.5 * equal).double() / max(y_pred_neg.size(-1), 1)
    among = len(y_pred_pos) - torch.searchsorted(y_pred_pos.sort().values, y_pred_pos.contiguous())
    return among.double() / (among + better + equal)


def link_ranking(
    y_pred_pos: Float[Tensor, " num_positive"], y_pred_neg: Float[Tensor, "..."]
) -> dict[str, float]:
    """Compute MRR, and Hits@K for each K of RANKS that there are enough negatives for. Arguments as of
    :func:`link_metric`.
    """
    names = ["mrr", *(f"hits@{k}" for k in RANKS if k <= y_pred_neg.size(-1))]
    return {name: link_metric(name, y_pred_pos, y_pred_neg) for name in names}


def count_by_score(
    y_true: Float[Tensor, " num_rows"], y_pred: Float[Tensor, " num_rows"]
) -> dict[str, Any] | None:
    """Count the labels of each kind between some thresholds, from which curves are drawn.

    The thresholds are quantiles of the positive and of the negative rows, so that curves are as fine for a rare label.

    Args:
        y_true: 0, 1 or NaN for unknown ones.
        y_pred: logits.

    Returns:
        ``positive``, ``negative`` and mean ``probability`` of the rows between two thresholds, in ascending order, and
        the exact ``rocauc`` and ``ap`` of all rows. None without labels of both kinds.
    """
    y_true, y_pred = y_true[known := ~y_true.isnan()], y_pred[known]
    is_positive = y_true == 1
    if is_positive.all() or not is_positive.any():
        return None
    ends = [
        part.sort().values[torch.linspace(0, len(part) - 1, 100, dtype=torch.float64).long()]
        for part in (y_pred[is_positive], y_pred[~is_positive])
    ]
    place = torch.searchsorted(torch.cat(ends).unique(), y_pred, right=True) - 1
    positive, negative = (
        torch.bincount(place[chosen], minlength=int(place.max()) + 1)
        for chosen in (is_positive, ~is_positive)
    )
    probability = torch.bincount(place, y_pred.double().sigmoid()) / (positive + negative)
    return {
        "positive": positive.tolist(),
        "negative": negative.tolist(),
        "probability": [round(value, 6) for value in probability.tolist()],
        **{name: TASK_METRICS[name](y_true[:, None], y_pred[:, None]) for name in ("rocauc", "ap")},
    }


def hits_at(metric: str) -> int:
    """Read K of "hits@K"; 0 for the other metrics of links.

    Raises:
        ValueError: it is none of them.
    """
    if metric in LINK_METRICS or ranks_at(metric):
        return 0
    if not (found := re.fullmatch(r"hits@([1-9]\d{0,8})", metric)):
        raise ValueError(
            f"the metric {metric} of links is unknown; choose mrr or hits@K, such as hits@50, "
            "or rocauc or ap; or recall@K, ndcg@K, hit@K or mrr@K, which rank all candidates of a source"
        )
    return int(found[1])


def ranking_metric(
    metric: str, ranks: Float[Tensor, " num_answers"], sources: Int[Tensor, " num_answers"]
) -> float:
    """Compute the mean over sources of a metric of the first K of all candidates.

    Of the answers to a source, recall@K is the fraction with a rank of at most K; ndcg@K their discounted gain
    1 / log2(1 + rank) up to K, as a fraction of the largest possible one; hit@K is 1 if one is there; mrr@K is 1 / rank
    of the first one, 0 beyond K.

    Args:
        ranks: of each answer, from 1, float64.
        sources: of each answer.

    Returns:
        In [0, 1]; NaN without an answer.
    """
    return float(values_of_sources(metric, ranks, sources).mean())


def values_of_sources(
    metric: str, ranks: Float[Tensor, " num_answers"], sources: Int[Tensor, " num_answers"]
) -> Float[Tensor, " num_sources"]:
    """Compute a metric of :func:`ranking_metric` for each source, in ascending order of the sources, float64."""
    name, k = metric.partition("@")[0], ranks_at(metric)
    _, place, count = sources.unique(return_inverse=True, return_counts=True)
    is_in = (ranks <= k).double()
    gain = {
        "recall": is_in,
        "hit": is_in,
        "mrr": is_in / ranks,
        "ndcg": is_in / (1 + ranks).log2(),
    }[name]
    how = "sum" if name in ("recall", "ndcg") else "amax"
    found = torch.zeros(len(count), dtype=torch.float64).scatter_reduce_(0, place, gain, how)
    if name == "recall":
        found /= count
    elif name == "ndcg":
        ideal = (1 / torch.arange(2, 2 + k, dtype=torch.float64).log2()).cumsum(0)
        found /= ideal[count.clamp(max=k) - 1]
    return found


def link_metric(
    metric: str, y_pred_pos: Float[Tensor, " num_positive"], y_pred_neg: Float[Tensor, "..."]
) -> float:
    """Compute "hits@K", for any K, or "mrr", as OGB defines them, or "rocauc" or "ap" of the pairs as one binary task.

    Hits@K is the fraction of the positive pairs above the k-th best of all negative ones; a tie does not count. OGB
    says 1 for fewer negatives than `k`; here that is a mistake of the caller's. MRR is the mean reciprocal rank of each
    positive pair among negative ones; among equal ones that is the mean of the best and the worst that it could have.

    Args:
        y_pred_pos, y_pred_neg: scores, of which more means more likely. Those of negatives are [num_negative], or for
            "mrr" perhaps those of each pair [num_positive, each].
    """
    if metric == "mrr" or hits_at(metric):
        return float(values_of_pairs(metric, y_pred_pos, y_pred_neg).mean())
    y_true = torch.cat([torch.ones_like(y_pred_pos), torch.zeros_like(y_pred_neg)]).unsqueeze(1)
    return TASK_METRICS[metric](y_true, torch.cat([y_pred_pos, y_pred_neg]).unsqueeze(1))


LINK_METRICS = ("mrr", "rocauc", "ap")
NUM_FIRST = (10, 100, 1000)  # K of the precision at K
RANKS = (1, 3, 10, 20, 50, 100)  # K of the Hits@K that a report lists
# One line for each metric: of binary tasks, [num_nodes, num_tasks] of 0, 1 and NaN; of one class for each node,
# [num_nodes, 1]; of real values, [num_nodes, num_tasks] with NaN for unknown ones. The second argument are logits, or
# values in the unit of the first.
Metric = Callable[[Tensor, Tensor], float]
TASK_METRICS: dict[str, Metric] = {
    "rocauc": rocauc,
    "ap": average_precision,
    "micro_f1": micro_f1,
    "macro_f1": macro_f1_of_tasks,
}
CLASS_METRICS: dict[str, Metric] = {
    "acc": accuracy,
    "macro_f1": macro_f1,
    "balanced_acc": balanced_accuracy,
}
VALUE_METRICS: dict[str, Metric] = {"mae": mean_absolute_error, "rmse": root_mean_squared_error}
KINDS = {"classes": CLASS_METRICS, "binary tasks": TASK_METRICS, "real values": VALUE_METRICS}
METRICS = tuple(dict.fromkeys([*TASK_METRICS, *CLASS_METRICS, *VALUE_METRICS]))


def kind_of(metric: str) -> str:
    """Say what labels a dataset has by its metric. macro_f1 stands for classes there; a run may choose it for binary
    tasks.
    """
    return next(kind for kind, members in KINDS.items() if metric in members)

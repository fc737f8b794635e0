"""Temperatures that make probabilities agree with how often predictions are right.

"On Calibration of Modern Neural Networks" (Guo et al. 2017, https://arxiv.org/abs/1706.04599): logits are divided by
one number, chosen by the likelihood of the validation labels. The order of the classes of a row does not change.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Shaped
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.metrics import CLASS_METRICS, VALUE_METRICS
from parallel_epochs.pipeline.run.log import format_score

log = logging.getLogger(__name__)

# The natural logarithm of a temperature is looked for at most this far from 0, and then from that of the logits' size.
REACH = 5.0
NUM_BINS = 15


def fit_temperatures(
    logits: Float[Tensor, "num_rows columns"],
    y: Shaped[Tensor, "num_rows targets"],
    *,
    are_classes: bool,
) -> Float[Tensor, " temperatures"]:
    """Fit the temperature of classes, or one for each binary task.

    Args:
        y: classes [num_rows, 1], int64; or 0, 1 and NaN [num_rows, columns].

    Returns:
        [1] or [columns], float32, positive: what the logits are to be divided by. 1 where no temperature is best: all
        predictions are right, or all known labels of a task are alike.
    """
    logits = logits.double()
    if are_classes:
        return torch.tensor([_fit(lambda scaled: F.cross_entropy(scaled, y.squeeze(1)), logits)])
    found = []
    for column, target in zip(logits.unbind(1), y.double().unbind(1), strict=True):
        known = ~target.isnan()
        column, target = column[known], target[known]
        is_mixed = target.numel() > 0 and bool((target != target[0]).any())
        found.append(
            _fit(
                lambda scaled, target=target: F.binary_cross_entropy_with_logits(scaled, target),
                column,
            )
            if is_mixed
            else 1.0
        )
    return torch.tensor(found)


def _fit(loss: Callable, logits: Tensor) -> float:
    def at(log_t: float) -> float:
        return float(loss(logits / math.exp(log_t)))

    size = float(
        (logits - logits.mean(-1, keepdim=True) if logits.dim() > 1 else logits).abs().mean()
    )
    for middle in (0.0, math.log(max(size, 1e-300))):
        bounds = middle - REACH, middle + REACH
        best = minimize_scalar(at, bounds=bounds, method="bounded")
        # Where all predictions are right, the likelihood grows to the bound, or is 1 before.
        if abs(best.x - middle) <= REACH - 0.1 and best.fun < min(map(at, bounds)):
            return math.exp(best.x)
    return 1.0


def calibration_error(
    logits: Float[Tensor, "num_rows columns"],
    y: Shaped[Tensor, "num_rows targets"],
    *,
    are_classes: bool,
) -> float:
    """Compute the expected calibration error: how far, on average, the probability of a prediction is from the share of
    such predictions that are right. Rows are put into :data:`NUM_BINS` bins of equal width by their probability.

    Of classes, this is of the likeliest class. Of binary tasks, it is of the label 1, over all known labels. NaN
    without labels.
    """
    if are_classes:
        probability, found = logits.double().softmax(1).max(1)
        right = found == y.squeeze(1)
    else:
        known = ~y.isnan()
        probability, right = logits.double().sigmoid()[known], y[known] == 1
    return _error(probability, right)


def _error(
    probability: Float[Tensor, " num_predictions"], right: Bool[Tensor, " num_predictions"]
) -> float:
    if not probability.numel():
        return math.nan
    place = (probability * NUM_BINS).long().clamp(max=NUM_BINS - 1)
    gap = torch.zeros(NUM_BINS, dtype=torch.float64).index_add_(
        0, place, right.double() - probability
    )
    return float(gap.abs().sum() / probability.numel())


def calibrate(predicted: Predicted) -> Predicted:
    """Divide logits by the temperatures that the validation labels choose; the log says what they are and what they do.

    Raises:
        ValueError: there are no validation labels, or they are real values.
    """
    data, rows = predicted.graph, predicted.rows
    if data.metric in VALUE_METRICS:
        raise ValueError(
            "calibrate=true is for classes and binary tasks, and the labels are real values "
            f"({data.metric}). Leave it out"
        )
    are_classes, errors = data.metric in CLASS_METRICS, []
    mask = data.valid_mask
    if not bool(mask.any()):
        raise ValueError(
            "calibrate=true fits a temperature to the validation labels, and the valid split is empty. "
            "Leave it out"
        )
    temperatures = fit_temperatures(rows[mask], data.y[mask], are_classes=are_classes)
    scaled = rows / temperatures
    for split in ("valid", "test"):
        mask = data[f"{split}_mask"]
        before, after = (
            calibration_error(each[mask], data.y[mask], are_classes=are_classes)
            for each in (rows, scaled)
        )
        if not math.isnan(before):
            errors.append(f"{split} {format_score(before)} -> {format_score(after)}")
    shown = (
        f"temperature {float(temperatures[0]):.3g}"
        if len(temperatures) == 1
        else f"temperatures {float(temperatures.min()):.3g} to {float(temperatures.max()):.3g}"
    )
    log.info("calibration: %s; expected calibration error: %s", shown, ", ".join(errors))
    thresholds = None if predicted.thresholds is None else predicted.thresholds / temperatures
    return replace(predicted, rows=scaled, temperatures=temperatures, thresholds=thresholds)

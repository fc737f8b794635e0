"""Temperatures: logits are divided by one number, so that probabilities agree with how often predictions are right.

See "On Calibration of Modern Neural Networks" (Guo et al. 2017, https://arxiv.org/abs/1706.04599).
"""

import logging
import math
from dataclasses import replace

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.metrics import CLASS_METRICS, VALUE_METRICS

log = logging.getLogger(__name__)

# The natural logarithm of a temperature is looked for at most this far from that of the logits' size.
REACH = 8.0


def log_loss(logits: Tensor, y: Tensor, *, are_classes: bool) -> Tensor:
    """Compute the mean loss of classes [num_rows, 1], or of known labels 0 and 1 [num_rows, columns]."""
    if are_classes:
        return F.cross_entropy(logits.double(), y[:, 0])
    known = ~y.isnan()
    return F.binary_cross_entropy_with_logits(logits[known].double(), y[known].double())


def fit_temperatures(logits: Tensor, y: Tensor, *, are_classes: bool) -> Tensor:
    """Fit the temperature of classes [1], or one for each binary task [columns], by the likelihood of labels; float32.

    It is 1 where no temperature is best: all predictions are right, or all known labels of a task are alike.
    """
    pairs = [(logits, y)] if are_classes else zip(logits.split(1, 1), y.split(1, 1), strict=True)
    found = []
    for rows, own in pairs:
        middle = rows.double() - (rows.double().mean(1, keepdim=True) if are_classes else 0)
        size = float(middle.abs().mean().nan_to_num())

        def at(log_t: float, rows: Tensor = rows, own: Tensor = own, size: float = size) -> float:
            scaled = rows.double() / (size * math.exp(log_t))
            return float(log_loss(scaled, own, are_classes=are_classes))

        found.append(1.0)
        if size and (are_classes or bool((own == 0).any() and (own == 1).any())):
            best = minimize_scalar(at, bounds=(-REACH, REACH), method="bounded")
            if abs(best.x) < REACH - 0.1 and best.fun < min(at(-REACH), at(REACH)):
                found[-1] = size * math.exp(best.x)
    return torch.tensor(found)


def calibrate(predicted: Predicted) -> Predicted:
    """Divide logits by the temperatures that the validation labels choose; the log says what this does.

    Raises:
        ValueError: there are no validation labels, or they are real values.
    """
    data, rows, thresholds = predicted.graph, predicted.rows, predicted.thresholds
    if data.metric in VALUE_METRICS:
        raise ValueError(
            "calibrate=true is for classes and binary tasks, and the labels are real values "
            f"({data.metric}). Leave it out"
        )
    are_classes, mask = data.metric in CLASS_METRICS, data.valid_mask
    if not bool(mask.any()):
        raise ValueError(
            "calibrate=true fits a temperature to the validation labels, and the valid split is empty. "
            "Leave it out"
        )
    found = fit_temperatures(rows[mask], data.y[mask], are_classes=are_classes)
    losses = [
        float(log_loss(each[mask], data.y[mask], are_classes=are_classes))
        for each in (rows, rows / found)
    ]
    log.info(
        "calibration: temperatures %.3g to %.3g; log loss of validation %.4f -> %.4f",
        *(float(found.min()), float(found.max()), *losses),
    )
    if thresholds is not None:
        thresholds = thresholds / found
    return replace(predicted, rows=rows / found, temperatures=found, thresholds=thresholds)

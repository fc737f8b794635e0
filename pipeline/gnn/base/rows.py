"""Labels of earlier rows of a label table about the same node, whose labels are known by the time of a row."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.base.method import Method
from parallel_epochs.pipeline.gnn.tasks.edge import find_ends
from parallel_epochs.pipeline.names import ROW_TIMES

# Weight of the mean label of all among the earlier ones.
PRIOR = 1.0
# The labels that are read, and what they are called.
WHICH = {"last": "last known", "earlier": "mean known"}


def methods(inputs: Inputs, seed: int) -> Iterator[Method]:
    """Yield the label of the latest earlier row about the same node, and the mean of all of them."""
    for name, title in WHICH.items():

        def fit(known: Tensor, which: str = name) -> dict:
            return {"which": which, "mean": inputs.labels.mean(known)}

        yield Method(
            "earlier",
            f"{title} label of the same node",
            fit,
            predict,
            leaves_out=True,
            reads_labels=True,
        )


def columns(inputs: Inputs, known: Tensor) -> Tensor:
    """Return the latest and the mean label of earlier rows of the same node as columns [num_own, columns]."""
    found = {"mean": inputs.labels.mean(known)}
    return torch.cat(
        [predict(inputs, found | {"which": each}, known)[inputs.own] for each in WHICH], dim=1
    )


def predict(inputs: Inputs, fitted: dict, known: Tensor, asked: Tensor | None = None) -> Tensor:
    """Predict the label of earlier known rows of the same node, and a little of the mean of all."""
    entity, (asks, tells) = find_ends(inputs.data)[:, 0].numpy(), inputs.data[ROW_TIMES].numpy()
    marks = inputs.labels.known(known)[inputs.own].any(1).numpy()
    y = inputs.labels.y[inputs.own].nan_to_num()
    told = np.flatnonzero(marks)
    told = told[np.lexsort((tells[told], entity[told]))]
    # The rows that are told before a row asks are a range of those of its node.
    moments = np.unique(tells[told])
    keys = entity[told] * (len(moments) + 1) + np.searchsorted(moments, tells[told])
    begin = np.searchsorted(entity[told], entity)
    end = np.searchsorted(
        keys, entity * (len(moments) + 1) + np.searchsorted(moments, asks, side="right")
    )
    if fitted["which"] == "last":
        begin = np.maximum(begin, end - 1)
    sums = torch.cat([y.new_zeros(1, y.size(1)), y[torch.from_numpy(told)]]).double().cumsum(0)
    total = (sums[torch.from_numpy(end)] - sums[torch.from_numpy(begin)]).float()
    num = torch.from_numpy(end - begin).float().unsqueeze(1)
    return inputs.among_all((total + PRIOR * fitted["mean"]) / (num + PRIOR), fitted["mean"])

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
    return torch.cat(list(_earlier(inputs, inputs.labels.mean(known), known).values()), dim=1)


def predict(inputs: Inputs, fitted: dict, known: Tensor, asked: Tensor | None = None) -> Tensor:
    """Predict the label of earlier known rows of the same node, and a little of the mean of all."""
    found = _earlier(inputs, fitted["mean"], known)[fitted["which"]]
    return inputs.among_all(found, fitted["mean"])


def _earlier(inputs: Inputs, mean: Tensor, known: Tensor) -> dict[str, Tensor]:
    """Compute each label of :data:`WHICH` of the rows that may have labels [num_own, columns]."""
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
    sums = torch.cat([y.new_zeros(1, y.size(1)), y[torch.from_numpy(told)]]).double().cumsum(0)
    found = dict[str, Tensor]()
    for which, first in zip(WHICH, (np.maximum(begin, end - 1), begin), strict=True):
        total = (sums[torch.from_numpy(end)] - sums[torch.from_numpy(first)]).float()
        num = torch.from_numpy(end - first).float().unsqueeze(1)
        found[which] = (total + PRIOR * mean) / (num + PRIOR)
    return found

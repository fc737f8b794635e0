"""The mean label, or the most frequent one."""

from collections.abc import Iterator

from torch import Tensor

from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.base.method import Method


def methods(inputs: Inputs, seed: int) -> Iterator[Method]:
    """Yield the mean label of the training rows.

    It is the same for all rows. The mean of the other folds would tell a row's label: it is lower where that is high.
    """
    yield Method(
        "mean",
        inputs.labels.mean_name,
        lambda known: {"mean": inputs.labels.mean(known)},
        predict,
        leaves_out=True,
    )


def predict(inputs: Inputs, fitted: dict, known: Tensor, asked: Tensor | None = None) -> Tensor:
    """Predict the same for all rows."""
    return fitted["mean"].expand(len(inputs.labels.y), -1)

"""The one form of every simple method: a function from the training rows that it may read to predictions of all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool
from torch import Tensor

Rows = Bool[Tensor, " num_rows"]
Predict = Callable[[Any, dict, Rows, Rows | None], Tensor]


@dataclass(frozen=True)
class Method:
    """A simple method with its settings.

    Attributes:
        name: a value of ``task.base``.
        title: for people, with its settings.
        fit: fits it to some training rows; returns plain tensors and numbers.
        predict: computes probabilities, or values, of all rows [num_rows, columns] from the inputs, what was fitted, and
            the labels of some training rows. It may leave out other rows than those that are asked for.
        leaves_out: whether the predictions of a training row never read its own label.
        reads_labels: whether `predict` reads labels of neighbours.
    """

    name: str
    title: str
    fit: Callable[[Rows], dict]
    predict: Predict
    leaves_out: bool = False
    reads_labels: bool = False


class TooLong(ValueError):
    """A method would take longer than it may, or more memory.

    Args:
        reason: what is too much.
        seconds: that the method would take, by the estimate; 0 where time is not the reason.
    """

    def __init__(self, reason: str, seconds: float = 0.0):
        super().__init__(reason)
        self.seconds = seconds

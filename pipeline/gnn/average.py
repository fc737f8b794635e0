"""An exponential moving average of a model's weights."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor


class WeightAverage:
    """The average of the weights that a model had after each step, of which later ones count more.

    After step n the average is ``decay * average + (1 - decay) * weights``. It begins with the weights after the first
    step, as torch.optim.swa_utils.AveragedModel does. The running statistics of batch norm are averaged too; what is
    no floating-point number, such as its counter, is that of the model.

    Args:
        model: whose weights are averaged; its parameters stay where they are.
        decay: in [0, 1); the average is one over about the last 1 / (1 - decay) steps.
    """

    def __init__(self, model: torch.nn.Module, decay: float):
        # Each once: a tensor that several modules share has a name for each.
        found = {
            id(value): (name, value)
            for name, value in model.state_dict(keep_vars=True).items()
            if value.is_floating_point()
        }
        self._names, self._values = (
            [name for name, _ in found.values()],
            [value for _, value in found.values()],
        )
        self._averages: list[Tensor] = []
        self._model, self._decay = model, decay

    @torch.no_grad()
    def update(self) -> None:
        """Take up the weights after a step."""
        if self._averages:
            torch._foreach_lerp_(self._averages, self._values, 1 - self._decay)
        else:
            self._averages = [value.detach().clone() for value in self._values]

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model have the averages in place of its weights inside of a ``with`` block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def weights(self) -> dict[str, Tensor]:
        """Return the averages under the names of the model's weights."""
        with self.applied():
            return {name: value.clone() for name, value in self._model.state_dict().items()}

    def load(self, weights: dict[str, Tensor]) -> None:
        """Go on from what :meth:`weights` returned.

        Raises:
            TypeError: it is of another model.
        """
        averages = [
            weights[name].to(value.device, copy=True)
            for name, value in zip(self._names, self._values, strict=True)
        ]
        for name, value, average in zip(self._names, self._values, averages, strict=True):
            if average.shape != value.shape or average.dtype != value.dtype:
                raise TypeError(f"{name} is {average.dtype} of {list(average.shape)}")
        self._averages = averages

    @torch.no_grad()
    def _swap(self) -> None:
        for value, average in zip(
            self._values, self._averages, strict=False
        ):  # none before the first step
            kept = value.clone()
            value.copy_(average)
            average.copy_(kept)

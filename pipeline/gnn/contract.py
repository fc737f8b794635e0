"""The contracts of trainer=gnn: a task says what is learned, a loader what a batch is."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.run.schedule import Share

# Types of autocast by train.precision.
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context in which a model computes in a precision."""
    return torch.autocast(
        device.type, DTYPES.get(precision, torch.bfloat16), enabled=precision in DTYPES
    )


class Task(Protocol):
    """A task: it defines what is learned, from tensors alone.

    `loss` returns the loss of a batch, summed over what counts in it, and the number of that, or the sum of its
    weights. `predict` returns the numbers of a batch's targets and a row for each. `scores` computes the metric of each
    split from the rows of all. `is_defined` tells whether the metric of a split is a number. `kind` names what is
    learned: one of the names in :data:`pipeline.metrics.KINDS`, or "links". `label_moments` holds the mean and the
    deviation of labels that are inputs or real values, and is none for others.
    """

    metric: str
    kind: str
    in_channels: int
    out_channels: int
    num_rows: int
    label_moments: Tensor | None

    def loss(
        self, model: torch.nn.Module, batch: Data, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]: ...
    def predict(self, model: torch.nn.Module, batch: Data) -> tuple[Tensor, Tensor]: ...
    def scores(self, model: torch.nn.Module | None, rows: Tensor) -> dict[str, float]: ...
    def is_defined(self, split: str) -> bool: ...


# The number of batches of a view, and a function that makes some of them, given the round and the number of the view.
Views = tuple[int, Callable[[int, int, Iterable[int]], Iterator[Data]]]


class Loader(Protocol):
    """Batches that are a pure function of the seed, the round and the share.

    `prepare` leaves what other processes of the machine will find, before any of them needs it. `draw` draws what a
    share is a part of, the same for all ranks that share it. `measure` says in the log what was drawn, and returns a
    record of it under its kind. `views` makes the batches that predict every row, from a number of clusters and a seed;
    it is none where the batches are others.
    """

    data: Data
    device: torch.device

    @property
    def num_batches(self) -> int: ...
    def prepare(self) -> None: ...
    def draw(self, round_: int, share: Share) -> Any: ...
    def measure(self, drawn: Any, seconds: float) -> dict[str, dict]: ...
    def batches(self, round_: int, share: Share) -> Iterator[Data]: ...
    def views(self, num_parts: int, seed: int) -> Views | None: ...

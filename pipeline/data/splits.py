"""Nodes or graphs for training, validation and test, by fractions of an order."""

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.run import words
from parallel_epochs.pipeline.run.seeds import stream


def shuffle(chosen: np.ndarray, seed: int) -> np.ndarray:
    """Bring nodes into a random order.

    Args:
        chosen: which of them, bool [num_nodes].
    """
    return stream("split", seed).permutation(np.flatnonzero(chosen))


def shuffle_all(count: int, seed: int) -> np.ndarray:
    """Return the numbers below `count` in a random order.

    The order differs from that of :func:`shuffle`: datasets that are older than that function keep their splits.
    """
    return np.random.default_rng(seed).permutation(count)


def divide(order: np.ndarray, count: int, train_fraction: float, valid_fraction: float, *,
           unit: str = "label") -> list[Tensor]:
    """Divide nodes or graphs in their order: the first for training, then those for validation, the rest for the test.

    Sizes are rounded down.

    Args:
        order: numbers below `count`, each at most once; what is not among them is in no split.
        unit: what is divided, for messages.

    Returns:
        Three masks [count], bool.

    Raises:
        ValueError: none is left for training.
    """
    ends = [int(train_fraction * len(order)), int((train_fraction + valid_fraction) * len(order))]
    if not len(order):
        raise ValueError(f"there are no {unit}s to divide into training, validation and test: give some")
    if not ends[0]:
        raise ValueError(f"data.train_fraction={train_fraction:.4g} of {words.count(len(order), unit)} is none. Raise "
                         f"it, or give more {unit}s")
    masks = []
    for part in np.split(order, ends):
        mask = torch.zeros(count, dtype=torch.bool)
        mask[torch.from_numpy(part)] = True
        masks.append(mask)
    return masks

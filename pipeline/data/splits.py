"""Nodes for training, validation and test, by fractions of an order."""

import numpy as np
import torch
from torch import Tensor

from pipeline.run.seeds import stream


def shuffle(chosen: np.ndarray, seed: int) -> np.ndarray:
    """Bring nodes into a random order.

    Args:
        chosen: which of them, bool [num_nodes].
    """
    return stream("split", seed).permutation(np.flatnonzero(chosen))


def divide(nodes: np.ndarray, num_nodes: int, train_fraction: float, valid_fraction: float) -> list[Tensor]:
    """Divide nodes in their order: the first for training, then those for validation, the rest for the test.

    Args:
        nodes: their numbers, each once.

    Returns:
        Three masks [num_nodes], bool.
    """
    ends = [int(train_fraction * len(nodes)), int((train_fraction + valid_fraction) * len(nodes))]
    masks = []
    for part in np.split(nodes, ends):
        mask = torch.zeros(num_nodes, dtype=torch.bool)
        mask[torch.from_numpy(part)] = True
        masks.append(mask)
    return masks

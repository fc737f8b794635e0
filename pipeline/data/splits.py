"""Nodes or graphs for training, validation and test, by fractions of an order."""

import logging

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.run import words
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)


def shuffle(chosen: np.ndarray, seed: int) -> np.ndarray:
    """Bring nodes into a random order.

    Args:
        chosen: which of them, bool [num_nodes].
    """
    return stream("split", seed).permutation(np.flatnonzero(chosen))


def has_label(y: Tensor) -> np.ndarray:
    """Tell which rows have a label: no negative whole numbers, and not NaN alone; bool [num_rows]."""
    y = y.reshape(len(y), -1)
    return (~y.isnan().all(1) if y.is_floating_point() else (y >= 0).all(1)).numpy()


def shuffle_all(count: int, seed: int) -> np.ndarray:
    """Return the numbers below `count` in a random order.

    The order differs from that of :func:`shuffle`: datasets that are older than that function keep their splits.
    """
    return np.random.default_rng(seed).permutation(count)


def divide(
    order: np.ndarray,
    count: int,
    train_fraction: float,
    valid_fraction: float,
    *,
    unit: str = "label",
    times: np.ndarray | None = None,
    until: tuple[float, float] | None = None,
    groups: np.ndarray | None = None,
) -> list[Tensor]:
    """Divide nodes or graphs in their order: the first for training, then those for validation, the rest for the test.

    Sizes are rounded down. With groups, a border is the nearest one between two of them.

    Args:
        order: numbers below `count`, each at most once; what is not among them is in no split.
        unit: what is divided, for messages.
        times: in that order, if it is one of times, float64 [len(order)]; equal ones on both sides of a border are
            logged.
        until: the last time of training and that of validation, in place of the fractions.
        groups: in that order, which are not divided; those of one group are side by side [len(order)].

    Returns:
        Three masks [count], bool.

    Raises:
        ValueError: none is left for training, or none is between the borders in `until`.
    """
    ends = [int(train_fraction * len(order)), int((train_fraction + valid_fraction) * len(order))]
    if not len(order):
        raise ValueError(
            f"there are no {unit}s to divide into training, validation and test: give some"
        )
    if times is not None and until is not None:
        ends = np.searchsorted(times, until, side="right").tolist()
        if not ends[0]:
            raise ValueError(
                f"data.train_until is before all times of {words.count(len(order), unit)}: training would "
                "have none. Give a later time"
            )
        if ends[0] == ends[1]:
            raise ValueError(
                f"no time of {words.count(len(order), unit)} is after data.train_until and not after "
                "data.valid_until: validation would have none. Give other times"
            )
    elif times is not None:
        _report_equal(times, ends, unit)
    elif groups is not None:
        ends = _ends_of_groups(groups, ends)
    if not ends[0]:
        raise ValueError(
            f"data.train_fraction={train_fraction:.4g} of {words.count(len(order), unit)} is none. Raise "
            f"it, or give more {unit}s"
        )
    masks = []
    for part in np.split(order, ends):
        mask = torch.zeros(count, dtype=torch.bool)
        mask[torch.from_numpy(part)] = True
        masks.append(mask)
    return masks


def shuffle_groups(
    chosen: np.ndarray, groups: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Bring groups into a random order.

    Args:
        chosen: what is divided, numbers.
        groups: of each.

    Returns:
        The numbers, those of one group side by side, and their groups.
    """
    known, own = np.unique(groups, return_inverse=True)
    place = stream("split groups", seed).permutation(len(known))[own]
    order = place.argsort(kind="stable")
    return chosen[order], place[order]


def _ends_of_groups(groups: np.ndarray, ends: list[int]) -> list[int]:
    """Move the borders of splits to the nearest border between two groups, so that no split with a part loses all."""
    borders = np.concatenate([[0], np.flatnonzero(np.diff(groups)) + 1, [len(groups)]])
    sizes = np.diff([0, *ends, len(groups)])
    if len(borders) - 1 < (num_splits := int((sizes > 0).sum())):
        raise ValueError(
            f"data.split_by: {words.count(len(borders) - 1, 'group')} cannot be divided into {num_splits} "
            "splits. Choose another column, or leave it out"
        )
    first, last = (int(np.abs(borders - end).argmin()) for end in ends)
    first = min(max(first, 1), len(borders) - 1 - int((sizes[1:] > 0).sum()))
    last = min(max(last, first + int(sizes[1] > 0)), len(borders) - 1 - int(sizes[2] > 0))
    return [int(borders[first]), int(borders[last])]


def _report_equal(times: np.ndarray, ends: list[int], unit: str) -> None:
    """Log how many times are equal on both sides of a border: training then knows a part of the time of the next split."""
    for border, end in zip(("training and validation", "validation and test"), ends, strict=True):
        if 0 < end < len(times) and times[end - 1] == times[end]:
            first, last = (
                int(np.searchsorted(times, times[end], side)) for side in ("left", "right")
            )
            log.info(
                "split: the border of %s is within %s of one time, %s before it and %s behind it; "
                "data.train_until and data.valid_until (data=tables) put it between two times",
                border,
                words.count(last - first, unit),
                f"{end - first:,}",
                f"{last - end:,}",
            )

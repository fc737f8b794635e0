"""Splits by fractions of an order: sizes by hand, nobody twice, nobody who was not asked for."""

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline.data.config import FileConfig
from parallel_epochs.pipeline.data.readers import edge_labels
from parallel_epochs.pipeline.data.splits import divide, shuffle_groups


@pytest.mark.parametrize(
    "count, fractions, sizes",
    [
        (10, (0.5, 0.25), (5, 2, 3)),
        (10, (0.35, 0.35), (3, 4, 3)),
        (11, (0.8, 0.1), (8, 1, 2)),
        (3, (0.5, 0.5), (1, 2, 0)),
        (4, (0.25, 0.0), (1, 0, 3)),
    ],
)
def test_sizes_are_those_of_the_rounded_ends(count, fractions, sizes):
    """Each end is rounded down: with 0.35 and 0.35 of ten, seven are not for the test."""
    order = (
        2 * np.arange(count)[::-1].copy() + 1
    )  # of numbers of which every other one is in no split
    masks = divide(order, 2 * count, *fractions)
    assert tuple(int(mask.sum()) for mask in masks) == sizes
    ends = np.cumsum([0, *sizes])
    for mask, first, last in zip(masks, ends, ends[1:]):
        assert sorted(mask.nonzero().flatten().tolist()) == sorted(order[first:last].tolist())


def test_borders_of_times_and_equal_times_at_a_border(caplog):
    caplog.set_level("INFO")
    order, times = np.array([4, 2, 0, 1, 3, 5]), np.array([1.0, 2.0, 2.0, 2.0, 3.0, 4.0])
    masks = divide(order, 6, 0.5, 0.34, times=times)
    assert [mask.nonzero().flatten().tolist() for mask in masks] == [[0, 2, 4], [1, 3], [5]]
    assert (
        "border of training and validation is within 3 labels of one time, 2 before it and 1"
        in caplog.text
    )
    assert "border of validation and test" not in caplog.text
    masks = divide(order, 6, 0.5, 0.34, times=times, until=(2.0, 3.5))
    assert [mask.nonzero().flatten().tolist() for mask in masks] == [[0, 1, 2, 4], [3], [5]]
    with pytest.raises(ValueError, match="data.train_until is before all times of 6 labels"):
        divide(order, 6, 0.5, 0.34, times=times, until=(0.0, 3.5))
    with pytest.raises(
        ValueError, match="no time of 6 labels is after data.train_until and not after"
    ):
        divide(order, 6, 0.5, 0.34, times=times, until=(2.0, 2.0))


@pytest.mark.parametrize(
    "sizes, fractions, expected",
    [
        ((5, 3, 2), (0.5, 0.3), (5, 3, 2)),
        ((9, 1, 1), (0.5, 0.25), (9, 1, 1)),
        ((1, 1, 9), (0.5, 0.25), (1, 1, 9)),
        ((4, 4), (0.5, 0.5), (4, 4, 0)),
        ((4, 4), (0.5, 0.0), (4, 0, 4)),
        ((6, 1, 5), (0.5, 0.0), (6, 0, 6)),
    ],
)
def test_borders_of_groups_are_the_nearest_that_leave_no_split_empty(sizes, fractions, expected):
    groups = np.repeat(np.arange(len(sizes)), sizes)
    masks = divide(np.arange(len(groups)), len(groups), *fractions, groups=groups)
    assert tuple(int(mask.sum()) for mask in masks) == expected
    assert sum(len(set(groups[mask.numpy()])) for mask in masks) == len(sizes)  # none is in two


def test_too_few_groups_are_refused_and_their_order_depends_on_the_seed():
    with pytest.raises(ValueError, match="data.split_by: 2 groups cannot be divided into 3 splits"):
        divide(np.arange(8), 8, 0.5, 0.25, groups=np.repeat([0, 1], 4))
    groups = np.arange(40) % 7
    orders = [shuffle_groups(np.arange(40), groups, seed)[0].tolist() for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == list(range(40))


@pytest.mark.parametrize("by_time", [False, True])
def test_edges_and_their_reverse_are_in_one_split(by_time):
    rng = torch.Generator().manual_seed(0)
    edges = torch.randint(40, (2, 200), generator=rng)
    edges = torch.cat([edges, edges[:, 5:].flip(0)], dim=1)  # five have no reverse
    groups, known = edge_labels._group(edges), np.ones(edges.size(1), bool)
    times = torch.rand(edges.size(1), generator=rng) if by_time else None
    config = FileConfig(path="g.pt", train_fraction=0.6, valid_fraction=0.2)
    masks = edge_labels._divide(known, groups, times, config)
    split = torch.stack(list(masks.values())).int().argmax(0)
    split_of = {}
    for edge, number in zip(edges.T.tolist(), split.tolist(), strict=True):
        split_of.setdefault(tuple(edge), set()).add(number)
    for (source, target), numbers in split_of.items():
        if source != target and (target, source) in split_of:
            assert len(numbers) == 1 and numbers == split_of[target, source]

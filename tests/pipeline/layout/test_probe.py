"""What layouts are scored by: the classes of points and the pairs that links are compared with."""

import numpy as np
import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.layout import probe
from parallel_epochs.pipeline.layout.build import classes_of
from parallel_epochs.pipeline.names import MASKS


def test_a_node_in_no_split_has_no_class():
    """Its label may stand for none: class 0 would get the votes of all such nodes."""
    data = Data(
        y=torch.tensor([[0], [1], [0], [2]]),
        metric="acc",
        **dict.fromkeys(MASKS, torch.zeros(4) > 0),
    )
    for number, mask in enumerate(MASKS):
        data[mask] = torch.arange(4) == number
    assert classes_of(data).tolist() == [0, 1, 0, -1]
    assert classes_of(Data(y=data.y, metric="acc")).tolist() == [0, 1, 0, 2], (
        "without splits every label counts"
    )


def test_links_are_compared_with_pairs_of_different_points():
    links = np.stack([np.arange(400) % 5, (np.arange(400) + 1) % 5], axis=1)
    kept, others = probe.sample_links(links, 5, seed=0)
    assert np.array_equal(kept, links) and others.shape == links.shape
    assert (others[:, 0] != others[:, 1]).all()
    # Every pair of different points is as probable: 20 of each are expected.
    counts = np.zeros((5, 5), int)
    np.add.at(counts, tuple(others.T), 1)
    assert counts[~np.eye(5, dtype=bool)].min() > 5
    assert np.array_equal(probe.sample_links(links, 5, seed=0)[1], others)


def test_no_more_links_are_compared_than_the_limit(monkeypatch):
    monkeypatch.setattr(probe, "MAX_LINKS", 10)
    links = np.stack([np.arange(40), np.arange(40) + 1], axis=1)
    kept, others = probe.sample_links(links, 41, seed=0)
    assert len(kept) == len(others) == 10 and len(np.unique(kept, axis=0)) == 10
    assert (kept[:, 1] == kept[:, 0] + 1).all() and (np.diff(kept[:, 0]) > 0).all()

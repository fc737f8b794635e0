"""Summaries of neighbours and edges: the numbers by hand and by plain loops."""

import copy

import numpy as np
import pytest
import torch
import yaml

from parallel_epochs.pipeline.data.cache import load
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.gnn.base import summaries
from parallel_epochs.pipeline.gnn.base.method import TooLong
from parallel_epochs.pipeline.gnn.base.summaries import summarise
from tests.helpers.graphs import write_species

SHOP = {
    "users.csv": "id,age,kind\nu1,20,a\nu2,40,b\nu3,60,a\n",
    "items.csv": "id,price,colour\ni1,5,red\ni2,9,blue\n",
    "buys.csv": "user,item,rating\nu1,i1,4\nu1,i2,6\nu2,i1,2\n",
}
ENDS = {
    "source": {"type": "user", "column": "user"},
    "target": {"type": "item", "column": "item"},
}
SCHEMA = {
    "nodes": {
        "user": {"path": "users.csv", "features": ["age"], "label": "kind"},
        "item": {"path": "items.csv", "features": ["price"], "categories": ["colour"]},
    },
    "edges": {"buys": {"path": "buys.csv", "features": ["rating"], **ENDS}},
}
LOG = np.log1p
NO = np.nan
# Number of edges, none at all; mean, greatest, least, spread of rating; of the nodes.
OF_USERS = [
    [LOG(2), 0, 5, 6, 4, 1, 7, 9, 5, 2, 0.5, 0.5],
    [LOG(1), 0, 2, 2, 2, 0, 5, 5, 5, 0, 0, 1],
    [0, 1, *[NO] * 10],
]
OF_ITEMS = [
    [LOG(2), 0, 3, 4, 2, 1, 30, 40, 20, 10],
    [LOG(1), 0, 6, 6, 6, 0, 20, 20, 20, 0],
]


def standardised(rows) -> np.ndarray:
    values = np.array(rows, float)
    deviation = np.nanstd(values, 0)
    return np.nan_to_num(
        (values - np.nanmean(values, 0)) / np.where(deviation > 0, deviation, np.inf)
    )


def test_both_ends_of_a_relation_and_a_second_hop_by_hand(tmp_path):
    """A user without what is to be summarised gets 0, the mean of the others, and a mark."""
    for name, text in SHOP.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(SCHEMA, sort_keys=False))
    config = TablesConfig(schema=str(tmp_path / "shop.yaml"), split="random")
    data = load(config, tmp_path / "cache")
    users, plan = summarise(data, 0)
    np.testing.assert_allclose(users[:, :12], standardised(OF_USERS), atol=1e-6)
    np.testing.assert_allclose(summarise(data, 1)[0][:, :10], standardised(OF_ITEMS), atol=1e-6)
    first = np.array(OF_ITEMS)
    second = [np.nanmean(first, 0), first[0], np.full(10, NO)]
    np.testing.assert_allclose(users[:, 12:], standardised(second), atol=1e-6)
    other = copy.copy(data)
    other.x = data.x + 1
    assert torch.equal(summarise(data, 0, plan)[0], users)
    assert not torch.equal(summarise(other, 0, plan)[0], users), "moments of the training"


def expected(data, num_hops: int) -> np.ndarray:
    """Summarise by loops over nodes and edges; every column of a random graph holds numbers, but the species."""
    source, target = data.edge_index.as_tensor().numpy()
    values, attr = data.x.double().numpy(), data.edge_attr.double().numpy()
    num_own, parts = data.x.size(1) - data.num_categories, []
    hop = np.full((len(values), 2 + 4 * attr.shape[1] + 4 * num_own + data.num_categories), np.nan)
    for node in range(len(values)):
        edges = np.flatnonzero(target == node)
        hop[node, :2] = np.log1p(len(edges)), len(edges) == 0
        if len(edges):
            found = [
                [how(rows, 0) for how in (np.mean, np.max, np.min, np.std)]
                for rows in (attr[edges], values[source[edges], :num_own])
            ]
            hop[node, 2:] = np.concatenate(
                [*map(np.concatenate, found), values[source[edges], num_own:].mean(0)]
            )
    for _ in range(num_hops):
        parts.append(hop)
        means = np.full_like(hop, np.nan)
        for node in np.unique(target):
            some = hop[source[target == node]]
            known = ~np.isnan(some).all(0)
            means[node, known] = np.nanmean(some[:, known], 0)
        hop = means
    return standardised(np.concatenate(parts, 1))


@pytest.mark.parametrize("numbers", [1, 1 << 22])
def test_equal_to_plain_loops_whatever_is_read_at_a_time(tmp_path, monkeypatch, numbers):
    """A directed graph with two species and nodes without edges."""
    data = write_species(tmp_path / "own.store", 70)
    assert (data.edge_index.get_csc()[0][0].diff() == 0).any()
    monkeypatch.setattr(summaries, "NUMBERS", numbers)
    found, _ = summarise(data, 0)
    np.testing.assert_allclose(found, expected(data, 2), atol=2e-5)
    monkeypatch.setattr(summaries, "MOST_OF_TYPE", 50)
    with pytest.raises(TooLong, match="would have 56 columns, and 50 are the most"):
        summarise(data, 0)
    monkeypatch.setattr(summaries, "MOST_COLUMNS", 4)
    assert summarise(data, 0)[1].widths[0] < 50, "many numbers give their means alone"

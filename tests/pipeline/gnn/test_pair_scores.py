"""Scores of pairs, held against sums over sets of neighbours that are written down one by one."""

import math

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline.gnn.predict import pair_scores
from tests.helpers.graphs import random_graph


@pytest.fixture(scope="module")
def graph():
    """A graph with duplicates, self-loops and isolated nodes, its edges in both directions."""
    return random_graph(60, 150, 1)


@pytest.fixture(scope="module")
def around(graph) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in range(60)]
    for source, target in graph.edge_index.as_tensor().t().tolist():
        if source != target:
            found[source].add(target), found[target].add(source)
    return found


@pytest.mark.parametrize(
    "name, weight",
    [
        ("common neighbours", lambda degree: 1.0),
        ("Adamic-Adar", lambda degree: 1 / math.log(degree)),
        ("resource allocation", lambda degree: 1 / degree),
    ],
)
def test_common_neighbours_are_counted_with_their_weight(graph, around, name, weight, monkeypatch):
    monkeypatch.setattr(pair_scores, "BLOCK", 100)
    pairs = torch.cartesian_prod(torch.arange(60), torch.arange(60))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    expected = [
        sum(weight(len(around[node])) for node in around[u] & around[v]) for u, v in pairs.tolist()
    ]
    assert max(expected) > 0
    torch.testing.assert_close(pair_scores.PAIR_SCORES[name](graph)(pairs), torch.tensor(expected))
    assert pair_scores.PAIR_SCORES[name](graph)(pairs[:0]).shape == (0,)


def test_spectral_scores_are_entries_of_the_best_approximation(graph, monkeypatch):
    monkeypatch.setattr(pair_scores, "CHANNELS", 5)
    pairs = torch.cartesian_prod(torch.arange(60), torch.arange(60))
    found = pair_scores.spectral(graph)(pairs).view(60, 60).numpy()
    dense = pair_scores.adjacency_of(graph).todense()
    left, values, right = np.linalg.svd(dense)
    best = (left[:, :5] * values[:5]) @ right[:5]
    assert np.linalg.norm(dense - found) == pytest.approx(np.linalg.norm(dense - best), rel=0.01)

"""Common neighbours, against sets of Python and sparse products of scipy."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from parallel_epochs.models.networks import common_neighbors
from parallel_epochs.models.networks.common_neighbors import Neighborhoods
from parallel_epochs.pipeline.graph.edges import sort_edges


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(0, 60),
    st.integers(0, 20),
    st.booleans(),
    st.sampled_from([1, 7, 1 << 22]),
    st.integers(0, 10**6),
)
def test_they_are_those_of_sets(num_nodes, num_edges, num_pairs, is_sorted, numbers, seed):
    rng = np.random.default_rng(seed)  # with self-loops, duplicates and directed edges
    edge_index = torch.from_numpy(rng.integers(num_nodes, size=(2, num_edges)))
    pairs = torch.from_numpy(rng.integers(num_nodes, size=(num_pairs, 2)))
    neighbors = [
        {u for u, v in edge_index.t().tolist() if v == node != u} for node in range(num_nodes)
    ]
    edges = sort_edges(edge_index, num_nodes)[0] if is_sorted else edge_index
    with mock.patch.object(common_neighbors, "NUMBERS", numbers):
        found = Neighborhoods.of(edges, num_nodes).allocate_to_pairs(pairs)
    targets = [
        {v for u, v in edge_index.t().tolist() if u == node != v} for node in range(num_nodes)
    ]
    expected = [
        sum(1 / len(targets[node]) for node in neighbors[u] & neighbors[v])
        for u, v in pairs.tolist()
    ]
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("loop", [[], [[0, 0], [1, 1]]])
def test_a_loop_does_not_tell_of_the_pairs_own_edge(loop):
    edges = torch.tensor([[0, 1], [1, 0], *loop]).t()
    assert Neighborhoods.of(edges, 2).allocate_to_pairs(torch.tensor([[0, 1]])).tolist() == [0]

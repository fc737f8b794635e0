"""Node features that are made of edges."""

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline.data import incident
from parallel_epochs.pipeline.data.incident import NUM_INTERVALS, incident_features
from parallel_epochs.pipeline.graph.edges import sort_edges


@pytest.mark.parametrize("at_a_time", [1 << 22, 200, 9])
def test_counts_are_those_of_each_node_and_tenth_of_the_range(at_a_time, monkeypatch):
    monkeypatch.setattr(incident, "NUMBERS", at_a_time)
    rng = np.random.default_rng(0)
    edges, values = rng.integers(7, size=(2, 40)), rng.random((40, 3)).astype(np.float32)
    edges[1][edges[1] == 4] = 5  # a node without edges, the last but two
    values[:, 1] = 0.25  # one value has no range
    values[:2, 2] = -1.0, 3.0
    edge_index, perm = sort_edges(torch.from_numpy(edges), 7)
    found = incident_features(edge_index, torch.from_numpy(values)[perm], "counts")
    expected = np.zeros((7, 3, NUM_INTERVALS))
    for node, row in zip(edges[1], values.astype(float), strict=True):
        for column, (value, low, high) in enumerate(
            zip(row, values.min(0), values.max(0), strict=True)
        ):
            place = 0 if low == high else int((value - low) / (float(high) - low) * NUM_INTERVALS)
            expected[node, column, min(place, NUM_INTERVALS - 1)] += 1
    assert found.dtype == torch.float32 and not found[4].any()
    np.testing.assert_allclose(found.numpy(), np.log2(1 + expected).reshape(7, -1), rtol=1e-6)


@pytest.mark.parametrize(
    "kind, expected", [("counts", None), ("log_sum", [[np.log1p(2) - 3], [-np.log1p(3) - 3]])]
)
def test_moments_of_another_graph_stand_for_its_own(kind, expected):
    edge_index, _ = sort_edges(torch.tensor([[0, 1, 0], [0, 0, 1]]), 2)
    moments = torch.tensor(
        [[0.0], [1.0]] if kind == "counts" else [[3.0], [1.0]], dtype=torch.float64
    )
    found = incident_features(edge_index, torch.tensor([[9.0], [-7.0], [-3.0]]), kind, moments)
    if expected is None:  # what is beyond the range counts at its ends
        expected = [[1, *[0] * 8, 1], [1, *[0] * 9]]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)

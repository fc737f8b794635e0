"""Label propagation and Correct and Smooth beside PyG's."""

import pytest
import torch
from torch_geometric import nn as pyg

from parallel_epochs.models.networks.propagation import (
    NormalizedAdjacency,
    correct,
    propagate,
    smooth,
)
from parallel_epochs.pipeline.graph.edges import sort_edges

NUM_NODES, NUM_CLASSES, NUM_STEPS = 40, 5, 7

pytestmark = pytest.mark.usefixtures("said")


def graph(num_edges: int = 150):
    """A directed multigraph with self-loops and nodes without edges; predictions, classes, and which are known."""
    g = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NUM_NODES - 3, (2, num_edges), generator=g)
    edge_index[1, :4] = edge_index[0, :4]
    edge_index[:, 5] = edge_index[:, 6]
    probabilities = torch.randn(NUM_NODES, NUM_CLASSES, generator=g).mul(2).softmax(1)
    return (
        edge_index,
        probabilities,
        torch.randint(NUM_CLASSES, (NUM_NODES,), generator=g),
        torch.arange(NUM_NODES) % 3 == 0,
    )


@pytest.fixture(params=["sorted", "list", "reference"])
def adjacency(request):
    edge_index = graph()[0]
    if request.param == "reference":
        return NormalizedAdjacency(edge_index, NUM_NODES, kernel="reference")
    return NormalizedAdjacency(
        edge_index if request.param == "list" else sort_edges(edge_index, NUM_NODES)[0], NUM_NODES
    )


@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_matrix_and_the_diagonal_of_its_square_by_hand(is_weighted):
    edge_index, x, _, _ = graph()
    weight = (
        torch.rand(edge_index.size(1), generator=torch.Generator().manual_seed(1))
        if is_weighted
        else None
    )
    dense = torch.zeros(NUM_NODES, NUM_NODES).index_put_(
        (edge_index[1], edge_index[0]),
        torch.ones(edge_index.size(1)) if weight is None else weight,
        accumulate=True,
    )
    scale = dense.sum(1).clamp(min=1e-30).rsqrt() * (dense.sum(1) > 0)
    dense = scale.unsqueeze(1) * dense * scale
    ours = NormalizedAdjacency(edge_index, NUM_NODES, weight=weight)
    torch.testing.assert_close(ours @ x, dense @ x)
    torch.testing.assert_close(ours.square_diagonal(), (dense @ dense).diagonal().unsqueeze(1))


def test_a_part_of_a_graph_has_the_rows_of_the_whole():
    edge_index, x, _, _ = graph()
    weight = torch.rand(edge_index.size(1), generator=torch.Generator().manual_seed(1))
    degree = torch.bincount(edge_index[1], weight, minlength=NUM_NODES).float()
    degree[0] *= 2  # as if half of its edges were not drawn
    kept = edge_index[1] < NUM_NODES // 2
    part = (
        NormalizedAdjacency(edge_index[:, kept], NUM_NODES, weight=weight[kept], degree=degree) @ x
    )
    whole = NormalizedAdjacency(edge_index, NUM_NODES, weight=weight) @ x
    is_source = (edge_index[0] == 0) & kept
    others = torch.ones(NUM_NODES, dtype=torch.bool).index_fill(0, edge_index[1, is_source], False)[
        : NUM_NODES // 2
    ]
    others[0] = False
    torch.testing.assert_close(part[: NUM_NODES // 2][others], whole[: NUM_NODES // 2][others])
    assert others.sum() > 2 and not part[NUM_NODES // 2 :].any()
    assert not (edge_index[:, kept] == 0).all(0).any()
    torch.testing.assert_close(
        part[0], whole[0] * 2**0.5
    )  # its sum is that of all edges, of which half are here


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 1.0])
def test_label_propagation_is_pygs(alpha, adjacency):
    edge_index, probabilities, y, mask = graph()
    start = probabilities.clone()
    start[mask] = torch.eye(NUM_CLASSES)[y[mask]]
    theirs = pyg.LabelPropagation(NUM_STEPS, alpha)(start, edge_index)
    ours = smooth(adjacency, probabilities, y, mask, alpha, NUM_STEPS)
    torch.testing.assert_close(ours, theirs)
    labels = torch.where(mask.unsqueeze(1), start, 0.0)
    torch.testing.assert_close(
        propagate(adjacency, labels, alpha, NUM_STEPS),
        pyg.LabelPropagation(NUM_STEPS, alpha)(start, edge_index, mask=mask),
    )


@pytest.mark.parametrize("alphas", [(0.5, 0.8), (0.95, 0.2), (1.0, 1.0), (0.0, 0.7)])
def test_correct_and_smooth_is_pygs(alphas, adjacency):
    edge_index, probabilities, y, mask = graph()
    theirs = pyg.CorrectAndSmooth(NUM_STEPS, alphas[0], NUM_STEPS, alphas[1])
    given = probabilities.clone()
    ours = correct(adjacency, probabilities, y, mask, alphas[0], NUM_STEPS)
    torch.testing.assert_close(ours, theirs.correct(probabilities, y[mask], mask, edge_index))
    torch.testing.assert_close(
        smooth(adjacency, ours, y, mask, alphas[1], NUM_STEPS),
        theirs(probabilities, y[mask], mask, edge_index),
    )
    assert torch.equal(probabilities, given)

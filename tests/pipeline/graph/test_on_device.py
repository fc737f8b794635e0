"""What is drawn on a device equals what C++ draws on the CPU, and nothing goes back to the CPU unseen."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from parallel_epochs.pipeline.graph import sampling, subgraph
from parallel_epochs.pipeline.graph.sampling import NeighborSampler, RelationRows
from tests.helpers.graphs import random_graph
from tests.helpers.pretend_device import DEVICE, pretended

pytestmark = pytest.mark.skipif(sampling.LIBRARY.get() is None, reason="no C++ compiler")


def assert_same_edges(ours, theirs):
    ours = ours.to("cpu")
    assert torch.equal(ours.as_tensor(), theirs.as_tensor()) and ours.dtype == theirs.dtype
    for a, b in ((ours.get_csc(), theirs.get_csc()), (ours.get_csr(), theirs.get_csr())):
        assert torch.equal(a[0][0], b[0][0]) and torch.equal(a[0][1], b[0][1])
    assert torch.equal(ours._T_perm, theirs._T_perm) and torch.equal(
        ours._T_index[0], theirs._T_index[0]
    )


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(0, 300),
    st.integers(0, 10**6),
    st.sampled_from([1, 7, 100, 10**6]),
)
def test_subgraphs(num_nodes, num_pairs, seed, block_edges):
    data = random_graph(num_nodes, num_pairs, seed, symmetric=seed % 2 == 0)
    nodes = torch.randperm(num_nodes)[: seed % (num_nodes + 1)]
    expected, position = subgraph.induce(data.edge_index, nodes)
    with pretended() as waited:
        ours, at = subgraph.induce_with_torch(
            data.edge_index.to(DEVICE), nodes.to(DEVICE), block_edges=block_edges
        )
        if block_edges == 10**6:
            assert sum(waited.values()) <= 3, waited
        assert torch.equal(at.cpu(), position)
        assert_same_edges(ours, expected)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(0, 400),
    st.integers(0, 10**6),
    st.lists(st.integers(-1, 9), min_size=1, max_size=4),
    st.integers(0, 4),
)
def test_neighbours(num_nodes, num_pairs, seed, num_neighbors, num_relations):
    data = random_graph(num_nodes, num_pairs, seed, symmetric=seed % 2 == 0)
    rng = torch.Generator().manual_seed(seed)
    seeds, relation = torch.randperm(num_nodes, generator=rng)[: 1 + seed % 9], None
    key = seed * 0x9E3779B97F4A7C15 % 2**64
    if num_relations:
        relation = torch.randint(num_relations, (data.num_edges,), generator=rng).float()
        num_neighbors = torch.randint(-1, 5, (len(num_neighbors), num_relations), generator=rng)
    edges, nodes, position = NeighborSampler(
        data.edge_index, num_neighbors, relation=relation
    ).sample(seeds, key)
    with pretended() as waited:
        there = data.edge_index.to(DEVICE)
        rows = (
            None
            if relation is None
            else RelationRows(there.get_csc()[0][0], relation, num_relations)
        )
        sampler = NeighborSampler(there, num_neighbors, relation=rows)
        seeds = seeds.to(DEVICE)
        waited.clear()
        ours, n_id, at = sampler.sample(seeds, key)
        assert sum(waited.values()) <= 8 * len(num_neighbors) + 1, waited
        assert torch.equal(n_id.cpu(), nodes) and torch.equal(at.cpu(), position)
        assert_same_edges(ours, edges)

import numpy as np
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric.utils import subgraph

from parallel_epochs.pipeline.graph import subgraph as subgraph_module
from parallel_epochs.pipeline.graph.components import Component, find_components
from parallel_epochs.pipeline.graph.edges import sort_edges, transpose
from parallel_epochs.pipeline.graph.structure import Structure, inspect
from parallel_epochs.pipeline.graph.subgraph import induce_with_torch, induced_subgraph
from tests.helpers.graphs import make_graph, random_graph
from tests.helpers.tensors import threads

# 0 - 1 - 2 and 3 - 4 in both directions, 5 alone, a self-loop at 4, and the edge 0 -> 1 twice.
SIX = [(0, 1), (1, 0), (1, 2), (2, 1), (3, 4), (4, 3), (4, 4), (0, 1)]


def test_edges_are_sorted_by_destination_then_source():
    raw = torch.tensor(SIX).t().contiguous()
    edge_index, perm = sort_edges(raw, 6)
    assert edge_index.is_sorted_by_col and edge_index.dtype == torch.int32
    assert edge_index.as_tensor().t().tolist() == sorted(map(list, SIX), key=lambda e: (e[1], e[0]))
    assert torch.equal(raw[:, perm.long()].int(), edge_index.as_tensor())
    assert edge_index.get_csc()[0][0].tolist() == [0, 1, 4, 5, 6, 8, 8]
    edge_index.validate()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 30), st.integers(0, 100), st.integers(0, 10**6))
def test_transpose_equals_pyg(num_nodes, num_pairs, seed):
    ours = random_graph(num_nodes, num_pairs, seed, symmetric=False).edge_index
    theirs = ours.clone()
    theirs._indptr = None
    transpose(ours)
    (rowptr, col), perm = ours.get_csr()
    (expected_ptr, expected_col), expected_perm = theirs.get_csr()
    assert rowptr.tolist() == expected_ptr.tolist()
    # Within a row PyG's order is not defined, ours is by destination.
    assert torch.equal(ours.as_tensor()[:, perm.long()], torch.stack([ours._T_index[0], col]))
    assert sorted(
        zip(theirs.as_tensor()[0][expected_perm.long()].tolist(), expected_col.tolist())
    ) == list(zip(ours._T_index[0].tolist(), col.tolist()))


def test_structure_counts_what_is_odd():
    found = inspect(make_graph(SIX, 6).edge_index)
    assert found == Structure(
        num_nodes=6,
        num_edges=8,
        num_without_reverse=0,
        num_self_loops=1,
        num_duplicates=1,
        num_isolated=1,
    )
    directed = inspect(make_graph([(0, 1), (1, 0), (1, 2), (2, 0)], 3).edge_index)
    assert directed.num_without_reverse == 2 and not directed.is_undirected
    assert str(directed) == (
        "directed (2 edges have no reverse), 3 nodes, 4 directed edges, 0 self-loops, "
        "0 duplicates, 0 isolated nodes"
    )
    assert str(found).startswith(
        "undirected (every edge has its reverse), 6 nodes, 8 directed edges, 1 self-loop, "
    )
    assert inspect(make_graph([(1, 1)], 3).edge_index).num_isolated == 3


def test_components_by_hand():
    train = torch.tensor([True, False, False, True, True, False])
    valid = torch.tensor([False, True, False, False, False, False])
    found = find_components(make_graph(SIX, 6, train_mask=train, valid_mask=valid))
    assert found.index.tolist() == [0, 0, 0, 1, 1, 2]
    assert found.components == [Component(3, 5, 1, 2), Component(2, 3, 2, 2), Component(1, 0, 0, 0)]
    assert "components: 3, of which 1 is a single node" in str(found)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.integers(0, 150), st.integers(0, 10**6), st.data())
def test_induced_subgraph_equals_pyg(num_nodes, num_pairs, seed, draw):
    data = random_graph(num_nodes, num_pairs, seed)
    count = draw.draw(st.integers(0, num_nodes))
    nodes = torch.from_numpy(np.random.default_rng(seed).permutation(num_nodes)[:count])
    part = induced_subgraph(data, nodes, dtype=torch.int64)
    part.edge_index.validate()
    edges, attr = subgraph(
        nodes, data.edge_index.as_tensor().long(), data.edge_attr, num_nodes=num_nodes
    )
    expected = sorted((u, v, *a) for u, v, a in zip(*edges.tolist(), attr.tolist()))
    there = nodes[part.edge_index.as_tensor()]
    assert (
        sorted((u, v, *a) for u, v, a in zip(*there.tolist(), part.edge_attr.tolist())) == expected
    )
    assert (
        torch.equal(part.x, data.x[nodes])
        and torch.equal(part.y, data.y[nodes])
        and torch.equal(part.n_id, nodes)
    )


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(0, 300),
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.sampled_from([1, 7, 10**6]),
)
def test_native_and_torch_subgraphs_are_the_same(num_nodes, num_pairs, seed, count, block_edges):
    data = random_graph(num_nodes, num_pairs, seed, symmetric=seed % 2 == 0)
    assert subgraph_module.can_run(data.edge_index), subgraph_module.LIBRARY.missing()
    rng = np.random.default_rng(seed)
    nodes = torch.from_numpy(rng.permutation(num_nodes)[: rng.integers(num_nodes + 1)])
    with threads(count):
        ours, position = subgraph_module.induce(data.edge_index, nodes)
    expected, expected_position = induce_with_torch(data.edge_index, nodes, block_edges=block_edges)
    assert torch.equal(ours.as_tensor(), expected.as_tensor()) and torch.equal(
        position, expected_position.long()
    )
    for a, b in ((ours.get_csc(), expected.get_csc()), (ours.get_csr(), expected.get_csr())):
        assert torch.equal(a[0][0], b[0][0]) and torch.equal(a[0][1], b[0][1])
    assert torch.equal(ours._T_perm, expected._T_perm) and torch.equal(
        ours._T_index[0], expected._T_index[0]
    )


def test_a_graph_without_edges():
    data = make_graph([], 3)
    assert inspect(data.edge_index).num_isolated == 3
    assert len(find_components(data).components) == 3
    assert transpose(data.edge_index).get_csr()[0][0].tolist() == [0, 0, 0, 0]

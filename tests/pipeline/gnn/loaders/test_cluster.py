import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric.nn import GATConv, GINConv
from torch_geometric.utils import subgraph

from parallel_epochs.pipeline.gnn.loaders.background import BackgroundRounds
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.graph.partition import random_partition, whole_partition
from parallel_epochs.pipeline.run.seeds import stream
from tests.helpers.graphs import random_graph
from tests.helpers.tensors import threads


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 40),
    st.integers(0, 200),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(0, 10**6),
)
def test_batches_equal_brute_force_subgraphs(
    num_nodes, num_pairs, num_parts, clusters_per_step, seed
):
    data = random_graph(num_nodes, num_pairs, seed)
    partition = random_partition(num_nodes, min(num_parts, num_nodes), stream("test", seed)).merge(
        clusters_per_step
    )
    batches = list(ClusterLoader(data).batches_of(partition))
    assert sorted(torch.cat([b.n_id for b in batches]).tolist()) == list(range(num_nodes))
    for i, batch in enumerate(batches):
        assert batch.cluster == i and set(batch.n_id.tolist()) == set(partition.nodes(i).tolist())
        batch.edge_index.validate()
        edges, attr = subgraph(
            batch.n_id, data.edge_index.as_tensor().long(), data.edge_attr, num_nodes=num_nodes
        )
        expected = sorted((u, v, *a) for u, v, a in zip(*edges.tolist(), attr.tolist()))
        there = batch.n_id[batch.edge_index.as_tensor()]
        assert (
            sorted((u, v, *a) for u, v, a in zip(*there.tolist(), batch.edge_attr.tolist()))
            == expected
        )
        assert torch.equal(batch.x, data.x[batch.n_id]) and torch.equal(batch.y, data.y[batch.n_id])


def test_csr_and_csc_are_ready():
    batch = next(
        ClusterLoader(random_graph(30, 100, 0)).batches_of(
            random_partition(30, 2, stream("test", 0))
        )
    )
    index = batch.edge_index
    assert index.dtype == torch.int64 and index._indptr is not None and index._T_indptr is not None
    (rowptr, col), perm = index.get_csr()
    row = torch.repeat_interleave(torch.arange(batch.num_nodes), rowptr.diff())
    assert torch.equal(index.as_tensor()[:, perm], torch.stack([row, col]))


@pytest.mark.parametrize("conv", [GATConv(5, 4), GINConv(torch.nn.Linear(5, 4))])
def test_pyg_layers_take_our_batches(conv):
    batch = next(
        ClusterLoader(random_graph(30, 100, 0)).batches_of(
            random_partition(30, 2, stream("test", 0))
        )
    )
    x = batch.x.requires_grad_()
    ours = conv(x, batch.edge_index)
    ours.sum().backward()
    torch.testing.assert_close(ours, conv(batch.x, batch.edge_index.as_tensor()))


def test_the_whole_graph_is_one_batch_built_once_in_the_order_of_its_nodes():
    loader = ClusterLoader(random_graph(20, 50, 0))
    (first,), (second,) = (
        loader.batches_of(whole_partition(20)),
        loader.batches_of(random_partition(20, 1, stream("test", 0))),
    )
    assert first is second and first.n_id.tolist() == list(range(20))


def rounds_of(loader, draw, numbers):
    return ((number, lambda number=number: loader.batches_of(draw(number))) for number in numbers)


def test_rounds_come_in_order_and_the_thread_ends():
    loader = ClusterLoader(random_graph(30, 100, 0))

    def draw(number):
        return random_partition(30, 3, stream("test", number))

    with BackgroundRounds(rounds_of(loader, draw, range(2, 5)), prefetch=2) as rounds:
        for number in range(2, 5):
            got = [b.n_id for b in rounds.batches(number)]
            expected = draw(number)
            assert [n.tolist() for n in got] == [expected.nodes(i).tolist() for i in range(3)]
            assert 0 <= rounds.hidden <= 1 and rounds.busy_seconds > 0
    assert "next-round" not in {thread.name for thread in threading.enumerate()}


def test_leaving_early_stops_the_thread():
    loader = ClusterLoader(random_graph(30, 100, 0))
    with BackgroundRounds(
        rounds_of(loader, lambda number: whole_partition(30), range(10**6))
    ) as rounds:
        next(rounds.batches(0))
    assert "next-round" not in {thread.name for thread in threading.enumerate()}


def test_the_thread_beside_a_cpu_model_leaves_openmp_alone():
    loader = ClusterLoader(random_graph(30, 100, 0))
    seen = []

    def draw(number):
        seen.append(torch.get_num_threads())
        return whole_partition(30)

    with threads(2):
        with BackgroundRounds(rounds_of(loader, draw, [0])) as rounds:
            list(rounds.batches(0))
            assert seen == [1] and torch.get_num_threads() == 2
        assert torch.get_num_threads() == 2


def test_an_error_in_the_thread_reaches_the_consumer():
    def draw(number):
        raise ValueError("no partition")

    with BackgroundRounds(rounds_of(ClusterLoader(random_graph(9, 9, 0)), draw, [0])) as rounds:
        with pytest.raises(ValueError, match="no partition"):
            list(rounds.batches(0))


def test_hidden_tells_waiting_from_overlap():
    def slow():
        for i in range(5):
            time.sleep(0.02)
            yield i

    with BackgroundRounds([(0, slow), (1, slow)], prefetch=8) as rounds:
        assert list(rounds.batches(0)) == [0, 1, 2, 3, 4]
        waited = rounds.hidden
        time.sleep(0.3)
        assert list(rounds.batches(1)) == [0, 1, 2, 3, 4]
        assert waited < 0.5 < 0.9 < rounds.hidden


def test_streams_of_different_purposes_and_lengths_differ():
    draws = [
        stream(*path).integers(2**60)
        for path in (("a", 0), ("a", 0, 0), ("a", 0, 0, 0), ("a", 1), ("b", 0), ("a", 0, 1))
    ]
    assert len(set(draws)) == len(draws)
    assert np.array_equal(stream("a", 3).random(4), stream("a", 3).random(4))

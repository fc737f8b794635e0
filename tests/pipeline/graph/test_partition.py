import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from parallel_epochs.pipeline.graph import metis, partition as partitions
from parallel_epochs.pipeline.graph.partition import Partition
from parallel_epochs.pipeline.graph.partitioner import Partitioner
from parallel_epochs.pipeline.run.seeds import stream
from tests.helpers.graphs import make_graph

GRID = [
    (i * 10 + j, a * 10 + b)
    for i in range(10)
    for j in range(10)
    for a, b in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1))
    if 0 <= a < 10 and 0 <= b < 10
]


def grid():
    return make_graph(GRID, 100).edge_index


def is_partition(p: Partition, num_nodes: int) -> bool:
    return (
        sorted(p.perm.tolist()) == list(range(num_nodes))
        and p.ptr[0] == 0
        and p.ptr[-1] == num_nodes
        and bool((p.ptr.diff() >= 0).all())
        and p.perm.dtype == p.ptr.dtype == torch.int64
    )


@pytest.mark.parametrize("name", ["random", "metis", "metis_random", "whole"])
def test_a_partition_is_a_pure_function_of_seed_epoch_and_rank(name, tmp_path):
    def draw(seed, epoch, rank, cache=None):
        return Partitioner(grid(), name=name, num_parts=4, seed=seed, cache=cache).draw(epoch, rank)

    first = draw(0, 3, 1)
    assert is_partition(first, 100)
    for cache in (None, tmp_path, tmp_path):
        again = draw(0, 3, 1, cache)
        assert torch.equal(first.perm, again.perm) and torch.equal(first.ptr, again.ptr)
    if name != "whole":
        assert first.num_parts == 4
        for other in (draw(1, 3, 1), draw(0, 4, 1), draw(0, 3, 0)):
            assert not torch.equal(first.perm, other.perm)


def test_metis_seeds_0_and_1_differ():
    assert not torch.equal(
        metis.cut_with_metis(grid(), 4, 0).perm, metis.cut_with_metis(grid(), 4, 1).perm
    )


def test_metis_on_loops_duplicates_and_tiny_graphs():
    odd = make_graph([(0, 1), (1, 0), (0, 1), (1, 0), (2, 2), (1, 2), (2, 1)], 3).edge_index
    for num_parts in (2, 3):
        p = metis.cut_with_metis(odd, num_parts, 0)
        assert is_partition(p, 3) and bool((p.ptr.diff() > 0).all())


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 200), st.integers(1, 30), st.integers(1, 8), st.integers(0, 2**31))
def test_random_partition_is_balanced_and_merges(num_nodes, num_parts, clusters_per_step, seed):
    p = partitions.random_partition(num_nodes, min(num_parts, num_nodes), stream("test", seed))
    assert is_partition(p, num_nodes)
    sizes = p.ptr.diff()
    assert sizes.max() - sizes.min() <= 1 and sizes.min() >= 1
    merged = p.merge(clusters_per_step)
    assert is_partition(merged, num_nodes) and torch.equal(merged.perm, p.perm)
    assert merged.num_parts == -(-p.num_parts // clusters_per_step)
    assert torch.equal(
        merged.nodes(0), torch.cat([p.nodes(i) for i in range(min(clusters_per_step, p.num_parts))])
    )


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(1, 50), min_size=4, max_size=60), st.integers(1, 4), st.integers(0, 1000)
)
def test_regrouping_keeps_micro_clusters_whole(sizes, num_parts, seed):
    ptr = torch.tensor([0, *np.cumsum(sizes)])
    micro = Partition(torch.arange(int(ptr[-1])), ptr)
    p = partitions.regroup(micro, num_parts, stream("test", seed))
    assert (
        is_partition(p, int(ptr[-1]))
        and p.num_parts == num_parts
        and bool((p.ptr.diff() > 0).all())
    )
    for i in range(num_parts):
        inside = set(p.nodes(i).tolist())
        assert all(
            len(inside & set(micro.nodes(j).tolist())) in (0, len(micro.nodes(j)))
            for j in range(micro.num_parts)
        )


def test_describe_counts_kept_edges():
    data = make_graph([(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)], 4)
    quality = partitions.measure_partition(
        data.edge_index, Partition(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 3, 4])), 0.0
    )
    assert quality.sizes == [3, 1] and quality.kept_edges == [4, 0]
    assert quality.cut == pytest.approx(1 / 3) and quality.imbalance == 1.5
    assert "4 of 6 edges kept (33.3% cut), imbalance 1.500" in str(quality)


def test_a_broken_metis_cache_is_detected_and_rebuilt(tmp_path, caplog):
    good = metis.cut_with_metis(grid(), 4, 0, tmp_path)
    (path,) = tmp_path.glob("metis-*.pt")
    content = path.read_bytes()
    for broken in (
        content[:100],
        content[: len(content) // 2] + b"\x01" + content[len(content) // 2 + 1 :],
        b"",
    ):
        path.write_bytes(broken)
        caplog.clear()
        again = metis.cut_with_metis(grid(), 4, 0, tmp_path)
        assert torch.equal(good.perm, again.perm) and "cutting the graph again" in caplog.text
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    "options, message",
    [
        (
            dict(name="kmeans", num_parts=2),
            "partition=kmeans is unknown; choose one of random, metis",
        ),
        (dict(name="random", num_parts=0), "partition.num_parts must be at least 1, not 0"),
        (dict(name="random", num_parts=101), "partition.num_parts=101 is more than the 100 nodes"),
    ],
)
def test_impossible_partitions(options, message):
    with pytest.raises(ValueError, match=message):
        Partitioner(grid(), **options)


def test_metis_refuses_a_directed_graph():
    directed = make_graph([(0, 1), (1, 2), (2, 1), (3, 0)], 4).edge_index
    with pytest.raises(
        ValueError, match="graph is directed: 2 of 4 edges have no reverse.*data.to_undirected=true"
    ):
        Partitioner(directed, name="metis", num_parts=2)

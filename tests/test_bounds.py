"""The cases at the edge of a bound, where an off-by-one would hide: found by putting such faults in."""

import itertools
import math
import os
import time

import numpy as np
import pymetis
import pytest
import torch

from parallel_epochs.models import edge_index as edges
from parallel_epochs.pipeline.gnn.loaders.background import BackgroundRounds
from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.gnn.predict.inference import predict_exact, predict_views
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.graph import metis
from parallel_epochs.pipeline.graph.components import (
    find_components,
    select_component,
    split_components,
)
from parallel_epochs.pipeline.graph.partition import Partition, measure_partition, random_partition
from parallel_epochs.pipeline.graph.partitioner import Partitioner
from parallel_epochs.pipeline.graph.structure import hash_structure
from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.run import checkpoint, files
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.seeds import stream
from tests.helpers.graphs import make_graph, random_graph, task_graph
from tests.helpers.running import TOY, rounds_of, train


def sizes_of(partition: Partition) -> list[int]:
    return partition.ptr.diff().tolist()


def test_edges_are_counted_in_any_blocks():
    data = random_graph(40, 150, 0)
    partition = random_partition(40, 3, stream("test", 0))
    src, dst = data.edge_index.as_tensor().long()
    part = torch.empty(40, dtype=torch.int64)
    for i in range(3):
        part[partition.nodes(i)] = i
    expected = [int(((part[src] == i) & (part[dst] == i)).sum()) for i in range(3)]
    for block_edges in (1, 7, src.numel() - 1, src.numel(), 1 << 24):
        assert (
            measure_partition(data.edge_index, partition, 0.0, block_edges=block_edges).kept_edges
            == expected
        )
    loop = make_graph([(0, 0)], 1).edge_index
    assert measure_partition(
        loop, Partition(torch.arange(1), torch.tensor([0, 1])), 0.0
    ).kept_edges == [1]


@pytest.mark.parametrize("name", ["random", "metis_random"])
def test_as_many_clusters_as_nodes(name):
    edge_index = random_graph(30, 100, 0).edge_index
    assert sizes_of(Partitioner(edge_index, name=name, num_parts=30).draw(0)) == [1] * 30
    # By default there are 20 micro-clusters for each cluster, if there are nodes for them.
    assert [
        Partitioner(edge_index, name="metis_random", num_parts=n).num_micro_parts for n in (1, 2)
    ] == [20, 30]


def test_metis_sees_neither_loops_nor_duplicates(monkeypatch):
    seen = []
    part_graph = pymetis.part_graph
    monkeypatch.setattr(
        pymetis,
        "part_graph",
        lambda num_parts, adjacency, **options: (
            seen.append((adjacency.adj_starts.tolist(), adjacency.adjacent.tolist()))
            or part_graph(num_parts, adjacency, **options)
        ),
    )
    path = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]
    for more in ([], [(0, 0), (3, 3)], [(0, 1), (1, 0)], [(1, 1), (1, 2), (2, 1), (1, 1)]):
        metis.cut_with_metis(make_graph(path + more, 4).edge_index, 2, 0)
    assert seen == [([0, 1, 3, 5, 6], [1, 0, 2, 1, 3, 2])] * 4


@pytest.mark.parametrize("left", [[0, 0, 1, 1], [1, 1, 3, 3], [2, 2, 2, 2]])
def test_what_metis_leaves_empty_is_filled_from_the_largest(left, monkeypatch):
    class Cut:
        vertex_part = left

    monkeypatch.setattr(pymetis, "part_graph", lambda *args, **options: Cut)
    ring = make_graph([(i, (i + d) % 4) for i in range(4) for d in (1, 3)], 4).edge_index
    assert sizes_of(metis.cut_with_metis(ring, 4, 0)) == [1, 1, 1, 1]


def test_components_of_exactly_the_least_size_and_the_last_by_number():
    # Paths of 4, 3 and 2 nodes, of which the second has no training node.
    nodes = np.split(np.arange(9), [4, 7])
    pairs = [
        (int(u), int(v))
        for path in nodes
        for a, b in itertools.pairwise(path)
        for u, v in ((a, b), (b, a))
    ]
    data = make_graph(pairs, 9, x=torch.zeros(9, 1))
    components = find_components(data)
    for min_size, expected in (
        (1, ["1", "2", "3"]),
        (2, ["1", "2", "3"]),
        (3, ["1", "2"]),
        (4, ["1"]),
        (5, ["1"]),
    ):
        assert [
            number for number, _ in split_components(data, components, "separate", min_size)
        ] == expected
    assert select_component(data, components, "3").n_id.tolist() == [7, 8]
    with pytest.raises(ValueError, match="data.components=4 does not exist: .* from 1 to 3$"):
        select_component(data, components, "4")
    data.train_mask[4:7], data.valid_mask[4:7] = False, True
    components = find_components(data)
    assert [number for number, _ in split_components(data, components, "separate", 1)] == ["1", "3"]
    with pytest.raises(
        ValueError, match="data.components=2: none of its 3 nodes is in the training split"
    ):
        select_component(data, components, "2")


def test_graphs_of_the_same_degrees_have_different_digests():
    pairs = [(0, 1), (1, 0), (2, 3), (3, 2)]
    crossed = [(0, 2), (2, 0), (1, 3), (3, 1)]
    assert hash_structure(make_graph(pairs, 4).edge_index) != hash_structure(
        make_graph(crossed, 4).edge_index
    )


def test_views_of_more_clusters_than_nodes_have_one_node_each():
    data = task_graph(list(range(20)))
    sizes = []

    def predict(batch):
        sizes.append(batch.num_nodes)
        return batch.n_id, batch.x[:, :2]

    rows = predict_views(
        predict,
        ClusterLoader(data),
        num_rows=40,
        out_channels=2,
        num_views=3,
        num_parts=99,
        seed=0,
        round_=0,
    )
    assert sizes == [1] * 120
    torch.testing.assert_close(rows, data.x[:, :2])


def test_no_more_batches_than_asked_for_are_made_ahead():
    made = []

    def batches():
        for i in range(50):
            made.append(i)
            yield i

    with BackgroundRounds([(0, batches)], prefetch=3) as rounds:
        taken = rounds.batches(0)
        for i in range(5):
            assert next(taken) == i
        # Those that were taken, those that wait, and the one in the thread's hand.
        deadline = time.monotonic() + 30
        while len(made) < 5 + 3 + 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert len(made) == 5 + 3 + 1


def test_exact_evaluation_borrows_the_threads_of_the_ranks_that_wait():
    data, seen, before = task_graph(list(range(20))), [], torch.get_num_threads()

    def predict(batch):
        seen.append(torch.get_num_threads())
        return batch.n_id[batch.target], batch.x[:, :2]

    rows = predict_exact(
        predict,
        data,
        num_rows=40,
        out_channels=2,
        device=torch.device("cpu"),
        ranks=Ranks(0, 1, 0, 3),
    )
    assert (
        seen == [3 * before]
        and torch.get_num_threads() == before
        and torch.equal(rows, data.x[:, :2])
    )


def test_the_loss_and_the_predictions_are_those_of_the_targets():
    data = task_graph(list(range(30)))
    data.n_id, data.target = torch.arange(40) + 100, torch.arange(40) % 2 == 0
    logits = torch.randn(40, 2)

    class Given(torch.nn.Module):
        def forward(self, x, edge_index, edge_attr):
            return logits

    model = Given()
    _, count = NodeTask(data).loss(model, data, torch.Generator())
    assert count == 2 * 15
    n_id, predicted = NodeTask(data).predict(model, data)
    assert n_id.tolist() == list(range(100, 140, 2)) and torch.equal(predicted, logits[::2])


def test_splits_of_one_node_and_of_none():
    data = task_graph([3])
    data.metric, data.y, data.out_channels = "acc", (torch.arange(40) % 3).unsqueeze(1), 3
    data.valid_mask, data.test_mask = torch.arange(40) == 5, torch.zeros(40, dtype=torch.bool)
    logits = torch.nn.functional.one_hot(torch.arange(40) % 3, 3).float()
    logits[5] = -logits[5]
    scores = NodeTask(data).scores(None, logits)
    assert scores["train"] == 1 and scores["valid"] == 0 and math.isnan(scores["test"])


def test_the_loss_of_a_round_is_the_mean_over_its_labels(configure, tmp_path, monkeypatch):
    taken, loss = [], NodeTask.loss

    def watched(self, model, batch, rng):
        total, count = loss(self, model, batch, rng)
        taken.append((total.item(), count.item()))
        return total, count

    monkeypatch.setattr(NodeTask, "loss", watched)
    train(configure(*TOY, "train.epochs=2"), tmp_path / "run")
    assert len({count for _, count in taken}) > 1
    of_rounds = [map(sum, zip(*taken[first : first + 4], strict=True)) for first in (0, 4)]
    losses = [e["loss"] for e in rounds_of(tmp_path / "run")]
    assert losses == pytest.approx([total / count for total, count in of_rounds])


def test_the_last_batch_may_have_fewer_clusters():
    data = random_graph(30, 100, 0)
    loader = ClusterLoader(
        data, Partitioner(data.edge_index, name="random", num_parts=5), clusters_per_step=2
    )
    assert loader.num_batches == len(list(loader.batches(0, Share()))) == 3


def test_a_block_of_edges_ends_before_a_row_that_is_too_many():
    assert edges.cut_into_blocks(torch.tensor([0, 5, 6, 7, 20, 20]), 4) == [
        (0, 1),
        (1, 3),
        (3, 4),
        (4, 5),
    ]
    assert edges.cut_into_blocks(torch.tensor([0, 2, 4, 6]), 4) == [(0, 2), (2, 3)]


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_the_write_is_over(
    tmp_path, monkeypatch
):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: calls.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd)
    )
    monkeypatch.setattr(os, "replace", lambda a, b: calls.append("rename") or replace(a, b))
    files.write_text(tmp_path / "a", "text")
    file, rename, folder = calls
    assert file.endswith(".tmp") and rename == "rename" and folder == str(tmp_path)


def test_a_save_after_one_that_was_killed_between_its_two_names_leaves_no_third(tmp_path):
    checkpoint.save_last(tmp_path, {"round": 1})
    os.link(tmp_path / "last.pt", tmp_path / "previous.pt")
    checkpoint.save_last(tmp_path, {"round": 2})
    assert sorted(os.listdir(tmp_path)) == ["last.pt", "previous.pt"]
    assert [checkpoint.load(tmp_path / name)["round"] for name in ("previous.pt", "last.pt")] == [
        1,
        2,
    ]


def test_the_digest_sees_where_a_list_ends():
    states = [
        [[1, 2], [3]],
        [[1], [2, 3]],
        [1, 2, 3],
        [[1, 2, 3]],
        [1, [2, 3]],
        [1, 23],
        [(1,), (2,), (3,)],
    ]
    assert len({checkpoint.digest({"a": state}) for state in states}) == len(states)


def test_what_json_cannot_say_is_null():
    value = {
        "a": math.nan,
        "b": {"c": math.inf, "d": -math.inf, "e": 1.5},
        "f": 2,
        "g": "nan",
        "h": None,
    }
    assert files.without_nan(value) == {
        "a": None,
        "b": {"c": None, "d": None, "e": 1.5},
        "f": 2,
        "g": "nan",
        "h": None,
    }


@pytest.mark.parametrize("valid, best", [([0.4, 0.5, 0.5, 0.3], 2), ([math.nan] * 4, 4)])
def test_of_equal_evaluations_the_first_is_the_best_and_of_undefined_ones_the_last(
    valid, best, configure, tmp_path, monkeypatch
):
    scores = iter(valid)
    monkeypatch.setattr(
        NodeTask, "scores", lambda self, model, rows: dict.fromkeys(SPLITS, next(scores))
    )
    assert (
        train(configure(*TOY), tmp_path / "run")["best_epoch"] == best
        and len(rounds_of(tmp_path / "run")) == 4
    )


def test_time_is_added_up_over_the_starts_of_a_run(configure, tmp_path):
    config = configure(*TOY)
    train(config, tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "last.pt"
    saved = checkpoint.load(path)
    assert 0 < saved["progress"]["wall_seconds"] < 600
    saved["progress"]["wall_seconds"] = 1000.0
    checkpoint.save(path, saved)
    assert 1000 <= train(config, tmp_path / "run")["wall_seconds"] < 1600

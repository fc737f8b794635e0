"""Counts of the edges of each relation, and the scores of nodes by their neighbours, as brute force finds them."""

import json
from functools import partial

import pytest
import torch

from parallel_epochs.pipeline.data.graph import open_graph, write_graph
from parallel_epochs.pipeline.gnn import relations
from parallel_epochs.pipeline.gnn.relations import (
    Neighbours,
    count_kept,
    listed_types,
    score_by_neighbours,
)
from parallel_epochs.pipeline.graph import store
from parallel_epochs.pipeline.graph.partition import Partition
from parallel_epochs.pipeline.graph.reading import edge_blocks
from parallel_epochs.scripts.report.document import page
from parallel_epochs.scripts.report.labels import read_scores
from parallel_epochs.scripts.report.runs import find_runs
from tests.helpers.hetero_toys import save_hetero, typed_graph
from tests.helpers.running import train


@pytest.fixture(params=["memory", "store"])
def data(request, tmp_path, monkeypatch):
    monkeypatch.setattr(relations, "edge_blocks", partial(edge_blocks, block=64))
    found = typed_graph()
    if request.param == "memory":
        return found
    with store.StoreWriter(tmp_path / "toy.store") as writer:
        write_graph(writer, found)
    found = open_graph(tmp_path / "toy.store")
    found.on_disk = True
    return found


def test_kept_edges_are_counted_by_relation(data):
    # Users 0, 1 and 2 with item 0; the others.
    partition = Partition(torch.tensor([0, 1, 2, 4, 3, 5, 6, 7, 8]), torch.tensor([0, 4, 9]))
    assert count_kept(data, partition) == {"edges": [4, 1, 3, 4, 1, 3], "kept": [3, 1, 2, 3, 1, 2]}


def test_neighbours_are_found_by_relation(data):
    found = Neighbours(data, torch.tensor([3, 2, 0]))
    assert found.num_edges == [4, 1, 3, 4, 1, 3]
    # User 0 knows user 2, and all buy items: incoming are knows (1) at user 2, rev_buys (3), rev_knows (4) at user 0.
    assert [row.nonzero().flatten().tolist() for row in found.found] == [[3], [1, 3], [3, 4]]


def test_nodes_with_and_without_a_neighbour_are_scored(data):
    y, rows = torch.tensor([[1], [0], [1]]), torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    found = score_by_neighbours(
        data.types, Neighbours(data, torch.tensor([3, 2, 0])), "classes", "acc", y, rows
    )
    assert found == [
        {"relation": 1, "with": {"rows": 1, "score": 0.0}, "without": {"rows": 2, "score": 1.0}},
        {
            "relation": 3,
            "with": {"rows": 3, "score": pytest.approx(2 / 3)},
            "without": {"rows": 0, "score": None},
        },
        {"relation": 4, "with": {"rows": 1, "score": 1.0}, "without": {"rows": 2, "score": 0.5}},
    ]


def test_many_relations_are_left_out(monkeypatch):
    assert listed_types(typed_graph()) is not None
    monkeypatch.setattr(relations, "MAX_LABELS", 5)
    assert listed_types(typed_graph()) is None


def test_a_run_leaves_them_for_the_report(configure, tmp_path):
    train(
        configure(
            "data=file",
            f"data.path={save_hetero(tmp_path)}",
            "partition.num_parts=2",
            "model.num_layers=2",
            "model.hidden_channels=8",
            "train.epochs=1",
        ),
        tmp_path / "run",
    )
    typed = read_scores(tmp_path / "run")["typed"]
    assert [kind["nodes"] for kind in typed["types"]] == [40, 20, 4] and typed["labelled"] == "user"
    (part,) = [
        record
        for record in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
        if record["kind"] == "partition"
    ]
    assert part["relations"]["edges"] == [relation["edges"] for relation in typed["relations"]]
    assert sum(part["relations"]["kept"]) == sum(part["kept_edges"]) < part["num_edges"]
    scored = {typed["relations"][near["relation"]]["name"]: near for near in typed["neighbours"]}
    assert list(scored) == ["knows", "rev_buys", "rev_knows"]
    assert all(near["with"]["rows"] + near["without"]["rows"] == 10 for near in scored.values())
    assert "Types and relations" in page(*find_runs([tmp_path / "run"]))

"""Links of one relation as they are trained and predicted: what is drawn, what is hidden, and whose ids count."""

import collections

import pandas as pd
import pytest
import torch

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.data.cache import load_links
from parallel_epochs.pipeline.data.config import FileConfig
from parallel_epochs.pipeline.data.links import link_relation_of
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.graph.pairs import draw_targets
from parallel_epochs.pipeline.run.schedule import Share
from parallel_epochs.pipeline.run.seeds import stream
from tests.helpers import building as restore
from tests.helpers.building import EvaluateConfig
from tests.helpers.running import train
from tests.helpers.tensors import Largest
from tests.helpers.typed_graphs import hetero_graph, write_hetero, write_typed_tables
from tests.pipeline.gnn.tasks.test_link_parts import loader_of, named

SMALL = [
    "task=link",
    "partition=random",
    "partition.num_parts=2",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "train.epochs=2",
]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """The message graphs of two relations; nothing may change them."""
    folder = tmp_path_factory.mktemp("typed")
    write_hetero(folder)
    return {
        name: load_links(FileConfig(path=str(folder / "hetero.pt")), folder, relation=name)
        for name in ("buys", "knows")
    }


def test_each_free_place_of_a_row_is_drawn_equally_often():
    taken = torch.tensor(
        [[1, 3], [1, 0], [1, 3], [2, 0], [2, 1], [2, 2], [2, 3], [3, 1], [3, 2], [3, 3]]
    )
    rows = torch.tensor([3, 0, 1, 2]).repeat(4000)
    places = draw_targets(stream("test", 0), rows, 4, taken)
    for row, free in {0: [0, 1, 2, 3], 1: [1, 2], 2: [-1], 3: [0]}.items():
        counts = collections.Counter(places[rows == row].tolist())
        assert sorted(counts) == free and all(
            abs(count - 4000 / len(free)) < 150 for count in counts.values()
        )
    assert draw_targets(stream("test", 0), rows[:0], 4, taken).tolist() == []


@pytest.mark.parametrize("name, num_parts", [("buys", 1), ("buys", 3), ("knows", 1), ("knows", 3)])
def test_drawn_pairs_keep_the_source_and_end_in_the_type_of_the_target(name, num_parts, graphs):
    data = graphs[name]
    own, known = link_relation_of(data), {*map(tuple, data.train_pairs.tolist())}
    loader = loader_of(data, num_parts, num_negatives=3)
    for batch in (batch for round_ in range(3) for batch in loader.batches(round_, Share())):
        drawn, sources = named(batch, "negatives"), [pair[0] for pair in named(batch, "pairs")]
        targets = {node for node in batch.n_id.tolist() if node in own.target}
        assert {*named(batch, "pairs")} <= known and [a for a, _ in drawn] == 3 * sources
        assert {b for _, b in drawn} <= targets


@pytest.mark.parametrize("name", ["buys", "knows"])
def test_drawing_takes_memory_of_the_size_of_a_cluster(name, graphs, monkeypatch):
    loader, largest = loader_of(graphs[name], 8), Largest()
    draw = loader._draw_targets

    def watched(*args):
        with largest:
            return draw(*args)

    monkeypatch.setattr(loader, "_draw_targets", watched)
    assert sum(len(batch.negatives) for batch in loader.batches(0, Share()))
    assert 0 < largest.elements < graphs[name].num_nodes


def test_only_edges_of_the_relation_and_its_reverse_are_hidden_from_a_batch(graphs):
    data = graphs["buys"]
    own, whole = link_relation_of(data), data.edge_attr[:, 0]
    assert (own.number, own.reverse) == (0, 5)
    for batch in loader_of(data, pairs_per_step=50, hide=True).batches(0, Share()):
        hidden = {*map(tuple, batch.pairs.tolist())}
        edges = [
            (int(number), *edge)
            for number, edge in zip(
                batch.edge_attr[:, 0], batch.edge_index.as_tensor().t().tolist(), strict=True
            )
        ]
        assert not [
            edge
            for edge in edges
            if edge[0] == 0 and edge[1:] in hidden or edge[0] == 5 and edge[:0:-1] in hidden
        ]
        assert len(edges) == len(whole) - 2 * len(hidden)
        assert len([edge for edge in edges if edge[0] not in (0, 5)]) == int(
            ((whole != 0) & (whole != 5)).sum()
        )


def test_the_test_sees_validation_links_as_edges_of_the_relation_and_its_reverse(graphs):
    data = graphs["buys"]
    seen = LinkTask(data, hidden_channels=4, valid_edges=True).test_data

    def edges_of(graph):
        return sorted(zip(graph.edge_attr[:, 0].tolist(), *graph.edge_index.as_tensor().tolist()))

    valid = data.valid_pairs.tolist()
    assert edges_of(seen) == sorted(
        edges_of(data) + [(0, a, b) for a, b in valid] + [(5, b, a) for a, b in valid]
    )
    assert bool((seen.edge_index.as_tensor()[1].diff() >= 0).all())


def test_validation_links_without_the_features_of_their_edges_are_refused(tmp_path):
    graph = hetero_graph()
    graph["user", "knows", "user"].edge_attr = torch.ones(100, 2)
    torch.save(graph, tmp_path / "graph.pt")
    data = load_links(FileConfig(path=str(tmp_path / "graph.pt")), tmp_path, relation="knows")
    with pytest.raises(
        ValueError, match="but the edges of knows have 2 features and the pairs have none"
    ):
        LinkTask(data, hidden_channels=4, valid_edges=True)
    data = load_links(FileConfig(path=str(tmp_path / "graph.pt")), tmp_path, relation="buys")
    assert LinkTask(data, hidden_channels=4, valid_edges=True).test_data.edge_attr.size(1) == 3


@pytest.mark.slow
def test_ids_count_within_the_types_of_source_and_target(configure, tmp_path):
    config = configure(
        *write_typed_tables(tmp_path),
        *SMALL,
        "task.relation=buys",
        "data.split=time",
        "task.common_neighbors=true",
        "task.metric=mrr",
    )
    assert train(config, tmp_path / "run")["test"] > 0
    for name, rows in {"asked": [(3, 3), (39, 29), (0, 7)], "none": [(3, 3), (3, 39)]}.items():
        pd.DataFrame(rows, columns=["source", "target"]).to_csv(
            tmp_path / f"{name}.csv", index=False
        )

    def predict(name: str) -> None:
        restore.predict(
            EvaluateConfig(
                run=str(tmp_path / "run"),
                device="cpu",
                pairs=str(tmp_path / name),
                output=str(tmp_path / "out.csv"),
                predictions=str(tmp_path / "out.pt"),
            )
        )

    predict("asked.csv")
    table, saved = pd.read_csv(tmp_path / "out.csv"), torch.load(tmp_path / "out.pt")
    assert (
        table[["source", "target"]].to_numpy().tolist()
        == saved["pairs"].tolist()
        == [[3, 3], [39, 29], [0, 7]]
    )
    assert saved["first_node"].tolist() == [0, 40] and len(saved["logits"].unique()) == 3
    with pytest.raises(
        ValueError,
        match="row 2 below the header names '39', which is not one of the 30 nodes of the "
        "type of the targets of buys",
    ):
        predict("none.csv")


def test_nodes_without_names_have_numbers_within_their_type(configure, tmp_path):
    config = configure(*write_hetero(tmp_path), *SMALL, "task.relation=[user,knows,user]")
    train(config, tmp_path / "run")
    (tmp_path / "loop.csv").write_text("source,target\n1,2\n4,4\n")
    asked = EvaluateConfig(
        run=str(tmp_path / "run"), device="cpu", pairs=str(tmp_path / "loop.csv"), output="out.csv"
    )
    with pytest.raises(ValueError, match="row 2 below the header pairs '4' with itself"):
        restore.restore(asked)


@pytest.mark.parametrize(
    "overrides, error",
    [
        (
            ["task=link", "task.relation=[user,buys]"],
            r"task.relation=\[user,buys\] is not a relation. Give its name",
        ),
        (["task=link", "task.relation=buys"], "task.relation=buys cannot|cannot divide the links"),
        (
            ["task=link", "data=edges", "data.path=README.md", "task.relation=buys"],
            "task.relation=buys is for graphs with several types of nodes, and data=edges has one. Leave it out",
        ),
    ],
)
def test_relations_of_other_data_are_refused(overrides, error, configure):
    with pytest.raises(cli.USER_ERRORS, match=error):
        configure(*overrides).check()

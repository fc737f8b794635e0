"""`python -m pipeline.check`: what is said of a dataset of each kind, by its own numbers."""

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline.data import inspection
from parallel_epochs.pipeline.data.inspection import LISTED, describe, describe_features
from parallel_epochs.pipeline.training import describe_data
from tests.helpers.files import write_ogb
from tests.helpers.graphs import link_graph, make_graph
from tests.helpers.hetero_toys import typed_graph
from tests.helpers.running import shell


def rows_of(table: str) -> dict[str, str]:
    """Take a printed table apart; its first line is a title."""
    return {
        name.strip(): text
        for name, text in (
            line[2:].split("  ", 1) if "  " in line[2:] else (line, "")
            for line in table.splitlines()[1:]
        )
    }


def said(configure, *overrides) -> dict[str, str]:
    return {
        name: text.strip() for name, text in rows_of(describe_data(configure(*overrides))).items()
    }


def graph_of_tasks():
    nan = float("nan")
    data = make_graph(
        [(0, 1), (1, 0), (1, 2), (1, 2), (3, 3)],
        5,
        x=torch.tensor([[1.0, 0.0]] * 4 + [[1.0, 2.0]]),
        y=torch.tensor([[1.0, nan], [0.0, nan], [1.0, 1.0], [nan, 0.0], [1.0, 1.0]]),
    )
    data.train_mask, data.valid_mask = torch.arange(5) < 2, torch.arange(5) == 2
    data.test_mask = torch.arange(5) == 3
    return data


def test_a_graph_of_tasks_is_counted():
    assert dict(describe(graph_of_tasks())) == {
        "edges": "directed (2 edges have no reverse), 5 nodes, 5 directed edges, 1 self-loop, 1 duplicate, "
        "2 isolated nodes",
        "components": "3, of which 2 are single nodes; the largest has 3 nodes",
        "features of nodes": "2, of which 1 constant",
        "features of edges": "none",
        "rows": "train 2, valid 1, test 1",
        "tasks": "2",
        "missing labels (NaN)": "train 2, valid 0, test 1",
    }


def test_classes_are_counted():
    data = graph_of_tasks()
    data.y, data.metric = torch.tensor([[2], [2], [0], [2], [7]]), "acc"
    found = dict(describe(data))
    assert found["classes"] == "8" and found["classes without a training label"] == "7"
    assert (
        found["class 2"] == "train 2, valid 0, test 1"
        and found["class 7"] == "train 0, valid 0, test 0"
    )
    assert [name for name in found if name.startswith("class ")][:2] == ["class 2", "class 0"]
    data.y, data.metric = torch.arange(5).unsqueeze(1) * 10, "acc"
    assert describe(data)[-1] == ("", f"and {41 - LISTED} more classes")


def test_a_component_of_two_nodes_is_no_single_node():
    data = make_graph([(0, 1), (1, 0), (3, 3)], 5, x=torch.rand(5, 1))
    assert dict(describe(data))["components"] == (
        "4, of which 3 are single nodes; the largest has 2 nodes"
    )


def test_a_class_below_0_is_none():
    assert dict(
        inspection.describe_classes(
            torch.tensor([1, -1, 1, 0]), {"labelled": torch.ones(4) > 0}, None
        )
    ) == {"classes": "2", "class 1": "labelled 2", "class 0": "labelled 1"}


def test_pairs_of_links_are_counted(configure):
    found = dict(describe(link_graph(40, 90)))
    assert (found["train pairs"], found["valid pairs"], found["test negatives"]) == (
        "70",
        "10",
        "60",
    )
    assert "labels" not in found and "rows" not in found


def test_columns_of_species_are_no_features():
    data = make_graph([(0, 1)], 3, x=torch.rand(3, 4), num_categories=2)
    found = dict(describe_features(data))
    assert (found["features of nodes"], found["species"]) == ("2", "2")


def test_many_graphs():
    data = make_graph(
        [(0, 1), (1, 0), (3, 2)],
        5,
        x=torch.rand(5, 2),
        ptr=torch.tensor([0, 2, 5]),
        x_tables=torch.tensor([3, 4]),
        y=torch.tensor([[1.0], [0.0]]),
    )
    data.update(
        {
            "train_mask": torch.tensor([True, False]),
            "valid_mask": torch.tensor([False, True]),
            "test_mask": torch.tensor([False, False]),
        }
    )
    found = dict(describe(data))
    assert found["graphs"] == "2 of 2 to 3 nodes, 2.5 on average"
    assert found["rows"] == "train 1, valid 1, test 0" and found["categories of nodes"] == "2"
    assert "components" not in found


@pytest.mark.slow
def test_molecules(configure, tmp_path):
    found = said(
        configure,
        "+experiment=ogbg_molhiv",
        f"data.folder={write_ogb(tmp_path / 'toy', 'ogbg-molhiv')}",
        "model.num_layers=2",
        "model.hidden_channels=8",
    )
    assert (
        found["graphs"].startswith("40 of ")
        and found["tasks"] == "1"
        and found["memory"] == "not known beforehand"
    )
    assert found["rows"].startswith("train ") and "components" not in found
    assert found["categories of nodes"].startswith("9")


def test_triples(configure, tmp_path):
    for split, lines in {
        "train": ["a likes b", "a likes b", "b likes b"],
        "valid": ["a likes b", "c likes a"],
        "test": ["a hates b"],
    }.items():
        (tmp_path / f"{split}.txt").write_text(
            "".join("\t".join(line.split()) + "\n" for line in lines)
        )
    found = said(
        configure, "trainer=knowledge", "data=triples", f"data.folder={tmp_path}", "trainer.dim=8"
    )
    assert found.pop("free disk").endswith(f"at cache_dir={tmp_path / 'cache'}")
    assert found == {
        "entities": "3",
        "relations": "2",
        "triples": "train 3, valid 2, test 1",
        "duplicate triples": "train 1, valid 0, test 0",
        "training triples in": "valid 1, test 0",
        "entities not trained": "1",
        "relations not trained": "1",
    }


def test_vectors(configure, tmp_path):
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    x[7], x[:, 2], x[7, 2] = x[3], 0.0, -0.0
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "labels.txt").write_text(
        "".join(f"{'red' if row % 4 else 'blue'}\n" for row in range(40))
    )
    found = said(
        configure,
        "trainer=layout",
        "data=vectors",
        f"data.path={tmp_path / 'x.npy'}",
        f"data.labels={tmp_path / 'labels.txt'}",
        "trainer.num_neighbors=12",
        "trainer.perplexity=5",
    )
    assert found.pop("free disk")
    assert found == {
        "vectors": "40",
        "numbers of each": "3, of which 1 constant",
        "rows": "labelled 40",
        "classes": "2",
        "class red": "labelled 30",
        "class blue": "labelled 10",
    }


def test_the_memory_of_clusters_is_known(configure):
    found = said(
        configure,
        "data.num_nodes=240",
        "data.num_edges=4800",
        "data.num_species=4",
        "data.num_groups=8",
        "data.num_tasks=3",
        "model.num_layers=2",
        "model.hidden_channels=8",
    )
    assert found["memory"].startswith("about ") and " a rank, which may use " in found["memory"]
    assert "240 nodes" in found["edges"] and found["species"] == "4"


@pytest.mark.slow
def test_the_command_leaves_nothing_but_the_cache(tmp_path):
    wrong = shell("pipeline.check", "data=file", "data.path=none.pt", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.strip() == "error: data.path=none.pt does not exist"
    x = torch.rand(50, 4)
    torch.save(
        {"x": x, "edge_index": torch.tensor([[0, 50], [1, 2]]), "y": torch.arange(50) % 3},
        tmp_path / "g.pt",
    )
    wrong = shell(
        "pipeline.check",
        "data=file",
        f"data.path={tmp_path / 'g.pt'}",
        "data.split=random",
        cwd=tmp_path,
    )
    assert wrong.returncode == 1 and len(wrong.stderr.strip().splitlines()) == 1, wrong.stderr
    (tmp_path / "g.pt").unlink()
    good = shell("pipeline.check", "data=digits", "model.num_layers=2", cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    assert "data=digits, for trainer=gnn\n  edges " in good.stdout and "1,797 nodes" in good.stdout
    assert [path.name for path in tmp_path.iterdir()] == [".cache"]


def test_types_and_relations_are_counted():
    data = typed_graph()
    assert dict(describe(data)) == {
        "edges": "undirected (every edge has its reverse), 9 nodes, 16 directed edges, 0 self-loops, "
        "0 parallel edges, 0 isolated nodes",
        "components": "2, of which 0 are single nodes; the largest has 6 nodes",
        "types and relations": "3 types of nodes (4 user, 3 item, 2 tag), 3 relations and 3 reverse ones",
        "type user": "4 nodes, features: 2, of which 1 constant",
        "type item": "3 nodes, features: 1",
        "type tag": "2 nodes, features: 0",
        "buys": "4 edges from user to item",
        "knows": "1 edge from user to user",
        "has": "3 edges from item to tag",
        "features of edges": "1",
        "rows": "train 2, valid 1, test 1",
        "classes": "2",
        "class 0": "train 1, valid 1, test 0",
        "class 1": "train 1, valid 0, test 1",
    }
    averaged = dict(describe(typed_graph(averages=True)))
    assert averaged["type tag"] == "2 nodes, features: 1, means of neighbours' features"


def test_many_types_and_relations_are_listed_in_part(monkeypatch):
    monkeypatch.setattr(inspection, "LISTED", 1)
    rows = inspection.describe_types(typed_graph())
    assert [name for name, _ in rows] == [
        "types and relations",
        "type user",
        "",
        "buys",
        "",
        "features of edges",
    ]
    assert [text for name, text in rows if not name] == [
        "and 2 more types of nodes",
        "and 2 more relations",
    ]

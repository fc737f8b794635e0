"""Links of one relation: which pairs a split has, what the message graph keeps, and what is drawn."""

import dataclasses

import pandas as pd
import pytest
import torch

from parallel_epochs.pipeline.data.cache import load, load_links
from parallel_epochs.pipeline.data.config import FileConfig
from parallel_epochs.pipeline.data.links import LinkSplit, divide_links
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.names import SPLITS
from tests.helpers.typed_graphs import hetero_graph, write_hetero, write_typed_tables

SPLIT = LinkSplit("random", 0.6, 0.2, 0, "sum")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The prepared graph; nothing may change it."""
    folder = tmp_path_factory.mktemp("typed")
    write_hetero(folder)
    return load(FileConfig(path=str(folder / "hetero.pt")), folder)


def edges_of(data, *names):
    """Every edge of the relations of these names, as (relation, source, target)."""
    schema = data.types
    found = [
        (schema.relations[int(number)], source, target)
        for number, (source, target) in zip(
            data.edge_attr[:, 0], data.edge_index.as_tensor().t().tolist(), strict=True
        )
    ]
    return [edge for edge in found if not names or edge[0][1].removeprefix("rev_") in names]


@pytest.mark.parametrize("name, source, target", [("buys", "user", "item"), ("has", "item", "tag")])
def test_only_edges_of_the_relation_and_of_its_reverse_are_divided(name, source, target, whole):
    data, graph, schema = divide_links(whole, SPLIT, "graph", name), hetero_graph(), whole.types
    first = [schema.nodes_of(kind).start for kind in (source, target)]
    links = {
        (a + first[0], b + first[1]) for a, b in graph[source, name, target].edge_index.t().tolist()
    }
    train, valid, test = ({*map(tuple, data[f"{split}_pairs"].tolist())} for split in SPLITS)
    assert train | valid | test == links and len(train) + len(valid) + len(test) == len(links)
    assert [len(train), len(train) + len(valid)] == [int(0.6 * len(links)), int(0.8 * len(links))]
    kept = [
        edge
        for edge in edges_of(whole)
        if edge[0][1].removeprefix("rev_") != name
        or (edge[1:] if edge[0][1] == name else edge[:0:-1]) in train
    ]
    assert edges_of(data) == kept and len(kept) == whole.num_edges - 2 * len(valid | test)
    for split in (
        "valid",
        "test",
    ):  # the sources of the pairs, and targets of the right type that they do not have
        drawn = data[f"{split}_negatives"]
        assert drawn[:, 0].equal(data[f"{split}_pairs"][:, 0])
        assert all(b in schema.nodes_of(target) and (a, b) not in links for a, b in drawn.tolist())


def test_within_a_type_both_directions_stay_together_and_are_never_drawn(whole):
    data = divide_links(whole, SPLIT, "graph", "knows")
    known = {(a, b) for relation, a, b in edges_of(whole, "knows") if relation[1] == "knows"}
    links = {frozenset(pair) for pair in known if pair[0] != pair[1]}
    pairs = [tuple(pair) for split in SPLITS for pair in data[f"{split}_pairs"].tolist()]
    assert len(pairs) == len(links) and {*map(frozenset, pairs)} == links and {*pairs} <= known
    train = {*map(frozenset, data.train_pairs.tolist())}
    assert edges_of(data, "knows") == [
        edge
        for edge in edges_of(whole, "knows")
        if frozenset(edge[1:]) in train or edge[1] == edge[2]
    ]
    assert edges_of(data, "buys", "has", "sees") == edges_of(whole, "buys", "has", "sees")
    drawn = torch.cat([data.valid_negatives, data.test_negatives]).tolist()
    users = whole.types.nodes_of("user")
    assert all(a != b and b in users and frozenset((a, b)) not in links for a, b in drawn)


def test_relations_reversed_by_pyg_are_hidden_too(tmp_path):
    from torch_geometric.transforms import ToUndirected

    torch.save(ToUndirected()(hetero_graph()), tmp_path / "both.pt")
    config = FileConfig(path=str(tmp_path / "both.pt"), reverse_relations=False)
    data = load_links(config, tmp_path, relation="buys")
    train = {*map(tuple, data.train_pairs.tolist())}
    assert len(edges_of(data, "buys")) == 2 * len(train)
    assert {edge[:0:-1] for edge in edges_of(data, "buys") if edge[0][1] == "rev_buys"} == train


def test_means_over_neighbours_are_those_of_the_message_graph(whole):
    data, schema = divide_links(whole, SPLIT, "graph", "has"), whole.types
    tags, width = schema.nodes_of("tag"), schema.widths[schema.names.index("item")]
    assert schema.averaged == ["tag"]
    for tag in tags:
        near = [a for relation, a, b in edges_of(data) if b == tag and relation[0] == "item"]
        expected = whole.x[near, :width].double().mean(0).float() if near else torch.zeros(width)
        # The means of users stand before or behind those of items.
        ranges = [data.x[tag, first : first + width] for first in (0, schema.widths[0])]
        assert any(torch.allclose(found, expected, atol=1e-6) for found in ranges)
    assert not data.x[tags.start :].equal(whole.x[tags.start :]) and data.x[: tags.start].equal(
        whole.x[: tags.start]
    )


def test_a_column_of_one_table_divides_the_links_of_its_relation(tmp_path):
    """An edge with an empty cell is in no split, but stays hidden from the messages."""
    write_typed_tables(tmp_path)
    table = pd.read_csv(tmp_path / "buys.csv").drop_duplicates(["source", "target"])
    table["part"] = [["train", "valid", "test", ""][place % 4] for place in range(len(table))]
    table.to_csv(tmp_path / "buys.csv", index=False)
    path = tmp_path / "schema.yaml"
    path.write_text(path.read_text().replace("time: day", "split_column: part"))
    config = TablesConfig(schema=str(path))
    config.check(), config.check_links("buys")
    whole = load_links(
        dataclasses.replace(config, split="random"), tmp_path / "cache", relation="buys"
    )
    data = load_links(config, tmp_path / "cache", relation="buys")
    num_links = sum(len(whole[f"{split}_pairs"]) for split in SPLITS)
    counts = [len(data[f"{split}_pairs"]) for split in SPLITS]
    assert counts == [len(range(place, len(table), 4)) for place in range(3)] and sum(
        counts
    ) < num_links == len(table)
    assert len(edges_of(data, "buys")) == 2 * counts[0]
    for split in ("column", None):
        with pytest.raises(
            ValueError,
            match="knows of .* has no splits. .* by split_column in its part of data.schema",
        ):
            load_links(
                dataclasses.replace(config, split=split), tmp_path / "cache", relation="knows"
            )
    table.assign(part="now").to_csv(tmp_path / "buys.csv", index=False)
    with pytest.raises(
        ValueError,
        match="row 1, column part holds 'now'; a cell of the split is train, valid, test",
    ):
        load_links(config, tmp_path / "cache", relation="buys")


def test_a_relation_without_edges_and_one_of_a_plain_graph_are_refused(tmp_path):
    graph = hetero_graph()
    graph["item", "like", "item"].edge_index = torch.tensor([[3], [3]])
    torch.save(graph, tmp_path / "loop.pt")
    with pytest.raises(
        ValueError, match="the relation like of .*loop.pt has no edge between two different nodes"
    ):
        load_links(FileConfig(path=str(tmp_path / "loop.pt")), tmp_path, relation="like")
    torch.save(
        {"edge_index": torch.tensor([[0, 1, 2], [1, 2, 3]]), "num_nodes": 5}, tmp_path / "plain.pt"
    )
    with pytest.raises(
        ValueError, match="task.relation=buys is for graphs with several types of nodes"
    ):
        load_links(FileConfig(path=str(tmp_path / "plain.pt")), tmp_path, relation="buys")

"""Links of a graph of one's own: which pairs a split has, what the message graph keeps, and what is drawn."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.cache import load_links, prepare_as
from parallel_epochs.pipeline.data.config import (
    EdgesConfig,
    FileConfig,
    StoreConfig,
    SyntheticProteinsConfig,
)
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.incident import incident_features
from parallel_epochs.pipeline.data.links import (
    LinkSplit,
    divide_links,
    draw_unlinked,
)
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.data.prepare import prepare
from parallel_epochs.pipeline.data.tables.columns import EdgeColumns
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.graph.pairs import keep_edges
from parallel_epochs.pipeline.names import PAIRS
from parallel_epochs.pipeline.run.seeds import stream

SPLIT = LinkSplit("random", 0.6, 0.2, 0, "sum")


def graph(num_nodes: int = 30, num_edges: int = 120, *, both: bool = True, seed: int = 0) -> Graph:
    """A prepared random graph with loops and equal edges; without features, unless edges have some."""
    edges = torch.from_numpy(np.random.default_rng(seed).integers(num_nodes, size=(2, num_edges)))
    edges = torch.cat([edges, edges.flip(0)], dim=1) if both else edges
    return prepare(Graph(edge_index=edges, num_nodes=num_nodes), origin="graph")


def as_set(pairs: torch.Tensor) -> set[frozenset]:
    return {frozenset(pair) for pair in pairs.tolist()}


@pytest.mark.parametrize("both", [True, False])
def test_splits_and_message_graph_equal_those_found_by_hand(both):
    whole = graph(both=both)
    data = divide_links(whole, SPLIT, "graph")
    every = as_set(whole.edge_index.as_tensor().t())
    linked, loops = (
        {pair for pair in every if len(pair) == 2},
        {pair for pair in every if len(pair) == 1},
    )
    train, valid, test = (as_set(data[f"{split}_pairs"]) for split in ("train", "valid", "test"))
    assert train | valid | test == linked and len(train) + len(valid) + len(test) == len(linked)
    assert [len(train), len(valid)] == [
        int(0.6 * len(linked)),
        int(0.8 * len(linked)) - int(0.6 * len(linked)),
    ]
    kept = [
        edge
        for edge in whole.edge_index.as_tensor().t().tolist()
        if frozenset(edge) in train | loops
    ]
    assert data.edge_index.as_tensor().t().tolist() == kept
    # The degrees of the whole graph would tell of the hidden links.
    assert data.x.equal(
        incident_features(data.edge_index.get_csc()[0][0], None, "sum")
    ) and not data.x.equal(whole.x)
    negatives = [*as_set(data.valid_negatives), *as_set(data.test_negatives)]
    assert len(set(negatives)) == len(negatives) == len(valid) + len(test)
    assert all(len(pair) == 2 and pair not in every for pair in negatives)
    one_way = {tuple(edge) for edge in whole.edge_index.as_tensor().t().tolist()}
    assert all(
        tuple(pair) in one_way for pair in torch.cat([data.train_pairs, data.test_pairs]).tolist()
    )


def test_a_graph_that_has_pairs_is_not_divided_again():
    data = divide_links(graph(), SPLIT, "graph")
    with pytest.raises(
        ValueError, match="graph holds pairs of nodes already. Save its edges without them"
    ):
        divide_links(data, SPLIT, "graph")


@pytest.mark.parametrize("kind", ["sum", "log_sum"])
def test_features_of_edges_follow_the_edges_that_stay(kind):
    raw = Graph(
        edge_index=torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]),
        edge_attr=torch.arange(5.0).unsqueeze(1),
        num_nodes=6,
    )
    config = dataclasses.replace(SyntheticProteinsConfig(node_features=kind), to_undirected=True)
    data = divide_links(
        prepare_as(config, raw), dataclasses.replace(SPLIT, node_features=kind), "graph"
    )
    source = data.edge_index.as_tensor().amin(0)
    assert data.edge_attr[:, 0].equal(source.float()) and len(data.train_pairs) == 3
    assert data.x.equal(incident_features(data.edge_index.get_csc()[0][0], data.edge_attr, kind))


def test_time_trains_on_the_links_that_came_first():
    whole = graph()
    whole.edge_time = torch.from_numpy(
        np.random.default_rng(1).integers(50, size=whole.num_edges)
    ).double()
    data = divide_links(whole, dataclasses.replace(SPLIT, kind="time"), "graph")
    first: dict[frozenset, float] = {}
    for edge, time in zip(
        whole.edge_index.as_tensor().t().tolist(), whole.edge_time.tolist(), strict=True
    ):
        first[frozenset(edge)] = min(time, first.get(frozenset(edge), np.inf))
    train, valid, test = (
        [first[pair] for pair in as_set(data[f"{split}_pairs"])]
        for split in ("train", "valid", "test")
    )
    assert max(train) <= min(valid) <= max(valid) <= min(test) and max(train) < max(test)


def test_links_of_the_test_do_not_change_the_validation():
    whole = graph()
    times = torch.from_numpy(np.random.default_rng(1).integers(50, size=whole.num_edges)).double()
    split = dataclasses.replace(SPLIT, kind="time", until=(20.0, 35.0))
    found = []
    for kept in (times >= 0, (times <= 35) | (times % 2 == 0)):
        kept = kept.nonzero().flatten()
        data = whole.clone()
        data.edge_index, data.edge_time = keep_edges(whole.edge_index, kept), times[kept]
        if whole.edge_attr is not None:
            data.edge_attr = whole.edge_attr[kept]
        found.append(divide_links(data, split, "graph"))
    assert len(found[0].test_pairs) > len(found[1].test_pairs)
    for key in ("valid_pairs", "valid_negatives"):
        first, other = (data[key].sort(1).values for data in found)  # an edge less may turn a link
        assert torch.equal(first, other)


@pytest.mark.parametrize("num_nodes, num_links", [(2, 0), (7, 0), (7, 20), (30, 3), (30, 434)])
def test_every_pair_without_a_link_can_be_drawn_and_no_other(num_nodes, num_links):
    pairs = torch.tensor(list(itertools.combinations(range(num_nodes), 2)))
    pairs = pairs[torch.from_numpy(np.random.default_rng(0).permutation(len(pairs)))]
    num_free = len(pairs) - num_links
    drawn = draw_unlinked(
        stream("test", 0), num_free, pairs[:num_links].flip(1), num_nodes, "graph"
    )
    assert sorted(map(tuple, drawn.tolist())) == sorted(map(tuple, pairs[num_links:].tolist()))
    few = draw_unlinked(stream("test", 0), num_free // 3, pairs[:num_links], num_nodes, "graph")
    assert len(as_set(few)) == num_free // 3 and as_set(few) <= as_set(pairs[num_links:])
    with pytest.raises(
        ValueError,
        match=f"{num_free} pairs of its {num_nodes} nodes are not linked, but .* need "
        f"{num_free + 1}",
    ):
        draw_unlinked(stream("test", 0), num_free + 1, pairs[:num_links], num_nodes, "graph")


@pytest.mark.parametrize("both", [True, False])
def test_pairs_without_a_link_of_a_bipartite_graph_join_its_sides(both, caplog):
    """Users 5 to 24 link to items 25 to 34 and 0 to 4; nodes 35 to 39 to nobody. An odd cycle is not bipartite."""
    caplog.set_level("INFO")
    rng = np.random.default_rng(0)
    edges = torch.from_numpy(np.stack([rng.integers(5, 25, 150), (rng.integers(25, 40, 150)) % 35]))
    whole = prepare(
        Graph(edge_index=torch.cat([edges, edges.flip(0)], 1) if both else edges, num_nodes=40),
        origin="g",
    )
    data = divide_links(whole, SPLIT, "g")
    drawn = torch.cat([data.valid_negatives, data.test_negatives])
    is_user = (drawn >= 5) & (drawn < 25)
    assert is_user.sum(1).eq(1).all() and drawn.max() < 35 and len(as_set(drawn)) == len(drawn)
    assert not as_set(drawn) & as_set(edges.t()) and (both or bool(is_user[:, 0].all()))
    assert "the graph is bipartite, with sides of 15 and 20 nodes" in caplog.text
    odd = torch.tensor([[6, 5, 30], [5, 30, 6]])
    whole = prepare(Graph(edge_index=torch.cat([edges, odd], 1), num_nodes=40), origin="g")
    drawn = divide_links(whole, SPLIT, "g").test_negatives
    assert drawn.max() >= 35  # of any two nodes


@pytest.mark.parametrize(
    "edges, fractions, error",
    [
        (
            [[0], [1]],
            (0.6, 0.2),
            "data.train_fraction=0.6 of 1 link is none. Raise it, or give more links",
        ),
        (
            [[0, 0, 0], [1, 2, 3]],
            (0.9, 0.05),
            "data.valid_fraction=0.05 of 3 links is less than one link",
        ),
        (
            [[0, 1], [0, 1]],
            (0.6, 0.2),
            "no edge between two different nodes: there is no link to predict",
        ),
        (
            list(zip(*itertools.permutations(range(4), 2))),
            (0.5, 0.2),
            "0 pairs of its 4 nodes are not linked, but",
        ),
    ],
)
def test_graphs_without_pairs_for_each_split_are_refused(edges, fractions, error):
    whole = prepare(Graph(edge_index=torch.tensor(edges), num_nodes=4), origin="graph")
    with pytest.raises(ValueError, match=error):
        divide_links(whole, LinkSplit("random", *fractions, 0, "sum"), "graph")


def test_links_are_divided_once_and_by_all_readers(tmp_path, monkeypatch):
    rows = pd.DataFrame(
        np.random.default_rng(0).integers(30, size=(90, 2)), columns=["source", "target"]
    )
    rows = rows[rows.source != rows.target].assign(day=lambda table: np.arange(len(table)))
    rows.to_csv(tmp_path / "edges.csv", index=False)
    rows[["source", "target"]].to_csv(tmp_path / "edges.txt", sep=" ", index=False, header=False)
    torch.save(
        Data(
            edge_index=torch.tensor(rows[["source", "target"]].to_numpy().T.copy()),
            day=torch.arange(len(rows)),
            num_nodes=30,
        ),
        tmp_path / "graph.pt",
    )
    edges = str(tmp_path / "edges.csv")
    table = TablesConfig(
        edges=EdgeColumns(path=edges, time="day"), split="time", train_fraction=0.5
    )
    file = FileConfig(
        path=str(tmp_path / "graph.pt"),
        to_undirected=True,
        split="time",
        edge_time="day",
        train_fraction=0.5,
    )
    text = EdgesConfig(path=str(tmp_path / "edges.txt"), train_fraction=0.5, valid_fraction=0.2)
    opened = {
        config.source: load_links(config, tmp_path / "cache") for config in (table, file, text)
    }
    for data in opened.values():
        assert int(data.edge_index.max()) < data.num_nodes and len(data.content_hash) == 24
    names = np.array(unpack_names(opened["tables"]), int)
    for split in ("train", "valid", "test"):
        pairs = [
            as_set(ids[opened[source][f"{split}_pairs"]])
            for source, ids in (("tables", torch.from_numpy(names)), ("file", torch.arange(30)))
        ]
        assert pairs[0] == pairs[1]
    same = load_links(dataclasses.replace(text, train_fraction=0.6), tmp_path / "cache")
    assert same.content_hash != opened["edges"].content_hash
    monkeypatch.setattr(cache, "load", None)  # what is in the cache is not read again
    again = load_links(text, tmp_path / "cache")
    other_rank = load_links(text, tmp_path / "cache", content_hash=again.content_hash)
    assert (
        all(again[key].equal(other_rank[key]) for key in PAIRS)
        and other_rank.content_hash == again.content_hash
    )


@pytest.mark.parametrize(
    "task, config, error",
    [
        (
            "links",
            SyntheticProteinsConfig(),
            "task=link cannot divide the links of data=synthetic_proteins. Choose",
        ),
        (
            "links",
            StoreConfig(path="s"),
            "task=link divides the edges of data=store in memory, but data.on_disk=true",
        ),
        (
            "links",
            TablesConfig(edges=EdgeColumns(path="e"), split="column"),
            "data.split=column needs data.edges.split_column",
        ),
        (
            "links",
            TablesConfig(edges=EdgeColumns(path="e"), split="time"),
            "needs data.edges.time, a column",
        ),
        (
            "links",
            FileConfig(path="f", split="time"),
            "needs data.edge_time, the attribute",
        ),
        (
            "labels",
            TablesConfig(edges=EdgeColumns(path="e.csv")),
            "e.csv has no labels to learn: name their column by",
        ),
        (
            "labels",
            EdgesConfig(path="e.txt"),
            "e.txt has no labels to learn: give them as data.labels, predict its links",
        ),
        (
            "labels",
            FileConfig(path="f", split="time", edge_time="t"),
            "divides edges: for labels of nodes, save masks",
        ),
    ],
)
def test_keys_that_cannot_work_are_refused_before_anything_is_read(task, config, error):
    with pytest.raises(ValueError, match=error):
        config.check_links() if task == "links" else config.check_labels()

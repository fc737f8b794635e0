"""Summaries of neighbours and edges: the numbers by hand and by plain loops, where they are kept, what is refused."""

import json

import numpy as np
import pytest
import torch
import yaml

from parallel_epochs.pipeline.data import summaries as summarising
from parallel_epochs.pipeline.data.cache import load, load_links
from parallel_epochs.pipeline.data.config import FileConfig, StoreConfig
from parallel_epochs.pipeline.data.graph import open_graph
from parallel_epochs.pipeline.data.summaries import summarise
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from tests.helpers.graphs import random_graph, write_species

SHOP = {
    "users.csv": "id,age,kind\nu1,20,a\nu2,40,b\nu3,,a\n",
    "items.csv": "id,price,colour\ni1,5,red\ni2,9,blue\n",
    "buys.csv": "user,item,rating,day\nu1,i1,4,2024-01-01\nu1,i2,,2024-01-03\nu2,i1,2,2024-01-05\n",
}
SCHEMA = {
    "nodes": {
        "user": {"path": "users.csv", "features": ["age"], "label": "kind"},
        "item": {"path": "items.csv", "features": ["price"], "categories": ["colour"]},
    },
    "edges": {
        "buys": {
            "path": "buys.csv",
            "features": ["rating"],
            "time": "day",
            **{
                end: {"type": kind, "column": kind}
                for end, kind in (("source", "user"), ("target", "item"))
            },
        }
    },
}
LOG = np.log1p
NO = np.nan
# Number of edges, none at all; mean, greatest, least, spread of rating and day; share without rating; of the nodes.
OF_USERS = [
    [LOG(2), 0, 4, 2, 4, 3, 4, 1, 0, 1, 0.5, 7, 9, 5, 2, 0.5, 0.5],
    [LOG(1), 0, 2, 5, 2, 5, 2, 5, 0, 0, 0, 5, 5, 5, 0, 0, 1],
    [0, 1, *[NO] * 15],
]
OF_ITEMS = [
    [LOG(2), 0, 3, 3, 4, 5, 2, 1, 1, 2, 0, 30, 40, 20, 10, 0],
    [LOG(1), 0, NO, 3, NO, 3, NO, 3, NO, 0, 1, 20, 20, 20, 0, 0],
]


def write_shop(folder) -> TablesConfig:
    for name, text in SHOP.items():
        (folder / name).write_text(text)
    (folder / "shop.yaml").write_text(yaml.safe_dump(SCHEMA, sort_keys=False))
    return TablesConfig(schema=str(folder / "shop.yaml"), split="random", empty="flag", summaries=1)


def standardised(rows) -> np.ndarray:
    values = np.array(rows, float)
    deviation = np.nanstd(values, 0)
    return np.nan_to_num(
        (values - np.nanmean(values, 0)) / np.where(deviation > 0, deviation, np.inf)
    )


def test_both_ends_of_a_relation_by_hand(tmp_path):
    """A user and an item without what is to be summarised get 0, the mean of the others, and a mark."""
    data = load(write_shop(tmp_path), tmp_path / "cache")
    assert data.types.widths == [2 + 17, 3 + 16] and data.summaries["widths"] == [17, 16]
    np.testing.assert_allclose(data.x[:3, 2:19], standardised(OF_USERS), atol=1e-6)
    np.testing.assert_allclose(data.x[3:, 3:19], standardised(OF_ITEMS), atol=1e-6)
    assert torch.equal(data.x[:, -2:].argmax(1), torch.tensor([0, 0, 0, 1, 1]))
    assert data.summaries["moments"][0][3] == 19725.5, "the mean of the users' mean times, in days"


@pytest.mark.parametrize("open_it", [load, load_links])
def test_a_cache_of_another_format_is_written_again(tmp_path, caplog, open_it):
    graph = random_graph(40, 200, 1, edge_dim=1)
    torch.save(
        {
            "x": graph.x,
            "edge_attr": graph.edge_attr,
            "edge_index": graph.edge_index.as_tensor().long(),
        },
        tmp_path / "graph.pt",
    )
    config = (
        write_shop(tmp_path)
        if open_it is load
        else FileConfig(path=str(tmp_path / "graph.pt"), summaries=1)
    )
    expected, num_damaged = open_it(config, tmp_path / "cache"), 0
    for manifest in (tmp_path / "cache").glob("graphs/*/manifest.json"):
        content = json.loads(manifest.read_text())
        if (plan := content["values"].get("summaries")) is not None:
            num_damaged += 1
            del plan["moments"]  # which the first versions kept as an array
            manifest.write_text(json.dumps(content))
    data = open_it(config, tmp_path / "cache")
    assert num_damaged == 1 and "is of another version, or damaged" in caplog.text
    assert data.summaries == expected.summaries and torch.equal(data.x, expected.x)


def test_a_second_hop_is_the_mean_of_the_first(tmp_path):
    config = write_shop(tmp_path)
    config.summaries = 2
    data = load(config, tmp_path / "cache")
    first = np.array(OF_ITEMS)
    second = [np.nanmean(first, 0), first[0], np.full(16, NO)]
    np.testing.assert_allclose(data.x[:3, 2 + 17 : 2 + 17 + 16], standardised(second), atol=1e-6)


def expected(data, num_hops: int) -> np.ndarray:
    """Summarise by loops over nodes and edges; every column of a random graph holds numbers, but the species."""
    source, target = data.edge_index.as_tensor().numpy()
    values, attr = data.x.double().numpy(), data.edge_attr.double().numpy()
    num_own, parts = data.x.size(1) - data.num_categories, []
    hop = np.full((len(values), 2 + 4 * attr.shape[1] + 4 * num_own + data.num_categories), np.nan)
    for node in range(len(values)):
        edges = np.flatnonzero(target == node)
        hop[node, :2] = np.log1p(len(edges)), len(edges) == 0
        if len(edges):
            found = [
                [how(rows, 0) for how in (np.mean, np.max, np.min, np.std)]
                for rows in (attr[edges], values[source[edges], :num_own])
            ]
            hop[node, 2:] = np.concatenate(
                [*map(np.concatenate, found), values[source[edges], num_own:].mean(0)]
            )
    for _ in range(num_hops):
        parts.append(hop)
        means = np.full_like(hop, np.nan)
        for node in np.unique(target):
            some = hop[source[target == node]]
            known = ~np.isnan(some).all(0)
            means[node, known] = np.nanmean(some[:, known], 0)
        hop = means
    return np.concatenate(
        [values[:, :num_own], standardised(np.concatenate(parts, 1)), values[:, num_own:]], 1
    )


@pytest.fixture
def stored(tmp_path):
    """A directed graph in a store, with two species and nodes without edges."""
    data = write_species(tmp_path / "own.store", 70)
    return StoreConfig(path=str(tmp_path / "own.store"), on_disk=True, summaries=2), data


@pytest.mark.parametrize("numbers, block", [(1, 100), (1 << 22, 1 << 22)])
def test_memory_and_disk_hold_the_same_whatever_is_read_at_a_time(
    stored, tmp_path, monkeypatch, numbers, block
):
    config, data = stored
    reference = expected(data, 2)
    assert (data.edge_index.get_csc()[0][0].diff() == 0).any()
    monkeypatch.setattr(summarising, "NUMBERS", numbers)
    monkeypatch.setattr(summarising, "BLOCK", block)
    found = load(config, tmp_path)
    np.testing.assert_allclose(found.x, reference, atol=2e-5)
    assert (
        found.content_hash.endswith("-summaries-2")
        and found.on_disk
        and torch.equal(found.y, data.y)
    )
    assert torch.equal(summarise(open_graph(tmp_path / "own.store"), 2).x, found.x)
    assert torch.equal(load(config, tmp_path, content_hash=found.content_hash).x, found.x)


def test_too_many_columns_are_left_out_the_rarest_shares_first(stored, monkeypatch, caplog):
    _, data = stored
    data.x[:, 3:] = torch.eye(2)[(torch.arange(40) > 5).long()]
    monkeypatch.setattr(summarising, "MOST_OF_RELATION", 2 + 3 * 4 + 3 * 4 + 1)
    caplog.set_level("INFO")
    found = summarise(data, 1)
    assert found.summaries["nodes"][0][0][-1] == [3 + 27 + 1, 3 + 27 + 1, 0], (
        "the commoner species is not there"
    )
    assert (
        found.summaries["widths"] == [27]
        and "1 column left out, for a relation gives at most 27 at" in caplog.text
    )


def test_hidden_links_do_not_show(tmp_path):
    graph = random_graph(40, 200, 1, edge_dim=1)
    torch.save(
        {
            "x": graph.x,
            "edge_attr": graph.edge_attr,
            "edge_index": graph.edge_index.as_tensor().long(),
        },
        tmp_path / "graph.pt",
    )
    keys = dict(
        path=str(tmp_path / "graph.pt"), train_fraction=0.6, valid_fraction=0.2, degrees=False
    )
    data, plain = (
        load_links(FileConfig(**keys, summaries=num_hops), tmp_path) for num_hops in (1, 0)
    )
    np.testing.assert_allclose(data.x, expected(plain, 1), atol=2e-5)
    assert data.content_hash != plain.content_hash


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["data.summaries=-1"], r"data.summaries must be in \[0, 4\), not -1"),
        (["data.summaries=4"], "data.summaries must be less than 4, not 4"),
        (
            ["+experiment=ogbg_molhiv", "data.folder=.", "data.summaries=1"],
            "data.summaries=1 needs one graph",
        ),
        (
            ["data.summaries=1", "data.propagate=1"],
            "needs data.propagate=0, since the summaries hold means",
        ),
        (
            ["features=embedding", "data.summaries=1"],
            "needs features.concat=true, since the table replaces the features",
        ),
        (["trainer=knowledge", "data=math", "data.summaries=1"], "data.summaries=1 needs"),
    ],
)
def test_what_cannot_be_summarised_is_refused(overrides, message, configure):
    with pytest.raises(ValueError, match=message):
        config = configure(*overrides)
        config.check()
        config.data.check()


def test_too_many_columns_or_no_edges_are_refused(stored, tmp_path, monkeypatch):
    torch.save(
        {"x": torch.rand(6, 2), "edge_index": torch.empty(2, 0, dtype=torch.int64)},
        tmp_path / "graph.pt",
    )
    with pytest.raises(
        ValueError, match="data.summaries reads neighbours, and .*graph.pt has no edges"
    ):
        load(FileConfig(path=str(tmp_path / "graph.pt"), summaries=1), tmp_path)
    monkeypatch.setattr(summarising, "MOST_OF_TYPE", 50)
    with pytest.raises(
        ValueError, match="data.summaries=2 makes 56 columns .*; 50 are possible. Lower it"
    ):
        load(stored[0], tmp_path)

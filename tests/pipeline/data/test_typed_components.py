"""Components of a graph with several types of nodes: their schema counts the nodes that are theirs."""

import dataclasses

import pytest
import torch

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.graph import open_graph, write_graph
from parallel_epochs.pipeline.graph import store
from parallel_epochs.pipeline.graph.components import find_components
from tests.helpers.hetero_toys import hetero_data, typed_graph
from tests.helpers.running import train


@pytest.fixture
def two_parts(tmp_path):
    """Two copies of a graph in one file: two components, of which the second lacks a type."""
    data, half = hetero_data(40), 40
    saved = hetero_data(40, seed=1)
    for name in ("user", "item"):
        for key, value in saved[name].items():
            data[name][key] = torch.cat([data[name][key], value])
    for (source, name, target), of_half in saved.edge_items():
        if target != "tag":
            first = torch.tensor(
                [[half if end == "user" else half // 2] for end in (source, target)]
            )
            for key, value in of_half.items():
                more = value + first if key == "edge_index" else value
                data[source, name, target][key] = torch.cat(
                    [data[source, name, target][key], more], dim=-1 if key == "edge_index" else 0
                )
    torch.save(data, tmp_path / "two.pt")
    return [
        f"data.path={tmp_path / 'two.pt'}",
        "data=file",
        "partition.num_parts=2",
        "model.num_layers=2",
        "model.hidden_channels=8",
        "train.epochs=1",
    ]


def opened(config, data, number: int):
    nodes = (find_components(data).index == number - 1).nonzero().squeeze(1)
    return cache.keep_component(config.data, config.cache_dir, data, number, nodes)


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_component_has_a_schema_of_its_own(configure, tmp_path, is_stored):
    data, config = typed_graph(), configure("data=file", "data.path=toy.pt")
    data.content_hash = "toy"
    if is_stored:
        with store.StoreWriter(tmp_path / "toy.store") as writer:
            write_graph(writer, data)
        data = open_graph(tmp_path / "toy.store")
        data.on_disk = True
    whole = data.types
    for _ in range(2):  # written, and read again
        for number, counts in ((1, [3, 2, 1]), (2, [1, 1, 1])):
            part = opened(config, data, number)
            schema = part.types
            assert (
                schema == dataclasses.replace(whole, counts=counts)
                and sum(counts) == part.num_nodes
            )
            for place, name in enumerate(schema.names):
                nodes = schema.nodes_of(name)
                assert bool((part.x[nodes.start : nodes.stop, -3:].argmax(1) == place).all())


def test_a_type_without_nodes_stays():
    schema = typed_graph().types
    assert schema.restricted_to(torch.tensor([0, 3, 7, 8])).counts == [2, 0, 2]
    assert schema.restricted_to(torch.arange(9)) == schema


@pytest.mark.parametrize(
    "features", [[], ["features=embedding", "features.types=[item]", "features.channels=4"]]
)
def test_components_are_trained_one_by_one(configure, tmp_path, two_parts, features, monkeypatch):
    monkeypatch.setattr("parallel_epochs.pipeline.gnn.build.LEAST_NODES", 20)
    found = train(
        configure(*two_parts, *features, "data.components=separate"),
        tmp_path / "run",
    )
    assert list(found["components"]) == ["1", "2"]
    assert all(0 <= score["test"] <= 1 for score in found["components"].values())

"""Stores of several types of nodes that a user wrote: what does not fit the schema is refused, and names its place."""

import pytest
import torch

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.config import FileConfig, StoreConfig
from parallel_epochs.pipeline.data.graph import Graph, write_graph
from parallel_epochs.pipeline.graph import store
from tests.pipeline.data.test_hetero import make


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typed")
    torch.save(make(), folder / "graph.pt")
    data = cache.load(FileConfig(path=str(folder / "graph.pt")), folder / "cache")
    return {
        key: data[key] for key in data.keys() if key not in ("content_hash", "num_nodes", "types")
    } | {  # noqa: SIM118
        "schema": data.types.to_value()
    }


def open_changed(graph, tmp_path, change=lambda data: None):
    data = Graph(
        **{
            key: value.clone() if key in ("x", "edge_attr", "train_mask") else value
            for key, value in graph.items()
        }
    )
    data.schema = dict(data.schema)
    change(data)
    with store.StoreWriter(tmp_path / "s") as writer:
        write_graph(writer, data)
    return cache.load(StoreConfig(path=str(tmp_path / "s")), tmp_path / "cache")


def field(name, value):
    return lambda data: data.schema.update({name: value})


def entry(array, place, value):
    def change(data):
        data[array][place] = value

    return change


BAD = {
    "no schema": (
        lambda data: data.update({"schema": [1]}),
        "schema must have types, counts, widths, relations",
    ),
    "a strange field": (field("colour", "red"), "it has types, "),
    "counts are texts": (
        field("counts", ["20", "12", "4"]),
        "counts is ['20', '12', '4'], and it should be",
    ),
    "a negative count": (field("counts", [20, 17, -1]), "counts is [20, 17, -1], and it should be"),
    "too few counts": (
        field("counts", [20, 16]),
        "schema: there must be as many counts and widths",
    ),
    "another sum": (field("counts", [20, 12, 5]), "and the sum of counts must be 36"),
    "other counts": (
        field("counts", [19, 13, 4]),
        "which is none of schema from ",
    ),
    "too wide": (field("widths", [3, 200, 2]), "schema: widths has 200, and x has "),
    "a type less": (
        lambda data: data.schema.update(types=["user", "item"], averaged=[]),
        "schema: there must be as many counts and widths as the 2 types",
    ),
    "unknown labelled": (field("labelled", "dog"), "schema: there is no type 'dog'"),
    "no labelled": (field("labelled", None), "schema: labelled is missing"),
    "labels of others": (
        entry("train_mask", 25, True),
        "train_mask selects nodes of other types than user",
    ),
    "no relations": (field("relations", []), "schema: relations is []"),
    "a relation of two": (
        field("relations", [["user", "item"]]),
        "relations is [['user', 'item']], and",
    ),
    "a relation of no type": (
        field("relations", [["user", "buys", "dog"]]),
        "and there is no type dog",
    ),
    "too few relations": (
        lambda data: data.schema.update(relations=data.schema["relations"][:2]),
        "which is none of schema from ",
    ),
    "no edge_attr": (
        lambda data: data.pop("edge_attr"),
        "edge_attr must have the number of the relation",
    ),
    "half a relation": (entry("edge_attr", (7, 0), 0.5), "edge_attr: edge 7 has the relation 0.5"),
    "a relation beyond": (entry("edge_attr", (7, 0), 6.0), "edge_attr: edge 7 has the relation 6,"),
    "a relation of other ends": (
        lambda data: data.edge_attr[:, 0].fill_(0),
        "has the relation 0, which is none of schema from ",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_schema_that_does_not_fit_is_refused(graph, tmp_path, monkeypatch, case):
    monkeypatch.setattr("parallel_epochs.pipeline.data.readers.given_store.BLOCK", 5)
    change, message = BAD[case]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        open_changed(graph, tmp_path, change)
    assert "manifest.json" in str(caught.value) and message in str(caught.value), str(caught.value)


def test_one_that_fits_is_opened(graph, tmp_path):
    assert open_changed(graph, tmp_path).types.names == ["user", "item", "tag"]


def test_usual_values_of_a_schema_may_be_left_out(graph, tmp_path):
    def leave_out(data):
        for name in ("averaged", "unread", "edge_columns"):
            del data.schema[name]

    assert open_changed(graph, tmp_path, leave_out).types.names == ["user", "item", "tag"]

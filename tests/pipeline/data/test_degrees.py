"""Degrees as columns of features: the numbers, in memory and in stores, and what is prepared as a training was."""

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline.data import degrees as counting
from parallel_epochs.pipeline.data.cache import load, load_links
from parallel_epochs.pipeline.data.config import DATA_SCHEMAS, FileConfig
from parallel_epochs.pipeline.data.degrees import DEGREE_MOMENTS, add_degrees
from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.data.learned import check_columns, learn
from tests.helpers.graphs import random_graph
from tests.helpers.hetero_toys import hetero_data


def scaled(counts) -> np.ndarray:
    values = np.log1p(np.asarray(counts, dtype=float))
    return (values - values.mean()) / (values.std() or 1)


@pytest.fixture
def directed(tmp_path):
    """The keys of a file with a directed graph."""
    data = random_graph(60, 300, 0, symmetric=False)
    torch.save(
        {
            "x": torch.randn(60, 3),
            "edge_index": data.edge_index.as_tensor().long(),
            "y": torch.arange(60) % 2,
            **{
                name: torch.arange(60) % 3 == place
                for place, name in enumerate(("train_mask", "valid_mask", "test_mask"))
            },
        },
        tmp_path / "graph.pt",
    )
    return FileConfig(path=str(tmp_path / "graph.pt"))


def test_in_and_out_degrees_join_the_features_of_the_user(directed, tmp_path):
    own, data = load(directed, tmp_path), load(directed, tmp_path, degrees=True)
    source, target = own.edge_index.as_tensor()
    assert data.x.shape == (60, 5) and torch.equal(data.x[:, :3], own.x)
    for column, ends in ((3, target), (4, source)):
        np.testing.assert_allclose(
            data.x[:, column], scaled(np.bincount(ends, minlength=60)), atol=1e-5
        )
    assert data.content_hash == f"{own.content_hash}-degrees" and DEGREE_MOMENTS not in own
    again = load(directed, tmp_path, degrees=True, content_hash=data.content_hash)
    assert torch.equal(again.x, data.x)


def test_an_undirected_graph_has_one_column_and_its_copy_in_memory_the_same(directed, tmp_path):
    directed.to_undirected = True
    own, data = load(directed, tmp_path), load(directed, tmp_path, degrees=True)
    add_degrees(own)
    assert (
        data.x.size(1) == 4
        and torch.equal(own.x, data.x)
        and torch.equal(own[DEGREE_MOMENTS], data[DEGREE_MOMENTS])
    )


def test_features_that_are_the_degree_get_the_out_degree_alone(directed, tmp_path):
    saved = torch.load(directed.path)
    torch.save(
        {name: value for name, value in saved.items() if name != "x"} | {"num_nodes": 60},
        directed.path,
    )
    own, data = load(directed, tmp_path), load(directed, tmp_path, degrees=True)
    assert own.x_source == "degree" and torch.equal(data.x[:, :1], own.x)
    np.testing.assert_allclose(
        data.x[:, 1], scaled(np.bincount(own.edge_index[0], minlength=60)), atol=1e-5
    )
    directed.to_undirected = True
    assert load(directed, tmp_path, degrees=True).x.size(1) == 1


@pytest.mark.parametrize("most", [64, 1])
def test_each_relation_of_a_typed_graph_has_columns(tmp_path, monkeypatch, most):
    monkeypatch.setattr(counting, "MOST", most)
    torch.save(hetero_data(), tmp_path / "shop.pt")
    for reverse in (True, False):
        config = FileConfig(path=str(tmp_path / "shop.pt"), reverse_relations=reverse)
        own, data = load(config, tmp_path), load(config, tmp_path / f"{most}", degrees=True)
        types, relation = own.types, own.edge_attr[:, 0].long()
        source, target = own.edge_index.as_tensor().long()
        for name, width, num_degrees in zip(types.names, types.widths, data.types.degrees):
            nodes = types.nodes_of(name)
            into = [number for number, (_, _, end) in enumerate(types.relations) if end == name]
            out = [
                number
                for number, (start, _, _) in enumerate(types.relations)
                if start == name and not reverse
            ]
            counts = [
                torch.bincount(ends[relation == number], minlength=own.num_nodes)[
                    nodes.start : nodes.stop
                ]
                for ends, numbers in ((target, into), (source, out))
                for number in numbers
            ]
            found = data.x[nodes.start : nodes.stop, width : width + num_degrees].double()
            if most == 1 and len(counts) > 1:
                assert num_degrees == 2 - reverse
                continue
            expected = [torch.from_numpy(scaled(count)) for count in counts]
            assert num_degrees >= len(counts)
            for values in expected:
                assert any(torch.allclose(values, column, atol=1e-5) for column in found.T), (
                    name,
                    reverse,
                )
            assert torch.equal(
                data.x[nodes.start : nodes.stop, :width], own.x[nodes.start : nodes.stop, :width]
            )
        assert torch.equal(data.x[:, -len(types.names) :], own.x[:, -len(types.names) :])
        assert (
            GraphTypes.from_value(data.types.to_value()) == data.types
            and "degrees" not in types.to_value()
        )


def test_links_that_are_hidden_are_not_counted(directed, tmp_path):
    config = directed
    data = load_links(config, tmp_path)
    config.degrees = False
    without = load_links(config, tmp_path)
    add_degrees(without)
    assert torch.equal(data.x, without.x) and data.edge_index.size(1) < load(
        config, tmp_path
    ).edge_index.size(1)
    assert data.content_hash != without.content_hash


def test_other_data_take_the_moments_of_the_training(directed, tmp_path):
    learned = learn(load(directed, tmp_path, degrees=True), node_features="sum", labels=None)
    other = random_graph(
        20, 30, 1, symmetric=True
    )  # with one column of its own, but two are expected
    other.x = torch.randn(20, 3)
    check_columns(learned, other, "other")
    add_degrees(other, learned.degrees)
    counts = np.log1p(np.bincount(other.edge_index[1], minlength=20))
    np.testing.assert_allclose(
        other.x[:, 3],
        (counts - float(learned.degrees[0, 0])) / float(learned.degrees[1, 0]),
        atol=1e-5,
    )
    assert other.x.size(1) == learned.num_columns
    other.x = torch.randn(20, 4)
    with pytest.raises(ValueError, match="have 4 columns, and the model was trained on 3"):
        check_columns(learned, other, "other")


def test_data_of_ones_own_have_them():
    assert {name for name, data in DATA_SCHEMAS.items() if data().degrees} == {
        "file",
        "edges",
        "tables",
        "graph_files",
    }

"""What processes share instead of having copies of their own: components, and the whole graph as a batch."""

import gc
from pathlib import Path

import pytest
import torch

from parallel_epochs.pipeline.gnn.loaders.cluster import ClusterLoader
from parallel_epochs.pipeline.graph.components import (
    find_components,
    select_component,
    split_components,
)
from parallel_epochs.pipeline.graph.subgraph import induced_subgraph
from tests.helpers import building as build
from tests.helpers.graphs import random_graph
from tests.helpers.running import train

MODEL = ["model.num_layers=2", "model.hidden_channels=8", "train.epochs=2", "partition.num_parts=2"]


def graph_file(path: Path, *, without_training: int | None = None) -> Path:
    """Save a graph of connected components of 50, 30 and 6 nodes; one of them may have no training node."""
    edges, first = [], 0
    for size in (50, 30, 6):
        ring = torch.arange(size)
        edges += [torch.stack([ring, (ring + step) % size]) + first for step in (1, 2)]
        first += size
    edge_index = torch.cat([*edges, *(pair.flip(0) for pair in edges)], dim=1)
    node = torch.arange(first)
    masks = {
        name: node % 3 == number
        for number, name in enumerate(("train_mask", "val_mask", "test_mask"))
    }
    if without_training is not None:
        start = (0, 50, 80)[without_training - 1]
        masks["test_mask"][start : start + 50] |= masks["train_mask"][start : start + 50]
        masks["train_mask"][start : start + 50] = False
    generator = torch.Generator().manual_seed(0)
    torch.save(
        {
            "edge_index": edge_index,
            "x": torch.randn(first, 4, generator=generator),
            "y": node % 2,
            **masks,
            "edge_attr": torch.rand(edge_index.size(1), 3, generator=generator),
        },
        path,
    )
    return path


def mapped(name: str) -> bool:
    """Whether a file of this name is in the memory of this process."""
    return name in Path("/proc/self/maps").read_text()


def assert_same_edges(a, b) -> None:
    for theirs, ours in zip(
        (a.as_tensor(), *a.get_csc()[0], *a.get_csr()[0], a.get_csr()[1]),
        (b.as_tensor(), *b.get_csc()[0], *b.get_csr()[0], b.get_csr()[1]),
        strict=True,
    ):
        assert theirs.dtype == ours.dtype and torch.equal(theirs, ours)


def test_components_lie_in_the_cache_and_are_what_they_are_without_it(
    configure, tmp_path, monkeypatch
):
    monkeypatch.setattr("parallel_epochs.pipeline.gnn.build.LEAST_NODES", 10)
    path = graph_file(tmp_path / "graph.pt")
    config = configure("data=file", f"data.path={path}", "data.components=separate")
    first, again = build.open_graph(config), build.open_graph(config)
    others = build.open_graph(config, content_hash=first.data.content_hash)  # as the ranks do
    assert [part.number for part in first.parts] == ["1", "2"] and mapped("-component-1.store")
    components = find_components(first.data)
    assert torch.equal(others.components.index, components.index)
    assert others.components.components == components.components
    copies = {part.number: part.data for part in again.parts}
    for number, part in ((part.number, part.data) for part in others.parts):
        expected = select_component(first.data, components, number)
        own, own_copy, wanted = (
            {*each.keys()} - {"store", "on_disk"} for each in (part, copies[number], expected)
        )
        assert own == own_copy == wanted
        assert part.edge_index.dtype == torch.int32 and part.content_hash == first.data.content_hash
        assert_same_edges(part.edge_index.long(), expected.edge_index.long())
        for key in ("x", "y", "edge_attr", "n_id", "train_mask"):
            assert torch.equal(part[key], expected[key])
    own = configure("data=file", f"data.path={path}", "data.components=2")
    assert torch.equal(build.open_graph(own).parts[0].data.x, others.parts[1].data.x)


def test_the_whole_graph_as_a_batch_shares_the_graph_and_its_edges(configure, tmp_path):
    config = configure(
        "data=file", f"data.path={graph_file(tmp_path / 'graph.pt')}", "partition=whole"
    )
    data = build.open_graph(config).data
    loader = build.build_loader(config, data)
    loader.prepare()
    (batch,) = loader.batches_of(loader._partitioner.draw(0))
    expected = induced_subgraph(data, torch.arange(data.num_nodes), dtype=torch.int64)
    assert_same_edges(batch.edge_index, expected.edge_index)
    assert (
        batch.x.data_ptr() == data.x.data_ptr()
        and batch.edge_attr.data_ptr() == data.edge_attr.data_ptr()
    )
    assert (
        torch.equal(batch.n_id, expected.n_id) and bool(batch.target.all()) and "n_id" not in data
    )
    assert mapped("whole-") and "cluster" not in data and data.edge_index.dtype == torch.int32
    without = ClusterLoader(random_graph(20, 50, 0))._whole_batch()
    assert_same_edges(
        without.edge_index,
        induced_subgraph(random_graph(20, 50, 0), torch.arange(20), dtype=torch.int64).edge_index,
    )
    del batch, loader
    gc.collect()
    assert not mapped("whole-")


@pytest.mark.parametrize(
    "without, least, trained, rest",
    [
        (1, 10, ["2"], 56),
        (3, 6, ["1", "2"], 6),
    ],
)
def test_components_without_training_nodes_are_predicted_by_the_largest_with_some(
    without, least, trained, rest, configure, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr("parallel_epochs.pipeline.gnn.build.LEAST_NODES", least)
    path = graph_file(tmp_path / "graph.pt", without_training=without)
    caplog.set_level("INFO")
    config = configure(
        "data=file",
        f"data.path={path}",
        "data.components=separate",
        *MODEL,
    )
    summary = train(config, tmp_path / "run")
    assert list(summary["components"]) == trained and 0 <= summary["test"] <= 1
    assert (
        f"component {without}: {(50, 30, 6)[without - 1]} nodes, none of the train split: the model of component "
        f"{trained[0]} will predict them"
    ) in caplog.text
    assert (
        f"{rest} nodes of small components and of those without training nodes are predicted by the model of "
        f"component {trained[0]}"
    ) in caplog.text


def test_separate_needs_a_component_with_a_training_node(tmp_path):
    data = random_graph(20, 50, 0)
    data.train_mask[:] = False
    with pytest.raises(
        ValueError, match="data.components=separate: no component has a node of the training split"
    ):
        split_components(data, find_components(data), "separate", 1)

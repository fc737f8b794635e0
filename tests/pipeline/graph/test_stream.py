"""Clusters of a graph on disk are those of the graph in memory, and so are the weights that they train."""

import contextlib
import copy
import errno
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.utils import to_undirected

from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.graph import Graph, open_graph, write_graph
from parallel_epochs.pipeline.graph import components, reading, store, stream
from parallel_epochs.pipeline.graph.components import find_components
from parallel_epochs.pipeline.graph.edges import sort_edges
from parallel_epochs.pipeline.graph.partition import (
    measure_partition,
    random_partition,
)
from parallel_epochs.pipeline.graph.reading import edge_blocks
from parallel_epochs.pipeline.graph.stream import ClusterStream
from parallel_epochs.pipeline.graph.subgraph import induced_subgraph
from parallel_epochs.pipeline.graph.waiting import Selected, Waiting
from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.errors import FileError
from tests.helpers import building as build, running
from tests.helpers.graphs import random_graph

SMALL = [
    "data.num_nodes=600",
    "data.num_edges=6000",
    "data.num_species=2",
    "data.num_groups=4",
    "data.num_tasks=3",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "train.epochs=3",
    "partition.num_parts=5",
    "evaluation.num_parts=3",
    "parallel.threads_per_rank=1",
]


def keep(path, data: Graph) -> Graph:
    """Put a graph into a store and open it there."""
    with store.StoreWriter(path) as writer:
        write_graph(writer, data)
    stored = open_graph(path)
    stored.on_disk = True
    return stored


def in_another_process(function) -> None:
    """Call a function in a copy of this process: who reads a mapped file behind its end is killed by SIGBUS."""
    assert running.status_of(running.forked(function)) == 0


class NoCompiler:
    """Stands for a library that cannot be compiled."""

    def get(self) -> None:
        return None


@pytest.fixture(params=["C++", "numpy"])
def library(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(stream, "LIBRARY", NoCompiler())
        monkeypatch.setattr(components, "LIBRARY", NoCompiler())


def assert_equal(ours: Graph, theirs: Graph) -> None:
    assert {*ours.keys()} - {"store"} == {*theirs.keys()}
    for name, value in theirs.to_dict().items():
        if name == "edge_index":
            assert (
                torch.equal(ours.edge_index.as_tensor(), value.as_tensor())
                and ours.edge_index.dtype == value.dtype
            )
            for order in ("get_csc", "get_csr"):
                (ptr, other), perm = getattr(ours.edge_index, order)()
                (ptr_, other_), perm_ = getattr(value, order)()
                assert torch.equal(ptr, ptr_) and torch.equal(other, other_)
                assert perm is perm_ is None or torch.equal(perm, perm_)
        elif isinstance(value, torch.Tensor):
            assert torch.equal(ours[name], value) and ours[name].dtype == value.dtype, name
        else:
            assert ours[name] == value


SIZES = {"all in memory": (2**20, 2**20), "some in a file": (1000, 3000), "edge by edge": (0, 1)}


@pytest.mark.parametrize(
    "sizes, clusters, edge_dim, library",
    [
        ("all in memory", range(7), 0, "C++"),
        ("all in memory", [1, 2, 1, 1], 3, "numpy"),
        ("some in a file", range(7), 3, "numpy"),
        ("some in a file", [5, 2], 0, "C++"),
        ("edge by edge", range(7), 3, "C++"),
        ("edge by edge", [1, 2, 1, 1], 0, "numpy"),
        ("edge by edge", [], 3, "C++"),
    ],
    indirect=["library"],
)
def test_clusters_are_those_in_memory(tmp_path, library, sizes, clusters, edge_dim):
    """Whatever the size of the blocks, with and without a file for what waits; clusters that come again too."""
    data, (buffer, block) = random_graph(100, 700, 0), SIZES[sizes]
    if not edge_dim:
        del data.edge_attr
    partition = random_partition(100, 7, np.random.default_rng(0))
    clusters_of = ClusterStream(
        keep(tmp_path / "s", data), spill=tmp_path / "spill", buffer=buffer, block=block
    )
    ours = list(clusters_of.induce(partition, clusters))
    assert len(ours) == len(clusters)
    for cluster, batch in zip(clusters, ours):
        assert_equal(batch, induced_subgraph(data, partition.nodes(cluster), dtype=torch.int64))
    assert not (tmp_path / "spill").exists() or not os.listdir(tmp_path / "spill")


def test_a_partition_is_measured_as_in_memory(tmp_path, library):
    data = random_graph(100, 700, 0)
    partition, clusters = (
        random_partition(100, 7, np.random.default_rng(0)),
        keep(tmp_path / "s", data),
    )
    ours = ClusterStream(clusters, spill=tmp_path, block=999).measure(partition, 1.5)
    assert ours == measure_partition(data.edge_index, partition, 1.5) and 0 < ours.cut < 1


@pytest.mark.parametrize("num_edges", [0, 30, 90, 400])
def test_components_are_those_in_memory(tmp_path, library, num_edges):
    edge_index, _ = sort_edges(
        torch.from_numpy(np.random.default_rng(0).integers(0, 90, (2, num_edges))), 90
    )
    masks = {
        mask: torch.ones(90, dtype=torch.bool) for mask in ("train_mask", "valid_mask", "test_mask")
    }
    data = Graph(edge_index=edge_index, num_nodes=90, **masks)
    ours, theirs = find_components(keep(tmp_path / "s", data)), find_components(data)
    assert torch.equal(ours.index, theirs.index) and ours.components == theirs.components


@pytest.mark.parametrize(
    "dtype, edge_dim",
    [(torch.int32, 3), (torch.int64, 0)],
)
def test_a_component_is_that_in_memory(tmp_path, monkeypatch, dtype, edge_dim):
    monkeypatch.setattr(store, "COPIED", 10)
    monkeypatch.setattr(components, "edge_blocks", partial(edge_blocks, block=500))
    data = three_components(edge_dim=edge_dim)
    found = find_components(data)
    if dtype == torch.int64:
        data.edge_index = from_csc(
            data.edge_index.as_tensor().long(), data.edge_index.get_csc()[0][0].long()
        )
    stored = keep(tmp_path / "s", data)
    for number in range(len(found.components)):
        nodes = (found.index == number).nonzero().squeeze(1)
        with store.StoreWriter(tmp_path / f"{number}") as writer:
            components.write_component(writer, stored, nodes)
        assert_equal(open_graph(tmp_path / f"{number}"), induced_subgraph(data, nodes))
    assert len(found.components) == 4 and found.components[3].num_nodes == 1


def three_components(edge_dim: int = 3) -> Graph:
    """Two copies of one graph, with features and labels of their own, a smaller graph and a node, mixed."""
    rng = np.random.default_rng(0)
    both, small = rng.integers(0, 60, (2, 300)), rng.integers(120, 150, (2, 100))
    edges = to_undirected(torch.from_numpy(np.concatenate([2 * both, 2 * both + 1, small], axis=1)))
    edge_attr = (
        {"edge_attr": torch.from_numpy(rng.random((edges.size(1), edge_dim), np.float32))}
        if edge_dim
        else {}
    )
    masks = {
        f"{split}_mask": torch.arange(151) // 4 % 3 == number for number, split in enumerate(SPLITS)
    }
    return Graph(
        edge_index=sort_edges(edges, 151)[0],
        num_nodes=151,
        **edge_attr,
        **masks,
        x=torch.from_numpy(rng.random((151, 4), np.float32)),
        y=torch.from_numpy(rng.integers(0, 2, (151, 1))),
        metric="acc",
        out_channels=2,
        num_categories=0,
    )


def test_edges_are_read_once_and_in_order(tmp_path, monkeypatch):
    """Whatever the block, the bytes of an epoch are those of the sources and the features, once each."""
    data, read = random_graph(100, 700, 0), []
    stored = keep(tmp_path / "s", data)
    read_span = reading.read_span
    monkeypatch.setattr(
        reading,
        "read_span",
        lambda file, memory, *span, drops: (
            read.append((Path(file.name).name, *span)),
            read_span(file, memory, *span, drops=drops),
        )[1],
    )
    partition = random_partition(100, 4, np.random.default_rng(0))
    list(ClusterStream(stored, spill=tmp_path, buffer=0, block=900).induce(partition, range(4)))
    for name, rows in (("edges.bin", 1400), ("edge_attr.bin", 1400), ("x.bin", 100)):
        spans = [(first, last) for file, first, last in read if file == name]
        assert len(spans) > 1 and spans[0][0] == 0 and spans[-1][1] == rows
        assert all(last == first for (_, last), (first, _) in zip(spans, spans[1:]))


def test_a_node_with_more_edges_than_a_block(tmp_path):
    hub = torch.stack([torch.arange(50), torch.zeros(50, dtype=torch.int64)])
    edge_index, _ = sort_edges(torch.cat([hub, hub.flip(0)], 1), 50)
    stored = keep(tmp_path / "s", Graph(edge_index=edge_index, num_nodes=50))
    blocks = list(edge_blocks(stored, 40))
    assert sum(len(src) for _, _, src in blocks) == 100
    assert len(blocks[0][2]) == int((edge_index[1] == 0).sum()) > 10  # of a block of ten edges


def test_a_store_that_is_cut_short_while_it_is_read(tmp_path):
    stored = keep(tmp_path / "s", random_graph(100, 700, 0))
    os.truncate(tmp_path / "s" / "edge_attr.bin", 100)
    partition = random_partition(100, 4, np.random.default_rng(0))

    def read():
        with pytest.raises(FileError, match="edge_attr.bin cannot be read: it ends too early"):
            list(ClusterStream(stored, spill=tmp_path).induce(partition, range(4)))

    in_another_process(read)


def test_no_room_for_what_waits(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    stored = keep(tmp_path / "s", random_graph(100, 700, 0))
    monkeypatch.setattr(os, "pwrite", full)
    partition = random_partition(100, 4, np.random.default_rng(0))
    with pytest.raises(FileError, match="has no space left"):
        list(ClusterStream(stored, spill=tmp_path / "spill", buffer=0).induce(partition, range(4)))


def test_what_waits_comes_in_its_order(tmp_path):
    """Some of it was written to the file, some not."""
    with Waiting(tmp_path, 100) as waiting:
        for piece in range(10):
            values = np.arange(6) + 10 * piece
            waiting.add(Selected(np.array([0, 2, 2, 6]), [values, np.stack([values, -values], 1)]))
        for place, own in enumerate((slice(0, 2), slice(2, 2), slice(2, 6))):
            first, second = waiting.take(place)
            expected = np.concatenate([np.arange(6)[own] + 10 * piece for piece in range(10)])
            assert first.tolist() == expected.tolist()
            assert second.tolist() == np.stack([expected, -expected], 1).tolist()


def trained(config, *, on_disk: bool) -> tuple[str, list[dict[str, float]]]:
    """Train without a folder: a digest of the weights, and the scores of each round."""
    config = copy.deepcopy(config)
    config.data.on_disk = on_disk
    data = build.open_graph(config).parts[0].data
    with contextlib.closing(build.build_trainer(config, data, torch.device("cpu"))) as trainer:
        scores = []
        for _ in range(trainer.num_rounds):
            list(trainer.steps())
            scores.append(trainer.evaluate())
        return checkpoint.digest(trainer.weights()), scores


@pytest.mark.parametrize(
    "options",
    [
        ["partition=metis", "partition.clusters_per_step=2", "model=pyg", "model.conv=SAGEConv"],
        ["loader=neighbor", "loader.num_neighbors=[5,5]", "evaluation=neighbor"],
    ],
    ids=" ".join,
)
def test_the_weights_are_those_of_a_graph_in_memory(configure, options):
    config = configure(*SMALL, *options)
    ours, theirs = (trained(config, on_disk=on_disk) for on_disk in (True, False))
    assert ours[0] == theirs[0] and len(ours[1]) == 3
    for scores, expected in zip(
        ours[1], theirs[1]
    ):  # blocks of nodes round otherwise than all of them
        assert scores == pytest.approx(expected, abs=1e-6)


def of_components(which: str, options: list[str], folder) -> list[str]:
    torch.save(three_components(), folder / "graph.pt")
    return [
        *(part for part in SMALL if not part.startswith("data.")),
        *options,
        "data=file",
        "partition.num_parts=2",
        f"data.path={folder / 'graph.pt'}",
        f"data.components={which}",
    ]


def kept_components(folder) -> tuple[set[str], dict]:
    """What the cache holds: the names of the stores of components, and when each of its files was written."""
    made = {path: path.stat().st_mtime_ns for path in (folder / "cache" / "graphs").rglob("*")}
    return {path.name.rpartition("-")[2] for path in made if "-component-" in path.name}, made


def test_a_component_has_the_weights_of_that_in_memory(configure, tmp_path):
    """Two components differ in features and labels alone, so that what is kept of one would fit the other."""
    config = configure(*of_components("largest", [], tmp_path))
    ours, theirs = (trained(config, on_disk=on_disk) for on_disk in (True, False))
    assert ours[0] == theirs[0] and ours[1][-1]["test"] == theirs[1][-1]["test"]
    kept, made = kept_components(tmp_path)
    assert "1.store" in kept
    assert trained(config, on_disk=True)[0] == ours[0], "another run finds it in the cache"
    assert kept_components(tmp_path)[1] == made


def test_a_run_reads_a_store_of_the_users(configure, tmp_path):
    """The graph of the cache, as data=store."""
    config = configure(*SMALL, "data.on_disk=true")
    data = cache.load(config.data, config.cache_dir)
    path = cache.path_of(config.data, config.cache_dir, data.content_hash)
    mine = [part for part in SMALL if not part.startswith("data.")]
    ours = running.train(configure("data=store", f"data.path={path}", *mine), tmp_path / "ours")
    theirs = running.train(config, tmp_path / "theirs")
    assert ours["weights_sha256"] == theirs["weights_sha256"]

"""Features averaged over the neighbours: the numbers, where they are kept, and what must not show in them."""

import errno
import itertools
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline.data import propagate as propagating
from parallel_epochs.pipeline.data.cache import load, load_links
from parallel_epochs.pipeline.data.config import FileConfig, StoreConfig, SyntheticProteinsConfig
from parallel_epochs.pipeline.data.graph import open_graph
from parallel_epochs.pipeline.data.propagate import propagate, write_propagated
from parallel_epochs.pipeline.graph import store
from parallel_epochs.pipeline.graph.store import StoreWriter
from tests.helpers.graphs import random_graph, write_species
from tests.helpers.running import forked, status_of

SMALL = dict(num_nodes=300, num_edges=4000, num_groups=12, num_tasks=4)


def expected(data, num_hops: int) -> np.ndarray:
    source, target = data.edge_index.as_tensor().numpy()
    matrix = np.zeros((len(data.x), len(data.x)))
    np.add.at(matrix, (target, source), 1.0)  # equal edges count each
    matrix /= matrix.sum(1, keepdims=True).clip(1)
    num_own = data.x.size(1) - data.num_categories
    hop = data.x[:, :num_own].double().numpy()
    parts = [hop]
    for _ in range(num_hops):
        hop = matrix @ hop
        parts.append((hop - hop.mean(0)) / hop.std(0).clip(1e-6))
    return np.concatenate([*parts, data.x[:, num_own:].numpy()], axis=1)


@pytest.fixture
def stored(tmp_path):
    """A directed graph in a store, with two species and a node without edges."""
    write_species(tmp_path / "own.store", 150, colour="red")
    opened = open_graph(tmp_path / "own.store")
    opened.num_nodes, opened.on_disk = 40, True
    return opened


@pytest.mark.parametrize("num_hops", [1, 3])
def test_hops_are_the_means_over_incoming_edges_standardised(stored, num_hops):
    assert (stored.edge_index.get_csc()[0][0].diff() == 0).any()
    out = propagate(stored, num_hops)[0]
    assert out.dtype == torch.float32 and out.shape == (40, 3 * (num_hops + 1) + 2)
    np.testing.assert_allclose(out, expected(stored, num_hops), rtol=1e-4, atol=1e-5)
    assert torch.equal(out[:, :3], stored.x[:, :3]) and torch.equal(out[:, -2:], stored.x[:, 3:])


def test_a_column_that_is_the_same_everywhere_becomes_zero(stored):
    stored.x[:, 0] = 1.0
    stored.edge_index, stored.store = random_graph(40, 600, 0).edge_index, None
    assert not propagate(stored, 1)[0][:, 3].any()


def test_moments_of_another_graph_belong_to_their_columns():
    data = random_graph(40, 600, 0)
    data.x, data.num_categories = torch.rand(40, 37) * torch.arange(1, 38), 0
    out, moments = propagate(data, 2)
    assert torch.equal(propagate(data, 2, moments)[0], out) and moments.shape == (2, 2, 37)


@pytest.mark.parametrize("most_bytes", [None, 1, 10**9])
def test_the_columns_of_a_hop_may_have_one_scale(stored, most_bytes, tmp_path):
    each, (_, deviation) = propagate(stored, 1)[0], propagate(stored, 1)[1][0]
    if most_bytes is None:
        out, moments = propagate(stored, 1, scale="one")
    else:
        with StoreWriter(tmp_path / "new.store", "key") as writer:
            write_propagated(writer, stored, 1, scale="one", most_bytes=most_bytes)
        new = open_graph(tmp_path / "new.store")
        out, moments = new.x, new.hop_moments
    width = len(deviation)
    assert deviation.max() > deviation.min() and torch.equal(out[:, :width], each[:, :width])
    own = out[:, width : 2 * width].double()
    torch.testing.assert_close(
        own.var(0, correction=0).mean(), torch.ones((), dtype=torch.float64), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(
        own.std(0, correction=0) / deviation,
        (1 / moments[0, 1, 0]).expand(width),
        rtol=1e-5,
        atol=0,
    )
    torch.testing.assert_close(propagate(stored, 1, moments)[0], out, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("most_bytes", [1, 2 * 4 * propagating.HELD * 40, 10**9])
def test_a_store_holds_the_same_whatever_fits_into_memory(
    stored, most_bytes, tmp_path, monkeypatch
):
    blocks = propagating.edge_blocks
    monkeypatch.setattr(propagating, "edge_blocks", lambda data: blocks(data, block=100))
    with StoreWriter(tmp_path / "new.store", "key") as writer:
        write_propagated(writer, stored, 2, most_bytes=most_bytes)
    new, own = open_graph(tmp_path / "new.store"), open_graph(tmp_path / "own.store")
    torch.testing.assert_close(new.x, propagate(stored, 2)[0], rtol=1e-5, atol=1e-6)
    assert new.colour == "red" and new.num_categories == 2
    assert all(torch.equal(new[name], own[name]) for name in ("y", "train_mask", "edge_attr"))
    inodes = [
        (tmp_path / folder / "edges.bin").stat().st_ino for folder in ("new.store", "own.store")
    ]
    assert inodes[0] == inodes[1], "the edges were copied"


def test_without_links_the_arrays_are_copied(stored, tmp_path, monkeypatch):
    def refuse(*paths):
        raise OSError("the file system has no such links")

    monkeypatch.setattr(store.os, "link", refuse)
    with StoreWriter(tmp_path / "new.store", "key") as writer:
        write_propagated(writer, stored, 1)
    assert (tmp_path / "new.store" / "edges.bin").stat().st_nlink == 1
    assert torch.equal(open_graph(tmp_path / "new.store").y, stored.y)


@pytest.mark.slow
@pytest.mark.parametrize("has_links", [True, False])
def test_a_kill_at_any_write_of_a_graph_or_of_what_it_shares_loses_nothing(
    tmp_path, monkeypatch, has_links
):
    """Without links, as across disks, arrays of another store are copied."""
    graph = random_graph(20, 60, 1)
    torch.save(
        {"x": graph.x, "edge_index": graph.edge_index.as_tensor().long()}, tmp_path / "graph.pt"
    )
    config = FileConfig(path=str(tmp_path / "graph.pt"), propagate=1)
    expected, calls, link = (
        load(config, tmp_path / "cache", degrees=True),
        itertools.count(),
        os.link,
    )

    def other_disk(*paths):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    def killed_at(point, function):
        def call(*args):
            if next(calls) == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args)

        return call

    monkeypatch.setattr(os, "link", link if has_links else other_disk)
    statuses = []
    while 0 not in statuses:
        cache = tmp_path / f"cache-{len(statuses)}"

        def write(point=len(statuses), cache=cache):
            for name in ("rename", "replace", "fsync", "pwrite", "link"):
                setattr(os, name, killed_at(point, getattr(os, name)))
            load(config, cache, degrees=True)

        statuses.append(status_of(forked(write)))
        found = load(config, cache, degrees=True)
        assert torch.equal(found.x, expected.x) and torch.equal(
            found.edge_index.as_tensor(), expected.edge_index.as_tensor()
        )
        assert {path.name for path in cache.glob("graphs/*")} == {
            path.name for path in (tmp_path / "cache").glob("graphs/*")
        }
    assert statuses == [-signal.SIGKILL] * (len(statuses) - 1) + [0] and len(statuses) > 20


def test_a_writer_never_writes_to_the_array_that_it_shares_with_another_store(stored, tmp_path):
    before = (tmp_path / "own.store" / "edges.bin").read_bytes()
    writer = StoreWriter(tmp_path / "new.store", "key")
    writer.adopt("edges", tmp_path / "own.store" / "edges.bin", {"size": len(before)})
    with writer.write(edges=((2, 3), torch.int32)) as arrays:
        arrays["edges"].write(0, np.zeros(6, np.int32))
    assert (tmp_path / "own.store" / "edges.bin").read_bytes() == before


def test_a_writer_that_was_interrupted_is_gone_on_with(stored, tmp_path, monkeypatch):
    average, calls = propagating._average_in_blocks, []

    def interrupted(data, x):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return average(data, x)

    monkeypatch.setattr(propagating, "_average_in_blocks", interrupted)
    for _ in range(2):
        try:
            with StoreWriter(tmp_path / "new.store", "key") as writer:
                write_propagated(writer, stored, 2)
        except KeyboardInterrupt:
            assert not store.is_store(tmp_path / "new.store")
    torch.testing.assert_close(
        open_graph(tmp_path / "new.store").x, propagate(stored, 2)[0], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("on_disk", [False, True])
def test_features_are_averaged_once_and_kept_beside_the_graph(on_disk, tmp_path, caplog):
    config = SyntheticProteinsConfig(**SMALL, on_disk=on_disk, propagate=2)
    caplog.set_level("INFO")
    plain = load(SyntheticProteinsConfig(**SMALL), tmp_path / "plain")
    whole = load(config, tmp_path)
    assert (
        whole.num_categories == plain.num_categories
        and whole.content_hash == f"{plain.content_hash}-hops-2"
    )
    np.testing.assert_allclose(whole.x, expected(plain, 2), rtol=1e-3, atol=1e-4)
    assert caplog.text.count("averaging 8 features over 2 hops") == 1
    again, told = load(config, tmp_path), load(config, tmp_path, content_hash=whole.content_hash)
    assert caplog.text.count("averaging") == 1
    assert all(
        torch.equal(other.x, whole.x) and other.content_hash == whole.content_hash
        for other in (again, told)
    )
    assert told.on_disk == on_disk and told.store == whole.store


def test_damaged_features_are_averaged_again(tmp_path, caplog):
    config = SyntheticProteinsConfig(**SMALL, propagate=1)
    before = load(config, tmp_path).x.clone()
    (path,) = (tmp_path / "graphs").glob("*-hops-1.store/x.bin")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert torch.equal(load(config, tmp_path).x, before)
    assert "making it again" in caplog.text


def test_a_store_of_the_users_is_left_as_it_is(stored, tmp_path):
    own = tmp_path / "own.store"
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    for on_disk in (False, True):
        data = load(StoreConfig(path=str(own), on_disk=on_disk, propagate=1), tmp_path / "cache")
        torch.testing.assert_close(data.x, propagate(stored, 1)[0], rtol=1e-5, atol=1e-6)
    assert {path.name: path.read_bytes() for path in own.iterdir()} == before


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_store_without_its_number_of_categories_has_none(on_disk, stored, tmp_path):
    manifest = json.loads((Path(stored.store) / store.MANIFEST).read_text())
    del manifest["values"]["num_categories"]
    (Path(stored.store) / store.MANIFEST).write_text(json.dumps(manifest))
    assert (
        load(
            StoreConfig(path=str(stored.store), propagate=1, on_disk=on_disk), tmp_path
        ).num_categories
        == 0
    )


def test_features_of_an_earlier_version_without_moments_are_averaged_again(tmp_path, caplog):
    config = SyntheticProteinsConfig(**SMALL, propagate=1)
    load(config, tmp_path)
    (path,) = (tmp_path / "graphs").glob("*-hops-1.store")
    manifest = json.loads((path / store.MANIFEST).read_text())
    del manifest["arrays"]["hop_moments"]
    (path / store.MANIFEST).write_text(json.dumps(manifest))
    assert load(config, tmp_path).hop_moments is not None
    assert "it lacks hop_moments or nodes; making it again" in caplog.text


def test_hidden_links_do_not_show_in_the_features(tmp_path):
    graph = random_graph(40, 200, 1, edge_dim=1)
    torch.save(
        {"x": graph.x, "edge_index": graph.edge_index.as_tensor().long()}, tmp_path / "graph.pt"
    )
    config = FileConfig(
        path=str(tmp_path / "graph.pt"), train_fraction=0.6, valid_fraction=0.2, propagate=1
    )
    data = load_links(config, tmp_path)
    plain = load_links(
        FileConfig(path=config.path, train_fraction=0.6, valid_fraction=0.2), tmp_path
    )
    assert torch.equal(data.edge_index.as_tensor(), plain.edge_index.as_tensor())
    np.testing.assert_allclose(data.x, expected(plain, 1), rtol=1e-4, atol=1e-5)
    assert torch.equal(load_links(config, tmp_path, content_hash=data.content_hash).x, data.x)


def test_features_that_memory_cannot_hold_are_refused(stored, monkeypatch):
    monkeypatch.setattr(propagating, "machine_memory", lambda: 40 * (3 * 10 + 2) * 4)
    propagate(stored, 9)[0]
    with pytest.raises(
        ValueError,
        match=r"data.propagate=10: the features of 40 nodes over all hops take 5.6 kB, but "
        "this machine has .*: lower it, or set data.on_disk=true",
    ):
        propagate(stored, 10)[0]


def test_a_graph_without_edges_is_refused(tmp_path):
    torch.save(
        {"x": torch.rand(6, 2), "edge_index": torch.empty(2, 0, dtype=torch.int64)},
        tmp_path / "graph.pt",
    )
    with pytest.raises(
        ValueError, match="data.propagate=1 averages over edges, and .*graph.pt has none"
    ):
        load(FileConfig(path=str(tmp_path / "graph.pt"), propagate=1), tmp_path)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["data.propagate=-1"], r"data.propagate must be in \[0, 100\), not -1"),
        (["data.propagate=100"], "data.propagate must be less than 100, not 100"),
        (
            ["+experiment=ogbg_molhiv", "data.folder=.", "data.propagate=1"],
            "data.propagate=1 needs one graph",
        ),
        (
            ["features=embedding", "data.propagate=1"],
            "needs features.concat=true, since the table replaces the features",
        ),
        (
            [
                "trainer=node_embedding",
                "data=edges",
                "data.path=pyproject.toml",
                "data.propagate=1",
            ],
            "data.propagate=1 needs trainer=gnn, since other trainers read no node features",
        ),
        (["trainer=knowledge", "data=math", "data.propagate=1"], "data.propagate=1 needs"),
    ],
)
def test_what_cannot_be_propagated_is_refused(overrides, message, configure):
    with pytest.raises(ValueError, match=message):
        config = configure(*overrides)
        config.check()
        config.data.check()

"""Features averaged over the neighbours: the numbers, where they are kept, and what must not show in them."""

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline.data import propagate as propagating
from parallel_epochs.pipeline.data.cache import load, load_links
from parallel_epochs.pipeline.data.config import FileConfig, SyntheticProteinsConfig
from parallel_epochs.pipeline.data.graph import open_graph
from parallel_epochs.pipeline.data.propagate import propagate, write_propagated
from parallel_epochs.pipeline.graph.store import StoreWriter
from tests.helpers.graphs import random_graph, write_species

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


def test_a_writer_never_writes_to_the_array_that_it_shares_with_another_store(stored, tmp_path):
    before = (tmp_path / "own.store" / "edges.bin").read_bytes()
    writer = StoreWriter(tmp_path / "new.store", "key")
    writer.adopt("edges", tmp_path / "own.store" / "edges.bin", {"size": len(before)})
    with writer.write(edges=((2, 3), torch.int32)) as arrays:
        arrays["edges"].write(0, np.zeros(6, np.int32))
    assert (tmp_path / "own.store" / "edges.bin").read_bytes() == before


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
    assert caplog.text.count("features of neighbours over 2 hops") == 1
    again, told = load(config, tmp_path), load(config, tmp_path, content_hash=whole.content_hash)
    assert caplog.text.count("features of neighbours") == 1
    assert all(
        torch.equal(other.x, whole.x) and other.content_hash == whole.content_hash
        for other in (again, told)
    )
    assert told.on_disk == on_disk and told.store == whole.store


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


def test_a_graph_without_edges_is_refused(tmp_path):
    torch.save(
        {"x": torch.rand(6, 2), "edge_index": torch.empty(2, 0, dtype=torch.int64)},
        tmp_path / "graph.pt",
    )
    with pytest.raises(
        ValueError, match="data.propagate reads neighbours, and .*graph.pt has no edges"
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
        (["trainer=knowledge", "data=math", "data.propagate=1"], "data.propagate=1 needs"),
    ],
)
def test_what_cannot_be_propagated_is_refused(overrides, message, configure):
    with pytest.raises(ValueError, match=message):
        config = configure(*overrides)
        config.check()
        config.data.check()

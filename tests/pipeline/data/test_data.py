import dataclasses
import gzip
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline.data import cache, prepare as preparing
from parallel_epochs.pipeline.data.cache import hash_graph, load
from parallel_epochs.pipeline.data.config import (
    OGB_NODE_NAMES,
    DigitsConfig,
    EdgesConfig,
    FileConfig,
    OGBConfig,
)
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.learned import learn, with_labels
from parallel_epochs.pipeline.data.node_names import pack_names, unpack_names
from parallel_epochs.pipeline.data.readers import synthetic
from parallel_epochs.pipeline.graph.structure import inspect
from parallel_epochs.pipeline.names import MASKS
from tests.helpers.files import write_csv

SMALL = dict(num_nodes=600, num_edges=12_000, num_groups=12, num_tasks=4)


def good() -> Graph:
    """Six nodes in a ring, checked by hand; each test breaks one thing."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
    mask = torch.tensor([True, True, False, False, False, False])
    return Graph(
        x=torch.arange(12.0).view(6, 2),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        edge_attr=torch.rand(12, 3),
        y=torch.tensor([[0], [1], [2], [0], [1], [2]]),
        num_nodes=6,
        metric="acc",
        train_mask=mask,
        valid_mask=mask.roll(2),
        test_mask=mask.roll(4),
    )


def test_synthetic_proteins_has_the_schema_and_is_reproducible():
    a, b = synthetic.synthetic_proteins(**SMALL), synthetic.synthetic_proteins(**SMALL)
    assert all(torch.equal(a[key], b[key]) for key in ("edge_attr", "y", "species", "train_mask"))
    assert torch.equal(a.edge_index.as_tensor(), b.edge_index.as_tensor())
    assert not torch.equal(a.y, synthetic.synthetic_proteins(**SMALL, graph_seed=1).y)
    found = inspect(a.edge_index)
    assert (
        found.num_edges,
        found.num_without_reverse,
        found.num_self_loops,
        found.num_duplicates,
    ) == (12_000, 0, 0, 0)
    assert a.edge_attr.shape == (12_000, 8) and 0 <= a.edge_attr.min() and a.edge_attr.max() <= 1
    assert a.y.shape == (600, 4) and set(a.y.unique().tolist()) == {0, 1}
    masks = torch.stack([a.train_mask, a.valid_mask, a.test_mask])
    assert bool((masks.sum(0) == 1).all()) and bool((masks.sum(1) > 0).all())
    species_of = [set(a.species[mask].tolist()) for mask in masks]
    assert not species_of[0] & species_of[1] and not species_of[1] & species_of[2]
    a.edge_index.validate()


def test_digits_is_an_undirected_graph_of_real_digits(tmp_path):
    data = load(DigitsConfig(), tmp_path)
    assert (
        data.num_nodes == 1797
        and data.x.shape == (1797, 64)
        and data.metric == "acc"
        and data.edge_attr is None
    )
    assert inspect(data.edge_index).is_undirected and data.y.unique().tolist() == list(range(10))
    assert [int(data[m].sum()) for m in MASKS] == [1078, 359, 360]


@pytest.mark.parametrize("name", OGB_NODE_NAMES)
def test_a_folder_in_ogbs_layout(name, ogb_toy, tmp_path):
    folder = ogb_toy(name)
    before = sorted(folder.rglob("*"))
    data = load(OGBConfig(name=name, folder=str(folder), node_features="sum"), tmp_path)
    assert sorted(folder.rglob("*")) == before
    assert [int(data[m].sum()) for m in MASKS] == [36, 12, 12]
    if name == "ogbn-proteins":
        assert (data.metric, data.y.shape, data.y.dtype, data.num_categories) == (
            "rocauc",
            (60, 5),
            torch.float32,
            3,
        )
        assert data.x.shape == (60, 8 + 3) and data.edge_index.size(1) == 600
        assert inspect(data.edge_index).is_undirected
        total = torch.zeros(60, 8).index_add_(0, data.edge_index.as_tensor()[1], data.edge_attr)
        torch.testing.assert_close(data.x[:, :8], total)
        assert bool((data.x[:, 8:].sum(1) == 1).all())
    else:
        assert (data.metric, data.y.shape, data.y.dtype) == ("acc", (60, 1), torch.int64)
        assert data.edge_index.size(1) == {"ogbn-arxiv": 300, "ogbn-products": 600}[name]


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("raw/num-node-list.csv.gz", b"", "a node dataset has one graph|has 0 graphs"),
        ("raw/node-label.csv.gz", b"a\n" * 60, "node-label.csv.gz holds a, which is not a number"),
        (
            "raw/edge.csv.gz",
            b"0,1\n" * 299 + b"1.5,2\n",
            "edge.csv.gz: row 299 .from 0. holds 1.5, which is not a whole number",
        ),
        (
            "raw/num-edge-list.csv.gz",
            b"1" * 20 + b"\n",
            "row 0 .from 0. holds 1.1*e.19, which is not a whole number below 2",
        ),
        ("raw/node-label.csv.gz", b"1\n" * 59 + b"9" * 30 + b"\n", "holds 9{30}, which is not"),
    ],
)
def test_files_that_hold_no_numbers_are_named(file, content, message, ogb_toy, tmp_path):
    folder = ogb_toy()
    (folder / file).write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=message):
        load(OGBConfig(name="ogbn-proteins", folder=str(folder)), tmp_path)


def test_every_key_that_shapes_the_graph_is_in_its_name(ogb_toy, tmp_path):
    config = OGBConfig(name="ogbn-arxiv", folder=str(ogb_toy("ogbn-arxiv")))
    changes = [{}, dict(to_undirected=True), dict(add_self_loops=True), dict(node_features="sum")]
    assert (
        len(
            {
                load(dataclasses.replace(config, **change), tmp_path).content_hash
                for change in changes
            }
        )
        == 4
    )
    same = dataclasses.replace(config, components="largest")
    assert load(same, tmp_path).content_hash == load(config, tmp_path).content_hash


def test_reverse_edges_and_self_loops_get_the_mean_of_the_features():
    data = good()
    data.edge_index = torch.tensor([[0, 1, 2], [1, 0, 1]])
    data.edge_attr = torch.tensor([[1.0], [3.0], [5.0]])
    found = preparing.prepare(data, origin="x", to_undirected=True, add_self_loops=True)
    by_edge = {
        (u, v): a
        for u, v, a in zip(
            *found.edge_index.as_tensor().tolist(), found.edge_attr.squeeze(1).tolist()
        )
    }
    assert by_edge == pytest.approx(
        {
            (0, 1): 2,
            (1, 0): 2,
            (1, 2): 5,
            (2, 1): 5,
            (0, 0): 2,
            (1, 1): 3.5,
            (2, 2): 5,
            (3, 3): 0,
            (4, 4): 0,
            (5, 5): 0,
        }
    )
    synthetic_with_loops = preparing.prepare(
        synthetic.synthetic_proteins(**SMALL), origin="x", add_self_loops=True
    )
    assert inspect(synthetic_with_loops.edge_index).num_self_loops == 600


def test_prepared_graphs_are_cached_by_content(ogb_toy, tmp_path, caplog):
    caplog.set_level("INFO")
    folder, cache = ogb_toy(), tmp_path / "cache"
    config = OGBConfig(name="ogbn-proteins", folder=str(folder))
    first = load(config, cache)
    again = load(config, cache)
    assert caplog.text.count("data: preparing ogb") == 1 and "opened in" in caplog.text
    assert torch.equal(first.edge_index.as_tensor(), again.edge_index.as_tensor())
    assert all(torch.equal(first[key], again[key]) for key in ("x", "edge_attr", "y", *MASKS))
    moved = folder.rename(tmp_path / "elsewhere")
    load(OGBConfig(name="ogbn-proteins", folder=str(moved)), cache)
    assert len(list(cache.rglob("*.store"))) == 1
    write_csv(moved / "raw" / "node-label.csv.gz", np.ones((60, 5), int))
    load(OGBConfig(name="ogbn-proteins", folder=str(moved)), cache)
    assert len(list(cache.rglob("*.store"))) == 2 and not list(cache.rglob("*.part"))


def test_a_graph_of_an_earlier_reader_opens_from_the_cache(tmp_path):
    (tmp_path / "edges.txt").write_text("a b\nb c\n")
    new = EdgesConfig(path=str(tmp_path / "edges.txt"))
    old = dataclasses.replace(new, reading=1)
    assert hash_graph(old) == "0ffdfb2d4c8090f55f78a7ef"  # of the version before the key
    second = load(dataclasses.replace(new, reading=2), tmp_path)
    assert second.store != load(new, tmp_path).store
    shutil.copytree(second.store, str(cache.path_of(old, tmp_path, hash_graph(old))))
    assert torch.equal(load(old, tmp_path).edge_index, second.edge_index)


def test_nothing_that_a_user_saved_is_dropped_in_silence(tmp_path, caplog):
    caplog.set_level("INFO")
    data = good()
    weights = torch.rand(data.num_edges)
    del data.edge_attr
    data.edge_weight, data.pos, data.train_pos = weights, torch.zeros(6, 2), None
    torch.save(data, tmp_path / "graph.pt")
    loaded = load(FileConfig(path=str(tmp_path / "graph.pt")), tmp_path / "cache")
    assert sorted(loaded.edge_attr.squeeze(1).tolist()) == sorted(weights.tolist())
    assert f"{tmp_path / 'graph.pt'}: not used: pos" in caplog.messages


def test_an_empty_valid_split_is_said(caplog):
    data = good()
    data.valid_mask = torch.zeros(6, dtype=torch.bool)
    data = preparing.prepare(data, origin="x")
    assert "the valid split is empty" in caplog.text and data.num_nodes == 6


def test_an_unknown_dataset_is_named(tmp_path):
    with pytest.raises(
        ValueError, match="unknown dataset: data.name=ogbn-papers; choose one of ogbn-proteins"
    ):
        load(OGBConfig(name="ogbn-papers", folder=str(tmp_path)), tmp_path)


@pytest.mark.parametrize(
    "file",
    [
        "raw/edge.csv.gz",
        "raw/edge-feat.csv.gz",
        "raw/node-label.csv.gz",
        "raw/num-node-list.csv.gz",
        "split/species/train.csv.gz",
    ],
)
def test_missing_and_truncated_files_are_named(file, ogb_toy, tmp_path):
    folder = ogb_toy()
    path = folder / file
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    config = OGBConfig(name="ogbn-proteins", folder=str(folder))
    with pytest.raises(ValueError, match=f"{file} is damaged or cut short"):
        load(config, tmp_path / "cache")
    path.unlink()
    with pytest.raises(ValueError, match=f"{file} is missing"):
        load(config, tmp_path / "cache")
    assert not list(tmp_path.glob("cache/**/*.store"))


def test_files_that_do_not_fit_each_other_are_named(ogb_toy, tmp_path):
    folder = ogb_toy()
    config = OGBConfig(name="ogbn-proteins", folder=str(folder))
    feat = folder / "raw" / "edge-feat.csv.gz"
    rows = gzip.decompress(feat.read_bytes()).splitlines()
    feat.write_bytes(gzip.compress(b"\n".join(rows[:-10])))
    with pytest.raises(ValueError, match="edge-feat.csv.gz has 290 rows, and must have 300"):
        load(config, tmp_path)
    feat.write_bytes(gzip.compress(b"\n".join(rows)))
    write_csv(folder / "raw" / "num-edge-list.csv.gz", [299])
    with pytest.raises(ValueError, match="edge.csv.gz has 300 rows, and must have 299"):
        load(config, tmp_path)
    write_csv(folder / "raw" / "num-edge-list.csv.gz", [300])
    write_csv(folder / "split" / "species" / "test.csv.gz", [60])
    with pytest.raises(ValueError, match="test.csv.gz names node 60, and there are 60 nodes"):
        load(config, tmp_path)


@pytest.mark.slow
def test_importing_ogb_asks_no_network():
    code = (
        "import parallel_epochs.pipeline.data.readers.ogb_node, threading, ogb.version as v; "
        "assert v.check_outdated is None; print(threading.active_count())"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "1"
    )


def test_a_file_without_masks_is_divided(tmp_path):
    y = torch.arange(40) % 3
    y[:4] = -1  # no label
    torch.save({"edge_index": torch.tensor([[0, 1], [1, 2]]), "y": y}, tmp_path / "graph.pt")
    config = FileConfig(
        path=str(tmp_path / "graph.pt"), split="random", train_fraction=0.5, valid_fraction=0.25
    )
    parts = [load(config, tmp_path)[mask].nonzero().flatten().tolist() for mask in MASKS]
    assert [len(part) for part in parts] == [18, 9, 9] and sorted(sum(parts, [])) == list(
        range(4, 40)
    )
    other = load(dataclasses.replace(config, graph_seed=1), tmp_path)
    assert other.train_mask.nonzero().flatten().tolist() != parts[0]
    without = load(FileConfig(path=str(tmp_path / "graph.pt")), tmp_path)
    assert "y" not in without and "train_mask" not in without  # task=link needs none


@pytest.mark.parametrize("key", ["x", "edge_attr", "y"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_whole_numbers_that_float32_rounds_are_said(key, dtype, tmp_path, caplog):
    number = torch.arange(6)
    values = {"x": torch.rand(6, 2), "edge_attr": torch.rand(6, 1), "y": torch.rand(6)}
    masks = {mask: number % 3 == place for place, mask in enumerate(MASKS)}
    for base, said in ((2**24, True), (2**20, False)):
        caplog.clear()
        torch.save(
            {
                **values,
                **masks,
                "edge_index": torch.stack([number, number.roll(1)]),
                "metric": "rmse",
                key: (base + number)
                .to(dtype)
                .view(values[key][:, :1].shape if key != "y" else (6,)),
            },
            tmp_path / f"{base}.pt",
        )
        load(FileConfig(path=str(tmp_path / f"{base}.pt")), tmp_path / "cache")
        what = f"{key}: float32 rounds 3 whole numbers above 2^24, such as 16,777,217 to 16,777,216"
        assert (what in caplog.text) == said


def test_other_data_have_the_classes_that_were_learned():
    values = {"x": torch.rand(3, 2), "num_nodes": 3, "num_categories": 0}
    data = Graph(
        **values,
        metric="acc",
        out_channels=2,
        x_source="data",
        **pack_names(np.array(["no", "yes"]), "label_names"),
    )
    learned = learn(data, node_features="sum", labels=None)
    assert unpack_names(with_labels(learned, Graph(**values), "new", 3), "label_names") == [
        "no",
        "yes",
    ]
    labels = {"y": torch.tensor([[0], [1], [2]]), "metric": "acc", "out_channels": 3}
    with pytest.raises(
        ValueError,
        match="new: its labels have 3 classes or columns, and the model was trained on 2",
    ):
        with_labels(learned, Graph(**values, **labels), "new", 3)

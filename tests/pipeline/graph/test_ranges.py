"""Numbers out of range in a file of the cache, with the right checksum: the file is named and built again."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.config import EdgesConfig, StoreConfig
from parallel_epochs.pipeline.data.graph import pack, write_graph
from parallel_epochs.pipeline.gnn import components
from parallel_epochs.pipeline.graph import metis, ranges, store
from parallel_epochs.pipeline.graph.store import StoreWriter
from parallel_epochs.pipeline.graph.structure import keep_both_orders
from parallel_epochs.pipeline.layout import build as layout
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.errors import DamagedFile
from tests.helpers.graphs import link_graph, random_graph

SYNTHETIC = ("data.num_nodes=60", "data.num_edges=300", "data.num_species=2", "data.num_groups=2")


def tensors(kept: object) -> dict[str, Tensor]:
    """Return the tensors of what a cache gave."""
    if isinstance(kept, Data):
        kept = pack(kept)
    elif dataclasses.is_dataclass(kept):
        kept = vars(kept)
    return {name: value for name, value in kept.items() if isinstance(value, Tensor)}


def test_a_fall_between_two_blocks_is_seen(monkeypatch):
    monkeypatch.setattr(ranges, "CHECKED", 2)
    for ptr in ([0, 1, 3, 2, 4], [0, 2, 1, 3, 4]):
        with pytest.raises(DamagedFile, match="must not decrease"):
            ranges.check_ends(Path("ptr.bin"), "ptr", torch.tensor(ptr), 4, "edges")


def both_orders(configure, folder: Path) -> dict:
    edges = keep_both_orders(random_graph(30, 200, 0).edge_index, folder)
    return {"edges": edges.as_tensor(), "perm": edges.get_csr()[1]}


def a_cut(configure, folder: Path) -> object:
    return metis.cut_with_metis(random_graph(30, 200, 0).edge_index, 3, 0, folder)


def graph(configure, folder: Path) -> Data:
    config = configure(*SYNTHETIC, f"cache_dir={folder}")
    return cache.load(config.data, config.cache_dir)


def found_components(configure, folder: Path) -> object:
    config = configure(*SYNTHETIC, f"cache_dir={folder}", "data.components=largest")
    data = random_graph(30, 200, 0)
    data.content_hash, data.train_mask, data.valid_mask, data.test_mask = (
        "h",
        *torch.zeros(3, 30).bool(),
    )
    return components.find_or_read(config, data, verify=True)


def a_component(configure, folder: Path) -> Data:
    config, data = configure(*SYNTHETIC, f"cache_dir={folder}"), random_graph(30, 200, 0)
    data.content_hash = "h"
    return cache.keep_component(config.data, folder, data, 1, torch.arange(30))


def neighbors(configure, folder: Path) -> dict:
    config = configure(
        "trainer=layout",
        "data=vectors",
        "data.path=x.npy",
        "trainer.num_neighbors=5",
        "trainer.perplexity=2",
        f"cache_dir={folder}",
    )
    x = torch.from_numpy(np.random.default_rng(0).random((30, 4), np.float32))
    return layout.keep_neighbors(config, Data(x=x, num_nodes=30, content_hash="h"))


def links(configure, folder: Path) -> Data:
    (folder / "edges.csv").write_text(
        "".join(f"{node},{(node * step + 1) % 60}\n" for node in range(60) for step in (1, 7))
    )
    return cache.load_links(EdgesConfig(path=str(folder / "edges.csv")), folder / "cache")


def change(array: Tensor, place: int, value: int) -> Tensor:
    out = array.clone()
    out.view(-1)[place] = value
    return out


@pytest.mark.parametrize(
    "keep, name, place, value, message",
    [
        (links, "test_negatives", 3, 60, "test_negatives is damaged: it names node 60"),
        (both_orders, "perm", 5, 400, "perm is damaged: it names edge 400"),
        (both_orders, "perm", 5, 0, "perm is damaged: it must hold the number of each edge once"),
        (both_orders, "src", 5, -1, "src is damaged: it names node -1"),
        (both_orders, "dst", 5, 30, "dst is damaged: it names node 30"),
        (both_orders, "rowptr", 5, 2**40, "rowptr is damaged: its numbers must not decrease"),
        (a_cut, "perm", 4, 30, "perm is damaged: it names node 30"),
        (a_cut, "perm", 4, 0, "perm is damaged: it must hold the number of each node once"),
        (a_cut, "ptr", 3, 31, "ptr is damaged: it goes from 0 to 31"),
        (graph, "edges", 5, 60, "edges is damaged: it names node 60"),
        (found_components, "index", 5, 30, "index is damaged: it names component 30"),
        (a_component, "n_id", 5, 30, "n_id is damaged: it holds other nodes than component 1"),
        (neighbors, "neighbors", 5, 30, "neighbors is damaged: it names node 30"),
    ],
)
def test_a_number_out_of_range_in_the_cache(
    configure, tmp_path, caplog, keep, name, place, value, message
):
    first = {key: kept.clone() for key, kept in tensors(keep(configure, tmp_path)).items()}
    if keep in (graph, a_component, links):
        folder = next(
            path for path in tmp_path.rglob("*.store") if keep is not links or "-links" in path.name
        )
        path, message = folder / f"{name}.bin", message.removeprefix(name)
        arrays, values = store.open_store(folder)
        with StoreWriter(folder) as writer:
            for key, array in arrays.items():
                writer.put(key, change(array, place, value) if key == name else array)
            writer.finish(values)
    else:
        path, message = next(tmp_path.rglob("*.pt")), f": {message}"
        content = dict(checkpoint.load(path))
        checkpoint.save(path, content | {name: change(content[name], place, value)})
    again = tensors(keep(configure, tmp_path))
    assert f"{path}{message}" in caplog.text
    assert again.keys() == first.keys() and all(
        torch.equal(again[key], first[key]) for key in first
    )


@pytest.mark.parametrize(
    "key, place, value, message",
    [
        ("triples", 0, 9, "triples is damaged: it names node 9, the graph has nodes 0 to 8"),
        ("triples", 2, -1, "triples is damaged: it names node -1"),
        (
            "triples",
            1,
            2,
            "triples is damaged: it names relation 2, the graph has relations 0 to 1",
        ),
        ("triple_ptr", 1, 7, "triple_ptr is damaged: its numbers must not decrease"),
        (
            "relation_names_ptr",
            1,
            4,
            "relation_names_ptr is damaged: its numbers must not decrease",
        ),
    ],
)
def test_a_number_out_of_range_in_triples(key, place, value, message):
    packed = {
        "triples": torch.tensor([[0, 0, 1], [8, 1, 2]]),
        "triple_ptr": torch.tensor([0, 1, 2, 2]),
        "num_nodes": 9,
        "num_relations": 2,
        "relation_names": torch.zeros(3).byte(),
        "relation_names_ptr": torch.tensor([0, 2, 3]),
    }
    ranges.check_graph(Path("g.pt"), packed)
    packed[key].view(-1)[place] = value
    with pytest.raises(DamagedFile, match=message):
        ranges.check_graph(Path("g.pt"), packed)


@pytest.mark.parametrize(
    "key, values, message",
    [
        (
            "edges",
            torch.zeros(2, 3),
            "it must hold int32 or int64 in 2 dimensions, not torch.float32 of the shape",
        ),
        ("edges", torch.zeros(3, 2).long(), "edges must have the shape"),
        ("indptr", None, "it must hold int32 or int64 in 1 dimension, not nothing"),
        ("n_id", torch.arange(3), "it has 3 numbers for 40 nodes"),
        ("by_source", torch.arange(3), "it has 3 numbers for"),
    ],
)
def test_arrays_of_other_shapes(key, values, message):
    packed = {**pack(link_graph()), key: values}
    with pytest.raises(DamagedFile, match=f"g.pt: {key} is damaged: {message}"):
        ranges.check_graph(Path("g.pt"), packed)


@pytest.mark.parametrize(
    "name, place, value, message",
    [
        ("ptr", 1, 31, "its numbers must not decrease"),
        ("ptr", 2, 29, "it goes from 0 to 29, but there are 30 nodes"),
        ("by_source", 7, 400, "it names edge 400, the graph has edges 0 to 399"),
        ("n_id", 3, -4, "it names node -4, the graph has nodes from 0 on"),
        ("valid_negatives", 1, 30, "it names node 30, the graph has nodes 0 to 29"),
    ],
)
def test_a_number_out_of_range_in_a_graph(name, place, value, message):
    packed = pack(random_graph(30, 200, 0)) | {
        "ptr": torch.tensor([0, 12, 30]),
        "by_source": torch.arange(400),
        "n_id": torch.arange(30) * 5,
        "valid_negatives": torch.zeros(4, 2).long(),
    }
    ranges.check_graph(Path("g.pt"), packed)
    with pytest.raises(DamagedFile, match=f"{name} is damaged: {message}"):
        ranges.check_graph(Path("g.pt"), packed | {name: change(packed[name], place, value)})


def test_a_value_in_the_place_of_an_array(tmp_path):
    with StoreWriter(tmp_path / "s") as writer:
        write_graph(writer, random_graph(30, 200, 0), n_id=3)
    with pytest.raises(ValueError, match="n_id is 3, and it should be Tensor"):
        cache.load(StoreConfig(path=str(tmp_path / "s")), tmp_path / "cache")

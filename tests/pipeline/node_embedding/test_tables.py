"""The edges of large graphs: arrays, in linear time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch_geometric.utils import to_undirected

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.config import EdgesConfig
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.graph import structure
from parallel_epochs.pipeline.graph.edges import sort_edges, with_reverse
from tests.helpers import building as build
from tests.helpers.communities import small_run, write_communities


def test_edges_from_an_array(tmp_path, configure):
    """The same graph as from text, and what is no array of edges."""
    rows = np.array([[3, 1], [1, 3], [0, 2], [2, 4], [0, 2], [6, 6]])
    np.save(tmp_path / "a.npy", rows)
    np.save(tmp_path / "b.npy", rows.T.astype(np.uint16))
    Path(tmp_path / "a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in [*rows, (5, 5)]))
    graphs = [
        build.open_graph(
            configure(
                "trainer=node_embedding",
                "data=edges",
                "trainer.num_parts=2",
                f"data.path={tmp_path / name}",
            )
        ).data
        for name in ("a.npy", "b.npy", "a.tsv")
    ]
    assert all(graph.num_nodes == 7 and unpack_names(graph)[6] == "6" for graph in graphs)
    edges_of = [set(zip(*graph.edge_index.as_tensor().tolist(), strict=True)) for graph in graphs]
    both = {(1, 3), (3, 1), (0, 2), (2, 0), (2, 4), (4, 2), (6, 6)}
    assert edges_of[0] == edges_of[1] == edges_of[2] - {(5, 5)} == both
    for array, says in (
        (rows * 1.5, r"holds float64 \[6, 2\]: edges are integers"),
        (rows - 1, "names node -1"),
        (np.zeros((0, 2), int), "holds no edges"),
        (rows[:, :1], r"int64 \[6, 1\]"),
    ):
        np.save(tmp_path / "c.npy", array)
        with pytest.raises(ValueError, match=says):
            cache.read(EdgesConfig(path=str(tmp_path / "c.npy")))
    (tmp_path / "c.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(ValueError, match="is not an array that numpy.save wrote"):
        cache.read(EdgesConfig(path=str(tmp_path / "c.npy")))
    with pytest.raises(ValueError, match="needs a text file of edges with ids"):
        EdgesConfig(path=str(tmp_path / "a.npy"), labels=str(tmp_path / "a.tsv")).check()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_reverses_are_those_of_pyg(pairs):
    edge_index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()
    expected, _ = sort_edges(to_undirected(edge_index, num_nodes=10), 10)
    found = with_reverse(edge_index, 10)
    assert torch.equal(found.as_tensor(), expected.as_tensor()) and found.dtype == torch.int32
    assert torch.equal(found.get_csc()[0][0], expected.get_csc()[0][0])


def test_lots_are_even_and_alike_both_ways_round(monkeypatch):
    pairs = torch.randint(300, (2, 5000), generator=torch.Generator().manual_seed(0))
    edge_index, _ = sort_edges(torch.cat([pairs, pairs.flip(0)], 1), 300)
    whole = structure.draw_lots(edge_index, 2**64 - 1)
    lot_of = {}
    for a, b, lot in zip(*edge_index.as_tensor().tolist(), whole.tolist(), strict=True):
        assert lot_of.setdefault((min(a, b), max(a, b)), lot) == lot
    lots = np.sort(list(lot_of.values()))
    assert (
        np.abs(lots - np.arange(len(lots)) / len(lots)).max() < 1.6 / len(lots) ** 0.5
    )  # Kolmogorov and Smirnov
    assert 0 <= lots[0] < lots[-1] < 1
    monkeypatch.setattr(structure, "HASHED", 1000)
    assert torch.equal(structure.draw_lots(edge_index, 2**64 - 1), whole)
    assert not torch.equal(structure.draw_lots(edge_index, 3), whole)


def test_labels_keep_their_names(configure, tmp_path):
    data = build.open_graph(configure(*small_run(write_communities(tmp_path)))).data
    assert unpack_names(data, "label_names") == ["a", "b", "c", "half"]
    labels = dict(zip(unpack_names(data), data.y.tolist(), strict=True))
    assert (
        labels["n0"] == [1, 0, 0, 1]
        and labels["n20"] == [1, 0, 0, 0]
        and labels["n89"] == [0, 0, 1, 0]
    )

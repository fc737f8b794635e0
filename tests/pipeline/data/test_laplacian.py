"""Entries in eigenvectors of the Laplacian, as features of the nodes of many graphs."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE

from parallel_epochs.pipeline.data import dense_graphs
from parallel_epochs.pipeline.data.cache import load, prepare_as, read
from parallel_epochs.pipeline.data.config import OGBGraphConfig
from parallel_epochs.pipeline.data.laplacian import LEVELS, as_levels, flip, laplacian_eigenvectors
from parallel_epochs.pipeline.gnn.loaders.graph import GraphLoader
from parallel_epochs.pipeline.graph.edges import sort_edges
from parallel_epochs.pipeline.run.schedule import Share
from tests.helpers.building import build_loader
from tests.helpers.graph_toys import ATOMS, write_graphs
from tests.helpers.running import train
from tests.pipeline.data.test_random_walk import union_of


def laplacian_of(edge_index: EdgeIndex, first: int, last: int) -> np.ndarray:
    adjacency = np.zeros((last - first, last - first))
    for src, dst in edge_index.as_tensor().T.tolist():
        if first <= src < last and src != dst:
            adjacency[src - first, dst - first] = adjacency[dst - first, src - first] = 1
    degree = adjacency.sum(1)
    scale = 1 / np.sqrt(np.where(degree > 0, degree, np.inf))
    return np.diag((degree > 0).astype(float)) - scale[:, None] * adjacency * scale


@pytest.mark.parametrize("numbers", [1, 1 << 24])
def test_they_are_eigenvectors_of_the_smallest_eigenvalues_above_zero(numbers, monkeypatch):
    monkeypatch.setattr(dense_graphs, "NUMBERS", numbers)
    edge_index, ptr = union_of([5, 1, 9, 3, 12, 2], np.random.default_rng(0))
    found = laplacian_eigenvectors(edge_index, ptr, 4, Tensor.double).numpy()
    for first, last in zip(ptr[:-1].tolist(), ptr[1:].tolist()):
        matrix, vectors = laplacian_of(edge_index, first, last), found[first:last]
        values = np.linalg.eigvalsh(matrix)
        values = values[values > 1e-6][:4]
        assert not vectors[:, len(values) :].any()
        vectors = vectors[:, : len(values)]
        np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=1e-9)
        np.testing.assert_allclose(
            vectors.T @ vectors, np.eye(len(values)) * (last - first), atol=1e-9
        )
        largest = np.abs(vectors).max(0)
        for column, size in zip(vectors.T, largest):
            assert column[np.flatnonzero(np.abs(column) > size - 1e-6)[0]] > 0


def test_pyg_has_the_same_on_a_connected_graph():
    path = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 4], [1, 0, 2, 1, 3, 2, 4, 3]])
    edge_index, _ = sort_edges(path, 5)
    found = laplacian_eigenvectors(edge_index, torch.tensor([0, 5]), 3)
    theirs = AddLaplacianEigenvectorPE(3)(
        Data(edge_index=path, num_nodes=5)
    ).laplacian_eigenvector_pe
    torch.testing.assert_close(found.abs(), theirs.abs() * 5**0.5)


def test_levels_are_symmetric_and_flips_are_exact():
    entries = torch.tensor([[0.0, 0.05, 0.07, -0.07, 1.0, 2.0, 9.0, -9.0]], dtype=torch.float64)
    levels = as_levels(entries)
    assert levels.tolist() == [[16, 16, 17, 15, 24, 32, LEVELS - 1, 0]]
    assert torch.equal(as_levels(-entries), flip(levels, -torch.ones(1, 8, dtype=torch.long)))
    x, signs = torch.tensor([[7.0, 2.0, 3.0]]), torch.tensor([[1, -1]])
    assert flip(x, signs).tolist() == [[7.0, 2.0, -3.0]]
    assert flip(torch.tensor([[7, 2, 3]], dtype=torch.uint8), signs).tolist() == [[7, 2, 29]]


@pytest.mark.parametrize("name, num_own", [("ogbg-molhiv", 9), ("ogbg-ppa", 7)])
def test_training_batches_draw_signs_for_each_graph_and_evaluations_none(name, num_own, tmp_path):
    config = OGBGraphConfig(folder=str(write_graphs(tmp_path, name)), name=name, laplacian=3)
    data = prepare_as(config, read(config))
    assert data.x.size(1) == num_own + 3
    loader = GraphLoader(data, batch_size=7, num_vectors=3)
    batches, again = (list(loader.batches(0, Share())) for _ in range(2))
    assert all(torch.equal(one.x, other.x) for one, other in zip(batches, again, strict=True))
    drawn = []
    for batch in batches:
        own = data.x[batch.n_id]
        for first, last in zip(batch.ptr[:-1], batch.ptr[1:]):
            for column in range(num_own, num_own + 3):
                values, plain = batch.x[first:last, column], own[first:last, column]
                flipped = flip(
                    plain.unsqueeze(1), -torch.ones(len(plain), 1, dtype=torch.long)
                ).squeeze(1)
                assert torch.equal(values, plain) or torch.equal(values, flipped)
                if not torch.equal(plain, flipped):
                    drawn.append(torch.equal(values, flipped))
        assert torch.equal(batch.x[:, :num_own], own[:, :num_own])
    assert 0.2 < np.mean(drawn) < 0.8
    everything = loader.all_graphs()
    for batch in loader.batches_of(everything, range(everything.num_parts)):
        assert torch.equal(batch.x, data.x[batch.n_id])


def test_molecules_get_columns_of_categories(tmp_path, configure, caplog):
    caplog.set_level("INFO")
    plain = OGBGraphConfig(folder=str(write_graphs(tmp_path / "mol")), random_walk=2)
    config = OGBGraphConfig(folder=plain.folder, random_walk=2, laplacian=5)
    assert load(plain, tmp_path).content_hash != load(config, tmp_path).content_hash
    assert [int(size) for size in load(config, tmp_path).x_tables] == [
        *ATOMS,
        32,
        32,
        *[LEVELS] * 5,
    ]
    run = configure(
        "+experiment=ogbg_molhiv",
        f"data.folder={plain.folder}",
        "model.num_layers=2",
        "train.epochs=1",
        "model.hidden_channels=8",
        "loader.batch_size=7",
        "data.laplacian=5",
    )
    train(run, tmp_path / "run")
    data = load(run.data, tmp_path)
    batch = next(build_loader(run, data).batches(0, Share()))
    assert not torch.equal(batch.x, data.x[batch.n_id])
    assert (
        "x: 9 categories from the file + 5 eigenvectors of the Laplacian + 3 categories of each edge"
        in caplog.text
    )


def test_graphs_that_are_too_large_are_refused(monkeypatch):
    monkeypatch.setattr(dense_graphs, "machine_memory", lambda: 10_000)
    edge_index, ptr = union_of([5, 40], np.random.default_rng(0))
    message = "data.laplacian=4: a graph of 40 nodes takes 51.2 kB, but this machine has 10 kB: leave it out"
    with pytest.raises(ValueError, match=message):
        laplacian_eigenvectors(edge_index, ptr, 4)

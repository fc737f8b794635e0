"""Encodings by random walks and by eigenvectors, as features of the nodes of many graphs."""

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline.data.cache import load, prepare_as, read
from parallel_epochs.pipeline.data.config import OGBGraphConfig
from parallel_epochs.pipeline.data.encodings import LEVELS, as_levels, encode, flip
from parallel_epochs.pipeline.gnn.loaders.graph import GraphLoader
from parallel_epochs.pipeline.graph.edges import sort_edges
from parallel_epochs.pipeline.run.schedule import Share
from tests.helpers.graph_toys import ATOMS, write_graphs


def union_of(sizes):
    """Random directed multigraphs, with self-loops and nodes without edges."""
    rng = np.random.default_rng(0)
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    edges = [
        first + rng.integers(size, size=(2, 2 * size))
        for first, size in zip(ptr, sizes)
        if size > 1
    ]
    edge_index, _ = sort_edges(torch.from_numpy(np.concatenate(edges, axis=1)), int(ptr[-1]))
    return edge_index, torch.from_numpy(ptr)


def matrices(edge_index, ptr):
    """The number of edges between the nodes of each graph, from source to destination."""
    for first, last in zip(ptr[:-1].tolist(), ptr[1:].tolist()):
        matrix = np.zeros((last - first, last - first))
        for src, dst in edge_index.as_tensor().T.tolist():
            if first <= src < last:
                matrix[src - first, dst - first] += 1
        yield slice(first, last), matrix


def test_walks_are_the_diagonals_of_powers_of_each_graph():
    edge_index, ptr = union_of([5, 1, 9, 3, 5, 12])
    found = encode("random_walk", edge_index, ptr, 7).numpy()
    for rows, matrix in matrices(edge_index, ptr):
        matrix = (matrix > 0) / np.maximum((matrix > 0).sum(1, keepdims=True), 1)
        for step in range(7):
            diagonal = np.diag(np.linalg.matrix_power(matrix, step + 1))
            np.testing.assert_allclose(found[rows, step], diagonal, atol=1e-6)


def test_vectors_are_those_of_the_smallest_eigenvalues_but_the_first():
    edge_index, ptr = union_of([5, 1, 9, 3, 12, 2, 130])
    before = torch.get_rng_state()
    found = encode("laplacian", edge_index, ptr, 4).numpy()
    assert torch.equal(before, torch.get_rng_state())
    for rows, matrix in matrices(edge_index, ptr):
        size, vectors = len(matrix), found[rows]
        adjacency = ((matrix + matrix.T) > 0).astype(float)
        np.fill_diagonal(adjacency, 0)
        degree = adjacency.sum(1)
        scale = 1 / np.sqrt(np.where(degree > 0, degree, np.inf))
        laplacian = np.eye(size) - scale[:, None] * adjacency * scale
        values = np.linalg.eigvalsh(laplacian)[1:5]
        assert not vectors[:, len(values) :].any()
        vectors = vectors[:, : len(values)]
        np.testing.assert_allclose(laplacian @ vectors, vectors * values, atol=1e-4)
        np.testing.assert_allclose(vectors.T @ vectors / size, np.eye(len(values)), atol=1e-4)
        assert (vectors.max(0, initial=0) >= -vectors.min(0, initial=0) - 1e-4).all()


def test_levels_are_symmetric_and_flips_are_exact():
    entries = torch.tensor([[0.0, 0.05, 0.07, -0.07, 1.0, 2.0, 9.0, -9.0]])
    levels = as_levels("laplacian", entries)
    assert levels.tolist() == [[16, 16, 17, 15, 24, 32, 32, 0]]
    signs = -torch.ones(1, 8, dtype=torch.long)
    assert torch.equal(as_levels("laplacian", -entries), flip(levels, signs))
    x, signs = torch.tensor([[7.0, 2.0, 3.0]]), torch.tensor([[1, -1]])
    assert flip(x, signs).tolist() == [[7.0, 2.0, -3.0]]
    assert flip(x.byte(), signs).tolist() == [[7, 2, 29]]
    values = torch.tensor([[0.0, 1 / 32 - 1e-7, 2 / 32 - 1e-3, 0.5 - 1e-7, 1.0]])
    assert as_levels("random_walk", values).tolist() == [[0, 1, 1, 16, 31]]


@pytest.mark.parametrize("name, num_own", [("ogbg-molhiv", 9), ("ogbg-ppa", 7)])
def test_training_draws_signs_for_each_graph_and_evaluation_none(name, num_own, tmp_path):
    folder = str(write_graphs(tmp_path / "raw", name))
    config = OGBGraphConfig(folder=folder, name=name, random_walk=2, laplacian=3)
    data = prepare_as(config, read(config))
    assert data.x.size(1) == num_own + 5
    if name == "ogbg-molhiv":
        assert data.x_tables == [*ATOMS, 32, 32, *[LEVELS["laplacian"]] * 3]
    plain = OGBGraphConfig(folder=folder, name=name)
    assert load(plain, tmp_path).content_hash != load(config, tmp_path).content_hash
    assert torch.equal(load(config, tmp_path).x, data.x)
    loader = GraphLoader(data, batch_size=7, num_vectors=3)
    batches, again = (list(loader.batches(0, Share())) for _ in range(2))
    assert all(torch.equal(one.x, other.x) for one, other in zip(batches, again, strict=True))
    drawn = []
    for batch in batches:
        own = data.x[batch.n_id]
        assert torch.equal(batch.x[:, : num_own + 2], own[:, : num_own + 2])
        for first, last in zip(batch.ptr[:-1], batch.ptr[1:]):
            for column in range(num_own + 2, num_own + 5):
                values, kept = batch.x[first:last, column], own[first:last, column]
                flipped = flip(kept[:, None], -torch.ones(len(kept), 1, dtype=torch.long))[:, 0]
                assert torch.equal(values, kept) or torch.equal(values, flipped)
                if not torch.equal(kept, flipped):
                    drawn.append(torch.equal(values, flipped))
    assert 0.2 < np.mean(drawn) < 0.8
    num_batches, make = loader.views(1, 0)
    for batch in make(0, 0, range(num_batches)):
        assert torch.equal(batch.x, data.x[batch.n_id])

"""Encodings by random walks, as features of the nodes of many graphs."""

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline.data.cache import load, prepare_as, read
from parallel_epochs.pipeline.data.config import OGBGraphConfig
from parallel_epochs.pipeline.data.encodings import as_levels, encode
from parallel_epochs.pipeline.graph.edges import sort_edges
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
    found = encode(edge_index, ptr, 7).numpy()
    for rows, matrix in matrices(edge_index, ptr):
        matrix = (matrix > 0) / np.maximum((matrix > 0).sum(1, keepdims=True), 1)
        for step in range(7):
            diagonal = np.diag(np.linalg.matrix_power(matrix, step + 1))
            np.testing.assert_allclose(found[rows, step], diagonal, atol=1e-6)


def test_levels_are_equal_parts():
    values = torch.tensor([[0.0, 1 / 32 - 1e-7, 2 / 32 - 1e-3, 0.5 - 1e-7, 1.0]])
    assert as_levels(values).tolist() == [[0, 1, 1, 16, 31]]


@pytest.mark.parametrize("name, num_own", [("ogbg-molhiv", 9), ("ogbg-ppa", 7)])
def test_graphs_with_encodings_are_kept_apart(name, num_own, tmp_path):
    folder = str(write_graphs(tmp_path / "raw", name))
    config = OGBGraphConfig(folder=folder, name=name, random_walk=2)
    data = prepare_as(config, read(config))
    assert data.x.size(1) == num_own + 2
    if name == "ogbg-molhiv":
        assert data.x_tables == [*ATOMS, 32, 32]
    plain = OGBGraphConfig(folder=folder, name=name)
    assert load(plain, tmp_path).content_hash != load(config, tmp_path).content_hash
    assert torch.equal(load(config, tmp_path).x, data.x)

"""The probabilities that random walks return, as features of the nodes of many graphs."""

import numpy as np
import pytest
import torch
from torch import Tensor

from parallel_epochs.pipeline.data import dense_graphs
from parallel_epochs.pipeline.data.cache import load, prepare_as, read
from parallel_epochs.pipeline.data.config import OGBGraphConfig
from parallel_epochs.pipeline.data.random_walk import LEVELS, as_levels, return_probabilities
from parallel_epochs.pipeline.graph.edges import sort_edges
from tests.helpers.graph_toys import ATOMS, write_graphs
from tests.helpers.running import train


def union_of(sizes, rng):
    """Random directed multigraphs, with self-loops and nodes without edges."""
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    edges = [
        first + rng.integers(size, size=(2, 2 * size))
        for first, size in zip(ptr, sizes)
        if size > 1
    ]
    edge_index, _ = sort_edges(torch.from_numpy(np.concatenate(edges, axis=1)), int(ptr[-1]))
    return edge_index, torch.from_numpy(ptr)


@pytest.mark.parametrize("num_steps", [1, 4, 7])
@pytest.mark.parametrize("numbers", [1, 500, 1 << 24])
def test_they_are_the_diagonals_of_powers_of_each_graph(num_steps, numbers, monkeypatch):
    monkeypatch.setattr(dense_graphs, "NUMBERS", numbers)
    edge_index, ptr = union_of([5, 1, 9, 3, 5, 12], np.random.default_rng(0))
    found = return_probabilities(edge_index, ptr, num_steps, Tensor.double)
    for first, last in zip(ptr[:-1].tolist(), ptr[1:].tolist()):
        matrix = np.zeros((last - first, last - first))
        for src, dst in edge_index.as_tensor().T.tolist():
            if first <= src < last:
                matrix[src - first, dst - first] += 1
        matrix /= np.maximum(matrix.sum(1, keepdims=True), 1)
        for step in range(num_steps):
            diagonal = np.diag(np.linalg.matrix_power(matrix, step + 1))
            np.testing.assert_allclose(found[first:last, step].numpy(), diagonal, atol=1e-12)


def test_probabilities_become_the_parts_of_the_unit_interval():
    values = torch.tensor(
        [[0.0, 1 / LEVELS, 2 / LEVELS - 1e-6, 0.5 - 1e-16, 1.0]], dtype=torch.float64
    )
    assert as_levels(values).tolist() == [[0, 1, 1, LEVELS // 2, LEVELS - 1]]


def test_molecules_get_columns_of_categories_and_other_graphs_numbers(tmp_path, configure, caplog):
    caplog.set_level("INFO")
    plain = OGBGraphConfig(folder=str(write_graphs(tmp_path / "mol")))
    config = OGBGraphConfig(folder=plain.folder, random_walk=5)
    data, without = prepare_as(config, read(config)), prepare_as(plain, read(plain))
    assert data.x.dtype == torch.uint8 and torch.equal(data.x[:, :9], without.x)
    assert [int(size) for size in data.x_tables] == [*ATOMS, *[LEVELS] * 5]
    assert torch.equal(
        data.x[:, 9:], as_levels(return_probabilities(data.edge_index, data.ptr, 5, Tensor.double))
    )
    assert load(plain, tmp_path).content_hash != load(config, tmp_path).content_hash
    ppa = OGBGraphConfig(
        folder=str(write_graphs(tmp_path / "ppa", "ogbg-ppa")), name="ogbg-ppa", random_walk=3
    )
    data = prepare_as(ppa, read(ppa))
    assert torch.equal(data.x[:, -3:], return_probabilities(data.edge_index, data.ptr, 3))
    assert data.x.dtype == torch.float32
    small = [
        "model.num_layers=2",
        "model.hidden_channels=8",
        "train.epochs=2",
        "loader.batch_size=7",
    ]
    summary = train(
        configure(
            "+experiment=ogbg_molhiv", f"data.folder={plain.folder}", *small, "data.random_walk=5"
        ),
        tmp_path / "run",
    )
    assert (
        "x: 9 categories from the file + whether a random walk is back after 1 to 5 steps"
        in caplog.text
    )
    without = train(
        configure("+experiment=ogbg_molhiv", f"data.folder={plain.folder}", *small),
        tmp_path / "without",
    )
    assert summary["num_parameters"] - without["num_parameters"] == 5 * LEVELS * 8


def test_graphs_that_are_too_large_are_refused(monkeypatch):
    monkeypatch.setattr(dense_graphs, "machine_memory", lambda: 10_000)
    edge_index, ptr = union_of([5, 40], np.random.default_rng(0))
    message = (
        "data.random_walk=4: a graph of 40 nodes takes 51.2 kB, but this machine has 10 kB: set it to null, or "
        "lower it"
    )
    with pytest.raises(ValueError, match=message):
        return_probabilities(edge_index, ptr, 4)

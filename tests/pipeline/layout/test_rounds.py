"""The epochs of a layout: how many edges each block draws, by which random numbers, and how hard they pull."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from parallel_epochs.models.embedding import layout
from parallel_epochs.models.embedding.layout import Drawn, LayoutOptions
from parallel_epochs.pipeline.graph.node_parts import deal_nodes, sort_into_blocks
from parallel_epochs.pipeline.graph.walks import alias_tables
from parallel_epochs.pipeline.layout.trainer import LayoutPlan, LayoutTrainer

NUM_POINTS, NUM_EPOCHS = 12, 200


def test_edges_pull_harder_in_the_first_quarter_of_a_run():
    plan = LayoutPlan(num_epochs=10, lr=1.0, last_lr=1.0, eval_every=1, early_attraction=4.0)
    assert [plan.attraction(epoch / 10) for epoch in range(10)] == [4.0] * 3 + [1.0] * 7


@pytest.fixture
def trainer():
    """Weights differ by factors of a hundred, so that the blocks' masses are not their numbers of edges."""
    rng = np.random.default_rng(0)
    dense = np.triu(10 ** rng.uniform(-1, 1, (NUM_POINTS, NUM_POINTS)), 1)
    matrix = sp.csr_array(dense + dense.T)
    parts = deal_nodes(torch.from_numpy(np.asarray(matrix.sum(1)).ravel()), 3)
    edges = sort_into_blocks(matrix, parts)
    drawn = Drawn(
        edges.edges,
        *alias_tables(edges.ptr, edges.weight),
        *alias_tables(parts.ptr, torch.ones(NUM_POINTS)),
    )
    plan = LayoutPlan(num_epochs=NUM_EPOCHS, lr=1.0, last_lr=1.0, eval_every=NUM_EPOCHS)
    return LayoutTrainer(
        torch.zeros(NUM_POINTS, 2),
        parts,
        lambda: (edges, drawn),
        LayoutOptions(),
        plan,
        score=lambda positions: {},
        metric="auc",
    )


def test_a_block_draws_edges_by_its_mass(trainer):
    edges, drawn = trainer._blocks[0], []
    for epoch in range(NUM_EPOCHS):
        assert trainer._open_round(epoch).num_pairs == trainer._num_pairs.sum()
        drawn.append(trainer._num_pairs)
    drawn, expected = np.array(drawn), edges.mass / edges.mass.sum() * len(edges.edges)
    assert edges.mass.max() > 1.5 * edges.mass.min() and (np.diff(edges.ptr) > 0).all()
    assert (abs(drawn - expected) < 1).all(), "rounded up or down"
    # A number rounded at random has a variance of at most a quarter; these are five deviations of the mean.
    assert (abs(drawn.mean(0) - expected) < 5 * 0.5 / NUM_EPOCHS**0.5).all()
    assert (drawn[1:] != drawn[:-1]).any(1).mean() > 0.9, (
        "each epoch rounds by its own random numbers"
    )


def test_each_epoch_draws_by_a_key_of_its_own(trainer, monkeypatch):
    keys = []
    monkeypatch.setattr(
        layout, "train", lambda *args, key, **options: keys.append(key) or (0.0, 1.0)
    )
    for _ in range(3):
        list(trainer.steps())
        trainer.progress.round += 1
        trainer.progress.begin_round()
    epochs = [
        set(keys[epoch * trainer.about.num_steps : (epoch + 1) * trainer.about.num_steps])
        for epoch in range(3)
    ]
    assert [len(own) for own in epochs] == [1, 1, 1] and len(set().union(*epochs)) == 3

"""Layouts on tiles by torch operations against autograd, and as a trainer in place of C++."""

import numpy as np
import pytest
import torch

from parallel_epochs.models.embedding.layout import LayoutOptions
from parallel_epochs.pipeline.graph import neighbors
from parallel_epochs.pipeline.layout import tiled
from tests.helpers import layout_tiles
from tests.helpers.pretend_gpu import GPU, PretendGPU
from tests.helpers.running import train
from tests.models.embedding.test_skipgram_tiles import train_on_both
from tests.pipeline.layout.test_trainer import folder, graph, points_of, small  # noqa: F401 (fixtures)


def test_tiles_move_along_the_gradient():
    """Of the loss that is written down, with smooth = 1 and unclipped moves."""
    rng = torch.Generator().manual_seed(0)
    ends = torch.randint(10, (3, 16, 2), generator=rng) + 30 * torch.arange(3).view(3, 1, 1)
    ends[..., 1] += 10
    drawn = torch.randint(10, (3, 5), generator=rng) + 30 * torch.arange(3).view(3, 1) + 10
    there = torch.rand(3, 16, generator=rng) < 0.6
    start = torch.randn(90, 3, generator=rng)
    at, rows = start.double().requires_grad_(), start.clone()
    head, tail = ends.unbind(-1)
    square = (at[head] - at[tail]).square().sum(-1)
    other = (at[head].unsqueeze(2) - at[drawn].unsqueeze(1)).square().sum(-1)
    is_other = there.unsqueeze(2) & (drawn.unsqueeze(1) != tail.unsqueeze(2))
    (3 * square.log1p() * there).sum().add((0.4 / (1 + other) * is_other).sum()).backward()
    loss = layout_tiles._train_tiles(
        rows, ends, there, drawn, LayoutOptions(negative_weight=2.0, clip=1e9), 1e-3, 3.0
    )
    torch.testing.assert_close((rows.double() - start) / 1e-3, -at.grad, rtol=1e-3, atol=2e-3)
    assert float(loss.sum()) == pytest.approx(
        float((square.detach().log1p() * there).sum()), rel=1e-5
    )  # log(1) of negatives
    clipped = start.clone()
    layout_tiles._train_tiles(
        clipped, ends, there, drawn, LayoutOptions(negative_weight=2.0, clip=1e-6), 1.0, 3.0
    )
    assert 0 < (clipped - start).abs().max() < 21 * 16 * 1.1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [[], ["trainer.dim=3", "trainer.init=random", "train.epochs=100"]]
)
def test_tiles_part_the_clouds(overrides, small, configure, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(tiled, "trains_tiles", lambda device: True)
    monkeypatch.setattr(tiled, "load_kernel", lambda: layout_tiles.train)
    first, second = (train(configure(*small, *overrides), tmp_path / name) for name in ("a", "b"))
    assert first["test"] > 0.95 and first["scores"]["trustworthiness"] > 0.8, first
    assert first["weights_sha256"] == second["weights_sha256"]


def test_tensors_lie_on_the_gpu(small, configure, monkeypatch):  # noqa: F811
    """The trainer of a GPU that is not there ends with the bits of the one that computes the same on the CPU."""
    monkeypatch.setattr(tiled, "load_kernel", lambda: layout_tiles.train)
    monkeypatch.setattr(tiled, "trains_tiles", lambda device: True)
    config = configure(*small, "train.epochs=4", "train.eval_every=4")
    assert torch.equal(*train_on_both(config, lambda trainer: trainer.positions, monkeypatch))


@pytest.mark.parametrize("dim", [4, 30])
def test_a_gpu_finds_the_neighbours_of_the_cpu(dim, monkeypatch):
    monkeypatch.setattr(neighbors, "GPU_DISTANCES", 5000)
    x, _ = points_of(300, dim)
    expected = neighbors.find_neighbors(x, 7)
    with PretendGPU():
        found = neighbors.find_neighbors(x, 7, device=GPU)
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
    assert neighbors.check_search("auto", 10**6, on_gpu=True) == "exact"

"""Mixed precision: float16 with a scaled loss, its overflows, and what of it is in the checkpoint."""

import functools
import math
import signal

import pytest
import torch
from running import TOY, rounds_of, train

from pipeline.run import checkpoint
from pipeline.run.errors import Stopped
from pipeline.trainers import gnn
from pipeline.trainers.gnn import GNNTrainer

FP16 = [*TOY, "train.precision=fp16"]


@pytest.mark.parametrize("model", [
    "deepergcn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("revgnn", "equilibrium", "pyg"))])
def test_half_precision_learns_what_full_precision_does(model, configure, tmp_path):
    losses = {}
    for precision in ("fp32", "bf16", "fp16"):
        train(configure(*TOY, f"model={model}", f"train.precision={precision}", "train.epochs=6"), tmp_path / precision)
        losses[precision] = [record["loss"] for record in rounds_of(tmp_path / precision)]
    assert losses["fp16"] != losses["fp32"] and losses["fp16"] != losses["bf16"]
    # Steps may be left out at the beginning, while the scale is found.
    assert losses["fp16"][-1] == pytest.approx(losses["fp32"][-1], rel=0.15) and losses["fp16"][-1] < losses["fp16"][0]


@pytest.fixture
def watched(monkeypatch):
    """Begin with a scale that overflows; lists the scale after each step and the weights."""
    seen, step = [], GNNTrainer._step
    monkeypatch.setattr(torch.amp, "GradScaler", functools.partial(torch.amp.GradScaler, init_scale=2.0**40))

    def watch(self, batch, lr):
        out = step(self, batch, lr)
        seen.append((self._scaler.get_scale(), checkpoint.digest(self.weights())))
        return out

    monkeypatch.setattr(GNNTrainer, "_step", watch)
    return seen


def test_an_overflow_leaves_the_step_out_and_halves_the_scale(configure, tmp_path, watched):
    train(configure(*FP16, "train.epochs=10"), tmp_path / "run")
    scales, weights = zip(*watched)
    assert scales[:4] == (2.0**39, 2.0**38, 2.0**37, 2.0**36) and len(set(weights[:4])) == 1
    assert scales[-1] == scales[-2] > 0 and weights[-1] != weights[-2]
    assert all(math.isfinite(record["grad_norm"]) for record in rounds_of(tmp_path / "run"))


def test_what_overflows_at_any_scale_ends_the_run(configure, tmp_path, watched, monkeypatch):
    monkeypatch.setattr(gnn, "SMALLEST_SCALE", 2.0**38)
    with pytest.raises(FloatingPointError, match="gradient norm is .* train.precision=fp32"):
        train(configure(*FP16), tmp_path / "run")
    assert len(watched) == 2


def test_a_run_that_was_stopped_goes_on_with_its_scale(configure, tmp_path, watched, monkeypatch):
    config, folder = configure(*FP16, "train.epochs=10"), tmp_path / "stopped"
    whole = train(config, tmp_path / "whole")
    steps, advance = len(watched), GNNTrainer._step

    def stop(self, batch, lr):
        if self.progress.step == 9:
            signal.raise_signal(signal.SIGUSR1)
        return advance(self, batch, lr)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(GNNTrainer, "_step", stop)
        train(config, folder)
    saved = checkpoint.load(folder / "checkpoints" / "last.pt")
    assert saved["progress"]["step"] == 10 and saved["scaler"]["scale"] == watched[9][0]
    assert train(config, folder)["weights_sha256"] == whole["weights_sha256"]
    assert watched[steps:] == watched[:steps]

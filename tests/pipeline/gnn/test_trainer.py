"""Mixed precision: float16 with a scaled loss, its overflows, and what of it is in the checkpoint."""

import contextlib
import functools
import math
import re

import pytest
import torch

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.gnn import trainer as gnn
from parallel_epochs.pipeline.gnn.trainer import GNNTrainer
from parallel_epochs.pipeline.run import checkpoint
from tests.helpers import building as build
from tests.helpers.running import TOY


@contextlib.contextmanager
def trainer_of(config):
    with contextlib.closing(
        build.build_trainer(config, build.open_graph(config).data, torch.device("cpu"))
    ) as trainer:
        yield trainer


def train_rounds(trainer) -> list[dict[str, float]]:
    """Train to the end without an evaluation; returns the numbers of each round."""
    numbers = []
    while trainer.progress.round < trainer.num_rounds:
        list(trainer.steps())
        numbers.append(trainer.numbers.record())
        trainer.evaluate()
    return numbers


@pytest.mark.slow
@pytest.mark.parametrize("model", ["deepergcn", "revgnn", "rgcn", "hgt", "pyg"])
def test_half_precision_learns_what_full_precision_does(model, configure):
    config, losses = configure(*TOY, f"model={model}", "train.epochs=6", "train.eval_every=6"), {}
    for precision in ("fp32", "bf16", "fp16"):
        with trainer_of(keys.replaced(config, {"train.precision": precision})) as trainer:
            losses[precision] = [numbers["loss"] for numbers in train_rounds(trainer)]
    assert losses["fp16"] != losses["fp32"] and losses["fp16"] != losses["bf16"]
    # Steps may be left out at the beginning, while the scale is found.
    assert (
        losses["fp16"][-1] == pytest.approx(losses["fp32"][-1], rel=0.15)
        and losses["fp16"][-1] < losses["fp16"][0]
    )


@pytest.fixture
def watched(monkeypatch):
    """Begin with a scale that overflows; lists the scale after each step and the weights."""
    seen, step = [], GNNTrainer._step
    monkeypatch.setattr(
        torch.amp, "GradScaler", functools.partial(torch.amp.GradScaler, init_scale=2.0**40)
    )

    def watch(self, batch, lr):
        out = step(self, batch, lr)
        seen.append((self._scaler.get_scale(), checkpoint.digest(self.weights())))
        return out

    monkeypatch.setattr(GNNTrainer, "_step", watch)
    return seen


def test_an_overflow_leaves_the_step_out_and_halves_the_scale(configure, watched):
    with trainer_of(
        configure(*TOY, "train.precision=fp16", "train.epochs=10", "train.eval_every=10")
    ) as trainer:
        numbers = train_rounds(trainer)
        assert trainer.state()["scaler"]["scale"] == watched[-1][0]
    scales, weights = zip(*watched)
    assert scales[:4] == (2.0**39, 2.0**38, 2.0**37, 2.0**36) and len(set(weights[:4])) == 1
    assert scales[-1] == scales[-2] > 0 and weights[-1] != weights[-2]
    assert len(numbers) == 10 and all(math.isfinite(each["grad_norm"]) for each in numbers)


def test_a_run_of_which_every_step_overflows_fails(configure, watched, caplog):
    config = configure(*TOY, "train.precision=fp16", "train.epochs=2")
    with (
        trainer_of(config) as trainer,
        pytest.raises(FloatingPointError, match=r"all \d+ steps were left out"),
    ):
        train_rounds(trainer)
    assert re.search(r"round 1: (\d+) of \1 steps were left out", caplog.text)
    assert len({weights for _, weights in watched}) == 1


def test_float16_scales_the_mean_of_many_labels(configure, monkeypatch):
    """The sum of these losses overflows at the first scale, and no step may be left out."""
    config = configure(*TOY, "train.precision=fp16", "train.epochs=1", "train.accumulate=2")
    with trainer_of(config) as trainer:
        loss = trainer.task.loss
        monkeypatch.setattr(
            trainer.task, "loss", lambda *given: tuple(1e5 * each for each in loss(*given))
        )
        (numbers,) = train_rounds(trainer)
        assert trainer._num_skipped == 0 and trainer.state()["scaler"]["scale"] == 65536
    monkeypatch.undo()
    with trainer_of(config) as trainer:
        assert train_rounds(trainer)[0]["loss"] == pytest.approx(numbers["loss"], rel=0.01)


def test_what_overflows_at_any_scale_ends_the_run(configure, watched, monkeypatch):
    monkeypatch.setattr(gnn, "SMALLEST_SCALE", 2.0**38)
    with (
        trainer_of(configure(*TOY, "train.precision=fp16")) as trainer,
        pytest.raises(FloatingPointError, match="gradient norm is .* train.precision=fp32"),
    ):
        train_rounds(trainer)
    assert len(watched) == 2

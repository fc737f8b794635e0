"""Knowledge graphs on a GPU that is not there: the numbers of the CPU, and no tensor that lies on the wrong device."""

import contextlib
import copy

import pytest
import torch

from tests.helpers import building as build
from tests.helpers.pretend_gpu import GPU, PretendGPU
from tests.pipeline.knowledge.test_trainer import ADAGRAD, NEGATIVES, TOY


def follow(config, device, mode, *, stop_after=None):
    """Train two epochs, perhaps going on from a copy of the state in the middle."""
    data = build.open_graph(config).data
    with mode, contextlib.closing(build.build_trainer(config, data, device)) as trainer:
        if stop_after:
            steps = trainer.steps()
            for _ in range(stop_after):
                next(steps)
            state = copy.deepcopy(trainer.state())
            trainer = build.build_trainer(config, data, device)
            trainer.load(state)
        scores = []
        for _ in range(2):
            for _ in trainer.steps():
                pass
            scores.append(trainer.evaluate())
        return (
            scores,
            trainer.test(),
            {name: table.cpu() for name, table in trainer.weights().items()},
        )


@pytest.mark.parametrize("overrides", [ADAGRAD, NEGATIVES])
def test_a_gpu_trains_and_resumes_what_the_cpu_does(configure, overrides):
    config = configure(*TOY, "train.epochs=2", *overrides)
    expected = follow(config, torch.device("cpu"), contextlib.nullcontext())
    config.device = "cuda"
    found = follow(config, GPU, PretendGPU())
    assert found[:2] == expected[:2]
    torch.testing.assert_close(found[2], expected[2], atol=1e-4, rtol=1e-3)
    resumed = follow(config, GPU, PretendGPU(), stop_after=3)
    assert resumed[:2] == expected[:2]

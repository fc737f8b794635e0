"""Knowledge graphs on a GPU that is not there: the numbers of the CPU, and no tensor that lies on the wrong device."""

import contextlib
import copy

import pytest
import torch

from parallel_epochs.pipeline.command import schema
from parallel_epochs.pipeline.knowledge.build import estimate_bytes, settle_parts
from parallel_epochs.pipeline.knowledge.penalty import train_parts
from parallel_epochs.pipeline.run.ranks import Ranks
from tests.helpers import building as build
from tests.helpers.pretend_gpu import GPU, PretendGPU
from tests.pipeline.knowledge.test_trainer import ADAGRAD, NEGATIVES, TOY

ROTATE = ["trainer.model=rotate", *NEGATIVES]


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


@pytest.fixture
def free(monkeypatch):
    bytes_ = [8 * 10**9]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (bytes_[0], bytes_[0]))
    return bytes_


def test_a_gpu_that_holds_two_of_four_parts_trains_what_the_cpu_does(configure, free, caplog):
    caplog.set_level("INFO")
    config = configure(*TOY, "train.epochs=2", "trainer.num_parts=4", *ADAGRAD)
    expected = follow(config, torch.device("cpu"), contextlib.nullcontext())
    tables, step = estimate_bytes(config, build.open_graph(config).data)
    config.device, config.trainer.num_parts, free[0] = "cuda", "auto", 6 * step + tables * 5 // 9
    found = follow(config, GPU, PretendGPU())
    assert "trainer.num_parts=auto: 4 parts. The tables" in caplog.text
    assert found[:2] == expected[:2] and all(
        torch.equal(found[2][name], expected[2][name]) for name in found[2]
    )
    resumed = follow(config, GPU, PretendGPU(), stop_after=3)
    assert resumed[:2] == expected[:2]


def test_parts_that_no_gpu_holds_are_refused(configure, free):
    config = configure(*TOY, *ADAGRAD)
    _, step = estimate_bytes(config, build.open_graph(config).data)
    config.device, free[0] = "cuda", 6 * step + 1
    with pytest.raises(
        ValueError,
        match="device=cuda: .* are free, but a step takes .*, and two of 30 parts .* set",
    ):
        follow(config, GPU, PretendGPU())
    with pytest.raises(
        ValueError, match="trainer.num_parts=31: 60 entities make at most 30 parts here: lower it"
    ):
        build.open_graph(configure(*TOY, *ADAGRAD, "trainer.num_parts=31"))


def test_ranks_agree_on_the_parts_and_a_resumed_run_keeps_them(configure, free, tmp_path):
    class Crowded(Ranks):
        def max_(self, tensor):
            tensor.fill_(7)

    config = configure(*TOY, *ADAGRAD)
    opened = build.open_graph(config)
    assert settle_parts(opened.parts[0], Crowded()) == (torch.device("cpu"), 7)
    (tmp_path / "run").mkdir()
    parts = []
    train_parts(
        lambda part, folder: parts.append(part.config.trainer.num_parts) or {},
        opened,
        tmp_path / "run",
        ranks=Crowded(),
    )
    assert parts == [7] and schema.load(tmp_path / "run/config.yaml").trainer.num_parts == 7

"""The moving average of a model's weights, held against torch's own and against what a run saves."""

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from parallel_epochs.pipeline.gnn.average import WeightAverage
from tests.helpers.building import EvaluateConfig, evaluate, open_graph, open_trainer
from tests.helpers.pretend_gpu import GPU, PretendGPU
from tests.helpers.running import TOY, train


class Tied(torch.nn.Module):
    """Two layers that share their weights, a norm with running statistics, and a vector."""

    def __init__(self):
        super().__init__()
        self.first = self.second = torch.nn.Linear(4, 4)
        self.norm, self.scale = torch.nn.BatchNorm1d(4), torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.norm(self.second(self.first(x))) * self.scale


def test_averages_are_torchs_and_the_model_gets_its_own_weights_back():
    torch.manual_seed(0)
    model = Tied()
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7), use_buffers=True)
    ours, optimizer = WeightAverage(model, 0.7), torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        (model(torch.randn(9, 4)) - torch.randn(9, 4)).square().sum().backward()
        optimizer.step()
        ours.update(), theirs.update_parameters(model)
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    averages = ours.weights()
    assert list(averages) == list(trained) and averages["norm.num_batches_tracked"] == 4
    for name, value in theirs.module.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(averages[name], value)
            assert not torch.equal(value, trained[name])
    with pytest.raises(KeyboardInterrupt), ours.applied():
        assert all(torch.equal(value, averages[name]) for name, value in model.state_dict().items())
        raise KeyboardInterrupt
    assert all(torch.equal(value, trained[name]) for name, value in model.state_dict().items())
    resumed = WeightAverage(model, 0.7)
    loaded = {name: value.clone() for name, value in averages.items()}
    resumed.load(averages)
    ours.update(), resumed.update()
    assert all(
        torch.equal(value, ours.weights()[name]) for name, value in resumed.weights().items()
    )
    assert all(torch.equal(value, averages[name]) for name, value in loaded.items()), (
        "a checkpoint is only read"
    )


def test_a_run_scores_and_saves_the_average_and_trains_without_it(configure, tmp_path):
    own, scores = {}, {}
    for name, more in (("plain", []), ("averaged", ["train.ema=0.9"])):
        scores[name] = train(configure(*TOY, "train.epochs=3", *more), tmp_path / name)
        own[name] = torch.load(tmp_path / name / "checkpoints" / "last.pt", weights_only=True)
    plain, averaged = own["plain"]["model"], own["averaged"]["model"]
    assert all(
        torch.equal(value, own["averaged"]["trained"][name]) for name, value in plain.items()
    )
    assert any(not torch.equal(value, averaged[name]) for name, value in plain.items())
    best = torch.load(tmp_path / "averaged" / "checkpoints" / "best.pt", weights_only=True)
    assert best["epoch"] != 3 or all(
        torch.equal(best["model"][name], value) for name, value in averaged.items()
    )
    again = evaluate(EvaluateConfig(str(tmp_path / "averaged"), device="cpu"))
    assert (
        again["test"]
        == pytest.approx(scores["averaged"]["test"], abs=1e-6)
        != scores["plain"]["test"]
    )
    config = configure(*TOY, "train.epochs=3", "train.ema=0.9")
    with open_trainer(config, open_graph(config).parts[0].data) as trainer:
        trainer.load(own["averaged"])
        assert all(
            torch.equal(value, plain[name]) for name, value in trainer.model.state_dict().items()
        )


def test_averages_go_on_where_the_weights_are():
    """A checkpoint is read into the machine's memory, whatever the device of the model."""
    with PretendGPU():
        model = torch.nn.Linear(3, 2).to(GPU)
        average = WeightAverage(model, 0.5)
        average.load({name: torch.zeros(value.shape) for name, value in model.state_dict().items()})
        average.update()
        assert all(
            torch.equal(average.weights()[name], value / 2)
            for name, value in model.state_dict().items()
        )

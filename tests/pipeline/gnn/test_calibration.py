"""Temperatures of logits."""

import pytest
import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.base.calibration import calibrate, fit_temperatures
from parallel_epochs.pipeline.gnn.config import NewDataConfig
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from tests.helpers.building import EvaluateConfig, predicted, save
from tests.pipeline.gnn.test_new_data import graph, trained


def classes(temperature, num_rows=20_000):
    """Draw labels from the softmax of logits, and return these times a temperature, as a model too sure of itself."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(num_rows, 4, generator=g) * 2
    return logits * temperature, torch.multinomial(logits.softmax(1), 1, generator=g)


@pytest.mark.parametrize("temperature", [1e-5, 0.5, 1.0, 3.0, 2e5])
def test_the_temperature_is_found(temperature):
    logits, y = classes(temperature)
    (found,) = fit_temperatures(logits, y, are_classes=True).tolist()
    assert found == pytest.approx(temperature, rel=0.05)
    scaled = logits / found
    assert torch.equal(scaled.argmax(1), logits.argmax(1))


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_no_temperature_where_none_is_best(size):
    logits, y = classes(1.0)
    right = torch.nn.functional.one_hot(y[:, 0], 4) * size
    wrong = -right
    for found in (right, wrong, torch.zeros_like(logits)):
        assert fit_temperatures(found, y, are_classes=True).tolist() == [1.0]


def test_each_task_has_its_own_and_unknown_labels_do_not_count():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, 4, generator=g) * 2
    y = (torch.rand(logits.shape, generator=g) < logits.sigmoid()).float()
    y[:15_000, 1] = torch.nan
    y[:, 2], y[:, 3] = 1.0, torch.nan
    found = fit_temperatures(logits * torch.tensor([2.0, 0.5, 1.0, 1.0]), y, are_classes=False)
    assert found.tolist() == pytest.approx([2.0, 0.5, 1.0, 1.0], rel=0.1)


def test_each_task_of_a_run_is_divided_by_its_own_temperature(tmp_path):
    run = trained(tmp_path, graph(200, 400, kind="tasks"))
    plain, scaled = predicted(run), predicted(run, calibrate=True)
    assert scaled.temperatures.unique().numel() == 2 and torch.equal(
        scaled.rows, plain.rows / scaled.temperatures
    )


def test_predictions_are_calibrated(tmp_path, caplog):
    caplog.set_level("INFO")
    data = graph(400, 800)
    data.x[:, 0] += data.y
    run = trained(tmp_path, data, "train.epochs=20")
    plain = predicted(run)
    scaled = predicted(run, calibrate=True)
    assert scaled.temperatures.item() != 1
    assert torch.equal(
        scaled.rows, plain.rows / scaled.temperatures
    ) and scaled.temperatures.shape == (1,)
    assert [
        line
        for line in caplog.messages
        if line.startswith("calibration: temperatures ") and " -> " in line
    ]
    path = tmp_path / "logits.pt"
    save(scaled, EvaluateConfig(str(run.folder), predictions=str(path)))
    assert torch.equal(torch.load(path)["temperature"], scaled.temperatures)


def test_decisions_stay_what_they_were():
    rows = 5 * torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    y, mask = (rows + rows.flip(0) > 0).float(), torch.ones(60, dtype=torch.bool)
    graph, threshold = Data(metric="rocauc", y=y, valid_mask=mask), torch.tensor([1.5])
    asked = Predicted(graph, graph, None, None, rows, 0, thresholds=threshold)
    found = calibrate(asked)
    assert float(found.temperatures) != 1
    assert torch.equal(found.rows > found.thresholds, rows > threshold)


@pytest.mark.parametrize(
    "data, overrides, message",
    [
        (graph(kind="values"), [], "the labels are real values .rmse."),
        (
            graph(masks=False),
            ["task=link"],
            "is for classes and binary tasks, and .* has task=link",
        ),
    ],
)
def test_what_has_no_probabilities_is_refused(data, overrides, message, tmp_path):
    run = trained(tmp_path, data, *overrides)
    with pytest.raises(ValueError, match=message):
        predicted(run, calibrate=True)


def test_validation_labels_are_needed(tmp_path):
    data = graph()
    data.train_mask, data.val_mask = (
        data.train_mask | data.val_mask,
        torch.zeros(60, dtype=torch.bool),
    )
    run = trained(tmp_path, data)
    with pytest.raises(ValueError, match="the valid split is empty. Leave it out"):
        predicted(run, calibrate=True)


def test_other_data_have_no_validation_labels_of_the_training(tmp_path):
    run = trained(tmp_path, graph())
    with pytest.raises(ValueError, match="other data are predicted here"):
        predicted(run, calibrate=True, data=NewDataConfig("new.pt"))

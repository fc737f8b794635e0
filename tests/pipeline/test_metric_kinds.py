"""Metrics of every kind beside scikit-learn's and OGB's, and runs on real values from the file to the report."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn import metrics as theirs

from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.metrics import (
    METRICS,
    VALUE_METRICS,
    average_precision,
    balanced_accuracy,
    macro_f1,
    macro_f1_of_tasks,
    mean_absolute_error,
    micro_f1,
    root_mean_squared_error,
)
from parallel_epochs.pipeline.names import LOWER_IS_BETTER, merit
from parallel_epochs.pipeline.tune import Worker, tabulate
from parallel_epochs.scripts.report.runs import read_run
from tests.helpers import building as build, building as restore, official
from tests.helpers.building import EvaluateConfig
from tests.helpers.graphs import class_graph, task_graph
from tests.helpers.running import rounds_of, train

MODEL = ["model.num_layers=2", "model.hidden_channels=8", "partition.num_parts=2", "train.epochs=8"]


def labels_and_logits(seed, num_rows, num_tasks, unlabelled, ties):
    g = torch.Generator().manual_seed(seed)
    y, logits = (
        (torch.rand(num_rows, num_tasks, generator=g) > 0.5).float(),
        torch.randn(num_rows, num_tasks, generator=g),
    )
    y = y.where(torch.rand(num_rows, num_tasks, generator=g) >= unlabelled, math.nan)
    return y, logits.round() if ties else logits


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 30),
    st.integers(1, 4),
    st.sampled_from([0, 0.4]),
    st.booleans(),
)
def test_average_precision_is_that_of_scikit_learn_and_of_ogb(
    seed, num_rows, num_tasks, unlabelled, ties
):
    y, logits = labels_and_logits(seed, num_rows, num_tasks, unlabelled, ties)
    known = ~y.isnan()
    each = [
        theirs.average_precision_score(y[known[:, i], i], logits[known[:, i], i])
        for i in range(num_tasks)
        if {0.0, 1.0} <= set(y[:, i].tolist())
    ]
    assert average_precision(y, logits) == pytest.approx(
        np.mean(each) if each else math.nan, nan_ok=True
    )
    if each:
        assert average_precision(y, logits) == pytest.approx(official.score("ap", y, logits))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 4), st.booleans())
def test_the_other_metrics_are_those_of_scikit_learn(seed, num_rows, num_tasks, unlabelled):
    y, logits = labels_and_logits(seed, num_rows, num_tasks, 0.4 * unlabelled, False)
    known = ~y.isnan()
    if known.any():
        expected = theirs.f1_score(
            y[known].reshape(-1), (logits[known] > 0).reshape(-1), zero_division=0.0
        )
        assert micro_f1(y, logits) == pytest.approx(expected)
        each = [
            theirs.f1_score(y[known[:, i], i], logits[known[:, i], i] > 0, zero_division=0.0)
            for i in range(num_tasks)
            if known[:, i].any()
        ]
        assert macro_f1_of_tasks(y, logits) == pytest.approx(np.mean(each))
    else:
        assert math.isnan(micro_f1(y, logits)) and math.isnan(macro_f1_of_tasks(y, logits))
    values = torch.where(
        known, 100 * torch.randn(y.shape, generator=torch.Generator().manual_seed(seed)), math.nan
    )
    for ours, other in (
        (mean_absolute_error, theirs.mean_absolute_error),
        (root_mean_squared_error, theirs.root_mean_squared_error),
    ):
        each = [
            other(values[known[:, i], i], logits[known[:, i], i])
            for i in range(num_tasks)
            if known[:, i].any()
        ]
        assert ours(values, logits) == pytest.approx(
            np.mean(each) if each else math.nan, rel=1e-5, nan_ok=True
        )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 6))
def test_metrics_of_rare_classes_are_those_of_scikit_learn(seed, num_rows, num_classes):
    """Also where a class is only in the labels or only predicted, or nowhere."""
    g = torch.Generator().manual_seed(seed)
    y, logits = (
        torch.randint(num_classes, (num_rows, 1), generator=g),
        torch.randn(num_rows, num_classes, generator=g),
    )
    true, predicted = y[:, 0].numpy(), logits.argmax(1).numpy()
    assert macro_f1(y, logits) == pytest.approx(
        theirs.f1_score(true, predicted, average="macro", zero_division=0.0)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are only predicted
        assert balanced_accuracy(y, logits) == pytest.approx(
            theirs.balanced_accuracy_score(true, predicted)
        )


def test_every_metric_of_real_values_is_one_of_which_less_is_better():
    assert set(VALUE_METRICS) == set(LOWER_IS_BETTER)
    assert all(merit(name, merit(name, 0.5)) == 0.5 for name in METRICS) and merit(
        "mae", 1.0
    ) > merit("mae", 2.0)


def value_graph(path, metric="rmse", *, scale=1e5, unknown=0.2, num_nodes=120):
    """Save a graph whose targets, in a large unit and far from zero, are linear in the features."""
    g = torch.Generator().manual_seed(0)
    node, x = torch.arange(num_nodes), torch.randn(num_nodes, 4, generator=g)
    y = scale * torch.stack([x[:, 0] + 50, 0.01 * x[:, 1] - 3], dim=1)
    y = y.where(torch.rand(y.shape, generator=g) >= unknown, math.nan)
    edge_index = torch.stack([node, (node + 1) % num_nodes])
    masks = {f"{split}_mask": node % 3 == i for i, split in enumerate(("train", "val", "test"))}
    edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    torch.save({"edge_index": edge_index, "x": x, "y": y, "metric": metric, **masks}, path)
    return path, y


def test_a_run_on_real_values_reports_them_in_their_own_unit(configure, tmp_path, caplog):
    caplog.set_level("INFO")
    path, y = value_graph(tmp_path / "graph.pt", "rmse")
    config = configure(
        "data=file",
        f"data.path={path}",
        *MODEL,
        "train.lr=0.05",
        "train.epochs=30",
        "train.patience=0",
    )
    summary = train(config, tmp_path / "run")
    valid = [record["valid"] for record in rounds_of(tmp_path / "run")]
    # The spread of the first target is 1e5, that of the second 1e3: means of the training nodes would give half of it.
    assert (
        summary["metric"] == "rmse" and summary["best_valid"] == min(valid) < 0.75 * valid[0] < 1e5
    )
    assert summary["test"] < 3e4
    read = read_run(tmp_path / "run")
    assert read.best() == min(valid) and read.best_round()["epochs"] == summary["best_epoch"]
    assert read.reached(valid[0])["epochs"] == 1
    options = EvaluateConfig(run=str(tmp_path / "run"), predictions=str(tmp_path / "values.pt"))
    scores = restore.evaluate(options)
    assert scores["valid"] == pytest.approx(min(valid), rel=1e-5)
    rows = torch.load(tmp_path / "values.pt")["values"]
    test = torch.arange(len(y)) % 3 == 2
    assert VALUE_METRICS["rmse"](y[test], rows[test]) == pytest.approx(scores["test"])
    assert f"wrote the values of {len(y)} nodes to" in caplog.text


def test_early_stopping_takes_the_lowest_error(configure, tmp_path):
    path, _ = value_graph(tmp_path / "graph.pt")
    config = configure(
        "data=file",
        f"data.path={path}",
        *MODEL,
        "train.lr=0.05",
        "train.epochs=400",
        "train.patience=5",
    )
    summary = train(config, tmp_path / "run")
    valid = [record["valid"] for record in rounds_of(tmp_path / "run")]
    best = valid.index(min(valid)) + 1
    assert (
        len(valid) == max(best + 5, math.ceil(1.5 * best)) < 400 and best == summary["best_epoch"]
    )


@settings(max_examples=20, deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-4, 1e6))
def test_predictions_do_not_depend_on_the_unit(offset, scale):
    """A model trained on y predicts scale * y + offset after training on that: its loss is the same."""
    data = task_graph(list(range(20)))
    data.metric, y = "rmse", torch.linspace(0, 1, 40).unsqueeze(1).expand(40, 2)
    losses, constant = [], torch.nn.Module()
    constant.forward = lambda x, edge_index, edge_attr: torch.full((40, 2), 0.5)
    for data.y in (y, y.double().mul(scale).add(offset).float()):
        if float(data.y.std()) < 1e-3 * abs(offset):
            return  # float32 holds too few digits of it
        batch = data.clone()
        batch.n_id, batch.target = torch.arange(40), torch.ones(40, dtype=torch.bool)
        losses.append(float(NodeTask(data).loss(constant, batch, torch.Generator())[0]))
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_constant_targets_and_unknown_columns_are_no_division_by_zero():
    data = task_graph(list(range(20)))
    data.metric, data.y = "mae", torch.tensor([[7.3, math.nan]]).expand(40, 2).contiguous()
    task, batch = NodeTask(data), data.clone()
    batch.n_id, batch.target = torch.arange(40), torch.ones(40, dtype=torch.bool)
    model = torch.nn.Module()
    model.forward = lambda x, edge_index, edge_attr: torch.zeros(40, 2)
    loss, count = task.loss(model, batch, torch.Generator())
    assert float(loss) == pytest.approx(0, abs=1e-3) and int(count) == 20
    rows = task.predict(model, batch)[1]
    assert torch.allclose(rows[:, 0], torch.tensor(7.3)) and bool(rows.isfinite().all())


def test_one_class_in_validation_is_said_and_does_not_crash(configure, tmp_path, caplog):
    path = tmp_path / "graph.pt"
    value_graph(path, "rocauc")
    saved = torch.load(path)
    saved["y"] = (
        (torch.arange(120) % 2).float().unsqueeze(1).where(~saved["val_mask"].unsqueeze(1), 1.0)
    )
    torch.save(saved, path)
    with pytest.raises(
        ValueError,
        match="schedule=plateau follows the validation metric, but rocauc is undefined",
    ):
        train(
            configure("data=file", f"data.path={path}", *MODEL, "train.schedule=plateau"),
            tmp_path / "refused",
        )
    summary = train(configure("data=file", f"data.path={path}", *MODEL), tmp_path / "run")
    line = "rocauc is undefined on the valid split, with no rows to score or rows of one kind alone: the last"
    assert caplog.text.count(line) == 1
    assert summary["best_epoch"] == 8 and 0 <= summary["test"] <= 1
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["best_valid"] is None


def test_a_metric_may_be_chosen_among_those_of_the_labels(configure, tmp_path):
    data = task_graph(list(range(20)))
    for metric in ("ap", "micro_f1", "macro_f1", "rocauc"):
        task = build.build_task(configure(f"task.metric={metric}"), data)
        assert task.metric == metric and data.metric == "rocauc"
        assert task.scores(None, data.y.clone() - 0.5) == {"train": 1.0, "valid": 1.0, "test": 1.0}
    with pytest.raises(
        ValueError,
        match=r"task.metric=mae is .* real values, and the dataset \(rocauc\) has binary "
        "tasks. Choose one of rocauc, ap, micro_f1, macro_f1",
    ):
        build.check_metric("mae", "rocauc")
    with pytest.raises(
        ValueError,
        match="task.metric=f7 is unknown; choose one of rocauc, ap, micro_f1, macro_f1, "
        "acc, balanced_acc, mae",
    ):
        build.check(configure("task.metric=f7"))


@pytest.mark.parametrize("metric, expected", [("macro_f1", 5 / 9), ("balanced_acc", 2 / 3)])
def test_a_run_of_classes_is_judged_by_the_metric_of_rare_ones(
    metric, expected, configure, tmp_path
):
    data = class_graph(list(range(20)))
    data.y = torch.arange(40).unsqueeze(1) % 3
    task = build.build_task(configure(f"task.metric={metric}"), data)
    rows = torch.eye(3)[data.y[:, 0].where(data.y[:, 0] != 1, 2)]
    scores = task.scores(None, rows)
    assert task.kind == "classes" and scores["valid"] == scores["test"]
    ours = {"macro_f1": theirs.f1_score, "balanced_acc": theirs.balanced_accuracy_score}[metric]
    more = {"average": "macro"} if metric == "macro_f1" else {}
    assert scores["test"] == pytest.approx(ours(data.y[20:, 0], rows[20:].argmax(1), **more))
    assert scores["test"] == pytest.approx(expected, abs=0.02)


def test_macro_f1_of_a_dataset_means_classes(configure, tmp_path):
    """Binary tasks have it by task.metric."""
    path, _ = value_graph(tmp_path / "graph.pt", "macro_f1")
    with pytest.raises(
        ValueError,
        match="one column of classes for the metric macro_f1, not 2. Of binary tasks save",
    ):
        build.open_graph(configure("data=file", f"data.path={path}"))


def test_values_that_are_no_labels_are_refused_by_name(configure, tmp_path):
    for metric, value, message in (
        ("rocauc", 0.5, 'for real values any with metric="rmse" or "mae"'),
        ("rmse", math.inf, "y is infinite in float32: row 3, column 0 holds inf"),
        (
            "f7",
            0.5,
            "the metric is 'f7'; choose one of rocauc, ap, micro_f1, macro_f1, acc, balanced_acc, mae",
        ),
    ):
        path, _y = value_graph(tmp_path / f"{metric}.pt", metric)
        saved = torch.load(path)
        saved["y"][3, 0] = value
        torch.save(saved, path)
        with warnings.catch_warnings(), pytest.raises(ValueError, match=message):
            build.open_graph(configure("data=file", f"data.path={path}"))


def test_a_search_looks_for_the_lowest_error(caplog):
    optuna = pytest.importorskip("optuna")
    caplog.set_level("INFO")
    worker = object.__new__(Worker)
    worker._study = optuna.create_study(direction="maximize")
    for error in (2.0, 1.0, 3.0):
        worker._tell(worker._study.ask(), "rmse", error, 1.0)
    assert (
        worker._study.best_trial.number == 1
        and "valid 3.0000, 1 s; best 1.0000 of trial 1" in caplog.text
    )
    assert [line.split()[1:3] for line in tabulate(worker._study).splitlines()[1:]] == [
        ["1", "1.0000"],
        ["0", "2.0000"],
        ["2", "3.0000"],
    ]
    with pytest.raises(ValueError, match="ap is undefined on the validation split of trial 3"):
        worker._tell(worker._study.ask(), "ap", None, 1.0)

"""The scores of each class or task: counted as scikit-learn counts, and in sum those of the run."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import (
    confusion_matrix,
    f1_score,
    mean_absolute_error,
    precision_score,
    recall_score,
    roc_auc_score,
)
from torch_geometric.data import Data

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.config import settings
from parallel_epochs.pipeline.gnn.base.label_scores import report_limit
from parallel_epochs.pipeline.gnn.kinds.build import kind_of
from parallel_epochs.pipeline.gnn.kinds.labels import count_labels
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.metrics import (
    choose_thresholds,
    count_by_score,
    read_threshold,
    score_decisions,
)
from parallel_epochs.pipeline.names import MAX_LABELS, SPLITS
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.saved import SavedRun
from parallel_epochs.pipeline.run.summary import tabulate
from parallel_epochs.scripts.report.document import page
from parallel_epochs.scripts.report.labels import read_scores
from parallel_epochs.scripts.report.runs import find_runs
from tests.helpers.building import EvaluateConfig, open_graph, predict as predict_run
from tests.helpers.graphs import make_graph, random_graph
from tests.helpers.resume_cases import NEIGHBOR, WRITE
from tests.helpers.running import TOY, train

NAN = float("nan")


def test_classes_are_counted_as_by_scikit_learn():
    rng = torch.Generator().manual_seed(0)
    y, rows = torch.randint(-1, 4, (60, 1), generator=rng), torch.randn(60, 5, generator=rng)
    known = y[:, 0] >= 0
    found = count_labels("classes", "acc", y, rows, scored=True)
    assert (
        found["confusion"]
        == confusion_matrix(y[known, 0], rows[known].argmax(1), labels=range(5)).tolist()
    )
    assert (
        found["labels"] == np.bincount(y[known, 0], minlength=5).tolist()
        and found["labels"][4] == 0
    )
    assert count_labels("classes", "acc", y, rows, scored=False) == {"labels": found["labels"]}
    empty = count_labels("classes", "acc", y[:0], rows[:0], scored=True)
    assert empty == {"labels": [0] * 5, "confusion": [[0] * 5] * 5}


def test_tasks_and_targets_are_scored_one_by_one():
    y = torch.tensor([[0, 1, NAN], [1, 1, NAN], [1, 1, NAN], [NAN, 1, NAN]])
    rows = torch.tensor([[0.2, 0, 0], [0.1, 1, 1], [0.9, 2, 0], [5, 3, 0]])
    found = count_labels("binary tasks", "rocauc", y, rows, scored=True)
    assert found.pop("curve") == count_by_score(y.flatten(), rows.flatten()) is not None
    assert found == {
        "labels": [3, 4, 0],
        "positive": [2, 4, 0],
        "score": [roc_auc_score(y[:3, 0], rows[:3, 0]), None, None],
    }
    found = count_labels("real values", "mae", y, rows, scored=True)
    assert found["score"] == [pytest.approx(mean_absolute_error(y[:3, 0], rows[:3, 0])), 1.0, None]
    empty = count_labels("real values", "mae", y[:0], rows[:0], scored=True)
    assert "positive" not in found and empty["score"] == [None] * 3


def test_two_classes_have_a_curve_of_the_second():
    rng = torch.Generator().manual_seed(0)
    y, rows = torch.randint(-1, 2, (60, 1), generator=rng), torch.randn(60, 2, generator=rng)
    curve = count_labels("classes", "acc", y, rows, scored=True)["curve"]
    known = y[:, 0] >= 0
    assert curve["rocauc"] == pytest.approx(
        roc_auc_score(y[known, 0], rows[known].softmax(1)[:, 1])
    )
    assert "curve" not in count_labels("classes", "acc", y, torch.randn(60, 3), scored=True)


def test_a_run_with_too_many_classes_says_so(caplog, configure):
    caplog.set_level("INFO")
    for num_classes in (MAX_LABELS, MAX_LABELS + 1):
        graph = make_graph(
            [(0, 1)], 2, x=torch.zeros(2, 1), y=torch.zeros(2, 1, dtype=torch.int64), metric="acc"
        )
        graph.out_channels = num_classes
        report_limit(Setup(configure(), graph, torch.device("cpu")))
    assert caplog.messages == [
        "201 classes: scores.json has a score for each of them only up to 200"
    ]


@pytest.mark.parametrize("rule", ["f1", "cost:5", "cost:0.2"])
def test_thresholds_are_the_best_of_all(rule):
    """By brute force, with ties; a task of one kind of labels has the probability one half."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 3, generator=rng).mul(3).round().div(3)
    y = (
        (rows + torch.randn(60, 3, generator=rng) > 1)
        .float()
        .masked_fill(torch.rand(60, 3, generator=rng) < 0.2, NAN)
    )
    y[:, 2] = 0
    found = choose_thresholds(y, rows, rule)
    assert found.dtype == torch.float64 and found[2] == 0

    def merit(task: int, threshold: float) -> float:
        known = ~y[:, task].isnan()
        true, predicted = y[known, task], (rows[known, task] > threshold).float()
        if rule == "f1":
            return f1_score(true, predicted)
        missed, false = (
            ((true == 1) & (predicted == 0)).sum(),
            ((true == 0) & (predicted == 1)).sum(),
        )
        return -float(rule[5:]) * float(missed) - float(false)

    for task in range(2):
        best = max(merit(task, float(each)) for each in [-9.0, *(rows[:, task].unique() + 1e-3)])
        assert merit(task, float(found[task])) == pytest.approx(best)
    decisions = score_decisions(y, rows, found)
    for name, score in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        each = [
            score(y[known, task], rows[known, task] > found[task], zero_division=0)
            for task in range(2)
            for known in [~y[:, task].isnan()]
        ]
        assert decisions[name] == pytest.approx(np.mean(each))
    first = []  # by the chance of each row to be among the first ten, of equal ones in any order
    for task in range(2):
        truth, own = y[~y[:, task].isnan(), task], rows[~y[:, task].isnan(), task]
        above, equal = (own[:, None] < own).sum(1), (own[:, None] == own).sum(1)
        first.append(float((truth * ((10 - above) / equal).clamp(0, 1)).sum() / 10))
    assert (
        decisions["precision@10"] == pytest.approx(np.mean(first))
        and "precision@100" not in decisions
    )
    assert score_decisions(y[:, 2:], rows[:, 2:], found[2:]) == {}


def test_a_threshold_may_be_a_probability():
    y, rows = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [0.1]])
    assert choose_thresholds(y, rows, "0.25").tolist() == pytest.approx([-np.log(3)])


@pytest.mark.parametrize(
    "rule", ["f2", "0", "1", "1.5", "cost:", "cost:0", "cost:-1", "cost:nan", "nan", "cost:inf"]
)
def test_odd_thresholds_are_refused(rule, configure):
    with pytest.raises(
        ValueError, match=re.escape(f"task.threshold={rule} is no threshold. Give f1, cost:C")
    ):
        read_threshold(rule)
    with pytest.raises(ValueError, match="is no threshold"):
        kind_of(configure(f"task.threshold={rule}")).check()


def test_a_threshold_needs_binary_tasks(configure, tmp_path):
    with pytest.raises(
        ValueError,
        match="task.threshold=0.3 is for binary tasks, and the dataset .acc. has classes",
    ):
        train(configure("data=digits", "train.epochs=1", "task.threshold=0.3"), tmp_path / "run")


def predict(folder: Path, **options) -> None:
    predict_run(
        EvaluateConfig(
            run=str(folder), device="cpu", **{name: str(value) for name, value in options.items()}
        )
    )


@pytest.fixture(scope="module")
def decided(tmp_path_factory):
    """A run on binary tasks that learns something, by two ranks."""
    folder = tmp_path_factory.mktemp("decided")
    config = cli.compose_config(
        [*TOY, f"cache_dir={folder / 'cache'}", "parallel.num_ranks=2", "train.epochs=4"]
    )
    return SavedRun(folder / "run", config, settings(config)), train(config, folder / "run")


def test_a_run_predicts_and_reports_by_its_thresholds(decided, tmp_path):
    run, summary = decided
    thresholds = torch.tensor(
        json.loads((run.folder / "scores.json").read_text())["thresholds"], dtype=torch.float64
    )
    predict(run.folder, output=tmp_path / "rows.csv", predictions=str(tmp_path / "rows.pt"))
    rows, table = torch.load(tmp_path / "rows.pt")["logits"], pd.read_csv(tmp_path / "rows.csv")
    data = open_graph(run.config).parts[0].data
    assert torch.equal(
        thresholds, choose_thresholds(data.y[data.valid_mask], rows[data.valid_mask], "f1")
    )
    for task, threshold in enumerate(thresholds):
        assert (
            table[f"predicted_{task}"].to_numpy() == (rows[:, task].double() > threshold).numpy()
        ).all()
    expected = score_decisions(data.y[data.test_mask], rows[data.test_mask], thresholds)
    assert summary["decisions"]["test"] == pytest.approx(expected) and expected["f1"] > 0
    shown = dict(tabulate(summary))
    assert shown["test decisions"].startswith(f"precision {expected['precision']:.4f}, recall ")
    shown = page(*find_runs([run.folder]))
    assert "precision@10" in shown and "task.threshold=f1" in shown


def test_a_run_of_before_has_no_labels_and_a_damaged_one_is_refused(decided, tmp_path):
    shutil.copytree(decided[0].folder, tmp_path / "run")
    scores, config = tmp_path / "run" / "scores.json", tmp_path / "run" / "config.yaml"
    record = json.loads(scores.read_text())
    scores.write_text(json.dumps(record | {"thresholds": ["a"]}))
    with pytest.raises(DamagedFile, match="its thresholds are"):
        predict(tmp_path / "run", output=tmp_path / "rows.csv")
    config.write_text(
        "".join(line for line in config.read_text().splitlines(True) if "threshold:" not in line)
    )
    predict(tmp_path / "run", output=tmp_path / "rows.csv")
    assert not [name for name in pd.read_csv(tmp_path / "rows.csv") if name.startswith("predicted")]


CASES = {
    "classes": ["data=digits", "train.epochs=3"],
    "tasks": TOY,
    "two ranks": [*TOY, "parallel.num_ranks=2"],
    "sampled evaluation": [*NEIGHBOR, "evaluation=neighbor"],
    "epochs without an evaluation": [*TOY, "train.eval_every=3"],
    **dict.fromkeys(("targets", "graph", "tables", "link", "averaged link")),
}


def write_targets(folder: Path) -> list[str]:
    """Save a graph with two real values a node, of which some are unknown."""
    graph = random_graph(60, 200, 0)
    y = torch.randn(60, 2).masked_fill(torch.rand(60, 2) < 0.2, NAN)
    split = torch.arange(60) % 3
    torch.save(
        Data(
            x=graph.x,
            edge_index=graph.edge_index.as_tensor().long(),
            y=y,
            train_mask=split == 0,
            val_mask=split == 1,
            test_mask=split == 2,
            metric="rmse",
        ),
        folder / "graph.pt",
    )
    return ["data=file", f"data.path={folder / 'graph.pt'}", *TOY[-3:-1]]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_they_add_up_to_the_scores_of_the_run(name, configure, tmp_path):
    average = ["train.ema=0.9", "task.metric=mrr", "train.lr=0.1"] * name.startswith("averaged")
    name = name.removeprefix("averaged ")
    overrides = [*(CASES[name] or {**WRITE, "targets": write_targets}[name](tmp_path)), *average]
    summary = train(configure(*overrides, "train.epochs=3"), tmp_path / "run")
    record = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert record["epoch"] == summary["best_epoch"] and read_scores(tmp_path / "run") == record
    assert record["unit"] == {"graph": "graphs", "link": "pairs"}.get(name, "nodes")
    if name == "link":
        assert (
            record["splits"]["train"] == {"rows": 220}
            and record["splits"]["test"]["negatives"] == 60
        )
        for split, score in zip(SPLITS[1:], (summary["best_valid"], summary["test"])):
            found = record["splits"][split]
            assert (found["ranking"] | found["curve"])[record["metric"]] == pytest.approx(score)
        return
    assert name != "tables" or record["names"] == ["games", "libs"]
    for split, score in zip(SPLITS[1:], (summary["best_valid"], summary["test"])):
        found = record["splits"][split]
        if record["kind"] == "classes":
            right = sum(row[i] for i, row in enumerate(found["confusion"]))
            assert (
                right / found["rows"] == pytest.approx(score)
                and sum(found["labels"]) == found["rows"]
            )
        else:
            assert np.nanmean(np.array(found["score"], float)) == pytest.approx(score)

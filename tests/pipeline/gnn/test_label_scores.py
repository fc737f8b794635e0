"""The scores of each class or task: counted as scikit-learn counts, and in sum those of the run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, mean_absolute_error, roc_auc_score
from torch_geometric.data import Data

from parallel_epochs.pipeline.gnn.kinds.labels import count_labels
from parallel_epochs.pipeline.gnn.label_scores import report_limit
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.metrics import count_by_score
from parallel_epochs.pipeline.names import MAX_LABELS, SPLITS
from parallel_epochs.scripts.report.label_scores import read_scores
from tests.helpers.graphs import make_graph, random_graph
from tests.helpers.resume_cases import NEIGHBOR, WRITE
from tests.helpers.running import TOY, train

NAN = float("nan")


def test_classes_are_counted_as_by_scikit_learn():
    rng = torch.Generator().manual_seed(0)
    y, rows = torch.randint(-1, 4, (60, 1), generator=rng), torch.randn(60, 5, generator=rng)
    known = y[:, 0] >= 0
    found = count_labels("classes", "acc", y, rows, scored=True)
    assert found["confusion"] == confusion_matrix(y[known, 0], rows[known].argmax(1), labels=range(5)).tolist()
    assert found["labels"] == np.bincount(y[known, 0], minlength=5).tolist() and found["labels"][4] == 0
    assert count_labels("classes", "acc", y, rows, scored=False) == {"labels": found["labels"]}
    empty = count_labels("classes", "acc", y[:0], rows[:0], scored=True)
    assert empty == {"labels": [0] * 5, "confusion": [[0] * 5] * 5}


def test_tasks_and_targets_are_scored_one_by_one():
    y = torch.tensor([[0, 1, NAN], [1, 1, NAN], [1, 1, NAN], [NAN, 1, NAN]])
    rows = torch.tensor([[0.2, 0, 0], [0.1, 1, 1], [0.9, 2, 0], [5, 3, 0]])
    found = count_labels("binary tasks", "rocauc", y, rows, scored=True)
    assert found.pop("curve") == count_by_score(y.flatten(), rows.flatten()) is not None
    assert found == {"labels": [3, 4, 0], "positive": [2, 4, 0],
                     "score": [roc_auc_score(y[:3, 0], rows[:3, 0]), None, None]}
    found = count_labels("real values", "mae", y, rows, scored=True)
    assert found["score"] == [pytest.approx(mean_absolute_error(y[:3, 0], rows[:3, 0])), 1.0, None]
    empty = count_labels("real values", "mae", y[:0], rows[:0], scored=True)
    assert "positive" not in found and empty["score"] == [None] * 3


def test_two_classes_have_a_curve_of_the_second():
    rng = torch.Generator().manual_seed(0)
    y, rows = torch.randint(-1, 2, (60, 1), generator=rng), torch.randn(60, 2, generator=rng)
    curve = count_labels("classes", "acc", y, rows, scored=True)["curve"]
    known = y[:, 0] >= 0
    assert curve["rocauc"] == pytest.approx(roc_auc_score(y[known, 0], rows[known].softmax(1)[:, 1]))
    assert "curve" not in count_labels("classes", "acc", y, torch.randn(60, 3), scored=True)


def test_a_run_with_too_many_classes_says_so(caplog, configure):
    caplog.set_level("INFO")
    for num_classes in (MAX_LABELS, MAX_LABELS + 1):
        graph = make_graph([(0, 1)], 2, x=torch.zeros(2, 1), y=torch.zeros(2, 1, dtype=torch.int64), metric="acc")
        graph.out_channels = num_classes
        report_limit(Setup(configure(), graph, torch.device("cpu")))
    assert caplog.messages == ["201 classes: scores.json has a score for each of them only up to 200"]


CASES = {
    "classes": ["data=digits", "train.epochs=3"],
    "tasks": TOY,
    "two ranks": [*TOY, "parallel.num_ranks=2"],
    "sampled evaluation": [*NEIGHBOR, "evaluation=neighbor"],
    "epochs without an evaluation": [*TOY, "train.eval_every=3"],
    **dict.fromkeys(("targets", "graph", "tables", "link", "averaged link"))}


def write_targets(folder: Path) -> list[str]:
    """Save a graph with two real values a node, of which some are unknown."""
    graph = random_graph(60, 200, 0)
    y = torch.randn(60, 2).masked_fill(torch.rand(60, 2) < 0.2, NAN)
    split = torch.arange(60) % 3
    torch.save(Data(x=graph.x, edge_index=graph.edge_index.as_tensor().long(), y=y, train_mask=split == 0,
                    val_mask=split == 1, test_mask=split == 2, metric="rmse"), folder / "graph.pt")
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
        assert record["splits"]["train"] == {"rows": 220} and record["splits"]["test"]["negatives"] == 60
        for split, score in zip(SPLITS[1:], (summary["best_valid"], summary["test"])):
            found = record["splits"][split]
            assert (found["ranking"] | found["curve"])[record["metric"]] == pytest.approx(score)
        return
    assert name != "tables" or record["names"] == ["games", "libs"]
    for split, score in zip(SPLITS[1:], (summary["best_valid"], summary["test"])):
        found = record["splits"][split]
        if record["kind"] == "classes":
            right = sum(row[i] for i, row in enumerate(found["confusion"]))
            assert right / found["rows"] == pytest.approx(score) and sum(found["labels"]) == found["rows"]
        else:
            assert np.nanmean(np.array(found["score"], float)) == pytest.approx(score)

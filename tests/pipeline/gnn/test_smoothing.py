"""Smoothed predictions of a run: which alphas are chosen, where they are reported, and what is refused."""

import functools
import re

import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch_geometric import nn as pyg

from parallel_epochs.pipeline.gnn import smoothing
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.gnn.simple.base import fit_base
from parallel_epochs.pipeline.run import stop as stops
from parallel_epochs.pipeline.run.errors import Stopped
from tests.helpers import building
from tests.helpers.building import EvaluateConfig
from tests.helpers.graph_toys import write_graphs
from tests.helpers.running import TOY, rounds_of, summary_of, train
from tests.helpers.typed_graphs import write_hetero
from tests.pipeline.gnn import test_baselines
from tests.pipeline.gnn.test_baselines import NUM_NODES

MODEL = ["model.num_layers=2", "model.hidden_channels=8", "partition.num_parts=2", "train.epochs=2"]


def write_graph(path, y=torch.arange(NUM_NODES) % 3, **changes) -> list[str]:
    return [*test_baselines.write_graph(path, y, **changes), "train.epochs=2"]


@pytest.fixture
def graph(tmp_path):
    return write_graph(tmp_path / "graph.pt")


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(smoothing, "NUM_STEPS", 5)
    monkeypatch.setattr(smoothing, "ALPHAS", (0.0, 0.4, 0.9))


@pytest.mark.parametrize("method", ["label_propagation", "correct_and_smooth"])
def test_the_alphas_are_those_that_are_best_on_validation(method, graph, configure, short):
    config = configure(
        *graph, f"evaluation.smooth={method}", "task.metric=macro_f1", "data.degrees=false"
    )
    data = building.open_graph(config).parts[0].data
    setup, logits = (
        Setup(config, data, building.CPU),
        torch.randn(NUM_NODES, 3, generator=torch.Generator().manual_seed(1)) + data.x,
    )
    y, mask, edge_index = data.y[:, 0], data.train_mask, data.edge_index.as_tensor().long()

    def by_pyg(correction, alpha):
        theirs = pyg.CorrectAndSmooth(5, correction, 5, alpha)
        probabilities = logits.softmax(1)
        if method == "correct_and_smooth":
            probabilities = theirs.correct(probabilities, y[mask], mask, edge_index)
        return theirs.smooth(probabilities, y[mask], mask, edge_index)

    tried = {
        (a, b): by_pyg(a, b)
        for a in (smoothing.ALPHAS if method == "correct_and_smooth" else [0.0])
        for b in smoothing.ALPHAS
    }
    scores = {alphas: setup.task.score("valid", rows) for alphas, rows in tried.items()}
    best = max(tried, key=lambda alphas: (scores[alphas], [-alpha for alpha in alphas]))
    found = smoothing.smooth_rows(setup, logits)
    assert len(set(scores.values())) > 2 and best[-1] > 0
    assert (
        found.alphas["smoothing_alpha"] == best[1]
        and found.alphas.get("correction_alpha", 0.0) == best[0]
    )
    torch.testing.assert_close(found.rows, tried[best])
    assert found.scores == {
        split: pytest.approx(setup.task.score(split, tried[best])) for split in ("valid", "test")
    }


@pytest.mark.parametrize("kind", ["classes", "tasks"])
def test_predictions_are_mixed_with_the_labels_two_steps_away(kind, configure, tmp_path):
    g, classes = torch.Generator().manual_seed(1), torch.arange(NUM_NODES) % 3
    y = classes if kind == "classes" else torch.eye(3)[classes][:, :2]
    config = configure(
        *write_graph(tmp_path / "graph.pt", y=y), "evaluation.smooth=two_step_propagation"
    )
    setup = Setup(config, building.open_graph(config).parts[0].data, building.CPU)
    shape = NUM_NODES, setup.task.out_channels
    logits = torch.randn(shape, generator=g) + 2 * torch.eye(3)[classes][:, : shape[1]]
    found = smoothing.smooth_rows(setup, logits)
    base, share = (
        fit_base(setup.data, setup.task, "propagation").rows,
        found.alphas["propagation_share"],
    )
    torch.testing.assert_close(found.rows, (1 - share) * logits + share * base)
    scores = [
        setup.task.score("valid", (1 - tenth / 10) * logits + tenth / 10 * base)
        for tenth in range(11)
    ]
    assert (
        found.scores["valid"] == pytest.approx(max(scores))
        and 0 < share == scores.index(max(scores)) / 10
    )
    assert found.scores["valid"] > setup.task.score("valid", logits)


def test_a_table_of_binary_tasks_has_a_smoothed_column_for_each(configure, tmp_path):
    y = torch.eye(3)[torch.arange(NUM_NODES) % 3][:, :2]
    config = configure(
        *write_graph(tmp_path / "graph.pt", y=y), "evaluation.smooth=two_step_propagation"
    )
    found = train(config, tmp_path / "run")["smoothed"]
    assert found["method"] == "two_step_propagation" and set(found) > {"propagation_share", "test"}
    asked = EvaluateConfig(
        run=str(tmp_path / "run"),
        predictions=str(tmp_path / "rows.pt"),
        output=str(tmp_path / "nodes.csv"),
    )
    building.evaluate(asked)
    table, saved = pd.read_csv(tmp_path / "nodes.csv"), torch.load(tmp_path / "rows.pt")["smoothed"]
    assert list(table) == [
        "id",
        "split",
        "smoothed_0",
        "smoothed_1",
        "score_0",
        "score_1",
        "label_0",
        "label_1",
    ]
    assert table["smoothed_1"].to_numpy() == pytest.approx(saved[:, 1].numpy())
    test = (torch.arange(NUM_NODES) // 3 % 3 == 2).numpy()
    auc = [roc_auc_score(y[test, task], table.loc[test, f"smoothed_{task}"]) for task in range(2)]
    assert sum(auc) / 2 == pytest.approx(found["test"])


def test_a_run_reports_smoothed_scores_beside_its_own(graph, configure, tmp_path, short, caplog):
    caplog.set_level("INFO")
    smoothed, plain = tmp_path / "smoothed", tmp_path / "plain"
    overrides = ["evaluation.smooth=correct_and_smooth", "train.epochs=4", "train.lr=0.1"]
    summary = train(configure(*graph, *overrides), smoothed)
    assert (
        train(configure(*graph, *overrides[1:]), plain)["weights_sha256"]
        == summary["weights_sha256"]
    )
    assert summary["best_epoch"] == 3
    own = ("best_valid", "test", "train", "best_epoch")
    assert [summary_of(plain)[key] for key in own] == [summary[key] for key in own]
    assert [record["test"] for record in rounds_of(plain)] == [
        record["test"] for record in rounds_of(smoothed)
    ]
    found = summary["smoothed"]
    assert summary_of(smoothed)["smoothed"] == found and "smoothed" not in summary_of(plain)
    assert found["method"] == "correct_and_smooth" and found["valid"] > summary["best_valid"]
    line = f"test acc +{summary['test']:.4f}, smoothed {found['test']:.4f}"
    assert re.search(line, caplog.text)

    for folder in (smoothed, plain):  # the second is asked to smooth when it has been trained
        caplog.clear()
        scores = building.evaluate(
            EvaluateConfig(
                run=str(folder),
                smooth="correct_and_smooth",
                predictions=str(folder / "logits.pt"),
                output=str(folder / "nodes.csv"),
            )
        )
        assert scores["test"] == summary["test"]
        assert re.search(line, caplog.text)
        saved, table = torch.load(folder / "logits.pt"), pd.read_csv(folder / "nodes.csv")
        assert table["class"].tolist() == saved["logits"].argmax(1).tolist()
        assert table["smoothed_class"].tolist() == saved["smoothed"].argmax(1).tolist()
        test = (table["split"] == "test").to_numpy()
        y = torch.arange(NUM_NODES).numpy() % 3
        assert (table["smoothed_class"].to_numpy() == y)[test].mean() == pytest.approx(
            found["test"]
        )
    building.predict(
        EvaluateConfig(run=str(smoothed), smooth="none", output=str(tmp_path / "own.csv"))
    )
    assert "smoothed_class" not in pd.read_csv(tmp_path / "own.csv")


class Asks(stops.StopRequest):
    """A request to stop that comes at one of the next looks at it."""

    looks = 10**6

    @property
    def signum(self) -> int:
        self.looks -= 1
        return 15 if self.looks < 0 else 0


def test_smoothing_is_left_when_a_stop_is_asked_for(graph, configure, short):
    config = configure(*graph, "evaluation.smooth=correct_and_smooth")
    setup = Setup(config, building.open_graph(config).parts[0].data, building.CPU)
    smooth, stop = (
        functools.partial(smoothing.smooth_rows, setup, torch.zeros(NUM_NODES, 3)),
        Asks(),
    )
    assert smooth(stop=stop).rows.shape == (NUM_NODES, 3)
    num_looks = 10**6 - stop.looks
    assert num_looks >= 2 * 5 + 3 * 2 * 5
    stop.looks = num_looks // 2
    with pytest.raises(Stopped):
        smooth(stop=stop)


@pytest.mark.slow
@pytest.mark.parametrize("evaluation", ["exact", "views"])
def test_two_ranks_smooth_what_one_process_does_of_their_model(
    evaluation, graph, configure, tmp_path
):
    summary = train(
        configure(
            *graph,
            "evaluation.smooth=label_propagation",
            f"evaluation={evaluation}",
            "parallel.num_ranks=2",
            "train.epochs=3",
        ),
        tmp_path / "run",
    )
    restored = building.restore(EvaluateConfig(run=str(tmp_path / "run")))
    smoothed = smoothing.smooth_rows(restored.setup, restored.rows)
    assert smoothed.record() == summary["smoothed"]
    assert torch.equal(smoothed.rows, restored.smoothed)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            ["task=link"],
            "evaluation.smooth=label_propagation needs task=node, since labels of nodes spread along edges",
        ),
        (
            ["data.components=separate"],
            "needs data.components=all, largest or a number, since the predictions of a single",
        ),
        (
            ["evaluation.smooth=smooth"],
            "evaluation.smooth=smooth is unknown; choose one of none, label_propagation, corr",
        ),
    ],
)
def test_runs_that_have_nothing_to_smooth_are_refused(overrides, message, configure):
    with pytest.raises(ValueError, match=message):
        configure("evaluation.smooth=label_propagation", *overrides).check()


def test_whole_graphs_are_refused(configure, tmp_path):
    folder = write_graphs(tmp_path / "toy", "ogbg-molhiv")
    with pytest.raises(
        ValueError, match="evaluation.smooth=correct_and_smooth needs task=node, .*has task=graph"
    ):
        configure(
            "+experiment=ogbg_molhiv",
            f"data.folder={folder}",
            "evaluation.smooth=correct_and_smooth",
        ).check()


def test_other_labels_than_classes_and_splits_without_validation_are_refused(configure, tmp_path):
    with pytest.raises(
        ValueError, match="smooth=label_propagation needs classes; this run learns binary tasks"
    ):
        building.open_graph(configure(*TOY, "evaluation.smooth=label_propagation"))
    none = torch.zeros(NUM_NODES, dtype=torch.bool)
    overrides = write_graph(tmp_path / "graph.pt", val_mask=none)
    for smooth in ([], ["evaluation.smooth=label_propagation"]):
        config = configure(*overrides, *smooth)
        if not smooth:
            building.open_graph(config)
            continue
        with pytest.raises(
            ValueError, match="is tuned by the validation labels, and the valid split is empty"
        ):
            building.open_graph(config)


def test_labels_are_not_spread_over_nodes_of_other_types(configure, tmp_path):
    config = configure(
        *write_hetero(tmp_path), "model=rgcn", *MODEL, "evaluation.smooth=label_propagation"
    )
    with pytest.raises(
        ValueError,
        match=r"evaluation.smooth=label_propagation spreads labels along all edges, and "
        r"this graph has several types of nodes. Leave it out",
    ):
        building.open_graph(config)

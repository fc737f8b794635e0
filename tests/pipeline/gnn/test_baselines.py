"""Simple methods on graphs whose answers are known, and what runs say of them."""

import copy
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.gnn.base import (
    fit as base_module,
    graphs,
    linear,
    propagation,
    trees,
)
from parallel_epochs.pipeline.gnn.base.fit import apply, fit_base
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.base.labels import Labels
from parallel_epochs.pipeline.gnn.base.summaries import summarise
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.run import baseline_file
from tests.helpers import building
from tests.helpers.graph_toys import write_graphs
from tests.helpers.graphs import make_graph
from tests.helpers.running import TOY, shell, train
from tests.helpers.typed_graphs import write_hetero

NUM_NODES = 150
MODEL = ["model.num_layers=2", "model.hidden_channels=8", "partition.num_parts=2", "train.epochs=1"]


@pytest.fixture(autouse=True)
def few_settings(monkeypatch):
    monkeypatch.setattr(linear, "STRENGTHS", (0.01, 1.0))
    monkeypatch.setattr(propagation, "ALPHAS", (0.8,))
    monkeypatch.setattr(propagation, "SMOOTHING_ALPHAS", (0.8,))
    monkeypatch.setattr(propagation, "STEPS", 10)
    monkeypatch.setattr(
        trees,
        "KINDS",
        tuple((fit, cost._replace(least=2, most=10), noun) for fit, cost, noun in trees.KINDS),
    )


def write_graph(path, y, x=None, **more) -> list[str]:
    """Save a graph whose edges join nodes of a group far more often than features tell it."""
    g, node = torch.Generator().manual_seed(0), torch.arange(NUM_NODES)
    group = node % 3
    edges = torch.randint(NUM_NODES, (2, 3000), generator=g)
    edges = edges[:, (group[edges[0]] == group[edges[1]]) | (torch.rand(3000, generator=g) < 0.1)]
    x = torch.eye(3)[group] + torch.randn(NUM_NODES, 3, generator=g) if x is None else x
    masks = {
        f"{split}_mask": node // 3 % 3 == i for i, split in enumerate(("train", "val", "test"))
    }
    torch.save(
        {"edge_index": torch.cat([edges, edges.flip(0)], 1), "x": x, "y": y, **{**masks, **more}},
        path,
    )
    return ["data=file", f"data.path={path}", *MODEL]


def found_of(config) -> tuple[dict[str, dict[str, float]], Setup]:
    setup = building.open_graph(config).parts[0]
    return {
        baseline.name: baseline.scores for baseline in setup.kind.baselines(setup.data, setup.task)
    }, setup


def kinds_of(found) -> list[str]:
    return [name.partition(" (")[0] for name in found]


@pytest.mark.slow
def test_classes_are_told_by_neighbours_better_than_by_features(configure, tmp_path):
    y = torch.arange(NUM_NODES) % 3
    found, setup = found_of(configure(*write_graph(tmp_path / "graph.pt", y)))
    assert kinds_of(found)[:3] == [
        "most frequent label",
        "label propagation in 10 steps",
        "label propagation in two steps",
    ]
    assert found["most frequent label"]["test"] == pytest.approx(1 / 3)
    assert (
        min(scores["test"] for name, scores in found.items() if name != "most frequent label")
        > 0.95
    )
    own = fit_columns(Inputs(setup.data, setup.task))
    assert setup.task.scores(None, own)["test"] < 0.8


def fit_columns(inputs: Inputs, strength: float = 1.0) -> torch.Tensor:
    """Fit a linear model of the nodes' own columns, each scaled, to all training rows."""
    fitted = linear.fit_hops(inputs, inputs.labels.train, (0,), "each", strength)
    return linear.predict(inputs, fitted, inputs.labels.train)


@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("kind", ["classes", "tasks", "values"])
def test_linear_models_are_those_of_scikit_learn(kind, strength, configure, tmp_path):
    group = torch.arange(NUM_NODES) % 3
    y, metric = {
        "classes": (group, "acc"),
        "tasks": (torch.stack([group == 0, group == 1], 1).float(), "rocauc"),
        "values": (torch.stack([group * 10.0, group**2.0], 1), "rmse"),
    }[kind]
    if kind != "classes":
        y[::7, 1] = math.nan
    setup = building.open_graph(
        configure(*write_graph(tmp_path / "graph.pt", y, metric=metric))
    ).parts[0]
    x, train = setup.data.x.numpy(), setup.data.train_mask.numpy()
    x = (x - x.mean(0)) / x.std(0)
    ours = fit_columns(Inputs(setup.data, setup.task), strength).numpy()
    if kind == "classes":
        model = LogisticRegression(C=strength, max_iter=1000, tol=1e-8).fit(x[train], y[train])
        np.testing.assert_allclose(ours, model.predict_proba(x), atol=2e-3)
        return
    for column in range(2):
        known = train & ~y[:, column].isnan().numpy()
        if kind == "tasks":
            model = LogisticRegression(C=strength, max_iter=1000, tol=1e-8)
            theirs = model.fit(x[known], y[known, column]).predict_proba(x)[:, 1]
        else:
            theirs = Ridge(alpha=1 / strength).fit(x[known], y[known, column]).predict(x)
        np.testing.assert_allclose(ours[:, column], theirs, rtol=1e-3, atol=2e-3)


def test_two_steps_of_propagation_by_hand_read_no_label_of_the_node_itself():
    """A multigraph with self-loops, tasks with unknown labels, and one feature of edges for the weights."""
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(20, (2, 60), generator=g)
    edges = torch.cat([edges, edges.flip(0), torch.tensor([[3], [3]])], 1)
    y = (torch.rand(20, 2, generator=g) < 0.5).float()
    y[::5, 1] = torch.nan
    data = make_graph(
        edges.t().tolist(), 20, y=y, edge_attr=torch.rand(edges.size(1), 1, generator=g)
    )
    data.train_mask, edges = torch.arange(20) < 12, data.edge_index.as_tensor().long()
    weight = list(propagation.edge_weights(data))[1]
    of_data = Labels(data, SimpleNamespace(kind="tasks"))
    steps, mean = (
        propagation.both_steps(data, of_data, weight, data.train_mask),
        of_data.mean(data.train_mask),
    )
    dense = (
        torch.zeros(20, 20)
        .index_put_((edges[1], edges[0]), weight, accumulate=True)
        .fill_diagonal_(0)
    )
    scale = dense.sum(1).rsqrt()
    dense = scale.unsqueeze(1) * dense * scale
    twice = (dense @ dense).fill_diagonal_(0)
    known = (~y.isnan() & data.train_mask.unsqueeze(1)).float()
    labels, prior = y.nan_to_num() * known, (y.nan_to_num() * known).sum(0) / known.sum(0)
    for share in propagation.SECOND:
        columns = propagation.mean_label(steps, share, mean)
        expected = ((dense + share * twice) @ labels + 0.02 * prior) / (
            (dense + share * twice) @ known + 0.02
        )
        torch.testing.assert_close(columns, expected)


@pytest.mark.parametrize(
    "columns, num_weights",
    [
        ([[1.0], [2.0]], 2),
        ([[1.0, 3.0, 0.0]] * 2, 5),
        ([[1.0, -3.0]] * 2, 1),
        ([[1.0] * 17] * 2, 2),
        ([[], []], 1),
    ],
)
def test_features_of_edges_are_weights_unless_one_is_negative(columns, num_weights):
    data = make_graph([(0, 1), (1, 1)], 2, edge_attr=torch.tensor(columns))
    found = list(propagation.edge_weights(data))
    assert len(found) == num_weights and all(
        weight[1] == 0 for weight in found
    )  # the second edge is a loop


def test_only_nodes_with_labels_and_their_own_columns_are_fitted_of_several_types(
    configure, tmp_path
):
    found, setup = found_of(
        configure(*write_hetero(tmp_path), "model=rgcn", "data.degrees=false", *MODEL)
    )
    assert kinds_of(found)[-2].startswith("logistic regression on ")
    rows = fit_columns(Inputs(setup.data, setup.task))
    x, y = setup.data.x[:40, :5].numpy(), setup.data.y[:40, 0].numpy()
    train = setup.data.train_mask[:40].numpy()
    x = (x - x.mean(0)) / x.std(0)
    model = LogisticRegression(max_iter=1000, tol=1e-8).fit(x[train], y[train])
    np.testing.assert_allclose(
        rows[:40, torch.from_numpy(model.classes_)], model.predict_proba(x), atol=2e-3
    )


@pytest.mark.slow
def test_methods_read_summaries_by_relation_and_make_those_of_other_data_alike(configure, tmp_path):
    _, setup = found_of(
        configure(*write_hetero(tmp_path), "model=rgcn", "data.degrees=false", *MODEL)
    )
    data, task = setup.data, setup.task
    inputs, train, width = Inputs(data, task), data.train_mask, data.types.widths[0]
    assert torch.equal(inputs.hop(1), summarise(data, 0)[0])
    fitted = linear.fit_hops(inputs, train, (0, 1), "one", 1.0)
    other = copy.copy(data)
    other.x = torch.cat([data.x[:width], data.x[width:] + 1])
    others = Inputs(other, task)
    linear.predict(others, fitted, train)
    assert others.plan == inputs.plan != summarise(other, 0)[1]
    assert Inputs(data, task, 1e-9).num_hops == 0 < inputs.num_hops  # without time, there are none
    for name in ("linear", "trees"):
        base = fit_base(data, task, name)
        torch.testing.assert_close(
            apply(base.fitted, data, task)[~train], base.rows[~train], rtol=1e-4, atol=1e-4
        )


@pytest.mark.slow
def test_numbers_may_follow_a_single_column(configure, tmp_path):
    """Of many other columns whose values are far apart, a regression would make something."""
    noise = torch.from_numpy(np.random.default_rng(0).standard_cauchy((NUM_NODES, 60))).float()
    today = torch.randn(NUM_NODES, generator=torch.Generator().manual_seed(0))
    tomorrow = torch.stack([today + 5, 2 * today], 1)
    tomorrow[::7, 1] = math.nan
    _, setup = found_of(
        configure(
            *write_graph(
                tmp_path / "values.pt",
                tomorrow,
                metric="rmse",
                x=torch.cat([noise[:, :30], today.unsqueeze(1), noise[:, 30:]], 1),
            ),
            "data.degrees=false",
            *MODEL,
        )
    )
    base = fit_base(setup.data, setup.task, "linear")
    assert base.title.startswith("a straight line of column 30") and base.scores["test"] < 1e-3
    rows = apply(base.fitted, setup.data, setup.task)
    torch.testing.assert_close(rows, torch.stack([today + 5, 2 * today], 1), atol=1e-3, rtol=1e-3)


@pytest.mark.slow
def test_values_and_tasks_with_missing_labels(configure, tmp_path):
    group = torch.arange(NUM_NODES) % 3
    values = torch.stack([group * 10.0, torch.where(group == 1, math.nan, group.float())], 1)
    found, setup = found_of(configure(*write_graph(tmp_path / "values.pt", values, metric="rmse")))
    own = setup.task.scores(None, fit_columns(Inputs(setup.data, setup.task)))["test"]
    assert (
        list(found)[0] == "mean label"
        and list(found.values())[1]["test"] < own < found["mean label"]["test"]
    )

    tasks = torch.stack([(group == 0).float(), torch.where(group == 1, math.nan, 1.0)], 1)
    found, _ = found_of(configure(*write_graph(tmp_path / "tasks.pt", tasks, metric="rocauc")))
    assert found["most frequent label"]["test"] == 0.5 and list(found.values())[1]["test"] > 0.95
    found, setup = found_of(
        configure(
            *write_graph(tmp_path / "tasks.pt", tasks, metric="rocauc"), "task.metric=macro_f1"
        )
    )  # which classes have, too
    assert not Labels(setup.data, setup.task).are_classes and list(found.values())[1]["test"] > 0.9


def test_each_walk_of_a_bipartite_graph_is_scored(configure, tmp_path):
    source, target = (
        torch.arange(200) % 20,
        20 + (torch.arange(200) // 20 + torch.arange(200) ** 2) % 17,
    )
    torch.save(
        {"edge_index": torch.stack([source, target]), "num_nodes": 37}, tmp_path / "graph.pt"
    )
    found, _ = found_of(
        configure(
            "data=file",
            f"data.path={tmp_path / 'graph.pt'}",
            "data.to_undirected=true",
            "task=link",
            "data.train_fraction=0.6",
            "data.valid_fraction=0.2",
        )
    )
    assert "resource allocation over two hops" not in found  # no such path ends at a candidate
    assert found["resource allocation over three hops"]["test"] != 0.5


def test_whole_graphs_are_told_by_what_they_hold(configure, tmp_path):
    folder = write_graphs(tmp_path, "ogbg-molhiv")
    found, setup = found_of(
        configure(
            "+experiment=ogbg_molhiv",
            f"data.folder={folder}",
            "model.num_layers=2",
            "model.hidden_channels=8",
        )
    )
    assert kinds_of(found)[:2] == [
        "most frequent label",
        "logistic regression on sums over nodes and edges",
    ]
    counts, data = Inputs(setup.data, setup.task).hop(0), setup.data
    number = 2
    first, last = int(data.ptr[number]), int(data.ptr[number + 1])
    assert counts[number, 0] == last - first
    columns = [
        torch.bincount(data.x[first:last, column].long(), minlength=size)
        for column, size in enumerate(data.x_tables)
    ]
    assert torch.equal(counts[number, 1 : 1 + sum(data.x_tables)], torch.cat(columns).float())
    edges = (data.edge_index.as_tensor()[1] >= first) & (data.edge_index.as_tensor()[1] < last)
    assert counts[number, -sum(data.edge_tables) :].sum() == edges.sum() * len(data.edge_tables)


@pytest.mark.slow
def test_a_run_shows_the_best_simple_method_and_names_the_command_without_one(
    configure, tmp_path, caplog
):
    caplog.set_level("INFO")
    config = configure(*TOY, "train.epochs=1", "data.num_tasks=2")
    summary = train(config, tmp_path / "before")
    assert "baseline" not in summary and "python -m pipeline.baselines" in caplog.text
    table = shell("pipeline.baselines", f"run={tmp_path / 'before'}", cwd=tmp_path).stdout
    best = next(line for line in table.splitlines() if line.endswith("best validation"))
    caplog.clear()
    summary = train(config, tmp_path / "after")
    assert summary["baseline"]["name"] in best and f"{summary['baseline']['valid']:.4f}" in best
    assert json.loads((tmp_path / "after" / "summary.json").read_text()) == summary
    says = (
        "better than this run"
        if summary["baseline"]["valid"] > summary["best_valid"]
        else "below this run"
    )
    assert says in caplog.text and "python -m pipeline.baselines" not in caplog.text


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["data.components=separate"],
            "data.components=separate: baselines needs one graph, in memory",
        ),
        (["data.on_disk=true"], "data.on_disk=true: baselines needs one graph, in memory"),
        (["trainer=node_embedding"], "no simple method is known for trainer=node_embedding"),
    ],
)
def test_what_has_no_baselines_is_refused(configure, arguments, message):
    given = (
        TOY
        if "trainer=node_embedding" not in arguments
        else [argument for argument in TOY if argument.startswith("data.")]
    )
    for whose, mend in (
        ("", "Leave the key out"),
        ("run=runs/first: ", "in place of run=DIR, without this one"),
    ):
        with pytest.raises(ValueError, match=f"^{whose}{message}") as error:
            training.find_baselines(configure(*given, *arguments), whose)
        assert mend in str(error.value) or arguments == ["trainer=node_embedding"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"metric": "acc", "baselines": [1]}',
        '{"metric": "acc", "baselines": {"a": {"valid": "x"}}}',
        '{"metric": "acc", "baselines": {}}',
    ],
)
def test_a_damaged_file_counts_as_none(tmp_path, text):
    path = baseline_file.path_of(tmp_path, "hash", "hits@50")
    assert baseline_file.load_best(path) is None
    path.parent.mkdir()
    path.write_text(text)
    assert baseline_file.load_best(path) is None


def test_the_best_has_the_best_validation_metric_that_is_defined(tmp_path):
    path = baseline_file.path_of(tmp_path, "hash", "rmse")
    scores = {"a": math.nan, "b": 2.0, "c": 1.0}
    baseline_file.save(
        path,
        "rmse",
        {
            name: {"train": math.nan, "valid": value, "test": math.nan}
            for name, value in scores.items()
        },
    )
    best = baseline_file.load_best(path)
    assert best["name"] == "c" and best["valid"] == 1.0 and math.isnan(best["test"])


@pytest.mark.parametrize(
    "name", ["mean", "diffusion", "propagation", "linear", "trees", "smoothed"]
)
def test_a_base_scores_the_same_data_again(name, configure, tmp_path):
    setup = building.open_graph(
        configure(*write_graph(tmp_path / "graph.pt", torch.arange(NUM_NODES) % 3))
    ).parts[0]
    base = fit_base(setup.data, setup.task, name)
    if name == "smoothed":  # the linear model alone scores other data
        assert (
            base.fitted["name"] == "linear"
            and not base.reads_labels
            and min(base.scores.values()) > 0.9
        )
        base = fit_base(setup.data, setup.task, "linear")
    rows, train = apply(base.fitted, setup.data, setup.task), setup.data.train_mask
    assert torch.equal(rows[~train], base.rows[~train])
    assert base.scores == setup.task.scores(None, base.rows) and base.reads_labels == (
        name in ("diffusion", "propagation") or "labels" in base.title
    )


@pytest.mark.slow
def test_a_linear_model_is_smoothed_where_that_is_best(configure, tmp_path, caplog):
    """Few edges, and columns that tell the group of most nodes."""
    caplog.set_level("INFO")
    g, node, num_edges = torch.Generator().manual_seed(0), torch.arange(600), 900
    group, edges = node % 3, torch.randint(600, (2, num_edges), generator=g)
    edges = edges[
        :, (group[edges[0]] == group[edges[1]]) | (torch.rand(num_edges, generator=g) < 0.1)
    ]
    masks = {
        f"{split}_mask": node // 3 % 3 == i for i, split in enumerate(("train", "val", "test"))
    }
    x = torch.eye(3)[group] + 1.5 * torch.randn(600, 3, generator=g)
    setup = building.open_graph(
        configure(
            *write_graph(
                tmp_path / "graph.pt",
                group,
                x,
                edge_index=torch.cat([edges, edges.flip(0)], 1),
                **masks,
            )
        )
    ).parts[0]
    linear, chosen = (fit_base(setup.data, setup.task, name) for name in ("linear", "auto"))
    assert chosen.name == "smoothed" and chosen.fitted["name"] == "linear"
    assert all(chosen.scores[split] > linear.scores[split] for split in ("train", "valid", "test"))
    assert fit_base(setup.data, setup.task, "auto", seconds=0.0003).name != "smoothed"
    assert "task.base=smoothed is left out: it would take some" in caplog.text


@pytest.mark.parametrize("name", ["propagation", "diffusion", "linear", "trees"])
@pytest.mark.parametrize("kind", ["classes", "tasks", "values"])
def test_the_row_of_a_training_node_does_not_move_with_its_own_label(
    name, kind, configure, tmp_path
):
    g = torch.Generator().manual_seed(0)
    y, metric = {
        "classes": (torch.randint(2, (NUM_NODES,), generator=g), "acc"),
        "tasks": (torch.randint(2, (NUM_NODES, 2), generator=g).float(), "rocauc"),
        "values": (torch.randn(NUM_NODES, 1, generator=g), "rmse"),
    }[kind]
    x = torch.randn(NUM_NODES, 5, generator=g)
    graph = write_graph(tmp_path / "graph.pt", y, x, metric=metric)
    setup = building.open_graph(configure(*graph)).parts[0]
    inputs = Inputs(setup.data, setup.task)
    method = base_module._choose(inputs, name, 0).method
    before, _ = base_module.out_of_fold(inputs, method, 0)
    node = int(setup.data.train_mask.nonzero()[3])
    inputs.labels.y[node] = 1 - inputs.labels.y[node]
    inputs.kept = inputs.of_labels = None
    after, _ = base_module.out_of_fold(inputs, method, 0)
    assert float((before - after)[node].abs().max()) < 1e-6 < float((before - after).abs().max())


def test_the_label_of_a_training_node_does_not_smooth_its_own_row(configure, tmp_path):
    data = write_graph(tmp_path / "graph.pt", torch.arange(NUM_NODES) % 3)
    setup = building.open_graph(configure(*data)).parts[0]
    inputs, base = Inputs(setup.data, setup.task), fit_base(setup.data, setup.task, "linear")
    before = base_module._smooth(inputs, base, 0).rows
    node = int(setup.data.train_mask.nonzero()[3])
    inputs.data.y[node] = (inputs.data.y[node] + 1) % 3
    after = base_module._smooth(inputs, base, 0).rows
    assert torch.equal(before[node], after[node]) and not torch.equal(before, after)


@pytest.mark.parametrize("kind", ["classes", "tasks", "values", "two classes"])
def test_arrays_of_trees_predict_what_scikit_learn_does(kind, monkeypatch, configure, tmp_path):
    group, made = torch.arange(NUM_NODES) % 3, []
    y, metric = {
        "classes": (2 * group, "acc"),
        "two classes": ((group > 0).long(), "acc"),
        "tasks": (torch.stack([group == 0, group < 3], 1).float(), "rocauc"),
        "values": ((group * 10.0).unsqueeze(1), "rmse"),
    }[kind]
    setup = building.open_graph(
        configure(*write_graph(tmp_path / "graph.pt", y, metric=metric))
    ).parts[0]
    inputs, train = Inputs(setup.data, setup.task), setup.data.train_mask
    for name in (
        "ExtraTreesClassifier",
        "ExtraTreesRegressor",
        "HistGradientBoostingClassifier",
        "HistGradientBoostingRegressor",
    ):
        kept = type(
            name,
            (getattr(trees.ensemble, name),),
            {"fit": lambda self, x, y: (made.append(super(type(self), self).fit(x, y)), self)[1]},
        )
        monkeypatch.setattr(trees.ensemble, name, kept)
    for fit in (trees.fit_forest, trees.fit_boosted):
        made.clear()
        fitted = fit(inputs, ("own",), 0, 20, train)
        sooner = trees.predict(inputs, fitted, train).numpy()
        del fitted[trees.QUICK]
        ours = trees.predict(inputs, fitted, train).numpy()
        np.testing.assert_array_equal(ours, sooner)
        model, x = made[0], setup.data.x.numpy()
        theirs = (
            model.predict_proba(x)
            if hasattr(model, "predict_proba")
            else model.predict(x).reshape(len(x), -1)
        )
        if kind == "tasks" and fit is trees.fit_boosted:
            assert (ours[:, 1] > 1 - 1e-6).all()  # all known labels are 1
            ours, theirs = ours[:, :1], theirs[:, 1:]
        present = model.classes_.astype(int) if "classes" in kind else np.arange(theirs.shape[1])
        np.testing.assert_allclose(ours[:, present], theirs, atol=1e-5)
        if kind == "classes":
            assert ours[:, [1, 3]].max() < 1e-6  # no row has these classes


def test_boosted_trees_spare_no_rows_where_these_would_lack_a_class(
    configure, tmp_path, monkeypatch
):
    monkeypatch.setattr(trees, "LEAST_TO_STOP", 20)
    node = torch.arange(NUM_NODES)
    y = ((node // 9 * 3 + node % 3) // 2).clamp(
        max=24
    )  # two training rows of each class, and more of the last one
    setup = building.open_graph(configure(*write_graph(tmp_path / "graph.pt", y))).parts[0]
    inputs, train = Inputs(setup.data, setup.task), setup.data.train_mask
    fitted = trees.fit_boosted(inputs, ("own",), 0, 5, train)
    assert trees.predict(inputs, fitted, train).shape == (NUM_NODES, 25)


def test_columns_that_say_nothing_and_classes_that_training_lacks_do_no_harm(configure, tmp_path):
    y, x = torch.arange(NUM_NODES) % 3, torch.zeros(NUM_NODES, 4)
    y[torch.arange(NUM_NODES) // 3 % 3 != 0] += 1  # class 3 is not among the training rows
    x[:, 1], x[:, 2] = 1e30, torch.arange(NUM_NODES) % 3 * 1e-20
    setup = building.open_graph(configure(*write_graph(tmp_path / "graph.pt", y, x))).parts[0]
    for name in ("propagation", "linear", "trees"):
        base = fit_base(setup.data, setup.task, name)
        assert base.rows.isfinite().all() and base.rows.shape == (NUM_NODES, 4)


def test_patterns_of_graphs_are_told_apart_whatever_the_order_of_the_nodes():
    """Two numberings of a chain a-b-a-c; a chain with another order of categories; one with another kind of edge."""

    def chain(x, kinds, order):
        place = torch.tensor(order).argsort()
        edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
        return (
            torch.tensor(x)[order].unsqueeze(1),
            place[edges],
            torch.tensor(kinds).repeat_interleave(2).unsqueeze(1),
        )

    parts = [
        chain([0, 1, 0, 2], [0, 0, 1], [0, 1, 2, 3]),
        chain([0, 1, 0, 2], [0, 0, 1], [2, 0, 3, 1]),
        chain([1, 0, 0, 2], [0, 0, 1], [0, 1, 2, 3]),
        chain([0, 1, 0, 2], [0, 1, 0], [0, 1, 2, 3]),
    ]
    edges = torch.cat([part[1] + 4 * number for number, part in enumerate(parts)], 1)
    data = make_graph(edges.t().tolist(), 16, edge_attr=torch.cat([part[2] for part in parts]))
    data.x, data.ptr, data.x_tables, data.edge_tables = (
        torch.cat([part[0] for part in parts]),
        torch.arange(0, 17, 4),
        [3],
        [2],
    )
    counts = graphs.count_patterns(data)
    assert (
        torch.equal(counts[0], counts[1]) and (counts.sum(1) == 12).all()
    )  # three sizes of four nodes
    assert not torch.equal(counts[0], counts[2]) and not torch.equal(counts[0], counts[3])


def test_a_method_that_would_take_too_long_is_left_out(configure, tmp_path, caplog):
    caplog.set_level("INFO")
    setup = building.open_graph(
        configure(*write_graph(tmp_path / "graph.pt", torch.arange(NUM_NODES) % 3))
    ).parts[0]
    with pytest.raises(ValueError, match="task.base=trees: trees would take longer than 1e-09 s"):
        fit_base(setup.data, setup.task, "trees", seconds=1e-9)
    assert fit_base(setup.data, setup.task, "auto", seconds=1e-9).name != "trees"
    assert "task.base=trees is left out: trees would take longer" in caplog.text


@pytest.mark.parametrize(
    "name, change, message",
    [
        (
            "tree",
            {},
            "task.base=tree is no simple method for this data; choose one of mean, diffusion, propagation, ",
        ),
        (
            "auto",
            {"val_mask": torch.zeros(NUM_NODES, dtype=torch.bool)},
            "chosen by the acc of the valid split, which ",
        ),
    ],
)
def test_a_base_that_does_not_fit_is_refused(name, change, message, configure, tmp_path):
    y = torch.arange(NUM_NODES) % 3
    setup = building.open_graph(configure(*write_graph(tmp_path / "graph.pt", y, **change))).parts[
        0
    ]
    with pytest.raises(ValueError, match=message):
        fit_base(setup.data, setup.task, name)


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["fit", "folds"])
def test_a_method_that_fails_is_left_out_in_one_line(
    broken, configure, tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO")
    setup = building.open_graph(
        configure(
            *write_graph(
                tmp_path / "graph.pt",
                torch.arange(NUM_NODES) % 3,
                torch.eye(3)[torch.arange(NUM_NODES) % 3],
            )
        )
    ).parts[0]
    assert fit_base(setup.data, setup.task, "auto").scores["valid"] == 1
    fit, num_train = linear.fit_hops, int(setup.data.train_mask.sum())

    def fail(inputs, known, *arguments, **options):
        if broken == "fit" or int(known.sum()) < num_train:
            raise RuntimeError("no\nmemory")
        return fit(inputs, known, *arguments, **options)

    monkeypatch.setattr(linear, "fit_hops", fail)
    monkeypatch.setattr(trees, "KINDS", ())
    monkeypatch.setattr(
        base_module,
        "NODES",
        {name: base_module.NODES[name] for name in ("mean", "linear", "trees")},
    )
    assert fit_base(setup.data, setup.task, "auto").name == "mean"
    assert any(
        text.startswith("task.base=linear is left out: ") and "\n" not in text
        for text in caplog.messages
    )
    with pytest.raises(RuntimeError):
        fit_base(setup.data, setup.task, "linear")

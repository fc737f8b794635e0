"""Runs that begin at a simple method: what the network gets of it, and what the run answers with."""

import dataclasses
import json
import math
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from parallel_epochs.pipeline.command import cli, schema
from parallel_epochs.pipeline.config import settings
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.gnn.base import bases, candidates, fit as base_fit, fusion
from parallel_epochs.pipeline.gnn.base.fit import Base
from parallel_epochs.pipeline.gnn.config import NewDataConfig
from parallel_epochs.pipeline.gnn.predict import new_data
from parallel_epochs.pipeline.metrics import choose_thresholds
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.saved import SavedRun
from parallel_epochs.pipeline.run.summary import tabulate
from tests.helpers import building
from tests.helpers.building import EvaluateConfig, evaluate, open_graph, predicted
from tests.helpers.graph_toys import write_graphs
from tests.helpers.running import TOY, finish, kill_and_finish, summary_of, train
from tests.helpers.typed_graphs import write_hetero

SMALL = [
    "model.num_layers=2",
    "model.hidden_channels=8",
    "train.epochs=3",
    "train.patience=0",
    "partition.num_parts=2",
]


def graph_of(kind: str, path, num_nodes: int = 300, *, seed: int = 0) -> list[str]:
    """Save a graph whose neighbours tell the labels better than the features do; return the overrides that read it."""
    g, node = torch.Generator().manual_seed(seed), torch.arange(num_nodes)
    group = torch.randint(3, (num_nodes,), generator=g)
    edges = torch.randint(num_nodes, (2, 20 * num_nodes), generator=g)
    edges = edges[
        :, (group[edges[0]] == group[edges[1]]) | (torch.rand(edges.size(1), generator=g) < 0.1)
    ]
    y = {"classes": group, "tasks": torch.eye(3)[group][:, :2], "values": 50 + 10 * group.float()}[
        kind
    ]
    content = {
        "x": torch.eye(3)[group] + 2 * torch.randn(num_nodes, 3, generator=g),
        "y": y,
        "edge_index": torch.cat([edges, edges.flip(0)], 1),
        "num_nodes": num_nodes,
        "metric": {"classes": "acc", "tasks": "rocauc", "values": "rmse"}[kind],
        **{
            f"{split}_mask": node % 3 == place
            for place, split in enumerate(("train", "val", "test"))
        },
    }
    torch.save(content, path)
    return ["data=file", f"data.path={path}", *SMALL]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "tasks", "values", "typed"])
def test_an_untrained_network_with_an_offset_answers_as_the_simple_method(
    kind, configure, tmp_path
):
    data = (
        write_hetero(tmp_path) + SMALL if kind == "typed" else graph_of(kind, tmp_path / "graph.pt")
    )
    model = ["model=rgcn"] if kind == "typed" else []
    setup = open_graph(configure(*data, *model, "task.base=linear", "task.candidate=offset")).parts[
        0
    ]
    rows = building.build_predictor(setup)(0)
    own = setup.data.types.nodes_of(setup.data.types.labelled)
    expected = setup.base.rows[own.start : own.stop]
    assert len(expected.unique()) > 3
    torch.testing.assert_close(rows[own.start : own.stop], expected, rtol=1e-4, atol=1e-3)


def test_scores_as_inputs_are_columns_that_begin_no_logits(configure, tmp_path):
    data = graph_of("classes", tmp_path / "graph.pt")
    plain, inputs = (
        open_graph(configure(*data, "task.base=propagation", f"task.candidate={name}")).parts[0]
        for name in ("network", "inputs")
    )
    assert inputs.data.x.size(1) == plain.data.x.size(1) + 3
    shown, base = inputs.data.x[:, -3:], inputs.base.rows
    train = inputs.data.train_mask
    assert float(shown[train].mean()) == pytest.approx(0, abs=1e-4) and float(
        shown[train].std(correction=0)
    ) == pytest.approx(1)
    assert float(
        torch.corrcoef(torch.stack([shown.flatten(), base.flatten()]))[0, 1]
    ) == pytest.approx(1)
    rows = building.build_predictor(inputs)(0)
    assert float(torch.corrcoef(torch.stack([rows.flatten(), base.flatten()]))[0, 1]) < 0.9


def test_scores_stand_at_the_nodes_of_the_type_with_labels():
    types = GraphTypes(["a", "b"], [2, 3], [1, 1], [("a", "of", "b")], "b")
    data = Graph(x=torch.arange(15.0).view(5, 3), num_categories=2, types=types)
    config = SimpleNamespace(task=SimpleNamespace(reads_base=True, candidate="inputs"))
    shown = bases.show(config, data, base_of(torch.arange(5.0)[:, None]), [1.0, 0.0])
    assert shown.x[:, 1].tolist() == [0, 0, 2, 3, 4] and shown.types.widths == [1, 2]
    assert torch.equal(shown.x[:, [0, 2, 3]], data.x)


def base_of(rows: torch.Tensor) -> Base:
    return Base("linear", "a line", rows, {}, reads_labels=False, seconds=0.0, fitted={})


def noisy(task, y: torch.Tensor, noise: float, seed: int) -> torch.Tensor:
    clean = torch.nn.functional.one_hot(y[:, 0], 3).float() if task.kind == "classes" else y.float()
    return clean + noise * torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["classes", "tasks", "values"])
@pytest.mark.parametrize(
    "network, simple, answers", [(0.1, 3.0, "network"), (3.0, 0.1, "simple"), (1.0, 1.0, "both")]
)
def test_the_answer_is_what_validation_favours(kind, network, simple, answers, configure, tmp_path):
    setup = open_graph(configure(*graph_of(kind, tmp_path / "graph.pt", 900))).parts[0]
    task, y = setup.task, setup.data.y
    scale = 10 if kind == "values" else 1
    rows, base = (
        noisy(task, y, scale * noise, seed) for seed, noise in enumerate((network, simple))
    )
    answer = fusion.choose(setup.data, task, rows, base_of(base))
    assert {
        "network": answer.share < 0.3,
        "simple": answer.share > 0.7,
        "both": 0.2 < answer.share < 0.8,
    }[answers]
    assert answer.scores == task.scores(None, fusion.mix(rows, base, answer.share))
    assert (answer.gain > answer.error > 0) == (answer.share < 1)


def test_the_simple_method_is_left_only_for_more_than_the_error_of_the_difference(
    configure, tmp_path
):
    setup = open_graph(configure(*graph_of("classes", tmp_path / "graph.pt"))).parts[0]
    task, base = setup.task, noisy(setup.task, setup.data.y, 1.5, 0)
    are_right = base.argmax(1) == setup.data.y[:, 0]
    right, wrong = (
        (each & setup.data.valid_mask).nonzero().squeeze(1) for each in (are_right, ~are_right)
    )
    truth = torch.nn.functional.one_hot(setup.data.y[:, 0], 3) * 100.0
    for mended, broken, leaves in ((6, 4, False), (15, 0, True), (25, 10, True)):
        rows = base.clone()
        rows[wrong[:mended]], rows[right[:broken]] = truth[wrong[:mended]], -truth[right[:broken]]
        error = fusion.error_of_difference(task, rows, base, torch.arange(100))
        # Of n rows of which k differ, the mean has a deviation of about sqrt(k) / n.
        assert error == pytest.approx(
            math.sqrt(mended + broken - (mended - broken) ** 2 / 100) / 100, rel=0.3
        )
        twins = fusion.error_of_difference(task, rows, base, torch.arange(100) // 50)
        assert not leaves or twins > 2 * error
        answer = fusion.choose(setup.data, task, rows, base_of(base))
        assert (answer.gain > answer.error) == (answer.share < 1) == leaves
        assert not leaves or answer.gain == pytest.approx((mended - broken) / 100)


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """A run that tried both candidates."""
    folder = tmp_path_factory.mktemp("bases")
    config = cli.compose_config(
        [
            *graph_of("tasks", folder / "graph.pt", 150),
            f"cache_dir={folder / 'cache'}",
            "task.base=propagation",
        ]
    )
    return config, folder / "run", train(config, folder / "run")


def test_the_best_candidate_is_the_model_of_the_run(tried):
    _, folder, summary = tried
    each = {name: summary_of(folder / f"candidate_{name}") for name in ("network", "offset")}
    best = max(each, key=lambda name: (each[name]["best_valid"], each[name]["network"]["valid"]))
    assert summary["candidate"] == best and summary["best_valid"] == each[best]["best_valid"]
    assert set(summary["candidates"]) == set(each)
    assert f"candidate: {best}\n" in (folder / "config.yaml").read_text()
    for name in ("checkpoints/best.pt", "metrics.jsonl", "scores.json", "base.pt"):
        assert (folder / name).read_bytes() == (folder / f"candidate_{best}" / name).read_bytes()


@pytest.mark.parametrize("metric, best", [("acc", "network"), ("rmse", "offset")])
def test_validation_chooses_the_candidate_and_test_does_not(metric, best, configure, tmp_path):
    data = graph_of("classes", tmp_path / "graph.pt", 60)
    opened = open_graph(configure(*data, "task.base=propagation"))
    scores = {"network": (0.7, 0.1), "offset": (0.6, 0.9)}

    def train_one(setup, folder):
        folder.mkdir(parents=True)
        valid, test = scores[setup.config.task.candidate]
        return dict(metric=metric, best_valid=valid, test=test, network=setup.base.scores) | dict(
            best_epoch=1, wall_seconds=1.0, peak_memory_bytes=1
        )

    assert candidates.train_parts(train_one, opened, tmp_path / "run")["candidate"] == best


def test_the_run_predicts_what_its_summary_says(tried):
    _, folder, summary = tried
    found = evaluate(EvaluateConfig(run=str(folder)))
    assert found["test"] == pytest.approx(summary["test"]) and found["valid"] == pytest.approx(
        summary["best_valid"]
    )
    assert summary["answer"]["share"] > 0  # of the simple method
    scores = json.loads((folder / "scores.json").read_text())["splits"]["test"]["score"]
    assert sum(scores) / len(scores) == pytest.approx(summary["test"])


def test_a_run_that_was_killed_between_candidates_ends_the_same(tried, tmp_path):
    config, folder, summary = tried
    shutil.copytree(folder / "candidate_network", tmp_path / "run" / "candidate_network")
    shutil.copy(folder / "candidate_network" / "config.yaml", tmp_path / "run" / "config.yaml")
    found = train(config, tmp_path / "run")
    same = ("weights_sha256", "best_valid", "test", "candidate")
    assert {name: found[name] for name in same} == {name: summary[name] for name in same}


@pytest.mark.slow
def test_two_ranks_that_are_killed_in_the_second_candidate_end_the_same(tmp_path):
    first, second = kill_and_finish(
        [*TOY, "task.base=auto", "parallel.num_ranks=2", "train.epochs=60"],
        tmp_path,
        "candidate_offset",
        3,
    )
    same = ("weights_sha256", "best_valid", "test", "candidate", "candidates")
    assert {name: first[name] for name in same} == {name: second[name] for name in same}
    assert (tmp_path / "killed/config.yaml").read_text() == (
        tmp_path / "whole/config.yaml"
    ).read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, candidate",
    [("linear", "network"), ("propagation", "network"), ("auto", "offset")],
)
def test_other_data_are_answered_alike_also_from_a_file(name, candidate, tmp_path):
    overrides = [
        *graph_of("classes", tmp_path / "graph.pt"),
        f"cache_dir={tmp_path / 'cache'}",
        f"task.base={name}",
        f"task.candidate={candidate}",
    ]
    config = cli.compose_config(overrides)
    train(config, tmp_path / "run")
    config = schema.load(tmp_path / "run" / "config.yaml")
    run = SavedRun(tmp_path / "run", config, settings(config))
    own = predicted(run)
    content = torch.load(tmp_path / "graph.pt")
    torch.save({key: content[key] for key in ("x", "edge_index", "num_nodes")}, tmp_path / "new.pt")
    other = predicted(run, data=NewDataConfig(str(tmp_path / "new.pt")))
    rest = ~own.graph.train_mask
    if name == "linear":
        torch.testing.assert_close(other.rows[rest], own.rows[rest], rtol=1e-4, atol=1e-4)
    elif name == "propagation":  # no label is known there, and the network answers alone
        network = predicted(
            SavedRun(
                tmp_path / "run",
                dataclasses.replace(
                    config, task=dataclasses.replace(config.task, base="none", candidate="auto")
                ),
                {},
            )
        )
        torch.testing.assert_close(other.rows, network.rows, rtol=1e-4, atol=1e-4)
    new_data.export(run, tmp_path / "model.pe")
    loaded, shared = cli.load_run(tmp_path / "model.pe", trusts=False)
    opened = SavedRun(tmp_path / "model.pe", loaded, {}, shared=shared)
    torch.testing.assert_close(
        predicted(opened, data=NewDataConfig(str(tmp_path / "new.pt"))).rows, other.rows
    )


def test_a_network_that_answers_alone_decides_by_its_own_thresholds(tmp_path):
    train(
        cli.compose_config(
            [
                *graph_of("tasks", tmp_path / "graph.pt"),
                f"cache_dir={tmp_path / 'cache'}",
                "task.base=propagation",
                "task.candidate=network",
            ]
        ),
        tmp_path / "run",
    )
    config, content = (
        schema.load(tmp_path / "run" / "config.yaml"),
        torch.load(tmp_path / "graph.pt"),
    )
    torch.save({key: content[key] for key in ("x", "edge_index", "num_nodes")}, tmp_path / "new.pt")
    run = SavedRun(tmp_path / "run", config, settings(config))
    network = predicted(
        SavedRun(
            tmp_path / "run",
            dataclasses.replace(
                config, task=dataclasses.replace(config.task, base="none", candidate="auto")
            ),
            {},
        )
    )
    valid = network.graph.valid_mask
    expected = choose_thresholds(network.graph.y[valid], network.rows[valid], "f1")
    assert not torch.allclose(predicted(run).thresholds, expected)
    new_data.export(run, tmp_path / "model.pe")
    loaded, shared = cli.load_run(tmp_path / "model.pe", trusts=False)
    for each in (run, SavedRun(tmp_path / "model.pe", loaded, {}, shared=shared)):
        found = predicted(each, data=NewDataConfig(str(tmp_path / "new.pt")))
        torch.testing.assert_close(found.thresholds, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "given, expected",
    [
        (["task.base=nonsense"], "task.base=nonsense"),
        (["task.base=linear", "data.components=separate"], "data.components"),
        (["task.base=linear", "task=link"], "task.base"),
        (
            ["task.base=auto", "task.candidate=offset", "data.components=separate"],
            "task.candidate=offset reads a simple method, and task.base=auto chooses none: one simple method is fitted to",
        ),
        (["task.base=none", "task.candidate=offset"], "task.candidate"),
        (["task.base=auto", "task.candidate=all"], "task.candidate=all"),
    ],
)
def test_a_base_that_does_not_fit_is_refused(given, expected, configure, tmp_path):
    with pytest.raises((ValueError, SystemExit), match=expected):
        train(configure(*graph_of("classes", tmp_path / "graph.pt"), *given), tmp_path / "run")


def test_no_method_is_chosen_where_none_fits(configure, tmp_path, caplog):
    caplog.set_level("INFO")
    opened = open_graph(
        configure(
            *graph_of("classes", tmp_path / "graph.pt"),
            "task.base=auto",
            "data.components=separate",
        )
    )
    assert opened.parts[0].base is None
    said = [text for text in caplog.messages if "no simple method (task.base=auto)" in text]
    assert len(said) == 1 and "data.components=separate" in said[0]


def test_no_method_is_chosen_without_validation_labels_or_for_a_large_graph(
    configure, tmp_path, monkeypatch
):
    overrides = graph_of("classes", tmp_path / "graph.pt")
    content = torch.load(tmp_path / "graph.pt")
    torch.save(content | {"val_mask": torch.zeros(300, dtype=torch.bool)}, tmp_path / "none.pt")
    config = configure(*overrides, f"data.path={tmp_path / 'none.pt'}", "task.base=auto")
    assert open_graph(config).parts[0].base is None
    config = configure(*overrides, "task.base=auto")
    assert open_graph(config).parts[0].base is not None
    monkeypatch.setattr(bases, "MOST_NODES", 299)
    assert open_graph(config).parts[0].base is None
    assert open_graph(configure(*overrides, "task.base=linear")).parts[0].base is not None


def test_a_method_is_chosen_again_for_another_metric_or_time(configure, tmp_path, monkeypatch):
    monkeypatch.setattr(base_fit, "NODES", {"mean": base_fit.NODES["mean"]})
    overrides = [*graph_of("classes", tmp_path / "graph.pt", 60), "task.base=auto"]
    for number, more in enumerate(("seed=0", "task.metric=macro_f1", "task.base_seconds=2"), 1):
        open_graph(configure(*overrides, more))
        assert len([*tmp_path.rglob("*-base-*")]) == number


def test_the_same_command_again_finds_the_run_trained_already(tmp_path):
    overrides = [*graph_of("classes", tmp_path / "graph.pt"), "task.base=propagation"]
    for _ in range(2):
        status, output = finish(
            overrides, tmp_path / "run", tmp_path / "cache", SLURM_RESTART_COUNT="1"
        )
        assert status == 0, output
    assert "has been trained already" in output


def test_graphs_are_mixed_with_a_simple_method_but_do_not_read_it(configure, tmp_path):
    data = [
        "task=graph",
        "loader=graph",
        "data=ogb_graph",
        "data.name=ogbg-molhiv",
        f"data.folder={write_graphs(tmp_path / 'toy', 'ogbg-molhiv', num_graphs=80)}",
        *SMALL,
    ]
    found = train(configure(*data, "task.base=linear"), tmp_path / "run")
    assert "candidates" not in found and set(found["network"]) == {"train", "valid", "test"}
    assert found["answer"]["share"] == 1 or found["answer"]["gain"] > found["answer"]["error"]
    with pytest.raises(
        ValueError,
        match="task.candidate=offset needs task=node|needs task.candidate|needs task=node",
    ):
        train(configure(*data, "task.base=linear", "task.candidate=offset"), tmp_path / "other")


def test_a_run_that_has_not_ended_answers_nothing(tried, tmp_path):
    _, folder, _ = tried
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "base.pt").unlink()
    run = SavedRun(tmp_path / "run", schema.load(folder / "config.yaml"), {})
    with pytest.raises(
        ValueError, match="base.pt is not there: what the run answers with is chosen when it ends"
    ):
        predicted(run)


def test_a_share_is_that_of_the_simple_method_and_needs_a_gain_beyond_its_error():
    def score(share, picked):
        return float(0.3 <= share <= 0.6)

    assert fusion.choose_share(score, 100, lambda share: 0.9) == (0.6, 1, 0.9)
    assert fusion.choose_share(score, 100, lambda share: 1.1) == (1, 1, 1.1)
    assert fusion.choose_share(score, 9, lambda share: 0.0) == (1, 1, math.inf)
    assert fusion.mix(torch.zeros(1), torch.ones(1), 0.3).item() == pytest.approx(0.3)


def test_the_gain_is_measured_on_rows_that_chose_no_share(configure, tmp_path):
    """Of a network that knows nothing more, the best share of eleven is better on the rows that chose it."""
    setup = open_graph(configure(*graph_of("classes", tmp_path / "graph.pt"))).parts[0]
    task, gains, honest = setup.task, [], []
    for seed in range(12):
        base = noisy(task, setup.data.y, 1.0, seed)
        rows = base + 0.7 * torch.randn(
            base.shape, generator=torch.Generator().manual_seed(100 + seed)
        )
        valid = [task.score("valid", fusion.mix(rows, base, share)) for share in fusion.SHARES]
        gains.append(max(valid) - valid[-1])
        honest.append(fusion.choose(setup.data, task, rows, base_of(base)).gain)
    assert sum(gains) > 0.05 and sum(honest) < sum(gains) / 2


def test_scores_that_were_fitted_otherwise_are_refused(tried, tmp_path):
    _, folder, _ = tried
    config = schema.load(folder / "config.yaml")
    run = SavedRun(folder, config, {})
    kept = fusion.read_kept(run)
    assert torch.equal(kept.sample, open_graph(config).parts[0].base.rows[: len(kept.sample)])
    shutil.copytree(folder, tmp_path / "run")
    content = dict(checkpoint.load(path := tmp_path / "run" / "base.pt"))
    checkpoint.save(path, content | {"sample": content["sample"] + 0.1})
    with pytest.raises(
        ValueError, match="this version fits it otherwise. Use the versions that summary.json"
    ):
        predicted(SavedRun(tmp_path / "run", config, {}))


def test_trees_in_a_circle_are_refused(tmp_path):
    kept = fusion.Kept("trees", "a forest", 1.0, [1.0, 0.0], False, {})
    for left, error in (
        ([1, 0, 4, 0, 0], None),
        ([1, 0, 4, 0, 2], "in a circle"),
        ("x", "damaged"),
    ):
        model = {"left": torch.tensor(left) if error != "damaged" else left}
        own = dataclasses.asdict(kept) | {"fitted": {"models": [model]}}
        checkpoint.save(tmp_path / "base.pt", own)
        config = SimpleNamespace(task=SimpleNamespace(base="trees"))
        run = SimpleNamespace(folder=tmp_path, config=config, shared=None)
        with pytest.raises(DamagedFile, match=error) if error else nullcontext():
            fusion.read_kept(run)


@pytest.mark.parametrize(
    "name, valid, reason",
    [
        ("mean", 0.5, "the mean label tells a network nothing"),
        ("trees", 0.58, "far below the network"),
        ("trees", 0.75, None),
    ],
)
def test_a_candidate_that_cannot_help_is_skipped(name, valid, reason):
    base = dataclasses.replace(base_of(torch.zeros(1, 2)), name=name, scores={"valid": valid})
    found = candidates._why_skipped(base, {"network": {"metric": "acc", "network": {"valid": 0.8}}})
    assert found is None if reason is None else reason in found


def test_a_run_with_a_base_that_is_far_below_has_one_candidate(configure, tmp_path, caplog):
    caplog.set_level("INFO")
    config = configure(*graph_of("classes", tmp_path / "graph.pt"), "task.base=mean")
    found = train(config, tmp_path / "run")
    assert list(found["candidates"]) == ["network"] and found["candidate"] == "network"
    assert not (tmp_path / "run" / "candidate_offset").exists()
    assert any(text.startswith("candidate offset is skipped") for text in caplog.messages)
    assert (
        train(
            configure(
                *graph_of("classes", tmp_path / "graph.pt"),
                "task.base=mean",
                "train.epochs=3",
                "task.candidate=network",
            ),
            tmp_path / "run",
        )["candidates"]
        == found["candidates"]
    )


FITS = {"typed": ["model=rgcn"], "own class": ["model=custom", "model.path=tests.helpers.nets.Net"]}


@pytest.mark.parametrize(
    "kind",
    [
        "classes",
        "graphs",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("values", "typed", "tasks", "own class")
        ),
    ],
)
def test_a_run_that_names_no_method_begins_at_the_best_one(kind, tmp_path):
    """It predicts what its summary says, and its predictions can be calibrated."""
    data = (
        write_hetero(tmp_path) + SMALL
        if kind == "typed"
        else [
            "task=graph",
            "loader=graph",
            "data=ogb_graph",
            "data.name=ogbg-molhiv",
            *SMALL,
            f"data.folder={write_graphs(tmp_path / 'toy', 'ogbg-molhiv', num_graphs=80)}",
        ]
        if kind == "graphs"
        else graph_of(kind.replace("own class", "classes"), tmp_path / "graph.pt")
    )
    fits = [text for text in data if kind != "own class" or not text.startswith("model.")]
    config = cli.compose_config([*fits, *FITS.get(kind, []), f"cache_dir={tmp_path / 'cache'}"])
    assert config.task.base == "auto"
    summary = train(config, tmp_path / "run")
    assert summary["base"]["name"] in {
        "mean",
        "propagation",
        "diffusion",
        "linear",
        "trees",
        "forest",
    }
    assert (
        set(summary["answer"]) == {"share", "gain", "error", "text"}
        and "scikit-learn" in summary["versions"]
    )
    assert ("candidates" in summary) == (kind not in ("own class", "graphs"))
    shown = "network alone" if kind == "own class" else "answer"
    assert tabulate(summary)[0][0] == shown
    saved = schema.load(tmp_path / "run" / "config.yaml")
    run = SavedRun(tmp_path / "run", saved, settings(saved))
    found = evaluate(EvaluateConfig(run=str(tmp_path / "run")))
    assert found["valid"] == pytest.approx(summary["best_valid"], abs=1e-6)
    assert (
        kind == "values" or predicted(run, calibrate=True).rows.shape == predicted(run).rows.shape
    )
    assert saved.task.base == "auto"


def test_a_graph_on_the_disk_has_no_method_of_its_own(tmp_path, caplog):
    caplog.set_level("INFO")
    config = cli.compose_config(
        [
            *(text for text in TOY if text != "task.base=none"),
            "data.on_disk=true",
            f"cache_dir={tmp_path / 'cache'}",
        ]
    )
    assert "base" not in train(config, tmp_path / "run")
    assert (
        "no simple method (task.base=auto): the graph stays on the disk (data.on_disk=true)"
        in caplog.messages
    )


def test_saved_runs_of_before_have_no_method(configure, tmp_path):
    """The key was not in their config.yaml, or had no other value."""
    config = configure(*graph_of("classes", tmp_path / "graph.pt"), "task.base=none")
    train(config, tmp_path / "run")
    path = tmp_path / "run" / "config.yaml"
    kept = [line for line in path.read_text().splitlines() if line.strip() != "base: none"]
    assert len(kept) < len(path.read_text().splitlines())
    path.write_text("\n".join(kept) + "\n")
    assert schema.load(path).task.base == "none"


def folds_lack(kind: str, y: torch.Tensor) -> torch.Tensor:
    return {
        "a class in one row": torch.where(torch.arange(len(y)) == 0, 2, y.clamp(max=1)),
        "a class that training lacks": torch.where(
            torch.arange(len(y)) % 3 == 0, y.clamp(max=1), y
        ),
        "one class": torch.zeros_like(y),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    ["a class in one row", "one class"],
)
def test_odd_labels_have_a_method_or_none(kind, tmp_path):
    data = graph_of("classes", tmp_path / "graph.pt")
    content = torch.load(tmp_path / "graph.pt")
    torch.save(content | {"y": folds_lack(kind, content["y"])}, tmp_path / "graph.pt")
    config = cli.compose_config([*data, f"cache_dir={tmp_path / 'cache'}"])
    base = open_graph(config).parts[0].base
    assert base.rows.isfinite().all() and base.scores["valid"] <= 1

"""model=auto compares models by validation, and the run goes on as one of the best model."""

import json
import shutil

import pytest
import torch
from torch_geometric.data import Data

import parallel_epochs as pe
from parallel_epochs.pipeline.command import cli, schema
from parallel_epochs.pipeline.config import write_config
from parallel_epochs.pipeline.gnn import optimization
from parallel_epochs.pipeline.gnn.base import settings
from parallel_epochs.pipeline.gnn.kinds.base import MODELS
from tests.helpers import building as build
from tests.helpers.graph_toys import write_graphs
from tests.helpers.running import finish, rounds_of, summary_of, train

TOY = [
    "data=digits",
    "model=auto",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "train.epochs=2",
    "train.patience=0",
    "task.base=none",
]


def small_graph() -> Data:
    edges = torch.randint(60, (2, 300), generator=torch.Generator().manual_seed(0))
    return Data(
        x=torch.randn(60, 4),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        y=torch.arange(60) % 2,
        train_mask=torch.arange(60) < 30,
        val_mask=torch.arange(60) // 15 == 2,
        test_mask=torch.arange(60) >= 45,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auto")
    config = cli.compose_config([*TOY, "train.eval_every=5", f"cache_dir={folder / 'cache'}"])
    return config, folder / "run", train(config, folder / "run")


def test_the_best_setting_is_trained_and_all_are_told(trained):
    _, folder, summary = trained
    saved = schema.load(folder / "config.yaml")
    last = {trial["setting"]: trial for trial in summary["trials"]}
    assert set(last) == set(MODELS) and {"sums", "gatv2"} < set(last)
    best = max(last, key=lambda name: (last[name]["epochs"], last[name]["valid"]))
    assert saved.model.name == MODELS[best]["name"] and saved.train.epochs == 2
    assert getattr(saved.model, "conv", None) == MODELS[best].get("conv")
    assert (saved.model.num_layers, saved.model.hidden_channels) == (2, 8)
    assert pe.load(folder).predict().shape == (1797, 10)


def test_a_run_that_was_killed_while_settings_were_compared_goes_on(trained, tmp_path):
    config, folder, summary = trained
    kept = json.loads((folder / "trials.json").read_text())["trials"]
    for each in (kept[0], kept[1]):
        name = f"setting_{each['setting']}"
        shutil.copytree(folder / name, tmp_path / "run" / name)
    (tmp_path / "run" / "trials.json").write_text(json.dumps({"trials": kept[:2]}))
    write_config(config, tmp_path / "run")
    again = train(config, tmp_path / "run")
    assert again["trials"][:2] == kept[:2] and len(again["trials"]) == len(kept)
    assert (tmp_path / "run" / "config.yaml").read_text() == (folder / "config.yaml").read_text()
    assert again["weights_sha256"] == summary["weights_sha256"]


def test_networks_are_compared_and_not_the_simple_method_that_all_of_them_answer_with(tmp_path):
    asked = [text for text in TOY if text != "task.base=none"]
    config = cli.compose_config(
        [*asked, "task.base=linear", "train.lr=0.05", f"cache_dir={tmp_path / 'cache'}"]
    )
    found = train(config, tmp_path / "run")["trials"]
    assert len({trial["valid"] for trial in found}) > 1
    for trial in {trial["setting"]: trial for trial in found}.values():
        own = summary_of(tmp_path / "run" / f"setting_{trial['setting']}")
        assert own["answer"]["share"] == 1 and trial["valid"] == own["network"]["valid"]


def test_the_settings_fit_the_data(configure, tmp_path):
    def known(*overrides):
        config = configure(*overrides, "model=auto")
        opened = build.open_graph(config)
        assert (
            opened.config.model.name == "auto" and opened.parts[0].config.model.name == "deepergcn"
        )
        return list(settings.models_of(opened.parts[0]))

    graphs = ["data=ogb_graph", f"data.folder={write_graphs(tmp_path / 'toy')}", "task=graph"]
    assert known(*graphs) == ["gatedgcn", "gin", "gatv2", "deepergcn"]
    assert known("data=digits", "model.hidden_channels=6") == list(MODELS)[:-1]


@pytest.mark.slow
def test_two_ranks_choose_together_and_the_command_may_be_given_again(tmp_path):
    overrides = [*TOY, "parallel.num_ranks=2"]
    for _ in range(2):
        status, output = finish(
            overrides, tmp_path / "run", tmp_path / "cache", SLURM_RESTART_COUNT="1"
        )
        assert status == 0, output
    assert "has been trained already" in output
    assert {trial["epochs"] for trial in summary_of(tmp_path / "run")["trials"]} == {2}
    assert rounds_of(tmp_path / "run")


@pytest.mark.slow
def test_python_takes_the_seconds_of_the_comparison(tmp_path):
    result = pe.train(
        small_graph(),
        "data.components=all",
        model="auto",
        seconds=1e-6,
        epochs=1,
        folder=tmp_path / "run",
        cache_dir=str(tmp_path / "cache"),
        verbose=False,
    )
    assert [trial["setting"] for trial in result.summary["trials"]] == ["deepergcn"]


@pytest.mark.parametrize(
    "overrides, name, chooses",
    [
        ([], "deepergcn", True),
        (["tune.seconds=3"], "auto", True),
        (["tune.seconds=0"], "deepergcn", False),
        (["model.aggr=add"], "deepergcn", False),
        (["+experiment=digits"], "deepergcn", False),
        (["train.epochs=3"], "deepergcn", False),
    ],
)
def test_a_model_that_is_named_is_compared_with_no_other(overrides, name, chooses):
    config = cli.compose_config(overrides)
    assert (config.model.name, config.chooses_model) == (name, chooses)


@pytest.mark.parametrize("most_edges, compared", [(1000, True), (100, False)])
def test_networks_are_compared_on_a_small_graph(most_edges, compared, tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "MOST_EDGES", most_edges)
    monkeypatch.setattr(settings, "EPOCHS", 1)
    monkeypatch.setattr(optimization, "MOST_EPOCHS", 1)
    path = tmp_path / "graph.pt"
    torch.save(small_graph(), path)
    keys = ["data=file", f"data.path={path}", f"cache_dir={tmp_path / 'cache'}", "task.base=none"]
    summary = train(cli.compose_config([*keys, "data.components=all"]), tmp_path / "run")
    found = {trial["setting"] for trial in summary.get("trials", [])}
    assert found == ({"deepergcn", "sums", "dropout", "gcn"} if compared else set())
    saved = schema.load(tmp_path / "run" / "config.yaml")
    assert saved.chooses_model != compared
    if compared and saved.model.name == "pyg":
        assert saved.model.num_layers == MODELS["gcn"]["num_layers"]


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["tune.seconds=-1"], "tune.seconds must be at least 0, not -1"),
        (["model.conv=GCNConv"], "model.conv is a key of model=pyg alone"),
        (
            ["data.components=separate"],
            "model=auto needs data.components=all, .*since one model is chosen",
        ),
        (["task=graph"], "data=digits, task=graph and loader=graph do not fit"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, message, configure):
    with pytest.raises(ValueError, match=message):
        configure(*TOY, *overrides)

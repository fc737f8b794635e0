"""A training that begins with the weights of another one, on newer tables."""

import pytest
import torch

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.config import settings
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.gnn.build import build_trainer
from parallel_epochs.pipeline.gnn.config import NewDataConfig
from parallel_epochs.pipeline.gnn.predict.new_data import export
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.saved import SavedRun
from tests.helpers.building import open_graph, predicted
from tests.helpers.running import train
from tests.pipeline.gnn.test_new_tables import LABEL, NUMBERS, TEXTS, later, trained, write

pytest.importorskip("duckdb")
KEYS = [*NUMBERS, *TEXTS, *LABEL, "data.nodes.text_channels=8"]


def config_of(folder, tables, *keys):
    return cli.compose_config(
        [
            "data=tables",
            f"data.folder={tables}",
            "data.nodes.path=nodes.csv",
            "data.edges.path=edges.csv",
            "model.num_layers=2",
            "model.hidden_channels=8",
            "train.epochs=2",
            "train.patience=0",
            "task.base=none",
            "partition.num_parts=2",
            f"cache_dir={folder / 'cache'}",
            "evaluation=exact",
            *KEYS,
            *keys,
        ]
    )


@pytest.fixture(scope="module")
def yesterday(tmp_path_factory):
    """A folder with a run, and with newer tables that have ten rows and one class more, which sorts first."""
    folder = tmp_path_factory.mktemp("yesterday")
    write(folder / "old")
    trained(folder, folder / "old", *KEYS)
    later(
        folder / "new",
        label=lambda table: table.assign(
            label=table["label"].where(~table["id"].isin(["new1", "new2", "n5"]), "aged")
        ),
    )
    return folder


def test_the_same_tables_give_the_model_of_the_other_run(yesterday):
    config = config_of(yesterday, yesterday / "old", f"train.init={yesterday / 'run'}", "seed=5")
    setup = open_graph(config).parts[0]
    best = checkpoint.load(yesterday / "run" / "checkpoints" / "best.pt")["model"]
    assert all(
        torch.equal(value, best[name])
        for name, value in build_trainer(setup).model.state_dict().items()
    )
    other = open_graph(config_of(yesterday, yesterday / "old")).parts[0].data
    assert torch.equal(setup.data.x, other.x) and torch.equal(setup.data.y, other.y)


def test_newer_tables_are_prepared_as_those_of_the_other_run(yesterday):
    config = config_of(yesterday, yesterday / "new", f"train.init={yesterday / 'run'}")
    data = open_graph(config).parts[0].data
    old = open_graph(config_of(yesterday, yesterday / "old")).parts[0].data
    assert unpack_names(data, "label_names") == [*unpack_names(old, "label_names"), "aged"]
    assert data.out_channels == 4 and int(data.y[5]) == 3
    assert bool((data.train_mask | data.valid_mask | data.test_mask).all())
    num_own = old.x.size(1) - 1  # without the degree, which new edges change
    assert torch.equal(data.x[:60, :num_own], old.x[:, :num_own])


@pytest.mark.parametrize(
    "keys",
    [[], ["train.label_input=0.5"], ["task.base=propagation", "task.candidate=offset"]],
    ids=["plain", "labels", "scores"],
)
def test_weights_of_columns_and_classes_find_their_places(keys, yesterday):
    """Of another run without, or with, labels and scores as inputs."""
    config = config_of(yesterday, yesterday / "new", f"train.init={yesterday / 'run'}", *keys)
    setup = open_graph(config).parts[0]
    fresh = {name: value.clone() for name, value in setup.model.state_dict().items()}
    begun = build_trainer(setup).model.state_dict()
    best = checkpoint.load(yesterday / "run" / "checkpoints" / "best.pt")["model"]
    for name, value in begun.items():
        if value.shape == best[name].shape:
            assert torch.equal(value, best[name])
        elif value.shape[0] == 4:
            assert torch.equal(value[:3], best[name]) and torch.equal(value[3:], fresh[name][3:])
        else:
            own, start = best[name].shape[1], 5 if "train.label_input=0.5" in keys else 0
            assert torch.equal(value[:, start : start + own], best[name])
            assert torch.equal(value[:, :start], fresh[name][:, :start])
            assert torch.equal(value[:, start + own :], fresh[name][:, start + own :])


def test_a_run_begins_with_an_exported_model_and_predicts_with_it(yesterday, tmp_path):
    config = config_of(yesterday, yesterday / "old")
    export(SavedRun(yesterday / "run", config, settings(config)), tmp_path / "old.pe")
    config = config_of(yesterday, yesterday / "new", f"train.init={tmp_path / 'old.pe'}")
    train(config, tmp_path / "run")
    found = predicted(SavedRun(tmp_path / "run", config, settings(config)))
    assert found.rows.shape == (70, 4)
    other = predicted(
        SavedRun(tmp_path / "run", config, settings(config)),
        data=NewDataConfig(folder=str(yesterday / "new")),
    )
    assert torch.equal(found.rows, other.rows)


@pytest.mark.slow
def test_ranks_begin_alike_and_a_stopped_run_goes_on_with_the_same_bits(yesterday, tmp_path):
    keys = [f"train.init={yesterday / 'run'}", "parallel.num_ranks=2", "train.epochs=8"]
    whole = train(config_of(yesterday, yesterday / "new", *keys), tmp_path / "whole")
    train(config_of(yesterday, yesterday / "new", *keys, "train.epochs=4"), tmp_path / "part")
    again = train(config_of(yesterday, yesterday / "new", *keys), tmp_path / "part")
    assert whole["weights_sha256"] == again["weights_sha256"]


@pytest.mark.parametrize(
    "keys, says",
    [
        (
            ["model.hidden_channels=16"],
            "has the shape .* here, and the shape .* there. Give this run the keys of that mod",
        ),
        (
            ["data.nodes.features=[size]"],
            "the keys name 1 column of numbers and dates of nodes, and those of .* names 2",
        ),
        (
            ["data.nodes.text=[]"],
            "the keys name 2 columns of texts, and those of the run that train.init names 3",
        ),
        (["train.init=nowhere"], "train.init=nowhere is no run of trainer=gnn that ended"),
        (["features=embedding"], "vectors that another run learned of its nodes"),
    ],
)
def test_what_does_not_fit_is_refused(keys, says, yesterday):
    with pytest.raises(ValueError, match=says):
        config = config_of(yesterday, yesterday / "new", f"train.init={yesterday / 'run'}", *keys)
        build_trainer(open_graph(config).parts[0])

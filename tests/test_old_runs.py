"""Runs, a store and a study that the code of commit c27fab6 wrote are continued, evaluated and read by today's.

old_runs.tar.xz holds them, made by that commit's own commands with `train.epochs=2`. Their config.yaml files hold every
key of every product, as that code wrote them. FOLDER stands for the folder in which they were made.
"""

import tarfile
from pathlib import Path

import pytest
import yaml

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import schema
from parallel_epochs.pipeline.command.folder import resolve
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from tests.helpers.running import ROOT, finish, rounds_of, shell, summary_of, train

LATER = ("reading", "degrees")
ARCHIVE = ROOT / "tests" / "old_runs.tar.xz"
RUNS = [
    "gnn",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("knowledge", "gnn_of_tables", "layout", "node_embedding")
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folders as they were written, in another place."""
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    for path in folder.rglob("*"):
        if path.suffix in (".yaml", ".json", ".journal"):
            path.write_text(path.read_text().replace("FOLDER", str(folder)))
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_evaluated_predicted_and_continued(name, folder):
    run, before = folder / "runs" / name, summary_of(folder / "runs" / name)
    done = shell("pipeline.predict", f"run={run}", f"predictions={folder / name}.pt", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / f"{name}.pt").stat().st_size > 0
    done = shell("pipeline.evaluate", f"run={run}", cwd=folder)
    assert done.returncode == 0, done.stderr
    scores = {
        words[0]: float(words[2])
        for words in map(str.split, done.stdout.splitlines())
        if words[0] in ("train", "valid", "test")
    }
    assert scores == pytest.approx(
        {"train": before["train"], "valid": before["best_valid"], "test": before["test"]}, abs=2e-4
    )
    status, output = finish(["train.epochs=3"], run, folder / "cache")
    assert status == 0, output
    assert [record["epochs"] for record in rounds_of(run)][-1] == 3 and summary_of(run)[
        "data_epochs"
    ] == 3


def test_keys_of_later_versions_have_the_values_of_before(folder, tmp_path):
    path = folder / "runs" / "gnn_of_tables" / "config.yaml"
    saved, usual = schema.load(path), TablesConfig()
    assert [getattr(saved.data, name) for name in LATER] == [1, False]
    (tmp_path / "checkpoints").mkdir(), (tmp_path / "checkpoints" / "last.pt").touch()
    (tmp_path / "config.yaml").write_text(path.read_text())
    later = {f"data.{name}": getattr(usual, name) for name in LATER}
    assert list(later.values()) == [6, True]
    assert resolve(keys.replaced(saved, later), tmp_path, continues=True) == saved


def test_keys_that_the_product_does_not_read_are_left_out(tmp_path):
    path = tmp_path / "config.yaml"
    with tarfile.open(ARCHIVE) as archive:
        path.write_bytes(archive.extractfile("./runs/knowledge/config.yaml").read())
    assert {"partition", "features"} <= set(yaml.safe_load(path.read_text()))
    read = {entry.name for entry in keys.entries(schema.load(path))}
    assert not any(name.startswith(("partition.", "features.")) for name in read)


def test_a_store_is_read(folder, configure):
    (store,) = (folder / "cache" / "graphs").glob("tables-*.store")
    sizes = ["model.num_layers=2", "model.hidden_channels=4", "train.epochs=1"]
    train(configure("data=store", f"data.path={store}", *sizes), folder / "of_store")


@pytest.mark.slow
def test_a_study_goes_on(folder):
    done = shell("pipeline.tune", f"study={folder / 'study'}", "trials=2", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (folder / "study").glob("trial_*")} == {"trial_000", "trial_001"}

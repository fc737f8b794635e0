"""The mean of the predictions of several runs, on the command line and from Python."""

import pytest
import torch
from torch_geometric.data import Data

import parallel_epochs as pe
from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.gnn.ensemble import mean_rows
from tests.helpers.running import shell

SMALL = {
    "num_layers": 2,
    "hidden_channels": 4,
    "verbose": False,
    "partition.num_parts": 2,
    "train.epochs": 2,
    "task.base": "none",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two seeds of one graph in "seeds", and in "odd" a run of the same graph and one of another."""
    folder, nodes = tmp_path_factory.mktemp("runs"), torch.arange(40)
    for name, seed in (("a", 0), ("b", 1)):
        rng = torch.Generator().manual_seed(seed)
        torch.save(
            Data(
                x=torch.randn(40, 3, generator=rng),
                y=nodes % 2,
                train_mask=nodes < 20,
                val_mask=nodes >= 30,
                edge_index=torch.randint(40, (2, 120), generator=rng),
                test_mask=(nodes >= 20) & (nodes < 30),
            ),
            folder / f"{name}.pt",
        )
    for run, name, seed in (
        ("seeds/0", "a", 0),
        ("seeds/1", "a", 1),
        ("odd/a", "a", 0),
        ("odd/b", "b", 0),
    ):
        pe.train(
            folder / f"{name}.pt",
            folder=folder / run,
            cache_dir=folder / "cache",
            seed=seed,
            **SMALL,
        )
    return folder


def test_probabilities_are_averaged_and_so_are_those_of_other_data(folder):
    runs = [folder / "seeds" / name for name in ("0", "1")]
    for data in (None, folder / "b.pt"):
        each = [pe.load(run).predict(data) for run in runs]
        assert not torch.allclose(each[0], each[1])
        for named in (folder / "seeds", runs):
            torch.testing.assert_close(pe.load(named).predict(data), torch.stack(each).mean(0))
    assert torch.equal(pe.load([runs[0]]).predict(), pe.load(runs[0]).predict())


def test_the_metric_of_the_mean_stands_beside_that_of_a_run(folder):
    (folder / "seeds" / "2").mkdir(exist_ok=True)
    (folder / "seeds" / "2" / "train.log").touch()
    done = shell("pipeline.evaluate", "run=seeds", cwd=folder)
    (folder / "seeds" / "2" / "train.log").unlink()
    assert "mean of 2 runs, seeds/0 to seeds/1, by" in done.stdout and done.returncode == 0, (
        done.stderr
    )
    assert (
        "1 of the runs in seeds have not ended, and are left out, such as seeds/2"
        in done.stdout + done.stderr
    )
    assert [
        line.split()[0] for line in done.stdout.splitlines() if ", that of a run 0." in line
    ] == ["train", "valid", "test"]


@pytest.mark.parametrize(
    "arguments, error",
    [
        (
            ["run=odd", "output=t.csv"],
            "odd/b was trained on other data than odd/a. Name one, such as run=odd/a",
        ),
        (["run=seeds", "export=m.pe"], "export=m.pe is for one. Name one"),
        (["run=seeds", "output=t.csv", "embeddings=true"], "embeddings=true is for one. Name one"),
        (["run=empty", "output=t.csv"], "empty is not a run directory: it has no config.yaml"),
    ],
)
def test_what_several_runs_do_not_have_together_is_refused(folder, arguments, error):
    (folder / "empty").mkdir(exist_ok=True)
    done = shell("pipeline.predict", *arguments, cwd=folder)
    assert done.returncode == 1 and error in done.stderr and len(done.stderr.splitlines()) == 1, (
        done.stderr
    )


def test_means_of_rows():
    rows = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)) * 3
    torch.testing.assert_close(mean_rows(rows, "classes").softmax(1), rows.softmax(2).mean(0))
    torch.testing.assert_close(mean_rows(rows, "binary tasks").sigmoid(), rows.sigmoid().mean(0))
    assert mean_rows(1e4 * rows, "binary tasks").isfinite().all()
    torch.testing.assert_close(mean_rows(rows, "real values"), rows.mean(0))


def test_models_inside_of_a_run_are_no_members_even_if_it_has_not_ended(tmp_path):
    for name in ("0", "1", "1/candidate_offset", "2/component_1", "2"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "config.yaml").touch()
        if name != "1":
            (tmp_path / name / "summary.json").touch()
    assert cli.members_of(tmp_path) == [tmp_path / "0", tmp_path / "2"]

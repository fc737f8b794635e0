"""A user's model of PyG's kind on a graph with several types of nodes, from training to predictions."""

import pytest

from parallel_epochs.models.networks.hetero import HeteroView
from tests.helpers.hetero_toys import save_hetero
from tests.helpers.running import ROOT, train


@pytest.fixture
def overrides(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the ranks
    return [
        "data=file",
        f"data.path={save_hetero(tmp_path)}",
        "model=custom",
        "model.hidden_channels=8",
        "model.path=tests.helpers.hetero_nets.ToHetero",
        "partition.num_parts=2",
        "train.patience=0",
        "train.lr=0.05",
        "data.degrees=false",
    ]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="alone"),
        pytest.param(
            ["parallel.num_ranks=2", "train.label_input=0.5"],
            id="two ranks",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_learns_and_goes_on_with_the_same_bits(configure, tmp_path, overrides, more, caplog):
    caplog.set_level("INFO")
    whole = train(configure(*overrides, *more, "train.epochs=8"), tmp_path / "whole")
    assert whole["best_valid"] >= 0.8 and whole["test"] >= 0.8
    assert more or any(
        "gets dicts of 3 types of nodes and 6 relations" in message for message in caplog.messages
    )
    train(configure(*overrides, *more, "train.epochs=4"), tmp_path / "half")
    (tmp_path / "half" / "summary.json").unlink()
    again = train(configure(*overrides, *more, "train.epochs=8"), tmp_path / "half")
    assert (
        again["weights_sha256"] == whole["weights_sha256"]
        and again["best_valid"] == whole["best_valid"]
    )


@pytest.mark.slow
def test_pairs_have_rows_of_every_type(configure, tmp_path, overrides, monkeypatch):
    missing, put_back = [], HeteroView.put_back

    def count_zeros(view, out, *args):
        rows = put_back(view, out, *args)
        missing.append(int((rows == 0).all(1).sum()))
        return rows

    monkeypatch.setattr(HeteroView, "put_back", count_zeros)
    found = train(
        configure(*overrides, "task=link", "task.relation=buys", "train.epochs=1"), tmp_path / "run"
    )
    assert 0 <= found["best_valid"] <= 1 and missing and not any(missing)

"""What a session does around a trainer whose scores are written down beforehand: which round is the best, when a run
ends, and what a stop at any moment leaves behind."""

import dataclasses
import math
import signal
import time

import pytest
import torch

from parallel_epochs.pipeline.loop import fit
from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.contract import About, Progress, RoundNumbers, Step
from parallel_epochs.pipeline.run.errors import Stopped
from parallel_epochs.pipeline.run.session import Session, shown_scores
from parallel_epochs.pipeline.run.summary import tabulate

NAN = math.nan


class Scripted:
    """Takes two steps a round, each adds 1 to its only weight; a round without a score is not evaluated.

    Args:
        valid: the validation metric of each round.
        stop_at: the step, from 1, at which it is asked to stop.
    """

    numbers = RoundNumbers(loss=1.0, lr=1.0, seconds=1.0, draw_seconds=0.0, sync_seconds=0.0)

    def __init__(self, valid, *, lower_is_better=False, stop_at=0):
        self.progress, self._valid, self._stop_at = Progress(), valid, stop_at
        self.weight, self.num_rounds = torch.zeros(1), len(valid)
        self.about = About(
            metric="m",
            lower_is_better=lower_is_better,
            kernel="",
            arithmetic="",
            num_epochs=len(valid),
            num_steps=2,
            num_parameters=1,
        )

    def describe(self):
        return {}

    def steps(self):
        while self.progress.step_in_round < 2:
            self.weight += 1
            self.progress.step += 1
            self.progress.step_in_round += 1
            yield Step(
                self.progress.step,
                self.progress.step_in_round == 2,
                self.progress.step == self._stop_at,
            )

    def evaluate(self):
        score = self._valid[self.progress.round]
        self.progress.round += 1
        self.progress.epochs = self.progress.round
        self.progress.begin_round()
        return None if score is None else dict.fromkeys(SPLITS, score)

    def weights(self):
        return {"weight": self.weight}

    fingerprint = weights

    def state(self):
        return {"weight": self.weight, "progress": dataclasses.asdict(self.progress)}

    def load(self, state):
        self.weight.copy_(state["weight"])
        self.progress = Progress(**state["progress"])


def run(folder, valid, *, lower_is_better=False, stop_at=0, **options):
    trainer = Scripted(valid, lower_is_better=lower_is_better, stop_at=stop_at)
    with Session(folder, **options) as session:
        return fit(trainer, session)


def test_the_work_before_the_first_step_counts(tmp_path):
    assert run(tmp_path, [0.5], began=time.perf_counter() - 1000)["wall_seconds"] > 1000
    assert (
        run(tmp_path, [0.5], began=time.perf_counter() - 1000)["wall_seconds"] > 2000
    )  # of both starts


def test_a_metric_without_splits_is_shown_once():
    splits = {"train": 0.5, "valid": 0.5, "test": 0.5}
    assert shown_scores(splits | {"mrr@heads": 0.4}, "mrr") == splits
    assert shown_scores(splits | {"knn_acc": 0.5, "auc": 0.4}, "knn_acc") == {"knn_acc": 0.5}
    summary = {
        "metric": "auc",
        "train": 0.5,
        "best_valid": 0.6,
        "test": 0.7,
        "best_epoch": 1,
        "data_epochs": 1,
        "num_ranks": 1,
        "num_parameters": 1,
        "kernel": "",
        "command_seconds": 113.0,
        "opening_seconds": 108.5,
        "peak_memory_bytes": 1,
        "weights_sha256": "",
    }
    assert [name for name, _ in tabulate(summary)][:4] == [
        "train auc",
        "valid auc",
        "test auc",
        "best epoch",
    ]
    assert dict(tabulate(summary))["wall time"] == (
        "113.0 s, of which reading and simple methods took 108.5 s"
    )
    assert [name for name, _ in tabulate(summary | {"scores": {"auc": 0.6}})][:2] == [
        "auc",
        "best epoch",
    ]


@pytest.mark.parametrize(
    "valid, lower_is_better, best",
    [
        ([0.5, 0.7, 0.6], False, 2),
        ([0.5, 0.7, 0.6], True, 1),
        ([0.5, 0.5, 0.5], False, 1),
        ([0.5, 0.5, 0.5], True, 1),
        ([NAN, NAN, NAN], False, 3),
        ([0.5, None, 0.4], False, 1),
        ([0.2, None, 0.4], False, 3),
    ],
)
def test_the_best_round_is_the_first_of_equal_ones_or_the_last_undefined_one(
    valid, lower_is_better, best, tmp_path
):
    file, seen = tmp_path / "checkpoints" / "best.pt", []
    result = run(
        tmp_path,
        valid,
        lower_is_better=lower_is_better,
        on_best=lambda: seen.append(checkpoint.load(file)["epoch"]),
    )
    kept = checkpoint.load(file)
    assert seen[-1] == best and len(set(seen)) == len(seen) <= 3
    assert [result[name] for name in ("best_epoch", "num_rounds", "data_epochs")] == [best, 3, 3]
    assert (kept["epoch"], kept["round"], kept["model"]["weight"].item()) == (
        best,
        best - 1,
        2 * best,
    )
    assert kept["scores"] == pytest.approx(dict.fromkeys(SPLITS, valid[best - 1]), nan_ok=True)
    assert result["best_valid"] == pytest.approx(kept["scores"]["valid"], nan_ok=True)


@pytest.mark.parametrize(
    "valid, patience, rounds",
    [
        ([0.5, 0.4, 0.5, 0.6], 1, 2),
        ([0.5, 0.4, 0.5, 0.6], 2, 3),
        ([0.5, 0.4, 0.5, 0.6], 3, 4),
        ([0.5, None, None, 0.4, 0.6], 1, 4),
        ([0.5, 0.4, 0.6, 0.5, 0.4, 0.3], 2, 5),
        ([0.5, 0.4, 0.3, 0.2], 0, 4),
    ],
)
def test_a_run_ends_after_as_many_worse_evaluations_as_its_patience(
    valid, patience, rounds, tmp_path
):
    for _ in ("first", "again"):
        assert run(tmp_path, valid, patience=patience)["num_rounds"] == rounds


def test_a_checkpoint_of_other_data_or_of_another_version_is_refused(tmp_path):
    run(tmp_path, [0.5], data_hash="one")
    run(tmp_path, [0.5], data_hash="one")
    with pytest.raises(ValueError, match="the dataset is not the one that this run was started"):
        run(tmp_path, [0.5], data_hash="other")
    path = tmp_path / "checkpoints" / "last.pt"
    kept = checkpoint.load(path)
    checkpoint.save(path, {key: kept[key] for key in kept if key != "format"})
    with pytest.raises(ValueError, match="by another version of this program.* start a new run"):
        run(tmp_path, [0.5], data_hash="one")


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 5])
def test_a_run_that_was_stopped_goes_on_where_it_was(stop_at, tmp_path, caplog):
    """A round whose last step was taken is closed first; without an evaluation its checkpoint is saved none the less."""
    valid = [0.5, None, 0.7]
    caplog.set_level("INFO")
    with pytest.raises(Stopped) as stopped:
        run(tmp_path, valid, stop_at=stop_at)
    told = "best so far: epoch 1, train m 0.5000, valid m 0.5000, test m 0.5000"
    assert (told in caplog.text) == (stop_at > 1)
    assert stopped.value.signum == signal.SIGTERM
    saved = checkpoint.load(tmp_path / "checkpoints" / "last.pt")
    progress = Progress(**saved["progress"])
    assert (progress.round, progress.step_in_round) == divmod(stop_at, 2) and saved[
        "weight"
    ].item() == stop_at
    result = run(tmp_path, valid)
    assert result["num_rounds"] == result["best_epoch"] == 3
    assert checkpoint.load(tmp_path / "checkpoints" / "last.pt")["weight"].item() == 6
    assert result["wall_seconds"] > progress.wall_seconds > 0, "the time of all starts counts"


def test_a_run_that_is_stopped_at_its_last_step_has_ended(tmp_path):
    assert run(tmp_path, [0.5, 0.6], stop_at=4)["num_rounds"] == 2

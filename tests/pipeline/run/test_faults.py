"""What hurts a run from outside: kills at the worst moments, full disks, damaged files, signals."""

import os
import signal
from pathlib import Path

import pytest
import torch

from parallel_epochs.pipeline.run import checkpoint
from tests.helpers.guard_cases import die_while_saving
from tests.helpers.running import (
    TOY,
    command,
    forked,
    rounds_of,
    shell,
    status_of,
    summary_of,
    wait_for_rounds,
)

RUN = [*TOY, "train.epochs=8"]


POINTS = [
    "before the temporary file",
    "half-written",
    "before the rename",
    "after the rename",
    "while pruning",
]


def save_and_die(point: str, folder: Path) -> None:
    """Save checkpoint after checkpoint; the process kills itself at a named point of the third."""
    die_while_saving(point, 3)
    for round_ in range(1, 9):
        checkpoint.save_last(folder, {"round": round_, "weights": torch.full((3,), round_)})


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_of_a_save_leaves_a_whole_checkpoint(point, tmp_path, caplog):
    assert status_of(forked(save_and_die, point, tmp_path)) == -signal.SIGKILL
    left = checkpoint.load_last(tmp_path)
    assert left["round"] == (3 if point == "after the rename" else 2) and bool(
        (left["weights"] == left["round"]).all()
    )
    checkpoint.save_last(tmp_path, {"round": 9})
    assert checkpoint.load_last(tmp_path) == {"round": 9} and "damaged" not in caplog.text
    assert sorted(os.listdir(tmp_path)) == ["last.pt", "previous.pt"]
    assert checkpoint.load(tmp_path / "previous.pt")["round"] == left["round"]


def sweep(folder, cache, *overrides) -> list[str]:
    return [
        "pipeline.train",
        "-m",
        *TOY,
        f"cache_dir={cache}",
        f"hydra.sweep.dir={folder}",
        *overrides,
    ]


@pytest.mark.slow
def test_a_killed_sweep_trains_what_is_missing(tmp_path):
    folder, cache = tmp_path / "sweep", tmp_path / "cache"
    arguments = sweep(
        folder, cache, "+sweep=seeds", "hydra.sweeper.params.seed='range(0,3)'", "train.epochs=40"
    )
    process = command(*arguments, cwd=tmp_path)
    (folder / "1").mkdir(parents=True)
    wait_for_rounds(folder / "1", 5, process)
    process.kill()
    process.wait()
    before = (folder / "0" / "summary.json").stat().st_mtime_ns
    again = shell(*arguments, cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert (
        folder / "0" / "summary.json"
    ).stat().st_mtime_ns == before and "0 has been trained already" in again.stdout
    assert "resumed after" in (folder / "1" / "train.log").read_text()
    assert [summary_of(folder / str(i))["seed"] for i in range(3)] == [0, 1, 2]
    assert all(
        [e["round"] for e in rounds_of(folder / str(i))] == list(range(40)) for i in range(3)
    )


@pytest.mark.slow
def test_a_failing_member_does_not_sink_the_others(tmp_path):
    done = shell(
        *sweep(tmp_path / "sweep", tmp_path / "cache", "partition.num_parts=2,9999,3"), cwd=tmp_path
    )
    assert done.returncode == 1
    assert (tmp_path / "sweep" / "0" / "summary.json").exists() and (
        tmp_path / "sweep" / "2" / "summary.json"
    ).exists()
    assert (
        "partition.num_parts=9999 is more than the 240 nodes"
        in (tmp_path / "sweep" / "1" / "train.log").read_text()
    )
    assert "error: partition.num_parts=9999 is more than the 240 nodes of the graph" in done.stderr

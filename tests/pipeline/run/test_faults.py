"""What hurts a run from outside: kills at the worst moments, full disks, damaged files, signals."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.errors import EXIT_TRY_AGAIN
from tests.helpers import disks
from tests.helpers.guard_cases import die_while_saving
from tests.helpers.running import (
    TOY,
    command,
    forked,
    rounds_of,
    shell,
    start,
    status_of,
    summary_of,
    train,
    wait_for_rounds,
)

RUN = [*TOY, "train.epochs=8"]


def train_killed_while_saving(point: str, config, folder) -> None:
    """Train; the process kills itself at a named point of the fifth save of last.pt."""
    die_while_saving(point, 5)
    train(config, folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The configuration of a run, and what comes of it when nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    config = cli.compose_config([*RUN, f"cache_dir={folder / 'cache'}"])
    return config, train(config, folder / "run")


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


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_of_a_save_loses_nothing(point, undisturbed, tmp_path, caplog):
    config, expected = undisturbed
    folder = tmp_path / "run"
    assert status_of(forked(train_killed_while_saving, point, config, folder)) == -signal.SIGKILL
    left = checkpoint.load(folder / "checkpoints" / "last.pt")
    assert left["round"] == (5 if point == "after the rename" else 4)
    assert train(config, folder)["weights_sha256"] == expected["weights_sha256"]
    assert "damaged" not in caplog.text and not list(folder.rglob("*.tmp"))
    assert [e["round"] for e in rounds_of(folder)] == list(range(8))


@pytest.mark.parametrize(
    "signum",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        *(
            pytest.param(signum, marks=pytest.mark.exhaustive)
            for signum in (signal.SIGUSR1, signal.SIGUSR2)
        ),
    ],
)
def test_a_signal_saves_in_the_middle_of_an_epoch(signum, configure, tmp_path):
    # Of six epochs of 100 steps only the last would evaluate and save.
    config = configure(*TOY, "partition.num_parts=100", "train.epochs=6", "train.eval_every=6")
    expected, folder = train(config, tmp_path / "whole"), tmp_path / "stopped"
    pid = forked(train, config, folder)
    while len(rounds_of(folder)) < 1:
        time.sleep(0.005)
    os.kill(pid, signum)
    assert status_of(pid) == EXIT_TRY_AGAIN
    at = checkpoint.load(folder / "checkpoints" / "last.pt")["progress"]
    assert 100 <= at["step"] < 600 and not (folder / "summary.json").exists()
    resumed = train(config, folder)
    for key in ("weights_sha256", "test", "best_valid"):
        assert resumed[key] == expected[key]
    assert [e["loss"] for e in rounds_of(folder)] == [
        e["loss"] for e in rounds_of(tmp_path / "whole")
    ]


@pytest.mark.slow
def test_a_stopped_command_says_how_to_go_on(tmp_path):
    process = start([*RUN, "train.epochs=100000"], tmp_path / "run", tmp_path / "cache")
    wait_for_rounds(tmp_path / "run", 1, process)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == EXIT_TRY_AGAIN
    assert f"stopped by SIGTERM; continue with resume={tmp_path / 'run'}" in output


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own with 2 MiB, where this may be mounted."""
    with disks.small_disk(tmp_path / "disk", 2) as folder:
        yield folder


@pytest.mark.parametrize(
    "hurt,message",
    [
        pytest.param("full", "No space left on device", marks=pytest.mark.slow),
        pytest.param("read-only", "Read-only file system", marks=pytest.mark.exhaustive),
    ],
)
def test_a_disk_that_takes_no_more_is_loud_and_the_last_checkpoint_stays(
    hurt, message, configure, small_disk, tmp_path, capfd
):
    config = configure(*RUN, "train.epochs=120")
    expected, folder = train(config, tmp_path / "whole"), small_disk / "run"
    checkpoints = folder / "checkpoints"
    pid = forked(train, config, folder)
    while len(rounds_of(folder)) < 3:
        time.sleep(0.005)
    if hurt == "full":
        with open(small_disk / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"0" * 4096)
    else:
        disks.mount("--bind", checkpoints, checkpoints)
        disks.mount("-o", "remount,bind,ro", checkpoints)
    assert status_of(pid) == 1 and message in capfd.readouterr().err
    if hurt == "full":
        (small_disk / "filler").unlink()
    else:
        disks.unmount(checkpoints)
    assert checkpoint.load_last(checkpoints)["round"] >= 2
    assert (
        train(config, folder)["weights_sha256"] == expected["weights_sha256"]
        and len(rounds_of(folder)) == 120
    )


def test_two_processes_that_build_the_same_cache_both_train_and_a_damaged_one_is_built_again(
    configure, tmp_path, caplog
):
    config = configure(*RUN, "train.epochs=1")
    pids = [forked(train, config, tmp_path / name) for name in ("a", "b")]
    assert [status_of(pid) for pid in pids] == [0, 0]
    weights = {summary_of(tmp_path / name)["weights_sha256"] for name in ("a", "b")}
    (graph,) = (tmp_path / "cache" / "graphs").glob("*.store/edge_attr.bin")
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 255
    graph.write_bytes(content)
    assert {train(config, tmp_path / "second")["weights_sha256"]} == weights
    assert "damaged" in caplog.text and "preparing the graph again" in caplog.text


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

"""What a run must notice by itself, with real ranks where it is about ranks."""

import ctypes
import dataclasses
import json
import multiprocessing
import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from parallel_epochs.pipeline import keys, training
from parallel_epochs.pipeline.data.cache import load
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.gnn.trainer import GNNTrainer
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.errors import EXIT_TRY_AGAIN, RankError, Stopped
from parallel_epochs.pipeline.run.stop import STOP_SIGNALS, StopRequest
from parallel_epochs.pipeline.run.threads import threads_per_rank
from tests.helpers import guard_cases
from tests.helpers.running import TOY, forked, shell, status_of, summary_of, train
from tests.helpers.tensors import threads

pytestmark = pytest.mark.usefixtures("importable")
TWO = [*TOY, "parallel.num_ranks=2", "train.epochs=8"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def train_hurt(monkeypatch):
    """Train with ranks of which something is changed; see guard_cases."""

    def train_changed(config, folder, hurt=None):
        with monkeypatch.context() as patch:
            patch.setattr(training, "_train_launched", partial(guard_cases.train_hurt, hurt))
            return train(config, folder)

    return train_changed


def seen_by(rank: int, folder: Path, what: str) -> list:
    """What a rank wrote down, in order."""
    lines = [json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()]
    return [line[what] for line in lines if what in line]


@pytest.mark.slow
def test_weights_that_drift_in_training_stop_the_run(configure, tmp_path, train_hurt):
    # Rounds have four steps, and eval_every=4 epochs of two ranks are two rounds.
    config = configure(*TWO, "train.epochs=16", "train.eval_every=4")
    with pytest.raises(RankError, match="the weights of rank 1 differ from those of rank 0"):
        train_hurt(config, tmp_path / "run", partial(guard_cases.drift, 7))
    assert seen_by(0, tmp_path / "run", "step") == list(range(1, 9))
    saved = checkpoint.load_last(tmp_path / "run" / "checkpoints")
    assert saved is None or saved["progress"]["step"] < 7


@linux
def test_ranks_have_their_own_random_numbers_their_threads_and_one_copy_of_the_graph_and_leave_together(
    configure, tmp_path, train_hurt
):
    # A number that is nobody's default.
    threads = os.cpu_count() + 1
    config = configure(
        *TWO, "evaluation=views", "train.epochs=4", f"parallel.threads_per_rank={threads}"
    )
    # One of them has evaluated before the request to stop.
    with pytest.raises(Stopped):
        train_hurt(config, tmp_path / "run", guard_cases.finish_before_the_others_are_stopped)
    assert (
        checkpoint.load(tmp_path / "run" / "checkpoints" / "last.pt")["progress"]["step_in_round"]
        == 4
    )
    random = [seen_by(rank, tmp_path / "run", "random") for rank in (0, 1)]
    assert len(random[0]) == len(random[1]) == 4 and len({*random[0], *random[1]}) == 8
    (graph,) = (tmp_path / "cache" / "graphs").glob("*.store")
    for rank in (0, 1):
        assert set(seen_by(rank, tmp_path / "run", "threads")) == {threads}
        assert all(
            any(str(graph) in path for path in maps)
            for maps in seen_by(rank, tmp_path / "run", "maps")
        )


def test_threads_are_those_asked_for_or_the_processors_shared_out(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    assert [threads_per_rank(ranks) for ranks in (1, 2, 5, 12, 13)] == [12, 6, 2, 1, 1]
    assert threads_per_rank(4, 7) == 7


def test_a_single_process_has_the_threads_asked_for(configure, tmp_path, monkeypatch):
    before, seen, loss = torch.get_num_threads(), [], NodeTask.loss
    monkeypatch.setattr(
        NodeTask, "loss", lambda *args: seen.append(torch.get_num_threads()) or loss(*args)
    )
    config = configure(*TOY, "train.epochs=1")
    for number, expected in ((0, before), (before + 1, before + 1)):
        train(
            keys.replaced(config, {"parallel.threads_per_rank": number}), tmp_path / str(expected)
        )
        assert seen == [expected] * 4 and torch.get_num_threads() == before
        seen.clear()


@linux
@pytest.mark.parametrize("verified", [True, False])
def test_a_graph_from_the_cache_is_a_mapped_file(verified, configure, tmp_path):
    config = configure(*TOY)
    content_hash = load(config.data, config.cache_dir).content_hash
    data = load(config.data, config.cache_dir, content_hash=None if verified else content_hash)
    (graph,) = (tmp_path / "cache" / "graphs").glob("*.store")
    mapped = [
        [int(end, 16) for end in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if f" {graph}/" in line
    ]
    for tensor in (
        data.x,
        data.edge_attr,
        data.y,
        data.edge_index.as_tensor(),
        data.edge_index.get_csc()[0][0],
    ):
        assert any(first <= tensor.data_ptr() < last for first, last in mapped)


@pytest.mark.slow
def test_a_sweeper_gets_the_best_validation_metric(tmp_path):
    sweep = [
        "-m",
        *TOY,
        "train.epochs=1",
        "seed=0,1",
        f"cache_dir={tmp_path / 'cache'}",
        f"hydra.sweep.dir={tmp_path}",
        "+hydra.callbacks.returned._target_=tests.helpers.guard_cases.ReturnValues",
        f"+hydra.callbacks.returned.folder={tmp_path}",
    ]
    for _ in ("trained", "trained already"):
        done = shell("pipeline.train", *sweep, cwd=tmp_path, PYTHONPATH=os.environ["PYTHONPATH"])
        assert done.returncode == 0, done.stdout + done.stderr
        expected = [summary_of(tmp_path / seed)["best_valid"] for seed in "01"]
        assert [
            json.loads(line) for line in (tmp_path / "returned.jsonl").read_text().splitlines()
        ] == expected
        assert len({0, *expected}) == 3
        (tmp_path / "returned.jsonl").unlink()


@pytest.fixture
def signalled(monkeypatch):
    """Train; this process gets a signal before an optimizer step of the run, from 1."""

    def train_signalled(config, folder, number):
        step = GNNTrainer._step

        def changed(self, batch, lr):
            if self.progress.step + 1 == number:
                signal.raise_signal(signal.SIGUSR1)
            return step(self, batch, lr)

        with monkeypatch.context() as patch, pytest.raises(Stopped):
            patch.setattr(GNNTrainer, "_step", changed)
            train(config, folder)

    return train_signalled


@pytest.mark.parametrize("is_ignored", [False, True])
def test_the_end_of_a_terminal_stops_a_run_unless_it_is_ignored(is_ignored):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        with StopRequest() as stop:
            stop.defer()
            signal.raise_signal(signal.SIGHUP)
            assert stop.signum == (0 if is_ignored else signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_are_noted_and_given_back():
    before = [signal.signal(signum, signal.SIG_IGN) for signum in STOP_SIGNALS]
    try:
        with StopRequest() as stop:
            stop.defer()
            assert stop.signum == 0
            signal.raise_signal(signal.SIGUSR2)
            assert stop.signum == signal.SIGUSR2
        assert [signal.getsignal(signum) for signum in STOP_SIGNALS] == [signal.SIG_IGN] * len(
            STOP_SIGNALS
        )
    finally:
        for signum, handler in zip(STOP_SIGNALS, before, strict=True):
            signal.signal(signum, handler)


def test_before_there_is_anything_to_save_a_signal_ends_the_run_at_once():
    with pytest.raises(Stopped, match="stopped by SIGUSR1"), StopRequest():
        signal.raise_signal(signal.SIGUSR1)


def test_the_second_ctrl_c_is_not_noted():
    before = signal.getsignal(
        signal.SIGINT
    )  # a command that was called here before may have left its own
    with StopRequest() as stop:
        stop.defer()
        signal.raise_signal(signal.SIGINT)
        assert stop.signum == signal.SIGINT and signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert (
        Stopped(signal.SIGINT).exit_status == 130
        and Stopped(signal.SIGTERM).exit_status == EXIT_TRY_AGAIN
    )
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.slow
def test_two_threads_stopped_in_the_middle_of_a_round_end_with_the_same_bits(
    configure, tmp_path, signalled
):
    # Big enough that torch divides its sums among threads.
    config = configure(
        *TOY,
        "data.num_nodes=1200",
        "data.num_edges=24000",
        "model.hidden_channels=32",
        "train.epochs=2",
    )
    with threads(2):
        whole = train(config, tmp_path / "whole")
        signalled(config, tmp_path / "stopped", 6)
        saved = checkpoint.load(tmp_path / "stopped" / "checkpoints" / "last.pt")
        assert saved["progress"]["step_in_round"] == 2 and "2 threads" in saved["arithmetic"]
        resumed = train(config, tmp_path / "stopped")
        assert torch.get_num_threads() == 2
    assert resumed["weights_sha256"] == whole["weights_sha256"] and resumed["test"] == whole["test"]


def train_on_another_node(config, folder, writing) -> None:
    """Train in a process number space of its own, and write the first file at the same time as another such process."""
    CLONE_NEWPID = 0x20000000
    if ctypes.CDLL(None).unshare(CLONE_NEWPID) != 0:
        os._exit(EXIT_TRY_AGAIN)

    def train_there() -> None:
        assert os.getpid() == 1
        save = torch.save

        def together(state, file):
            torch.save = save
            save(state, file)
            writing.wait(60)

        torch.save = together
        train(config, folder)

    os._exit(status_of(forked(train_there)))


@linux
def test_two_nodes_that_prepare_the_same_cache_at_once_both_train(configure, tmp_path):
    config, writing = (
        configure(*TOY, "train.epochs=1"),
        multiprocessing.get_context("fork").Barrier(2),
    )
    expected = train(
        dataclasses.replace(config, cache_dir=str(tmp_path / "another")), tmp_path / "alone"
    )
    pids = [forked(train_on_another_node, config, tmp_path / name, writing) for name in "ab"]
    statuses = [status_of(pid) for pid in pids]
    if statuses == [EXIT_TRY_AGAIN, EXIT_TRY_AGAIN]:
        pytest.skip("may not make a process number space")
    assert statuses == [0, 0]
    assert {summary_of(tmp_path / name)["weights_sha256"] for name in "ab"} == {
        expected["weights_sha256"]
    }
    assert not list(tmp_path.rglob("*.tmp"))

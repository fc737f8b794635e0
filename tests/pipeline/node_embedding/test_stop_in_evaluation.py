"""Asked to stop while vectors of nodes are scored, a run leaves at once, and ends with the same bits when resumed."""

import os
import signal
import time
from functools import partialmethod

import numpy as np
import pytest

from parallel_epochs.pipeline.block_training import cosines
from parallel_epochs.pipeline.node_embedding import probe
from parallel_epochs.pipeline.node_embedding.probe import LabelProbe, LinkProbe
from parallel_epochs.pipeline.run import checkpoint
from parallel_epochs.pipeline.run.errors import EXIT_TRY_AGAIN, Stopped
from tests.helpers.running import finish, rounds_of, start, summary_of, train, wait_for_rounds

OPTIONS = [
    "trainer=node_embedding",
    "data=edges",
    "trainer.dim=8",
    "trainer.num_parts=4",
    "trainer.episode_size=3000",
    "train.epochs=20",
    "train.eval_every=5",
    "trainer.num_draws=2",
]
METRICS = {
    "micro_f1": ["trainer.metric=micro_f1"],
    "auc": ["trainer.metric=auc", "trainer.holdout=0.2"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A table of edges of two communities, and one of three labels."""
    path, rng = tmp_path_factory.mktemp("edges"), np.random.default_rng(0)
    rows = [
        (a, b)
        for a in range(60)
        for b in range(a)
        if rng.random() < (0.4 if a // 30 == b // 30 else 0.02)
    ]
    (path / "edges.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    (path / "labels.tsv").write_text(
        "".join(f"{a} {'xy'[a // 30]}{' third' if a % 3 else ''}\n" for a in range(60))
    )
    return [f"data.path={path / 'edges.tsv'}", f"data.labels={path / 'labels.tsv'}"]


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("part", [1, 2])
def test_a_stop_in_an_evaluation_changes_no_bit(
    metric, part, files, configure, tmp_path, monkeypatch
):
    config = configure(*OPTIONS, *files, *METRICS[metric])
    # `begun` has the number of parts that were asked for before each evaluation.
    calls, done, begun, heed = [], [], [], probe.heed

    def stopping(stop):
        calls.append(len(calls))
        if len(calls) == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        heed(stop)
        done.append(len(calls))

    def beginning(probe, vectors, score):
        begun.append(len(calls))
        return score(probe, vectors)

    stop_at = -1
    for kind in (LabelProbe, LinkProbe):
        monkeypatch.setattr(kind, "__call__", partialmethod(beginning, score=kind.__call__))
    monkeypatch.setattr(probe, "heed", stopping)
    monkeypatch.setattr(cosines, "heed", stopping)
    whole = train(config, tmp_path / "whole")
    assert sum("test" in record for record in rounds_of(tmp_path / "whole")) == len(begun) == 4
    calls.clear(), done.clear()
    stop_at = begun[1] + part  # in the second evaluation
    with pytest.raises(Stopped):
        train(config, tmp_path / "parts")
    assert (
        stop_at - 2 <= len(done) < begun[2]
    )  # a signal reaches the main thread, others compute the parts
    progress = checkpoint.load(tmp_path / "parts" / "checkpoints" / "last.pt")["progress"]
    rounds = rounds_of(tmp_path / "parts")
    assert progress["step_in_round"] == 4 and progress["round"] == len(rounds)
    assert sum("test" in record for record in rounds) == 1
    stop_at = -1
    resumed = train(config, tmp_path / "parts")
    for key in ("weights_sha256", "test", "best_valid", "scores"):
        assert resumed.get(key) == whole.get(key)
    same = ("round", "loss", "lr", "num_pairs", "valid", "test")
    assert [{key: record.get(key) for key in same} for record in rounds_of(tmp_path / "parts")] == [
        {key: record.get(key) for key in same} for record in rounds_of(tmp_path / "whole")
    ]


class Asked:
    """A request to stop that has come."""

    signum = signal.SIGUSR1

    def check(self):
        raise Stopped(self.signum)


def test_probes_leave_before_they_begin_when_asked():
    labels = np.eye(2)[np.arange(20) % 2]
    vectors = np.random.default_rng(0).standard_normal((20, 4))
    with pytest.raises(Stopped):
        LabelProbe(
            labels, metric="micro_f1", portions=[], num_draws=1, num_threads=2, stop=Asked()
        )(vectors)
    pairs = np.arange(20).reshape(10, 2)
    with pytest.raises(Stopped):
        LinkProbe({"test": (pairs, pairs)}, stop=Asked())(vectors)


def test_parts_of_pairs_are_scored_as_all_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((50, 16)).astype(np.float32)
    pairs = {"test": (rng.integers(50, size=(40, 2)), rng.integers(50, size=(33, 2)))}
    whole = LinkProbe(pairs)(vectors)
    monkeypatch.setattr(cosines, "PAIRS", 7)
    assert LinkProbe(pairs)(vectors) == whole and 0 < whole["test"] < 1


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_real_signal_ends_a_long_evaluation(ranks, files, tmp_path):
    # The evaluation takes a minute, and a step no time.
    overrides = [
        *OPTIONS,
        *files,
        "trainer.metric=micro_f1",
        "train.eval_every=20",
        f"parallel.num_ranks={ranks}",
        "parallel.stop_timeout=1000",
    ]
    num_rounds = _rounds_of_a_run([*overrides, "trainer.num_draws=1"], tmp_path)
    process = start([*overrides, "trainer.num_draws=999"], tmp_path / "run", tmp_path / "cache")
    wait_for_rounds(tmp_path / "run", num_rounds - 1, process)
    time.sleep(2)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == EXIT_TRY_AGAIN and time.monotonic() - began < 30, output
    progress = checkpoint.load(tmp_path / "run" / "checkpoints" / "last.pt")["progress"]
    assert progress["round"] == num_rounds - 1 and progress["step_in_round"] == 4, output


def _rounds_of_a_run(overrides, tmp_path):
    status, output = finish(overrides, tmp_path / "short", tmp_path / "cache")
    assert status == 0, output
    return summary_of(tmp_path / "short")["num_rounds"]

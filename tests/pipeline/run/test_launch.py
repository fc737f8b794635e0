"""The process that starts the ranks, without ranks: what it does of a signal, of the watchdog's verdict, of exits."""

import signal
from types import SimpleNamespace

import pytest

from parallel_epochs.pipeline.run import launch, pulse, ranks
from parallel_epochs.pipeline.run.errors import RankError, Stopped
from parallel_epochs.pipeline.run.stop import StopRequest


@pytest.fixture
def start(monkeypatch):
    """Launch ranks that do not exist. The argument is called while they would run, and returns what becomes of them."""

    def call(wait):
        processes = SimpleNamespace(wait=lambda period: wait(), close=lambda signum: None)
        monkeypatch.setattr(launch, "start_processes", lambda *args, **kwargs: processes)
        with StopRequest() as stop:
            return launch.launch(print, 2, 1, stop), stop.signum

    for name in ("start_rank_server", "_wait_for_server"):
        monkeypatch.setattr(launch, name, lambda: None)
    return call


def test_the_launcher_notes_a_signal_and_waits_for_the_ranks(start):
    def wait():
        signal.raise_signal(signal.SIGTERM)
        return SimpleNamespace(is_failed=lambda: False, return_values={0: "result", 1: None})

    assert start(wait) == ("result", signal.SIGTERM)


@pytest.mark.parametrize(
    "verdict, error, message",
    [
        (None, RankError, "rank 1 failed: killed"),
        ({"signum": 0, "message": "rank 0 is silent"}, Stopped, "rank 0 is"),
    ],
)
def test_the_watchdogs_verdict_says_why_ranks_ended(
    verdict, error, message, start, monkeypatch, tmp_path
):
    monkeypatch.setattr(pulse, "board", lambda: SimpleNamespace(folder=tmp_path, verdict=verdict))
    failure = SimpleNamespace(error_file_data={"message": "killed"}, message="killed\nmore")
    with pytest.raises(error, match=message):
        start(lambda: SimpleNamespace(is_failed=lambda: True, failures={1: failure}))


@pytest.mark.parametrize("code", [0, 3, None])
def test_an_exit_of_a_rank_is_no_end_of_its_work(code, monkeypatch):
    for module, name in (
        (launch, "follow_parent"),
        (launch, "use_threads"),
        (ranks, "leave"),
        (pulse, "leave"),
    ):
        monkeypatch.setattr(module, name, lambda *args: None)
    monkeypatch.setattr(ranks, "from_environment", ranks.Ranks)

    def work(me, stop):
        raise SystemExit(code)

    with pytest.raises(RankError, match=rf"sys.exit\({code}\) was called"):
        launch._run_rank(work, 1, StopRequest(), None)

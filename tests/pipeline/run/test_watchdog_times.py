"""What the watchdog counts: not the time in which it was stopped itself, and one request to stop as one."""

import os
import signal

import pytest

from parallel_epochs.pipeline.run import watchdog
from parallel_epochs.pipeline.run.pulse import Board, Sign, State
from parallel_epochs.pipeline.run.watchdog import Limits, Watchdog

SECONDS = 10.0


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def dog(tmp_path, clock, monkeypatch):
    """Watches a rank that gives no sign of life; what it ends is noted in `ended`."""
    board = Board.create(1)
    board.write(0, Sign(1000, 0, State.BUSY, 1.0, "step 12 of round 3", 1.0))
    monkeypatch.setattr(watchdog, "_stat", lambda pid: "R")
    dog = Watchdog(
        str(board.folder),
        str(tmp_path),
        True,
        os.getpid(),
        [signal.SIGINT, signal.SIGTERM],
        vars(Limits(warn_after=2.0, timeout=SECONDS, stop_timeout=SECONDS)),
    )
    dog.ended = []
    monkeypatch.setattr(dog, "_end", lambda message, *_: dog.ended.append(message) or True)
    yield dog
    board.remove()


def looks_until_the_end(dog, clock) -> float:
    """Look four times a second; returns after how many seconds the run was ended."""
    for number in range(200):
        if dog.look():
            return number / 4
        clock[0] += 0.25
    pytest.fail("the run was not ended")


def test_the_time_in_which_a_job_was_stopped_is_not_silence(dog, clock):
    """As by SIGSTOP and SIGCONT of the whole job, or while a laptop's lid was shut."""
    assert not dog.look()
    for _ in range(3):
        clock[0] += 1000
        assert not dog.look() and not dog.ended
    assert SECONDS - 4 < looks_until_the_end(dog, clock) <= SECONDS + 0.25
    assert "parallel.timeout=10 ends the run" in dog.ended[0]


def test_neither_is_it_time_that_a_request_to_stop_has_taken(dog, clock):
    dog._hear(bytes([signal.SIGTERM]))
    assert not dog.look()
    clock[0] += 1000
    assert not dog.look() and not dog.ended
    assert SECONDS - 2 < looks_until_the_end(dog, clock) <= SECONDS + 0.25


@pytest.mark.parametrize(
    "signals, at_once",
    [
        ([signal.SIGINT], False),
        ([signal.SIGINT, signal.SIGINT], True),
        ([signal.SIGTERM, signal.SIGTERM], False),
        ([signal.SIGINT, signal.SIGTERM], False),
        ([signal.SIGUSR1, signal.SIGINT], False),
    ],
)
def test_only_a_second_ctrl_c_ends_the_run_at_once(signals, at_once, dog, clock):
    for signum in signals:
        dog._hear(bytes([signum]))
    assert dog.look() == at_once == bool(dog.ended)
    if not at_once:  # it has the time that the limits give it
        assert looks_until_the_end(dog, clock) == SECONDS
        assert (
            f"stopped by {signals[-1].name}; the current step did not end within 10 s"
            in dog.ended[0]
        )

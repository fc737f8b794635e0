"""Who is silent, who only waits, and what becomes of a run that hangs."""

import logging
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from parallel_epochs.pipeline.command import folder as run_folder
from parallel_epochs.pipeline.run import pulse, watchdog
from parallel_epochs.pipeline.run.pulse import PERIOD, Board, Sign, State
from parallel_epochs.pipeline.run.watchdog import Limits, Watchdog, watch
from tests.helpers.kill_runs import STRIKES, strike_run
from tests.helpers.running import ROOT, TOY, shell


@pytest.fixture
def board():
    board = Board.create(3)
    yield board
    board.remove()


@pytest.fixture
def kills(monkeypatch):
    """The signals that are sent; nobody gets them, and everybody is gone at once."""
    sent = []
    monkeypatch.setattr(watchdog, "_kill", lambda pid, signum: sent.append((pid, signum)))
    monkeypatch.setattr(watchdog, "_is_alive", lambda pid: False)
    monkeypatch.setattr(watchdog, "_stat", lambda pid: "R")
    monkeypatch.setattr(Watchdog, "_trace", lambda self, place, pid: f"trace of {pid}")
    return sent


@pytest.fixture
def look(board, tmp_path, kills, monkeypatch):
    """Look at signs again and again; each is (state, whether it beats, whether its interpreter runs)."""
    now = [100.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])

    def look_for(seconds, *signs, asked=0, **limits):
        dog = Watchdog(
            str(board.folder),
            str(tmp_path),
            True,
            os.getpid(),
            [signal.SIGTERM],
            vars(Limits(**{"warn_after": 2.0, "timeout": 10.0, **limits})),
        )
        dog._stop_signum = asked
        end = now[0] + seconds
        while now[0] < end:
            now[0] += 0.25
            for place, (state, beats, runs) in enumerate(signs):
                rank = -1 if place == 2 else place
                board.write(
                    place,
                    Sign(
                        1000 + place,
                        rank,
                        state,
                        now[0] if beats else 1.0,
                        "step 12 of round 3",
                        now[0] if runs else 1.0,
                    ),
                )
            if dog.look():
                return True
        return False

    return look_for


BUSY, WAITS = (State.BUSY, False, True), (State.WAITING, False, True)


def test_a_silent_rank_is_named_and_those_that_wait_for_it_are_not(look, caplog, kills):
    assert not look(5, WAITS, BUSY, WAITS)
    assert (
        "rank 1 has been silent for 2 s" in caplog.text
        and "last seen: step 12 of round 3" in caplog.text
    )
    assert caplog.text.count("rank 1") == 2 and "rank 0" not in caplog.text and not kills
    caplog.clear()
    assert not look(5, (State.LONG, False, True), (State.BUSY, True, True), WAITS)
    assert not caplog.text


def test_a_request_to_stop_ends_ranks_that_only_start_at_once(board, tmp_path, kills):
    dog, of_torchrun = (
        Watchdog(
            str(board.folder), str(tmp_path), launches, os.getpid(), [signal.SIGINT], vars(Limits())
        )
        for launches in (True, False)
    )
    dog._stop_signum = of_torchrun._stop_signum = signal.SIGINT
    assert not dog.look()  # nobody has started: the launcher stops by itself
    for place, doing in enumerate(["starting", "starting, waiting for the other ranks"]):
        board.write(place, Sign(1000 + place, place, State.LONG, 1.0, "step 1", 1.0))
        assert not dog.look()
        board.write(place, Sign(1000 + place, place, State.LONG, 1.0, doing, 1.0))
    assert not of_torchrun.look() and not kills  # which ends its ranks itself
    assert dog.look() and board.verdict["message"] == "stopped by SIGINT while the ranks started"
    assert {pid for pid, signum in kills if signum == signal.SIGKILL} == {1000, 1001}


def test_a_rank_without_an_interpreter_is_the_guilty_one_even_if_it_waits(
    look, board, caplog, kills, tmp_path
):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.pt").touch()
    assert look(20, WAITS, (State.WAITING, False, False), WAITS)
    assert (
        "rank 1 has been silent for 10 s" in caplog.text
        and "parallel.timeout=10 ends the run" in caplog.text
    )
    assert "last.pt" in caplog.text and "traceback of rank 1:\ntrace of 1001" in caplog.text
    assert "rank 0" not in caplog.text and "silent for 10 s" in board.verdict["message"]
    assert {(1000, signal.SIGKILL), (1001, signal.SIGKILL)} == set(kills)


def test_a_request_to_stop_that_is_not_obeyed_ends_the_run(look, board, caplog, kills):
    caplog.set_level(logging.INFO)
    assert not look(3, WAITS, BUSY, WAITS, asked=signal.SIGTERM, stop_timeout=4.0)
    assert look(5, WAITS, BUSY, WAITS, asked=signal.SIGTERM, stop_timeout=4.0)
    assert (
        board.verdict["signum"] == signal.SIGTERM
        and "stopped by SIGTERM" in board.verdict["message"]
    )
    assert [
        record.levelname for record in caplog.records if "traceback of rank 1" in record.message
    ] == ["INFO"]


def test_a_checkpoint_that_is_being_written_is_waited_for_and_one_that_hangs_is_not(look, board):
    saving = (State.SAVING, False, True)
    assert not look(9, saving, WAITS, WAITS, asked=signal.SIGTERM, stop_timeout=4.0)
    assert look(9, WAITS, BUSY, WAITS, asked=signal.SIGTERM, stop_timeout=4.0)
    assert look(12, saving, WAITS, WAITS, asked=signal.SIGTERM, stop_timeout=4.0)
    assert "parallel.timeout=10 ends the run" in board.verdict["message"]


def test_who_is_stopped_himself_while_he_saves_is_not_waited_for(look, board):
    stopped = (State.SAVING, False, False)
    assert not look(3, stopped, WAITS, WAITS, asked=signal.SIGTERM, stop_timeout=4.0)
    assert look(6, stopped, WAITS, WAITS, asked=signal.SIGTERM, stop_timeout=4.0)
    assert "stopped by SIGTERM" in board.verdict["message"]


def test_all_waiting_are_named_and_long_phases_have_more_time(look, kills):
    assert look(12, WAITS, WAITS, WAITS) and not look(12, (State.LONG, False, True), WAITS, WAITS)


def test_signs_of_life_are_read_as_they_were_given(board):
    try:
        pulse.join(board, 1, 5)
        pulse.beat("step 1 of round 2")
        with pulse.waiting():
            sign = board.signs()[1]
            assert (sign.pid, sign.rank, sign.state) == (os.getpid(), 5, State.WAITING)
            assert sign.doing == "step 1 of round 2, waiting for the other ranks"
        assert (
            board.signs()[1].state == State.BUSY and board.signs()[1].doing == "step 1 of round 2"
        )
        before = board.signs()[1].alive
        time.sleep(2 * PERIOD)
        assert board.signs()[1].alive > before
    finally:
        pulse.leave()
    assert board.signs()[1].state == State.ENDED and board.signs()[0].state == State.ABSENT


HOLD = """
import ctypes, signal, sys, threading, time
from pathlib import Path
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.stop import StopRequest
from parallel_epochs.pipeline.run.watchdog import Limits, watch
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
stopped = sys.argv[1:] == ["stopped"]
board = pulse.Board.create(1)
pulse.join(board, 0, 0)
with StopRequest() as stop, watch(board, Path("."), Limits(0.4, 20 if stopped else 1.5, 1.5)):
    stop.defer()
    pulse.beat("step 7 of round 1")
    print("ready", flush=True)
    threading.Thread(target=ctypes.PyDLL(None).sleep, args=(60,), daemon=True).start()
    time.sleep(60)
"""


@pytest.mark.parametrize("signum", [0, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_process_that_holds_the_interpreters_lock_is_ended_with_its_trace(signum, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, *["stopped"] * bool(signum)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout.readline() == "ready\n"
    if signum:
        time.sleep(0.5)
        process.send_signal(signum)
    errors = process.communicate(timeout=30)[1]
    assert process.returncode == -signal.SIGKILL and "last seen: step 7 of round 1" in errors
    assert ("stopped by SIGINT" in errors) if signum else ('File "<string>", line 1' in errors)


def test_the_watchdog_ends_with_its_owner_says_nothing_and_leaves_nothing(tmp_path, capfd):
    board = Board.create(1)
    with watch(board, tmp_path, Limits()):
        assert board.folder.exists()
    assert not board.folder.exists() and not any(capfd.readouterr())


ENDS = """
import ctypes, logging
from pathlib import Path
from parallel_epochs.pipeline.run import pulse, watchdog
logging.getLogger().addHandler(logging.FileHandler("train.log"))
with watchdog.watch(pulse.Board.create(1), Path("."), watchdog.Limits()):
    ctypes.CDLL(None)._exit(0)
"""


def test_a_process_that_code_in_c_ends_is_told_of(tmp_path):
    assert shell("-c", ENDS, cwd=tmp_path).returncode == 0
    log, end = tmp_path / "train.log", time.monotonic() + 60
    while not log.read_text() and time.monotonic() < end:
        time.sleep(0.02)
    assert re.search(
        r"ERROR process \d+ ended before there was a result: it was killed, or code that it called ended "
        "it; there is no checkpoint yet",
        log.read_text(),
    )


def test_a_closed_pipe_is_an_end_without_a_word(board, tmp_path, monkeypatch, caplog):
    """The system closes the files of a process before the watchdog sees that it has another parent."""
    monkeypatch.setattr(watchdog.select, "select", lambda *args: ([0], [], []))
    monkeypatch.setattr(watchdog.os, "read", lambda fd, size: b"")
    Watchdog(str(board.folder), str(tmp_path), True, os.getppid(), [], vars(Limits())).run()
    assert "ended before there was a result" in caplog.text


def test_torchrun_and_a_single_process_contradict_each_other(configure):
    with pytest.raises(
        ValueError, match="parallel=single needs parallel.num_ranks=1, since it is one process"
    ):
        run_folder.with_ranks_of(configure(*TOY, "parallel=single"), 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strike",
    [
        name
        if name in {"SIGSTOP of a rank", "SIGTERM in an evaluation", "disk full"}
        else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in STRIKES
    ],
)
def test_strikes_at_random_moments_lose_nothing(strike, tmp_path):
    assert strike_run(tmp_path / "run", "cluster", strike, 2) >= 1


@pytest.mark.parametrize(
    "module",
    [
        "evaluate",
        *(pytest.param(module, marks=pytest.mark.slow) for module in ("train", "prepare")),
    ],
)
def test_ctrl_c_outside_of_training_is_one_line(module, tmp_path):
    code = (
        f"import runpy, sys, signal; sys.argv = {[module, 'run=x'] if module == 'evaluate' else [module]!r}\n"
        "from parallel_epochs.pipeline.command import cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where tests run in the background
        "def interrupted(*args): signal.raise_signal(signal.SIGINT)\n"
        "cli.readable_errors = interrupted\n"
        f"runpy.run_module('parallel_epochs.pipeline.{module}', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 130 and done.stderr == "interrupted\n", done.stderr

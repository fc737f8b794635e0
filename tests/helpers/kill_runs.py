"""Kills runs at random moments, resumes them, and compares their weights with those of undisturbed runs.

``python -m tests.helpers.kill_runs --times 25`` strikes two ranks of the first run of tests/helpers/resume_cases.py in
every way; ``--runs`` names other runs there, and ``--strikes`` some of the ways.
"""

import argparse
import contextlib
import multiprocessing.forkserver
import multiprocessing.util
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parallel_epochs.pipeline.run.errors import EXIT_INTERRUPTED, EXIT_TRY_AGAIN
from parallel_epochs.pipeline.run.pulse import Board, Sign
from tests.helpers.resume_cases import ROWS, WRITE, product
from tests.helpers.running import ROOT, finish, start, start_server, summary_of

LONG = ("train.epochs=60", "train.eval_every=2", "train.patience=0")
SECONDS_TO_END = 60
_spawn: Any = multiprocessing.util.spawnv_passfds


def fork_rank_server(path: bytes, arguments: list, fds: list[int]) -> int:
    """Start the process that forks the ranks as a fork of this one, which spares its imports."""
    if "forkserver" not in str(arguments[-1]):
        return _spawn(path, arguments, fds)
    pid = os.fork()
    if pid == 0:
        # The new process has what a program that starts has: no other file, and a server that knows of no server. The
        # numbers of the files stay in use, since objects of this process will close them.
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, nothing, *fds}:
            with contextlib.suppress(OSError):
                os.dup2(nothing, fd, inheritable=False)
        multiprocessing.forkserver._forkserver.__init__()
        try:
            exec(arguments[-1], {"__name__": "__main__"})
        except SystemExit:
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return pid


def children(pid: int) -> list[int]:
    """List the processes that a process has started."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def signs_of(pid: int) -> list[Sign]:
    """Return what the processes of a run last reported to be doing, on the board that the run has mapped."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.endswith("/board") and "/parallel-epochs-" in line:
                board = Board(Path(line.split(maxsplit=5)[-1]).parent)
                return [sign for sign in board.signs() if sign.pid]
    return []


def ranks_of(parent: int) -> list[int]:
    """Return the processes of the ranks that a process has started."""
    return [sign.pid for sign in signs_of(parent) if sign.rank >= 0]


def wait_for_saves(run: Any, folder: Path, number: int, seconds: float = 900) -> bool:
    """Wait until a run has saved more checkpoints than this number; tell whether it is still going on."""
    last, saves, end = folder / "checkpoints" / "last.pt", set(), time.monotonic() + seconds
    while len(saves) <= number and run.poll() is None and time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):
            saves.add(last.stat().st_mtime_ns)
        time.sleep(0.001)
    return len(saves) > number and run.poll() is None


def kill(number: int, signum: int = signal.SIGKILL) -> Callable:
    """Make a strike that sends a signal to random ranks."""

    def strike(parent: int, ranks: list[int], folder: Path) -> None:
        for pid in random.sample(ranks, number):
            os.kill(pid, signum)

    return strike


def send(*signums: int) -> Callable:
    """Make a strike that sends signals to the command, as Ctrl-C to all its processes."""

    def strike(parent: int, ranks: list[int], folder: Path) -> None:
        for signum in signums:
            for pid in [parent, *(ranks if signum == signal.SIGINT else [])]:
                os.kill(pid, signum)
            time.sleep(random.random() / 50)

    return strike


def fill_the_disk(parent: int, ranks: list[int], folder: Path) -> None:
    """Limit the files of the first rank to a few bytes, as if the disk were full."""
    hard = resource.prlimit(ranks[0], resource.RLIMIT_FSIZE)[1]
    resource.prlimit(ranks[0], resource.RLIMIT_FSIZE, (100, hard))


def kill_and_cut(parent: int, ranks: list[int], folder: Path) -> None:
    """Kill the command, and truncate its last checkpoint, as a power cut may."""
    os.kill(parent, signal.SIGKILL)
    while any(map(is_alive, [parent, *ranks])):
        time.sleep(0.01)
    os.truncate(folder / "checkpoints" / "last.pt", random.randrange(1000))


# What strikes, with which status the command ends, what it says of a phase that is waited for, and its own overrides.
KILLED, STOPPED, FAILED = -signal.SIGKILL, EXIT_TRY_AGAIN, 1
WATCHED = ("parallel.timeout=10",)
STRIKES: dict[str, tuple[Callable, set[int], str, tuple[str, ...]]] = {
    "kill -9 of a rank": (kill(1), {FAILED}, "", ()),
    "kill -9 of all ranks": (kill(2), {FAILED}, "", ()),
    "kill -9 of a rank in an evaluation": (kill(1), {FAILED}, "evaluating", ()),
    "kill -9 of a rank in a save": (kill(1), {FAILED}, "saving", ()),
    "kill -9 of the command": (send(signal.SIGKILL), {KILLED}, "", ()),
    "kill -9, and last.pt cut short": (kill_and_cut, {KILLED}, "", ()),
    "SIGSTOP of a rank": (kill(1, signal.SIGSTOP), {STOPPED}, "", WATCHED),
    "SIGTERM": (send(signal.SIGTERM), {STOPPED}, "", ()),
    "SIGUSR1": (send(signal.SIGUSR1), {STOPPED}, "", ()),
    "SIGTERM in an evaluation": (send(signal.SIGTERM), {STOPPED}, "evaluating", ()),
    "Ctrl-C": (send(signal.SIGINT), {EXIT_INTERRUPTED}, "", ()),
    "Ctrl-C twice": (
        send(signal.SIGINT, signal.SIGINT),
        {EXIT_INTERRUPTED, -signal.SIGINT},
        "",
        (),
    ),
    "disk full": (fill_the_disk, {FAILED}, "", ()),
}


def strike_run(folder: Path, run: str, name: str, times: int, num_ranks: int = 2) -> int:
    """Strike a run so often, resume it each time, and compare; returns how often it was struck before its end."""
    folder.mkdir(parents=True)
    strike, statuses, phase, more = STRIKES[name]
    write = WRITE.get(product(run), lambda folder: [])
    arguments = [*write(folder), *ROWS[run], *LONG, f"parallel.num_ranks={num_ranks}"]
    tried, struck, cache = 0, folder / "struck", folder / "cache"
    for _ in range(times):
        process = start([*arguments, *more], struck, cache)
        if not wait_for_saves(process, struck, 2):
            break
        time.sleep(0.2 * random.random())
        end = time.monotonic() + SECONDS_TO_END
        while phase and process.poll() is None and time.monotonic() < end:
            if any(sign.doing.startswith(phase) for sign in signs_of(process.pid)):
                break
        pids = [process.pid, *ranks_of(process.pid)]
        if len(pids) <= num_ranks:
            break
        with contextlib.suppress(ProcessLookupError):  # the run has just come to its end
            strike(pids[0], pids[1:], struck)
        output, _ = process.communicate(timeout=SECONDS_TO_END)
        while any(map(is_alive, pids)):
            assert time.monotonic() < end + SECONDS_TO_END, f"a process is alive: {output[-2000:]}"
            time.sleep(0.01)
        if process.returncode == 0:
            break
        assert process.returncode in statuses, f"status {process.returncode}: {output[-2000:]}"
        assert "Traceback" not in output or statuses == {FAILED}, output[-2000:]
        tried += 1
    whole = folder / "whole"
    for each in (struck, whole):
        if not (each / "summary.json").exists():
            status, output = finish(arguments, each, cache)
            assert status == 0, output
    for key in ("weights_sha256", "best_epoch", "best_valid", "test", "data_epochs"):
        assert summary_of(struck)[key] == summary_of(whole)[key], f"{run}, {name}: {key}"
    return tried


def free_port() -> int:
    """Return a port that no process uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start_agent(port: int, log: Path, *arguments: str, cwd: Path = ROOT) -> subprocess.Popen:
    """Start an agent of torchrun with a rank of its own, in a session of its own."""
    with open(log, "a") as file:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1"),
                *("--rdzv-backend=c10d", "--rdzv-id=kills", "--local-addr=127.0.0.1"),
                *(f"--rdzv-endpoint=127.0.0.1:{port}", "--max-restarts=3", *arguments),
            ],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            start_new_session=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                "PYTHONPATH": str(ROOT),
            },
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="strikes of each kind on each run")
    parser.add_argument("--runs", nargs="+", choices=ROWS, default=["cluster"], metavar="RUN")
    parser.add_argument("--strikes", nargs="+", choices=STRIKES, default=[*STRIKES], metavar="HOW")
    options = parser.parse_args()
    multiprocessing.util.spawnv_passfds = fork_rank_server
    server = start_server()
    with tempfile.TemporaryDirectory() as root:
        for run in options.runs:
            for name in options.strikes:
                tried = strike_run(Path(root, run, name), run, name, options.times)
                print(f"| {run} | {name} | {tried} | 0 |", flush=True)
    server.close()


if __name__ == "__main__":
    main()

"""The faults that `python -m scripts.faults` injects, and the training runs that it injects them into."""

import multiprocessing.util
import os
import random
import resource
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel_epochs.pipeline.run.errors import EXIT_INTERRUPTED, EXIT_TRY_AGAIN
from parallel_epochs.pipeline.run.pulse import Board, Sign

VIEWS = ("evaluation=views", "evaluation.num_views=24", "train.epochs=60")
WATCHED = ("parallel.timeout=3", "parallel.warn_after=0.5")
# A process that gets this signal lets a thread hold the interpreter's lock for ten minutes.
SITE = """import ctypes, signal, threading
def hold(*_):
    threading.Thread(target=ctypes.PyDLL(None).sleep, args=(600,), daemon=True).start()
signal.signal(signal.SIGRTMAX, hold)
"""


class LiveRun:
    """A training run in a fork of this process, which has done the imports already.

    Args:
        overrides: overrides of the command line.
        torchrun: number of ranks that torchrun starts. 0: no torchrun.
    """

    def __init__(self, folder: Path, overrides: list[str], torchrun: int = 0):
        self.folder, self.status, self.began = folder, None, time.monotonic()
        self.log = folder.with_suffix(".log")
        self._board: Board | None = None
        target = f"resume={folder}" if (folder / "config.yaml").exists() else f"hydra.run.dir={folder}"
        self.pid = os.fork()
        if self.pid == 0:
            _be_command(["pipeline.train", *overrides, target], torchrun, self.log)

    def poll(self) -> int | None:
        """Return the exit status, or minus the signal that ended the run; None while the run goes on."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def wait(self, seconds: float) -> int | None:
        """Wait at most this long for the end of the run, and return :meth:`poll`."""
        end = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        return self.status

    def signs(self) -> list[Sign]:
        """Return what the processes of the run last reported to be doing."""
        if self._board is None:
            for pid in (self.pid, *children(self.pid)):
                if path := _mapped_board(pid):
                    self._board = Board(path.parent)
                    break
        return [] if self._board is None else [sign for sign in self._board.signs() if sign.pid]

    def ranks(self) -> list[int]:
        """Return the processes of the ranks."""
        return [sign.pid for sign in self.signs() if sign.rank >= 0]

    def send(self, signum: int) -> None:
        os.kill(self.pid, signum)


def _be_command(arguments: list[str], torchrun: int, log: Path) -> None:
    """Run `python -m` with these arguments in a new process group; does not return."""
    os.setsid()
    for fd, path in ((0, os.devnull), (1, log), (2, log)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if fd == 1 else os.O_APPEND), 0o644), fd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    exec(SITE, {})
    multiprocessing.util.spawnv_passfds = _fork_rank_server
    if torchrun:
        arguments = ["torch.distributed.run", "--standalone", f"--nproc-per-node={torchrun}", "-m", *arguments]
    sys.argv, status = arguments, 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


_spawn: Any = multiprocessing.util.spawnv_passfds


def _fork_rank_server(path: bytes, arguments: list, fds: list[int]) -> int:
    """Start the process that forks the ranks as a fork of this one, which spares its imports."""
    if "forkserver" not in str(arguments[-1]):
        return _spawn(path, arguments, fds)
    pid = os.fork()
    if pid == 0:
        kept = {0, 1, 2, *fds}
        for fd in (int(name) for name in os.listdir("/proc/self/fd")):
            if fd not in kept:
                try:
                    os.close(fd)
                except OSError:
                    continue
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
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def ranks_of(parent: int) -> list[int]:
    """Return the processes of the ranks that a process has started."""
    path = _mapped_board(parent)
    return [] if path is None else [sign.pid for sign in Board(path.parent).signs() if sign.pid and sign.rank >= 0]


def _mapped_board(pid: int) -> Path | None:
    """Return the path of the board that a process has mapped into its memory."""
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.endswith("/board") and "/parallel-epochs-" in line:
                return Path(line.split(maxsplit=5)[-1])
    except OSError:
        pass
    return None


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# The strikes. If a process has ended by itself meanwhile, the caller sees that from its exit status.


def kill_ranks(number: int) -> Callable[[LiveRun], None]:
    """Make a strike that kills this many random ranks."""
    def strike(run: LiveRun) -> None:
        for pid in random.sample(run.ranks(), number):
            os.kill(pid, signal.SIGKILL)
    return strike


def send(signum: int) -> Callable[[LiveRun], None]:
    return lambda run: run.send(signum)


def send_to_rank(signum: int) -> Callable[[LiveRun], None]:
    return lambda run: os.kill(random.choice(run.ranks()), signum)


def press_ctrl_c(run: LiveRun) -> None:
    os.killpg(run.pid, signal.SIGINT)


def press_ctrl_c_twice(run: LiveRun) -> None:
    press_ctrl_c(run)
    time.sleep(random.random() / 50)
    press_ctrl_c(run)


def stop_a_rank_and_terminate(run: LiveRun) -> None:
    os.kill(random.choice(run.ranks()), signal.SIGSTOP)
    run.send(signal.SIGTERM)


def kill_the_first_rank(run: LiveRun) -> None:
    os.kill(run.ranks()[0], signal.SIGKILL)


def fill_the_disk(run: LiveRun) -> None:
    """Limit the files of the first rank to a few bytes, as if the disk were full."""
    pid = run.ranks()[0]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]))


def cut_the_checkpoint(folder: Path) -> None:
    """Truncate the last checkpoint at a random place, as a power cut may."""
    path = folder / "checkpoints" / "last.pt"
    with open(path, "r+b") as file:
        file.truncate(random.randrange(path.stat().st_size))


@dataclass(frozen=True)
class Fault:
    """A fault that is injected into a run.

    Attributes:
        statuses: exit statuses that the run may end with.
        overrides: overrides that change the result of the run.
        limits: overrides that do not change it.
        torchrun: whether torchrun starts the ranks.
        during: phase that a rank must be in. Empty: any phase.
        quiet: whether the user must not see a traceback.
        damage: function that damages the run directory afterwards.
        unprepared: whether the fault strikes before the first round, each time with an empty cache.
    """

    name: str
    strike: Callable[[LiveRun], None]
    statuses: tuple[int, ...]
    num_ranks: int = 2
    overrides: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    torchrun: bool = False
    during: str = ""
    quiet: bool = False
    damage: Callable[[Path], None] | None = None
    unprepared: bool = False


KILLED, STOPPED, FAILED = (-signal.SIGKILL,), (EXIT_TRY_AGAIN,), (1,)
FAULTS = (
    Fault("kill -9 of a rank that torchrun started", kill_ranks(1), FAILED, torchrun=True),
    Fault("SIGSTOP of a rank", send_to_rank(signal.SIGSTOP), STOPPED, limits=WATCHED),
    Fault("a rank's thread holds the interpreter lock", send_to_rank(signal.SIGRTMAX), STOPPED, limits=WATCHED),
    Fault("SIGTERM, one rank is stopped", stop_a_rank_and_terminate, STOPPED, limits=("parallel.stop_timeout=1.5",),
          quiet=True),
    Fault("kill -9 of two ranks of three", kill_ranks(2), FAILED, num_ranks=3),
    Fault("kill -9 of a rank", kill_ranks(1), FAILED),
    Fault("kill -9 of all ranks", kill_ranks(2), FAILED),
    Fault("kill -9 of the parent", send(signal.SIGKILL), KILLED),
    Fault("SIGTERM", send(signal.SIGTERM), STOPPED, quiet=True),
    Fault("SIGUSR1", send(signal.SIGUSR1), STOPPED, quiet=True),
    Fault("Ctrl-C", press_ctrl_c, (EXIT_INTERRUPTED,), quiet=True),
    Fault("Ctrl-C twice", press_ctrl_c_twice, (EXIT_INTERRUPTED, -signal.SIGINT), quiet=True),
    Fault("SIGTERM in an evaluation", send(signal.SIGTERM), STOPPED, overrides=VIEWS, during="evaluating", quiet=True),
    Fault("kill -9 of a rank in an evaluation", kill_ranks(1), FAILED, overrides=VIEWS, during="evaluating"),
    Fault("kill -9 in a save", kill_the_first_rank, FAILED, during="saving"),
    Fault("kill -9 of the parent, last.pt cut short", send(signal.SIGKILL), KILLED, damage=cut_the_checkpoint),
    Fault("disk full", fill_the_disk, FAILED),
    Fault("one rank: kill -9 while the cache is prepared", send(signal.SIGKILL), KILLED, num_ranks=1, unprepared=True),
    Fault("one rank: kill -9", send(signal.SIGKILL), KILLED, num_ranks=1),
    Fault("one rank: Ctrl-C in an evaluation", press_ctrl_c, (EXIT_INTERRUPTED,), num_ranks=1, overrides=VIEWS,
          during="evaluating", quiet=True),
)

"""Watches the heartbeats of a run's processes: names those that are silent, and ends a run that hangs.

The watchdog is a process of its own. So it also sees processes that are stopped, or in which a thread holds the
interpreter's lock, which a thread could not. It imports only Python's standard library, and ends together with the
process that started it.
"""

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import parallel_epochs
from parallel_epochs.pipeline.run.pulse import PERIOD, STARTING, TRACE_SIGNAL, Board, Sign, State

log = logging.getLogger(__name__)
ROOT = Path(parallel_epochs.__file__).resolve().parents[1]
# Long phases may be silent this many times longer than `warn_after` and `timeout`.
LONG_FACTOR = 10
# The byte that the watched process sends at its end; no signal has this number.
GOODBYE = b"\0"
# Letters for the state of a process that explain why it is silent.
STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "waiting for a disk"}
# The pipes to the watchdogs of this process: none, or one.
_pipes: list[int] = []
# Grace period for the launcher and the healthy ranks of torchrun to exit after the hung ranks were killed.
SECONDS_TO_LEAVE = 10


@dataclass(frozen=True)
class Limits:
    """The time limits of a watchdog, in seconds.

    Attributes:
        warn_after: time without a heartbeat after which the watchdog warns; LONG_FACTOR times that in long phases.
        timeout: time without a heartbeat after which it ends the run; LONG_FACTOR times that in long phases.
        stop_timeout: time after a request to stop after which it ends the run. The time to write a checkpoint does not
            count.
    """

    warn_after: float = 30.0
    timeout: float = 600.0
    stop_timeout: float = 12.0


@contextlib.contextmanager
def watch(
    board: Board, run_folder: Path, limits: Limits, *, launches: bool = False
) -> Iterator[None]:
    """Watch the processes on a board until the end of the block, then remove the board.

    Signals reach the watchdog too, even while this process cannot react to them.

    Args:
        run_folder: the folder of the run's checkpoints.
        launches: whether this process has started the ranks, and ends when they do.
    """
    from parallel_epochs.pipeline.run.stop import STOP_SIGNALS  # not in the watchdog's own process

    paths = [
        handler.baseFilename
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.FileHandler)
    ]
    settings = {
        "board": str(board.folder),
        "run_folder": str(run_folder),
        "launches": launches,
        "owner": os.getpid(),
        "stop_signals": [*STOP_SIGNALS],
        "log_file": paths[0] if paths else None,
        "limits": asdict(limits),
    }
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
        "from parallel_epochs.pipeline.run import watchdog; watchdog.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, json.dumps(settings)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )  # Ctrl-C is not meant for it
    assert process.stdin is not None
    _pipes.append(process.stdin.fileno())
    os.set_blocking(_pipes[-1], False)
    notes_signals = threading.current_thread() is threading.main_thread()
    if notes_signals:
        before = signal.set_wakeup_fd(_pipes[-1], warn_on_full_buffer=False)
    try:
        yield
    finally:
        if notes_signals:
            signal.set_wakeup_fd(before)
        say_goodbye()
        process.stdin.close()
        process.wait()
        board.remove()


def say_goodbye() -> None:
    """Tell the watchdog of this process, if it has one, that the process ends and has said why."""
    while _pipes:
        with contextlib.suppress(OSError):  # the watchdog may have ended
            os.write(_pipes.pop(), GOODBYE)


class Watchdog:
    """Reads the heartbeats on a board at regular intervals.

    Args:
        owner: the process that started this one.
    """

    def __init__(
        self,
        board: str,
        run_folder: str,
        launches: bool,
        owner: int,
        stop_signals: list[int],
        limits: dict,
    ):
        self.board, self.run_folder = Board(Path(board)), Path(run_folder)
        self.launches, self.owner = launches, owner
        self.limits, self._stop_signals = Limits(**limits), stop_signals
        self._tick = min(0.25, self.limits.timeout / 10, self.limits.stop_timeout / 10)
        self._looked = time.monotonic()
        # The signs that were last read, and the seconds since the heartbeat and since Python code ran, by place.
        self._signs: list[Sign] = []
        self._silent: dict[int, float] = {}
        self._frozen: dict[int, float] = {}
        self._warned: dict[int, float] = {}
        self._stop_signum, self._stopping = 0, 0.0

    def run(self) -> None:
        """Watch until the owner says goodbye, or has ended without a word, as code in C can let it."""
        while os.getppid() == self.owner:
            if select.select([0], [], [], self._tick)[0]:
                heard = os.read(0, 4096)
                if GOODBYE in heard:
                    return
                if not heard:
                    break
                self._hear(heard)
            if self.look():
                return
        log.error(
            "process %d ended before there was a result: it was killed, or code that it called ended it; %s",
            self.owner,
            self._last_checkpoint(),
        )

    def _hear(self, signums: bytes) -> None:
        for signum in signums:
            if signum in self._stop_signals:
                # On a second Ctrl-C the owner has not been able to react to the first.
                if signum == self._stop_signum == signal.SIGINT:
                    self._stopping = self.limits.stop_timeout
                self._stop_signum = signum

    def look(self) -> bool:
        """Read the board once. Return whether this ended the run."""
        now = time.monotonic()
        # Time in which this process, or the whole job, was stopped itself does not count.
        elapsed, self._looked = min(now - self._looked, 4 * self._tick), now
        if _stat(self.owner) in ("T", "t"):
            return False
        signs, before = self.board.signs(), self._signs
        for place, sign in enumerate(signs):
            known = before[place] if before else Sign()
            quiet, stuck = self._silent.get(place, 0.0), self._frozen.get(place, 0.0)
            self._silent[place] = quiet + elapsed if known.beat == sign.beat else 0.0
            self._frozen[place] = stuck + elapsed if known.alive == sign.alive else 0.0
        self._signs = signs
        silent = self._suspects(signs)
        for place in silent:
            self._warn(place, signs[place])
        # The request waits for a checkpoint that is being written. The limit for one that hangs is below. A process
        # that is stopped itself writes none.
        if self._stop_signum and not any(
            sign.state == State.SAVING and not self._is_frozen(place)
            for place, sign in enumerate(signs)
        ):
            self._stopping += elapsed
            stopped = f"stopped by {signal.Signals(self._stop_signum).name}"
            if self.launches and _are_starting(signs):  # there is nothing to save
                return self._end(f"{stopped} while the ranks started", signs, [])
            if self._stopping >= self.limits.stop_timeout:
                within = f"the current step did not end within {self._stopping:.0f} s"
                return self._end(f"{stopped}; {within}", signs, silent)
        late = [
            place
            for place in silent
            if self._silent[place] >= self.limits.timeout * _patience(signs[place])
        ]
        end = f"parallel.timeout={self.limits.timeout:g} ends the run"
        return bool(late) and self._end(end, signs, late)

    def _is_frozen(self, place: int) -> bool:
        """Tell whether no Python code has run in a process for a while."""
        return self._frozen[place] >= 4 * PERIOD

    def _suspects(self, signs: list[Sign]) -> list[int]:
        """Return the processes that keep the others waiting.

        These are the ones in which no Python code runs, else those that do not wait themselves, else all.
        """
        present = [
            place
            for place, sign in enumerate(signs)
            if sign.state not in (State.ABSENT, State.ENDED)
        ]
        ranks = [place for place in present if signs[place].rank >= 0] or present
        frozen = [place for place in ranks if self._is_frozen(place)]
        busy = [place for place in ranks if signs[place].state != State.WAITING]
        return frozen or busy or ranks

    def _describe(self, place: int, sign: Sign) -> str:
        letter = _stat(sign.pid)
        state = f" ({STATES[letter]})" if letter in STATES else ""
        silence = f"{sign} has been silent for {self._silent[place]:.0f} s{state}"
        return f"{silence}, last seen: {sign.doing}"

    def _warn(self, place: int, sign: Sign) -> None:
        """Warn that a process is silent, and again each time the silence has doubled."""
        first = self.limits.warn_after * _patience(sign)
        if self._silent[place] < first:
            if self._warned.pop(place, None):
                log.warning("%s continues", sign)
        elif self._silent[place] >= self._warned.get(place, first):
            log.warning("%s", self._describe(place, sign))
            self._warned[place] = 2 * self._silent[place]

    def _end(self, message: str, signs: list[Sign], guilty: list[int]) -> bool:
        """End the run: log why and where the hung processes are, kill them, and give the others time to exit."""
        message = "; ".join([message, *(self._describe(place, signs[place]) for place in guilty)])
        log.error("%s; %s", message, self._last_checkpoint())
        self.board.judge(message, self._stop_signum)
        for place in guilty:
            # A user who has asked for the end does not need the traceback on the screen.
            log.log(
                logging.INFO if self._stop_signum else logging.ERROR,
                "traceback of %s:\n%s",
                signs[place],
                self._trace(place, signs[place].pid),
            )
        ranks = [
            sign.pid for sign in signs if sign.pid and sign.rank >= 0 and sign.state != State.ENDED
        ]
        # The other ranks of torchrun or Slurm see the connection break and exit by themselves.
        victims = set(ranks if self.launches else [signs[place].pid for place in guilty])
        for pid in victims:
            _kill(pid, signal.SIGKILL)
        left, end = {*ranks, self.owner}, time.monotonic() + SECONDS_TO_LEAVE
        while left and time.monotonic() < end:
            if self.owner in left and select.select([0], [], [], 0.02)[0] and not os.read(0, 4096):
                left.remove(self.owner)  # it waits only for this process
            left = set(filter(_is_alive, left))
        for pid in left:
            _kill(pid, signal.SIGKILL)
        return True

    def _trace(self, place: int, pid: int) -> str:
        """Return the tracebacks of the threads of a process."""
        _kill(pid, TRACE_SIGNAL)
        _kill(pid, signal.SIGCONT)
        path, size = self.board.trace(place), -1
        for _ in range(20):
            time.sleep(0.05)
            before, size = size, path.stat().st_size
            if 0 < before == size:
                break
        _kill(pid, signal.SIGSTOP)
        return path.read_text(errors="replace").strip() or "(the process wrote no traceback)"

    def _last_checkpoint(self) -> str:
        saved = [
            (path.stat().st_mtime, path) for path in self.run_folder.glob("**/checkpoints/last.pt")
        ]
        if not saved:
            return "there is no checkpoint yet"
        written, path = max(saved)
        return f"the last checkpoint is {path}, {max(time.time() - written, 0):.0f} s old"


def _are_starting(signs: list[Sign]) -> bool:
    """Tell whether some ranks exist and none has gone beyond its start."""
    ranks = [sign for sign in signs if sign.rank >= 0 and sign.state != State.ABSENT]
    return bool(ranks) and all(sign.doing.startswith(STARTING) for sign in ranks)


def _patience(sign: Sign) -> int:
    """Return how many times longer than usual a process may be silent. The launcher waits for the ranks' imports."""
    return LONG_FACTOR if sign.state == State.LONG or sign.rank < 0 else 1


def _kill(pid: int, signum: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def _stat(pid: int) -> str:
    """Return the system's letter for the state of a process; "" if the process does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _is_alive(pid: int) -> bool:
    return _stat(pid) not in ("", "Z", "X")


def main() -> None:
    """Run the watchdog with the settings in the first argument."""
    settings = json.loads(sys.argv[1])
    console, formatter = logging.StreamHandler(sys.stderr), "%(asctime)s %(levelname)s %(message)s"
    handlers: list[logging.Handler] = [console]
    if (path := settings.pop("log_file")) is not None:
        handlers.append(logging.FileHandler(path, delay=True))
    logging.basicConfig(handlers=handlers, format=formatter, level=logging.INFO)
    console.setLevel(logging.WARNING)
    console.setFormatter(logging.Formatter("%(message)s"))
    watchdog = Watchdog(**settings)
    watchdog.run()
    watchdog.board.remove()

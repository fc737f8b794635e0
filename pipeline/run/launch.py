"""Starts the ranks of one machine, and names the one that failed."""

import contextlib
import logging
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from parallel_epochs.pipeline.run import pulse, ranks
from parallel_epochs.pipeline.run.errors import RankError, Stopped
from parallel_epochs.pipeline.run.stop import STOP_SIGNALS, StopRequest, end_with
from parallel_epochs.pipeline.run.threads import use_threads

log = logging.getLogger(__name__)

# Errors whose message is enough; the others get a traceback in the log.
READABLE = (
    "ValueError",
    "ForeignError",
    "DamagedFile",
    "FileError",
    "FloatingPointError",
    "RankError",
    "ChildProcessError",
)

# Loggers of the engine that starts ranks.
QUIET = ("torch.distributed.elastic", "torch.multiprocessing")


def launch(
    function: Callable, num_ranks: int, num_threads: int, stop: StopRequest, *args: object
) -> Any:
    """Call ``function(ranks, stop, *args)`` in `num_ranks` processes on this machine and return rank 0's result.

    If a rank fails, the others are killed. If this process dies, all ranks die. If this process writes heartbeats to a
    board, the ranks do so too. Torch's elastic agent would do the same, but it listens on all addresses, and whoever
    connects can let it run code. Here the ranks meet in a file that only this user can open.

    Args:
        num_threads: threads of each rank.
        stop: the ranks obey it; until they start, a signal raises an error here.

    Raises:
        RankError: a rank failed; its traceback is in the log.
        Stopped: a signal came before the ranks started, or the watchdog ended them.
    """
    # The engine reports on failures at length; what the user needs of it is raised below.
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    start_rank_server()
    _wait_for_server()
    stop.defer()  # the ranks obey it
    board = pulse.board()
    board_folder = None if board is None else board.folder
    # The watchdog removes the board's folder, even if this process is killed. No other user may open either folder.
    with tempfile.TemporaryDirectory(prefix="parallel-epochs-", dir=board_folder) as folder:
        environ = {
            "WORLD_SIZE": num_ranks,
            "LOCAL_WORLD_SIZE": num_ranks,
            "OMP_NUM_THREADS": num_threads,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get(
                "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"
            ),
            ranks.STORE: Path(folder, "store"),
        }
        with _environment(TORCHELASTIC_SIGNALS_TO_HANDLE=""):  # they are ours
            processes = start_processes(
                "rank",
                _run_rank,
                dict.fromkeys(range(num_ranks), (function, num_threads, stop, board_folder, *args)),
                {
                    rank: {
                        name: str(value)
                        for name, value in {**environ, "RANK": rank, "LOCAL_RANK": rank}.items()
                    }
                    for rank in range(num_ranks)
                },
                DefaultLogsSpecs(folder),
                start_method="forkserver",
            )
        try:
            result = processes.wait(period=0.1)
        finally:
            processes.close(signal.SIGKILL)
    assert result is not None, "without a timeout it waits for the end"
    if not result.is_failed():
        return result.return_values[0]
    if board is not None and (verdict := board.verdict) is not None:
        raise Stopped(verdict["signum"], verdict["message"])
    rank, failure = next(iter(result.failures.items()))
    raise RankError(f"rank {rank} failed: {_explain(failure)}")


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def start_rank_server() -> None:
    """Start the process that ranks are forked from, unless it runs. It does their imports, which take seconds.

    The ranks inherit its environment.

    Raises:
        ValueError: no socket can lie in the folder for temporary files, since its path is too long.
    """
    multiprocessing.set_forkserver_preload(["parallel_epochs.pipeline.rank_server"])
    resource_tracker.ensure_running()  # which the next would start, and unblock signals
    with (
        _environment(TORCH_CPP_LOG_LEVEL=os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")),
        _blocked_signals(),
    ):
        try:
            forkserver.ensure_running()
        except OSError as error:
            if "AF_UNIX path too long" not in str(error):
                raise
            raise ValueError(
                f"TMPDIR={tempfile.gettempdir()} is too long for the path of a socket: set TMPDIR to a "
                "shorter path"
            ) from None


def _wait_for_server() -> None:
    """Wait until the process that ranks are forked from has made its imports. Until then a signal may end the wait."""
    trial = multiprocessing.get_context("forkserver").Process(target=os.getpid)
    trial.start()
    trial.join()


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Keep requests to stop for the end of the block. A process that is started in it keeps them until it is ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow_parent() -> None:
    """Let the system kill this process when its parent ends, and leave requests to stop to the parent.

    The parent passes a request on. A signal to the whole process group must not end this process first.
    """
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(
        signal.SIG_UNBLOCK, STOP_SIGNALS
    )  # which have been blocked during the imports
    end_with(os.getppid())
    launcher = multiprocessing.parent_process()
    if launcher is not None and not launcher.is_alive():
        os._exit(1)


def _run_rank(
    function: Callable, num_threads: int, stop: StopRequest, board: Path | None, *args: object
) -> object:
    follow_parent()
    use_threads(num_threads)
    me = ranks.from_environment()
    assert me is not None
    if board is not None:
        pulse.join(pulse.Board(board), me.local_rank, me.rank)
    try:
        result = function(me, stop, *args)
    except SystemExit as error:  # it would count as the end of the work
        raise RankError(
            f"sys.exit({error.code}) was called; does the class of model.path call it?"
        ) from error
    # Not after a failure: the others would lose the connection, and report that, before this rank has reported its own.
    ranks.leave()
    pulse.leave()
    return result


def _explain(failure: ProcessFailure) -> str:
    """Return why a rank failed. Log the traceback, unless the user can mend the mistake."""
    report = failure.error_file_data.get("message", {})
    if not isinstance(report, dict):  # it was killed
        return failure.message.splitlines()[0]
    kind, _, message = report["message"].partition(": ")
    if kind in READABLE and os.environ.get("PIPELINE_TRACEBACK") != "1":
        return message
    log.error("%s", report["extraInfo"]["py_callstack"].rstrip())
    return report["message"]

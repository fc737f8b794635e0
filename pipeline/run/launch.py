"""Starts the ranks of one machine, and names the one that failed."""

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from parallel_epochs.pipeline.run import pulse, ranks
from parallel_epochs.pipeline.run.errors import RankError, Stopped
from parallel_epochs.pipeline.run.stop import STOP_SIGNALS, StopRequest
from parallel_epochs.pipeline.run.threads import use_threads

log = logging.getLogger(__name__)

# Errors whose message is enough; the others get a traceback in the log.
READABLE = ("ValueError", "ForeignError", "DamagedFile", "FileError", "FloatingPointError", "RankError",
            "ChildProcessError")


def launch(function: Callable, num_ranks: int, num_threads: int, stop: StopRequest, *args) -> Any:
    """Call ``function(ranks, stop, *args)`` in `num_ranks` processes on this machine and return rank 0's result.

    If a rank fails, the others are killed. If this process dies, all ranks die. If this process writes heartbeats to a
    board, the ranks do so too.

    Args:
        num_threads: threads of each rank.

    Raises:
        RankError: a rank failed; its traceback is in the log.
        Stopped: the watchdog ended the ranks.
    """
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=num_ranks, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", local_addr="localhost", max_restarts=0, monitor_interval=0.1,
        start_method="forkserver",
        # The others of STOP_SIGNALS are ours: the ranks finish their step and save.
        signals_to_handle="SIGHUP,SIGQUIT")
    if "shutdown_timeout" in LaunchConfig.__dataclass_fields__:  # since torch 2.12
        config.shutdown_timeout = 3  # seconds for the other ranks when one has failed
    # The agent reports on failures at length; what the user needs of it is raised below.
    for name in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    start_rank_server()
    board = pulse.board()
    try:
        with _environment(OMP_NUM_THREADS=str(num_threads)):
            return elastic_launch(config, _run_rank)(function, num_threads, stop, board and board.folder, *args)[0]
    except ChildFailedError as error:
        if board is not None and (verdict := board.verdict) is not None:
            raise Stopped(verdict["signum"], verdict["message"]) from None
        rank, failure = error.get_first_failure()
        raise RankError(f"rank {rank} failed: {_explain(failure)}") from None


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
    environ = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    if sys.platform == "linux":
        environ["GLOO_SOCKET_IFNAME"] = "lo"  # no name to look up, no network to need
    with _environment(**{name: os.environ.get(name, value) for name, value in environ.items()}):
        try:
            forkserver.ensure_running()
        except OSError as error:
            if "AF_UNIX path too long" not in str(error):
                raise
            raise ValueError(f"TMPDIR={tempfile.gettempdir()} is too long for the path of a socket: set TMPDIR to a "
                             "shorter path") from None


def follow_parent() -> None:
    """Let the system kill this process when its parent ends, and leave requests to stop to the parent.

    The parent passes a request on. A signal to the whole process group must not end this process first.
    """
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    end_with_parent()
    launcher = multiprocessing.parent_process()
    if launcher is not None and not launcher.is_alive():
        os._exit(1)


def end_with_parent() -> None:
    """Let the system kill this process when its parent ends. Only Linux does that."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@record
def _run_rank(function: Callable, num_threads: int, stop: StopRequest, board: Path | None, *args) -> Any:
    follow_parent()
    use_threads(num_threads)
    me = ranks.from_environment()
    if board is not None:
        pulse.join(pulse.Board(board), me.local_rank, me.rank)
    try:
        result = function(me, stop, *args)
    except SystemExit as error:  # it would count as the end of the work
        raise RankError(f"sys.exit({error.code}) was called; does the class of model.path call it?") from error
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

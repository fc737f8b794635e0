"""Several ranks that train together: starting them, what they tell each other, and stopping them."""

import contextlib
import ctypes
import datetime
import functools
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record
from torch.distributed.rendezvous import rendezvous
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

log = logging.getLogger(__name__)

# How long a rank waits for another: one may evaluate the whole graph or run METIS on it.
TIMEOUT = datetime.timedelta(hours=2)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
EXIT_TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h


class RankError(ChildProcessError):
    """A rank failed; the message has its number and the reason."""


class Stopped(Exception):
    """A signal asked the run to stop; what it has learned is saved."""

    def __init__(self, signum: int):
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run as one of them sees them; a single process is rank 0 of 1.

    Attributes:
        rank: of this process, from 0.
        num_ranks: number of processes that train together.
        local_rank: of this process among those of its machine.
        num_local: number of ranks on this machine.
    """

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    num_local: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the ranks, the same bits on each."""
        if self.num_ranks > 1:
            with _all_there():
                dist.all_reduce(tensor)

    def wait(self) -> None:
        """Go on when all ranks have come here."""
        self.sum_(torch.zeros(1))

    def broadcast(self, value: object) -> object:
        """The value that rank 0 has."""
        if self.num_ranks == 1:
            return value
        values = [value]
        with _all_there():
            dist.broadcast_object_list(values)
        return values[0]

    @contextlib.contextmanager
    def first_then_others(self) -> Iterator[None]:
        """Rank 0 goes through the block before the others: what it leaves in a cache or repairs, they find."""
        if not self.is_first:
            self.wait()
        yield
        if self.is_first:
            self.wait()

    def assert_equal(self, sha256: str, what: str) -> None:
        """Compare a SHA-256 digest with that of the other ranks.

        Raises:
            RankError: the ranks differ.
        """
        if self.num_ranks == 1:
            return
        mine = torch.frombuffer(bytearray.fromhex(sha256), dtype=torch.int64)
        everyones = [torch.empty_like(mine) for _ in range(self.num_ranks)]
        with _all_there():
            dist.all_gather(everyones, mine)
        differing = [rank for rank, theirs in enumerate(everyones) if not torch.equal(theirs, everyones[0])]
        if differing:
            raise RankError(f"{what} of rank {', '.join(map(str, differing))} differ from those of rank 0: the ranks have "
                            "parted. This is no mistake of yours; the last checkpoint was saved before")


@contextlib.contextmanager
def _all_there() -> Iterator[None]:
    """If another rank has gone away, leave it the time to say why: it ends the run, and with it this rank."""
    try:
        yield
    except RuntimeError:
        time.sleep(5)
        raise


class GradientSync:
    """Adds up the gradients of all ranks at every step, and tells them all else that they must agree on.

    Running statistics (of batch norms) become the mean over the ranks that had a batch.

    Attributes:
        seconds: time spent in it so far, waiting for slower ranks included.
    """

    def __init__(self, model: torch.nn.Module, ranks: Ranks):
        self._ranks = ranks
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._statistics = [b for b in model.buffers() if b.is_floating_point()]
        self.seconds = 0.0

    @property
    def num_bytes(self) -> int:
        """What a rank contributes to a step."""
        return sum(4 * p.numel() for p in [*self._parameters, *self._statistics])

    def __call__(self, loss_sum: Tensor | None, count: Tensor | None, stop: bool) -> "Agreement":
        """Replace every gradient by its sum over the ranks.

        Args:
            loss_sum: this rank's loss, of which backward was called, or none if it had no batch in this step.
            count: number of labels in it.
            stop: whether this rank was asked to stop.
        """
        ranks = self._ranks
        if ranks.num_ranks == 1:
            return Agreement(float(loss_sum.detach()), float(count), stop, [])
        device = self._parameters[0].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the time of backward is not this method's
        start = time.perf_counter()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        statistics = [b if loss_sum is not None else torch.zeros_like(b) for b in self._statistics]
        message = torch.zeros(4 + ranks.num_ranks, dtype=torch.float64, device=device)
        if loss_sum is not None:
            finite = (torch.nn.utils.get_total_norm(grads) + loss_sum.detach()).isfinite()
            message[:3] = torch.stack([loss_sum.detach().double(), count.double(), torch.ones_like(message[0])])
            message[4 + ranks.rank] = ~finite
        message[3] = stop
        ranks.sum_(message)
        flat = torch.cat([t.flatten() for t in (*grads, *statistics)])
        ranks.sum_(flat)
        loss, num_labels, num_active, stops, *broken = message.tolist()
        parts = flat.split([t.numel() for t in (*grads, *statistics)])
        for p, part in zip(self._parameters, parts):
            p.grad = part.view_as(p)
        for b, part in zip(self._statistics, parts[len(grads):]):
            b.copy_(part.view_as(b) / num_active)
        self.seconds += time.perf_counter() - start
        return Agreement(loss, num_labels, stops > 0, [rank for rank, flag in enumerate(broken) if flag])


@dataclass
class Agreement:
    """What all ranks know after a step.

    Attributes:
        loss_sum, count: summed over the ranks.
        stop: whether any rank was asked to stop.
        broken: the ranks whose loss or gradient is not finite; empty in a single process, which sees for itself.
    """

    loss_sum: float
    count: float
    stop: bool
    broken: list[int]


class StopRequest:
    """Notes a SIGTERM, SIGUSR1 or SIGUSR2 instead of dying from it, while used in a ``with`` statement.

    Child processes that are handed the object see what their parent was told.
    """

    def __init__(self):
        # Not locked: a signal may arrive while the lock is held.
        self._signum = multiprocessing.get_context("spawn").RawValue(ctypes.c_int, 0)
        self._before: dict = {}

    def __getstate__(self):
        return self._signum

    def __setstate__(self, signum):
        self._signum, self._before = signum, {}

    @property
    def signum(self) -> int:
        """The signal, or 0."""
        return self._signum.value

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = {signum: signal.signal(signum, self._note) for signum in STOP_SIGNALS}
        return self

    def __exit__(self, *exc) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, frame) -> None:
        self._signum.value = signum


def environment() -> Ranks | None:
    """This process' place among the ranks that torchrun or Slurm started, none if they did not start this one."""
    _name_tasks()
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    return Ranks(*(int(os.environ.get(name, default)) for name, default in (
        ("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))))


def _name_tasks() -> None:
    """Where ranks are tasks of Slurm's, give them torchrun's names for what they are."""
    environ = os.environ
    # A job that wants this has set MASTER_ADDR; RANK is there if it is done already.
    if "RANK" in environ or "MASTER_ADDR" not in environ or int(environ.get("SLURM_NTASKS", 1)) == 1:
        return
    environ["RANK"], environ["LOCAL_RANK"] = environ["SLURM_PROCID"], environ["SLURM_LOCALID"]
    environ["WORLD_SIZE"] = environ["SLURM_NTASKS"]
    environ["LOCAL_WORLD_SIZE"] = str(int(environ["SLURM_NTASKS"]) // int(environ["SLURM_NNODES"]))


@functools.cache
def _store() -> dist.Store:
    """Where the ranks find each other; torchrun or :func:`launch` has put its address into the environment."""
    store, _, _ = next(rendezvous("env://"))
    return store


def agree(key: str, value: str) -> str:
    """The value that rank 0 has, before the ranks have met; without other ranks, the one given."""
    ranks = environment()
    if ranks is None or ranks.num_ranks == 1:
        return value
    if ranks.is_first:
        _store().set(key, value)
    return _store().get(key).decode()


def join(device: torch.device) -> None:
    """Meet the other ranks."""
    ranks = environment()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT, store=_store(),
                                rank=ranks.rank, world_size=ranks.num_ranks)


def threads_of_each(num_local: int, asked: int = 0) -> int:
    """Threads of a rank: as asked, or the machine's processors divided among its ranks."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return asked or max(1, available // num_local)


def launch(function: Callable, num_ranks: int, num_threads: int, stop: StopRequest, *args) -> object:
    """Call ``function(ranks, stop, *args)`` in `num_ranks` processes on this machine and return rank 0's result.

    If a rank fails the others are ended; if this process dies, so do they.

    Raises:
        RankError: a rank failed; its traceback is in the log.
    """
    environ = {"OMP_NUM_THREADS": str(num_threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if sys.platform == "linux":
        environ["GLOO_SOCKET_IFNAME"] = "lo"  # no name to look up, no network to need
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=num_ranks, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", local_addr="localhost", max_restarts=0, monitor_interval=0.1,
        start_method="forkserver",
        # The others of STOP_SIGNALS are ours: the ranks finish their step and save.
        signals_to_handle="SIGINT,SIGHUP,SIGQUIT")
    if "shutdown_timeout" in LaunchConfig.__dataclass_fields__:  # since torch 2.12
        config.shutdown_timeout = 3  # seconds for the other ranks when one has failed
    before = {name: os.environ.get(name) for name in environ}
    os.environ.update({name: value for name, value in environ.items() if before[name] is None or name == "OMP_NUM_THREADS"})
    # The agent reports on failures at length; what the user needs of it is raised below.
    for name in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    prepare_launch()
    try:
        return elastic_launch(config, _worker)(function, num_threads, stop, *args)[0]
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise RankError(f"rank {rank} failed: {_reason(failure)}") from None
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def _reason(failure: ProcessFailure) -> str:
    """Why a rank ended; a traceback goes to the log, unless it is the user's own mistake."""
    told = failure.error_file_data.get("message", {})
    if not isinstance(told, dict):  # it was killed
        return failure.message.splitlines()[0]
    kind, _, message = told["message"].partition(": ")
    if kind in ("ValueError", "FloatingPointError", "RankError") and os.environ.get("PIPELINE_TRACEBACK") != "1":
        return message
    log.error("%s", told["extraInfo"]["py_callstack"].rstrip())
    return told["message"]


@record
def _worker(function: Callable, num_threads: int, stop: StopRequest, *args) -> object:
    follow_parent()
    torch.set_num_threads(num_threads)
    result = function(environment(), stop, *args)
    # Not after a failure: the others would lose the connection, and report that, before this rank has reported its own.
    if dist.is_initialized():
        dist.destroy_process_group()
    return result


def prepare_launch() -> None:
    """Start the process that ranks are forked from; its imports take seconds, and it makes them once for all ranks."""
    multiprocessing.set_forkserver_preload(["pipeline.rank_server"])
    forkserver.ensure_running()


def follow_parent() -> None:
    """Let the system kill this process when its parent ends in whatever way, and leave signals to stop to the parent.

    It passes on what it is told; a signal to the whole process group must not end this process first.
    """
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    launcher = multiprocessing.parent_process()
    if launcher is not None and not launcher.is_alive():
        os._exit(1)

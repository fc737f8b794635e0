"""Connects the ranks, the processes that train together, and exchanges tensors between them."""

import contextlib
import datetime
import functools
import itertools
import logging
import os
import pickle
import re
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from parallel_epochs.pipeline.names import check_device
from parallel_epochs.pipeline.run import files, pulse, starts
from parallel_epochs.pipeline.run.errors import RankError, Stopped
from parallel_epochs.pipeline.run.watchdog import LONG_FACTOR, Limits

log = logging.getLogger(__name__)

T = TypeVar("T")
# The environment variable in which our launcher names the file where the ranks of one machine meet.
STORE = "PARALLEL_EPOCHS_STORE"
# The variables by which torchrun tells a process its rank; the latter two may be missing, and are then these.
LOCAL_RANK, LOCAL_SIZE = ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")
TORCHRUN = ("RANK", "WORLD_SIZE", LOCAL_RANK[0], LOCAL_SIZE[0])
# The network interface that no other machine reaches.
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_broadcasts = itertools.count()
# A network file system may show a new file to other machines a little later.
SECONDS_TO_SEE = 5.0


@dataclass(frozen=True)
class Ranks:
    """A rank's number among all ranks of a run. A single process is rank 0 of 1.

    Attributes:
        rank: number of this process, from 0.
        num_ranks: number of processes that train together.
        local_rank: number of this process among those of its machine.
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
        """Replace a tensor by its sum over the ranks, with the same bits on each."""
        if self.num_ranks > 1:
            with _together():
                dist.all_reduce(tensor)

    def max_(self, tensor: Tensor) -> None:
        """Replace a tensor by its elementwise maximum over the ranks."""
        if self.num_ranks > 1:
            with _together():
                dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks in rank order. All have the same shape."""
        if self.num_ranks == 1:
            return [tensor]
        everyones = [torch.empty_like(tensor) for _ in range(self.num_ranks)]
        with _together():
            dist.all_gather(everyones, tensor.contiguous())
        return everyones

    def wait(self) -> None:
        """Wait until all ranks have reached this point."""
        self.sum_(torch.zeros(1))

    def broadcast(self, value: T) -> T:
        """Return the value that rank 0 has. All ranks call this equally often."""
        if self.num_ranks == 1:
            return value
        if STORE in os.environ:  # other users of the machine can reach sockets, but not this file
            key = f"broadcast {next(_broadcasts)}"
            if self.is_first:
                _store().set(key, pickle.dumps(value))  # type: ignore[arg-type]
            self.wait()
            return pickle.loads(_store().get(key))
        values = [value]
        with _together():
            dist.broadcast_object_list(values)
        return values[0]

    def broadcast_(self, tensor: Tensor, rank: int) -> None:
        """Replace a contiguous tensor by the one of the given rank."""
        if self.num_ranks > 1:
            with _together():
                dist.broadcast(tensor, rank)

    @contextlib.contextmanager
    def first_then_others(self) -> Iterator[None]:
        """Let rank 0 run the block before the others, so that they find what it cached or repaired."""
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
        everyones = self.gather(torch.frombuffer(bytearray.fromhex(sha256), dtype=torch.int64))
        differing = [
            rank for rank, theirs in enumerate(everyones) if not torch.equal(theirs, everyones[0])
        ]
        if differing:
            raise RankError(
                f"{what} of rank {', '.join(map(str, differing))} differ from those of rank 0. The ranks "
                "have diverged, which is an error of this program or of the machine. Resume from the last "
                "checkpoint, which was saved before"
            )


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Mark this rank as waiting while it communicates.

    If the connection breaks, wait a moment for the watchdog's verdict, which says why, before raising the error.

    Raises:
        Stopped: the watchdog has ended the run, or the other ranks sent nothing for too long.
    """
    try:
        with pulse.waiting():
            yield
    except RuntimeError as error:
        if "timed out" in str(error).lower():
            raise Stopped(
                0, "the ranks of other machines sent nothing for longer than parallel.timeout"
            ) from error
        board, end = pulse.board(), time.monotonic() + 5
        while time.monotonic() < end:
            if board is not None and (verdict := board.verdict) is not None:
                raise Stopped(verdict["signum"], verdict["message"]) from None
            time.sleep(0.05)
        if "by peer" in str(error):  # a connection is closed or reset
            raise RankError(
                "another rank has ended and said nothing; look above for a message of its own, or in the "
                "system's log, as it may have taken too much memory"
            ) from error
        raise


def from_environment() -> Ranks | None:
    """Read this process' rank from the environment of torchrun or Slurm; None if neither has started it.

    Raises:
        ValueError: a variable is missing or wrong; the message names those that are there.
    """
    _name_slurm_tasks()
    given = {name: os.environ[name] for name in TORCHRUN if name in os.environ}
    rank, num_ranks = given.get("RANK"), given.get("WORLD_SIZE")
    if rank is None and num_ranks in (None, "1"):
        return None
    numbers = [
        int(text) if text is not None and text.isdecimal() else -1
        for text in (rank, num_ranks, *(given.get(*other) for other in (LOCAL_RANK, LOCAL_SIZE)))
    ]
    found = Ranks(*numbers)
    fits = "LOCAL_WORLD_SIZE" not in given or found.local_rank < found.num_local <= found.num_ranks
    if min(numbers) < 0 or not found.local_rank <= found.rank < found.num_ranks or not fits:
        raise ValueError(
            f"{' '.join(f'{name}={text}' for name, text in given.items())}: these variables of the "
            "environment must be whole numbers, as torchrun sets them: both RANK and WORLD_SIZE, which is "
            "larger, and LOCAL_RANK less than LOCAL_WORLD_SIZE. To train without torchrun, unset them"
        )
    return found


def _name_slurm_tasks() -> None:
    """Set torchrun's environment variables from those of Slurm, if the ranks are Slurm tasks."""
    environ = os.environ
    # A job asks for this by setting MASTER_ADDR. RANK is set if it is done already.
    if "RANK" in environ or "MASTER_ADDR" not in environ or environ.get("SLURM_NTASKS", "1") == "1":
        return
    of_slurm = {
        f"SLURM_{name}": environ.get(f"SLURM_{name}", "0" if name == "NODEID" else "")
        for name in ("NTASKS", "PROCID", "LOCALID", "NNODES", "NODEID")
    }
    if (
        not all(value.isdecimal() for value in of_slurm.values())
        or int(of_slurm["SLURM_NNODES"]) == 0
    ):
        told = " ".join(f"{name}={value}" for name, value in of_slurm.items())
        raise ValueError(
            f"{told}: these variables of the environment must be whole numbers, as srun sets them. To "
            "train as one process, unset MASTER_ADDR"
        )
    environ["RANK"], environ["LOCAL_RANK"] = environ["SLURM_PROCID"], environ["SLURM_LOCALID"]
    environ["WORLD_SIZE"] = environ["SLURM_NTASKS"]
    # "4,2(x3)": four tasks on the first machine, two on each of three others.
    on_machines = [
        int(tasks)
        for tasks, times in re.findall(
            r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")
        )
        for _ in range(int(times or 1))
    ]
    machine = int(of_slurm["SLURM_NODEID"])
    most = -(-int(environ["SLURM_NTASKS"]) // int(environ["SLURM_NNODES"]))
    environ["LOCAL_WORLD_SIZE"] = str(on_machines[machine] if machine < len(on_machines) else most)


@functools.cache
def _store_of_job() -> dist.Store:
    """Open the store that all starts of a job share. The launcher has set its address in the environment."""
    if path := os.environ.get(STORE):
        return dist.FileStore(path, int(os.environ["WORLD_SIZE"]))
    store, _, _ = next(rendezvous("env://"))
    return store


@functools.cache
def _store() -> dist.Store:
    """Open the store through which the ranks find each other. Each start by torchrun has keys of its own.

    Raises:
        ValueError: see :func:`pipeline.run.starts.agree_on_name`.
    """
    store, ranks = _store_of_job(), from_environment()
    assert ranks is not None
    # Slurm and Ray open a new store for each start.
    name = (
        starts.agree_on_name(store, ranks.rank, ranks.num_ranks) if starts.by_torchrun() else "only"
    )
    return dist.PrefixStore(f"start {name}", store)


def note_run(folder: Path) -> None:
    """Note for later starts by torchrun that this job trains in a folder."""
    if starts.by_torchrun():
        _store_of_job().set(f"run in {folder}", "begun")


def was_restarted(folder: Path) -> bool:
    """Tell whether an earlier start of this job by torchrun has called :func:`note_run`.

    A run of another job is not its. The agent of a machine that joins later has started its ranks only once, so its
    count of starts says nothing.
    """
    return starts.by_torchrun() and _store_of_job().check([f"run in {folder}"])


def check_shared(folder: Path, ranks: Ranks) -> None:
    """Refuse a run directory that the machines of the ranks do not share. All ranks call this.

    Raises:
        ValueError: some ranks do not see in their directory of that name what rank 0 writes there.
    """
    if ranks.num_ranks == ranks.num_local:
        return
    host, name = ranks.broadcast((socket.gethostname(), f".shared-{uuid.uuid4().hex}"))
    path, end = folder / name, time.monotonic() + SECONDS_TO_SEE
    if ranks.is_first:
        files.write_text(path, "")
    ranks.wait()
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.1)
    seen = ranks.gather(torch.tensor([path.exists()]))
    if ranks.is_first:
        path.unlink()
    if blind := [str(rank) for rank, sees in enumerate(seen) if not sees]:
        raise ValueError(
            f"the machines do not share the run directory {folder}: rank {', '.join(blind)} did not find "
            f"what rank 0 wrote there on {host}. Name a directory on a shared file system by "
            "hydra.run.dir=DIR"
        )


def agree(key: str, value: str) -> str:
    """Return rank 0's value, before the ranks are connected. Without other ranks, return the given one."""
    ranks = from_environment()
    if ranks is None or ranks.num_ranks == 1:
        return value
    if ranks.is_first:
        _store().set(key, value)
    return _store().get(key).decode()


def share_board(ranks: Ranks) -> pulse.Board:
    """Open the board for the heartbeats of this machine's ranks, where torchrun or Slurm has started them.

    The first rank of the machine makes it and tells the others where it is.
    """
    if ranks.num_local == 1:
        return pulse.Board.create(ranks.local_rank + 1)  # LOCAL_RANK may be set alone
    # Two agents of torchrun's may share a machine.
    key = f"board of {socket.gethostname()}, group {os.environ.get('GROUP_RANK', 0)}"
    if ranks.local_rank == 0:
        board = pulse.Board.create(ranks.num_local)
        _store().set(key, str(board.folder))
        return board
    return pulse.Board(Path(_store().get(key).decode()))


def join(device: torch.device, timeout: float = Limits.timeout) -> None:
    """Connect to the other ranks. Those of one machine use its loopback interface, unless the user names another one.

    Args:
        timeout: see :class:`pipeline.run.watchdog.Limits`. A rank waits for ranks of other machines as long as their
            watchdogs allow for a long phase. On its own machine the watchdog ends the run before.
    """
    ranks = from_environment()
    assert ranks is not None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        if ranks.num_local == ranks.num_ranks:
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(name, LOOPBACK)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        longest = datetime.timedelta(seconds=timeout * LONG_FACTOR)
        if (
            ranks.local_rank == 0 and STORE not in os.environ
        ):  # who set the variables may have started too few ranks
            log.info(
                "rank %d: waiting for all %d ranks (WORLD_SIZE) at %s:%s",
                ranks.rank,
                ranks.num_ranks,
                os.environ.get("MASTER_ADDR"),
                os.environ.get("MASTER_PORT"),
            )
        dist.init_process_group(
            backend, timeout=longest, store=_store(), rank=ranks.rank, world_size=ranks.num_ranks
        )


def share_problem(message: str | None) -> str | None:
    """Leave the other ranks, and return why the run ended; None if no rank has said so.

    Args:
        message: what this rank has to say. None: it lost the connection, and asks the others.
    """
    store = _store()
    try:
        if message is not None:
            store.set("problem", message)
        else:
            store.wait(["problem"], datetime.timedelta(seconds=2))
        return store.get("problem").decode()
    except (RuntimeError, ValueError):  # nothing was said, or the rank with the store was killed
        return message
    finally:
        leave()


def leave() -> None:
    """Disconnect from the other ranks, if this rank is connected."""
    if dist.is_initialized():
        dist.destroy_process_group()


def choose_device(name: str, ranks: Ranks = Ranks()) -> torch.device:
    """Return the device of a name; "auto" takes a GPU if there is one, and each rank of a machine its own.

    Raises:
        ValueError: there is no such device here, or fewer GPUs than ranks.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    check_device(name)
    if name == "cpu":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise ValueError(f"device={name}: torch sees no GPU on this machine")
    num_gpus, index = torch.cuda.device_count(), torch.device(name).index
    if index is not None and index >= num_gpus:
        raise ValueError(
            f"device={name} does not exist: this machine has {num_gpus} GPUs, counted from cuda:0"
        )
    if ranks.num_local > 1 and (index is not None or num_gpus < ranks.num_local):
        raise ValueError(
            f"device={name} for {ranks.num_local} ranks on a machine with {num_gpus} GPUs: every rank "
            "needs one of its own. Set parallel.num_ranks or device=cpu"
        )
    return torch.device("cuda", ranks.local_rank if index is None else index)

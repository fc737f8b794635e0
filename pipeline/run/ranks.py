"""Ranks: the processes that train together, how they meet and what they tell each other."""

import contextlib
import datetime
import functools
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from pipeline.run import pulse
from pipeline.run.errors import RankError, Stopped
from pipeline.run.watchdog import LONG_FACTOR, Limits

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run as one of them sees them; a single process is rank 0 of 1.

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
        """Replace a tensor by its sum over the ranks, the same bits on each."""
        if self.num_ranks > 1:
            with _together():
                dist.all_reduce(tensor)

    def max_(self, tensor: Tensor) -> None:
        """Replace a tensor by its largest values over the ranks."""
        if self.num_ranks > 1:
            with _together():
                dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in their order; all have the same shape."""
        if self.num_ranks == 1:
            return [tensor]
        everyones = [torch.empty_like(tensor) for _ in range(self.num_ranks)]
        with _together():
            dist.all_gather(everyones, tensor.contiguous())
        return everyones

    def wait(self) -> None:
        """Go on when all ranks have come here."""
        self.sum_(torch.zeros(1))

    def broadcast(self, value: T) -> T:
        """Return the value that rank 0 has."""
        if self.num_ranks == 1:
            return value
        values = [value]
        with _together():
            dist.broadcast_object_list(values)
        return values[0]

    def broadcast_(self, tensor: Tensor, rank: int) -> None:
        """Replace a tensor, contiguous, by what it is on a rank."""
        if self.num_ranks > 1:
            with _together():
                dist.broadcast(tensor, rank)

    @contextlib.contextmanager
    def first_then_others(self) -> Iterator[None]:
        """Let rank 0 go through the block before the others: what it leaves in a cache or repairs, they find."""
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
        differing = [rank for rank, theirs in enumerate(everyones) if not torch.equal(theirs, everyones[0])]
        if differing:
            raise RankError(f"{what} of rank {', '.join(map(str, differing))} differ from those of rank 0: the ranks "
                            "have parted. This is no mistake of yours; the last checkpoint was saved before")


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Wait for the other ranks. If one has gone away, leave it the time to say why: it ends the run, and this rank.

    Raises:
        Stopped: it was silent for too long.
    """
    try:
        with pulse.waiting():
            yield
    except RuntimeError as error:
        if "timed out" in str(error).lower():
            raise Stopped(0, "the ranks of other machines were silent for longer than parallel.timeout") from error
        board, end = pulse.board(), time.monotonic() + 5
        while time.monotonic() < end:
            if board is not None and (verdict := board.verdict) is not None:
                raise Stopped(verdict["signum"], verdict["message"]) from None
            time.sleep(0.05)
        raise


def from_environment() -> Ranks | None:
    """Read this process' place among the ranks that torchrun or Slurm started, none if they did not start this one."""
    _name_slurm_tasks()
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    return Ranks(*(int(os.environ.get(name, default)) for name, default in (
        ("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))))


def _name_slurm_tasks() -> None:
    """Give ranks that are tasks of Slurm's torchrun's names for what they are."""
    environ = os.environ
    # A job that wants this has set MASTER_ADDR; RANK is there if it is done already.
    if "RANK" in environ or "MASTER_ADDR" not in environ or int(environ.get("SLURM_NTASKS", 1)) == 1:
        return
    environ["RANK"], environ["LOCAL_RANK"] = environ["SLURM_PROCID"], environ["SLURM_LOCALID"]
    environ["WORLD_SIZE"] = environ["SLURM_NTASKS"]
    environ["LOCAL_WORLD_SIZE"] = str(int(environ["SLURM_NTASKS"]) // int(environ["SLURM_NNODES"]))


@functools.cache
def _store() -> dist.Store:
    """Open the store in which the ranks find each other; who started them has put its address into the environment."""
    store, _, _ = next(rendezvous("env://"))
    return store


def agree(key: str, value: str) -> str:
    """Return the value that rank 0 has, before the ranks have met; without other ranks, the one given."""
    ranks = from_environment()
    if ranks is None or ranks.num_ranks == 1:
        return value
    if ranks.is_first:
        _store().set(key, value)
    return _store().get(key).decode()


def share_board(ranks: Ranks) -> pulse.Board:
    """Open the board on which the ranks of this machine, started by others, give their signs of life.

    Its first rank makes it, and tells the others where it is.
    """
    if ranks.num_local == 1:
        return pulse.Board.create(1)
    key = f"board of {socket.gethostname()}"
    if ranks.local_rank == 0:
        board = pulse.Board.create(ranks.num_local)
        _store().set(key, str(board.folder))
        return board
    return pulse.Board(Path(_store().get(key).decode()))


def join(device: torch.device, timeout: float = Limits.timeout) -> None:
    """Meet the other ranks.

    Args:
        timeout: see :class:`pipeline.run.watchdog.Limits`. A rank waits for those of other machines as long as their
            watchdogs leave them in a long phase; those of its own machine a watchdog ends first.
    """
    ranks = from_environment()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        longest = datetime.timedelta(seconds=timeout * LONG_FACTOR)
        dist.init_process_group(backend, timeout=longest, store=_store(), rank=ranks.rank, world_size=ranks.num_ranks)


def leave() -> None:
    """Part from the other ranks, if they were met."""
    if dist.is_initialized():
        dist.destroy_process_group()

"""Ranks: the processes that train together, how they meet and what they tell each other."""

import contextlib
import datetime
import functools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from pipeline.run.errors import RankError

T = TypeVar("T")
# How long a rank waits for another: one may evaluate the whole graph or run METIS on it.
TIMEOUT = datetime.timedelta(hours=2)


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
            with _time_to_explain():
                dist.all_reduce(tensor)

    def wait(self) -> None:
        """Go on when all ranks have come here."""
        self.sum_(torch.zeros(1))

    def broadcast(self, value: T) -> T:
        """Return the value that rank 0 has."""
        if self.num_ranks == 1:
            return value
        values = [value]
        with _time_to_explain():
            dist.broadcast_object_list(values)
        return values[0]

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
        mine = torch.frombuffer(bytearray.fromhex(sha256), dtype=torch.int64)
        everyones = [torch.empty_like(mine) for _ in range(self.num_ranks)]
        with _time_to_explain():
            dist.all_gather(everyones, mine)
        differing = [rank for rank, theirs in enumerate(everyones) if not torch.equal(theirs, everyones[0])]
        if differing:
            raise RankError(f"{what} of rank {', '.join(map(str, differing))} differ from those of rank 0: the ranks "
                            "have parted. This is no mistake of yours; the last checkpoint was saved before")


@contextlib.contextmanager
def _time_to_explain() -> Iterator[None]:
    """If another rank has gone away, leave it the time to say why: it ends the run, and with it this rank."""
    try:
        yield
    except RuntimeError:
        time.sleep(5)
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


def join(device: torch.device) -> None:
    """Meet the other ranks."""
    ranks = from_environment()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=TIMEOUT, store=_store(), rank=ranks.rank, world_size=ranks.num_ranks)


def leave() -> None:
    """Part from the other ranks, if they were met."""
    if dist.is_initialized():
        dist.destroy_process_group()

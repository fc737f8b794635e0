"""Gives each start of a job's ranks a name of its own, by which they find each other and nothing of earlier starts.

torchrun keeps one store for all starts of a job. Each of its agents counts the starts of its own ranks, so on several
machines these counts differ, and the ranks must agree on a name themselves.
"""

import datetime
import os
import time
import uuid

import torch.distributed as dist

# Longest time between the first and the last rank of a start, in seconds. They have no heartbeats yet.
SECONDS_TO_MEET = 600.0
START_AGAIN = "start the job again by the same command with resume=auto"


def agree_on_name(
    store: dist.Store, rank: int, num_ranks: int, *, seconds: float = SECONDS_TO_MEET
) -> str:
    """Return a name that rank 0 gives this start of the job. All ranks call this, each once.

    Every other rank asks under a number of its own, and rank 0 answers until all have read an answer. Questions of
    ranks that were killed stay in the store, and their answers are never read.

    Args:
        store: may hold what earlier starts left.
        seconds: the longest time to wait for the other ranks.

    Raises:
        ValueError: some ranks did not come in time.
    """
    name, end = uuid.uuid4().hex, time.monotonic() + seconds
    if rank:
        store.set(f"question of rank {rank}", name)
        try:
            store.wait([f"answer to {name}"], datetime.timedelta(seconds=seconds))
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"rank 0 did not come within {seconds:.0f} s, and has ended or never begun: look at its "
                f"log, then {START_AGAIN}"
            ) from error
        answer = store.get(f"answer to {name}").decode()
        store.set(f"{answer}: rank {rank} has come", "yes")
        return answer
    missing, answered = set(range(1, num_ranks)), set[str]()
    while missing:
        for other in sorted(missing):
            if store.check([f"question of rank {other}"]):
                asker = store.get(f"question of rank {other}").decode()
                if asker not in answered:
                    store.set(f"answer to {asker}", name)
                    answered.add(asker)
        missing = {
            other for other in missing if not store.check([f"{name}: rank {other} has come"])
        }
        if missing and time.monotonic() > end:
            raise ValueError(
                f"rank {', '.join(map(str, sorted(missing)))} did not come within {seconds:.0f} s, and "
                f"has ended or never begun: look at its log, then {START_AGAIN}"
            )
        time.sleep(0.005 if missing else 0)
    return name


def by_torchrun() -> bool:
    """Tell whether an agent of torchrun's has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ

"""Random numbers as pure functions of a purpose and a few integers, so that a restart neither repeats nor skips any."""

import numpy as np
import torch


def stream(purpose: str, *path: int) -> np.random.Generator:
    """Create a random number generator from a purpose and some integers alone.

    Args:
        purpose: what the numbers are for. Different purposes give independent numbers.
        path: integers of at least 0, for example (seed, round, rank).
    """
    # SeedSequence ignores trailing zeros: without the length, a round 0 would replay its parent.
    entropy = [int.from_bytes(purpose.encode(), "big"), len(path), *path]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def key(purpose: str, *path: int) -> int:
    """Return 63 random bits from a purpose and some integers alone; see :func:`stream`."""
    return int(stream(purpose, *path).integers(2**63))


def seed_torch(purpose: str, *path: int) -> torch.Generator:
    """Seed torch's global generators, which dropout draws from, and return the one of the CPU.

    torch.manual_seed does so too, but keeps a traceback of every call for a GPU that is not in use yet.
    """
    number = key(purpose, *path)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)
    return torch.default_generator.manual_seed(number)

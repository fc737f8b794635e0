"""Random numbers as pure functions of a purpose and a few integers, so that no restart replays or skips any."""

import numpy as np
import torch


def stream(purpose: str, *path: int) -> np.random.Generator:
    """Create a generator that depends on nothing but a purpose and some integers.

    Args:
        purpose: what the numbers are for; different purposes give independent numbers.
        path: for example (seed, round, rank), each at least 0.
    """
    # SeedSequence ignores trailing zeros: without the length, a round 0 would replay its parent.
    entropy = [int.from_bytes(purpose.encode(), "big"), len(path), *path]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def key(purpose: str, *path: int) -> int:
    """Return 63 bits that depend on nothing but a purpose and some integers; see :func:`stream`."""
    return int(stream(purpose, *path).integers(2**63))


def seed_torch(purpose: str, *path: int) -> torch.Generator:
    """Seed torch's global generators, which dropout draws from, and return the one of the CPU."""
    return torch.manual_seed(key(purpose, *path))

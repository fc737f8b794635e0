"""Random numbers are a function of their purpose and path, and of nothing else."""

import itertools

import torch

from parallel_epochs.pipeline.run.seeds import key, seed_torch, stream

PATHS = [(), (0,), (0, 0), (1,), (1, 0), (0, 1), (1, 0, 0), (2**40,)]


def test_another_purpose_or_path_gives_other_numbers_also_one_that_ends_with_zeros():
    firsts = {
        (purpose, path): tuple(stream(purpose, *path).integers(2**62, size=4).tolist())
        for purpose, path in itertools.product(("a", "b", "ab"), PATHS)
    }
    assert len(set(firsts.values())) == 3 * len(PATHS)
    assert len({key(purpose, *path) for purpose, path in firsts}) == 3 * len(PATHS)
    assert firsts["a", (1, 0)] == tuple(stream("a", 1, 0).integers(2**62, size=4).tolist())


def test_torch_is_seeded_as_a_whole():
    own = seed_torch("a", 1)
    first = torch.rand(3)
    assert own is torch.default_generator and own.initial_seed() == key("a", 1)
    seed_torch("a", 1)
    assert torch.equal(torch.rand(3), first)
    seed_torch("a", 1, 0)
    assert not torch.equal(torch.rand(3), first)

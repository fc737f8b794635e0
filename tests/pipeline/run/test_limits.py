"""How much a file may hold before it is refused."""

import numpy as np
import pytest

from parallel_epochs.pipeline.run import limits


def test_an_archive_counts_what_it_unpacks_and_not_what_lies_in_it_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv(limits.UNPACKED, "10KB")
    zeros = np.zeros(10_000)
    np.savez(tmp_path / "stored.npz", zeros)
    np.savez_compressed(tmp_path / "packed.npz", zeros)
    limits.check_zip(tmp_path / "stored.npz")  # as large as its file, and mapped rather than read
    with pytest.raises(
        ValueError,
        match=r"packed.npz unpacks to more than 10(\.0)? kB: .* PARALLEL_EPOCHS_MAX_UNPACK",
    ):
        limits.check_zip(tmp_path / "packed.npz")


def test_without_a_limit_of_the_user_half_of_the_memory_is_one(monkeypatch):
    monkeypatch.delenv(limits.UNPACKED, raising=False)
    monkeypatch.setattr(limits, "machine_memory", lambda: 1000)
    assert limits.limit_in_memory() == 500
    monkeypatch.setenv(limits.UNPACKED, "2KB")
    assert limits.limit_in_memory() > 500

"""The disk that the checkpoints of a run need is looked at before its first step."""

import shutil
from types import SimpleNamespace

import pytest

from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.run.storage import check_room
from tests.helpers.running import TOY, train


@pytest.fixture
def leave(monkeypatch):
    """Say that so many bytes of every disk are free."""
    return lambda free: monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: SimpleNamespace(free=free)
    )


def test_checkpoints_that_do_not_fit(leave, tmp_path, caplog):
    leave(7_999)
    with pytest.raises(ValueError) as caught:
        check_room(tmp_path, 1000)
    assert str(caught.value) == (
        f"{tmp_path} is on a disk with 8 kB for checkpoints, but those of 1,000 parameters take 8 kB at least: delete "
        "files, or choose another disk by hydra.run.dir"
    )
    # A run that is continued replaces its own.
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.pt").write_bytes(b"1")
    check_room(tmp_path, 1000)
    assert "those of 1,000 parameters may take 36 kB: delete files" in caplog.text
    caplog.clear()
    leave(36_000)
    check_room(tmp_path, 1000)
    assert not caplog.records


def test_it_is_looked_at_before_the_first_step(leave, configure, tmp_path, monkeypatch):
    leave(10)
    monkeypatch.setattr(training, "fit", lambda *parts: pytest.fail("trained"))
    with pytest.raises(ValueError, match="10 B for checkpoints.* by hydra.run.dir"):
        train(configure(*TOY), tmp_path / "run")

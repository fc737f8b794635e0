"""Which classes a user has named: what is remembered, and what others could have put there."""

from pathlib import Path

import pytest

from parallel_epochs.pipeline.command import trust
from parallel_epochs.pipeline.config import TrackerConfig
from parallel_epochs.pipeline.gnn.config import MODEL_SCHEMAS, GNNConfig

ORIGIN = Path("theirs/config.yaml")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def config(path="a.Net", **kwargs):
    return GNNConfig(model=MODEL_SCHEMAS["custom"](path=path, kwargs=kwargs))


def refuses(saved) -> None:
    with pytest.raises(ValueError, match="names the class a.Net"):
        trust.check(saved, ORIGIN, trust=False)


def test_a_class_is_known_by_its_arguments_in_any_order():
    trust.check(GNNConfig(), ORIGIN, trust=False)  # it names no class
    refuses(config(a=1, b=2))
    trust.remember(config(a=1, b=2))
    trust.check(config(b=2, a=1), ORIGIN, trust=False)
    refuses(config(a=1, b=3))
    refuses(config())


def test_the_class_of_a_tracker_counts_where_a_run_goes_on():
    saved = GNNConfig(tracker=TrackerConfig("custom", path="a.Net"))
    trust.check(saved, ORIGIN, trust=False)  # a prediction opens no tracker
    trust.remember(config("a.Net"))  # as a model
    with pytest.raises(
        ValueError, match=r"names the class a.Net \(tracker.path\). You have not named it"
    ):
        trust.check(saved, ORIGIN, trust=False, trains=True)
    trust.check(saved, ORIGIN, trust=False, trains=True, named={"tracker.path"})
    trust.remember(saved)
    trust.check(saved, ORIGIN, trust=False, trains=True)


def test_a_class_that_is_trusted_is_remembered():
    trust.check(config(), ORIGIN, trust=True)
    trust.check(config(), ORIGIN, trust=False)


def test_what_others_may_have_written_makes_no_class_known(tmp_path):
    trust.remember(config())
    (file,) = trust.register().iterdir()
    for path, mode in ((file, 0o600), (trust.register(), 0o700)):
        for others in (0o020, 0o002):
            path.chmod(mode | others)
            refuses(config())
        path.chmod(mode)
        trust.check(config(), ORIGIN, trust=False)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    refuses(config())


def test_a_register_that_cannot_be_trusted_is_said(tmp_path, caplog):
    trust.register().mkdir(parents=True)
    trust.register().chmod(0o777)
    trust.remember(config())
    assert "cannot be used (others can write to it)" in caplog.text
    trust.register().parent.rename(tmp_path / "moved")
    trust.register().parent.touch()
    trust.remember(config())
    assert "cannot be used (Not a directory)" in caplog.text or "File exists" in caplog.text

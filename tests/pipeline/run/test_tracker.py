"""Trackers get the numbers of metrics.jsonl, each once, and never hurt a run."""

import contextlib
import dataclasses
import json
import sys
import time

import pytest

from parallel_epochs.pipeline import keys, training
from parallel_epochs.pipeline.command import schema as configuration
from parallel_epochs.pipeline.config import TrackerConfig
from parallel_epochs.pipeline.run import tracker as trackers
from parallel_epochs.pipeline.run.errors import Stopped
from parallel_epochs.pipeline.run.ranks import Ranks
from parallel_epochs.pipeline.run.tracker import TrackerFeed, numbers_of
from tests.helpers import building as build
from tests.helpers.running import TOY, rounds_of, shell, train

EVERY_SECOND = [*TOY, "train.epochs=6", "train.eval_every=2"]


def expected(folder) -> dict[int, dict[str, float]]:
    """The numbers of each epoch by metrics.jsonl."""
    return {record["epochs"]: numbers_of(record) for record in rounds_of(folder)}


def learned(points: dict[int, dict[str, float]]) -> dict:
    """Without what a clock told: a service keeps that of the first time when epochs are trained again."""
    return {
        epoch: pytest.approx(
            {
                key: value
                for key, value in numbers.items()
                if "seconds" not in key and key != "hidden"
            }
        )
        for epoch, numbers in points.items()
    }


def train_with_a_loss(configure, tmp_path, name: str, monkeypatch):
    """Train to an end after the last checkpoint, as a kill would leave it, and resume; returns the folder."""
    config, folder = configure(*EVERY_SECOND, f"tracker={name}"), tmp_path / "runs" / "first"
    folder.parent.mkdir(exist_ok=True)
    from parallel_epochs.pipeline.run.session import Session

    close_round = Session.close_round

    def close(self, trainer, scores):
        close_round(self, trainer, scores)
        if trainer.progress.epochs == 5:  # the last checkpoint is of epoch 4
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "close_round", close)
        patch.setitem(trackers.CLOSE_SECONDS, "failed", 120.0)  # a first MLflow takes long to begin
        with pytest.raises(KeyboardInterrupt):
            train(config, folder)
    assert len(rounds_of(folder)) == 5
    train(config, folder)
    assert [record["epochs"] for record in rounds_of(folder)] == [1, 2, 3, 4, 5, 6]
    return folder


def test_tensorboard(configure, tmp_path, monkeypatch):
    folder = train_with_a_loss(configure, tmp_path, "tensorboard", monkeypatch)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    found: dict[int, dict[str, float]] = {}
    for key in events.Tags()["scalars"]:
        for point in events.Scalars(key):
            assert key not in found.setdefault(point.step, {}), "a point is there twice"
            found[point.step][key] = point.value
    assert found == {epoch: pytest.approx(numbers) for epoch, numbers in expected(folder).items()}
    wall = [point.wall_time for point in events.Scalars("loss")]
    assert wall == sorted(wall) and wall[-1] <= time.time()
    hparams = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"model.num_layers" in hparams


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")  # of their own dependencies
def test_wandb_offline(configure, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = train_with_a_loss(configure, tmp_path, "wandb", monkeypatch)
    known = json.loads((folder / trackers.IDS).read_text())["wandb"]
    assert len(list(folder.glob(f"wandb/offline-run-*-{known['id']}"))) == 2


@pytest.mark.system
def test_wandb_asks_nobody_and_says_so_before_any_work(tmp_path):
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    result = shell(
        "pipeline.train",
        *TOY,
        "tracker=wandb",
        cwd=tmp_path,
        HOME=str(tmp_path / "home"),
        WANDB_MODE="online",
        WANDB_API_KEY="",
    )
    assert (
        result.returncode == 1
        and "error: tracker=wandb: nobody is logged in. Run `wandb login`" in result.stderr
    )
    assert not (tmp_path / ".cache").exists()


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")  # of their own dependencies
def test_mlflow_sqlite(configure, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    folder = train_with_a_loss(configure, tmp_path, "mlflow", monkeypatch)
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("parallel-epochs").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "runs/first"
    assert run.data.params["model.num_layers"] == "2"
    found: dict[int, dict[str, float]] = {}
    for key in run.data.metrics:
        for point in client.get_metric_history(run.info.run_id, key):
            assert key not in found.setdefault(point.step, {}), "a point is there twice"
            found[point.step][key] = point.value
    assert learned(found) == {
        epoch: each.expected for epoch, each in learned(expected(folder)).items()
    }


def test_a_package_that_is_missing_is_named_before_any_work(configure, tmp_path, monkeypatch):
    for module in ("wandb", "mlflow", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    for name in ("wandb", "mlflow", "tensorboard"):
        with pytest.raises(
            ValueError, match=rf"tracker={name} cannot run.*pip install .* -e '.\[{name}\]'"
        ):
            train(configure(*TOY, f"tracker={name}"), tmp_path / "run")
    assert not (tmp_path / "cache").exists()
    with pytest.raises(
        ValueError, match="tracker.name=neptune is unknown; choose one of none, tensorboard"
    ):
        train(configure(*TOY, "tracker.name=neptune"), tmp_path / "run")


class Own:
    """A tracker of a user's: it has no more than it must have."""

    def __init__(self, folder, **about):
        self.folder = folder
        (folder / "opened.txt").write_text(f"{about['epochs']} {about['settings']['seed']}")

    def log(self, record):
        with open(self.folder / "own.txt", "a") as file:
            print(record["epochs"], file=file)

    def close(self, status):
        (self.folder / "closed.txt").write_text(status)


def test_a_tracker_of_a_users_gets_the_rounds(configure, tmp_path):
    config = configure(
        *TOY,
        "tracker=custom",
        f"tracker.path={__name__}.Own",
    )
    train(config, tmp_path / "run")
    epochs = [record["epochs"] for record in rounds_of(tmp_path / "run")]
    assert (tmp_path / "run" / "own.txt").read_text().split() == list(map(str, epochs))
    assert (tmp_path / "run" / "opened.txt").read_text() == "0 0"
    assert (tmp_path / "run" / "closed.txt").read_text() == "finished"


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["tracker=custom"], "tracker.path=None cannot be imported.*as package.module.Class"),
        (
            ["tracker=custom", "tracker.path=nowhere.Own"],
            "tracker.path=nowhere.Own cannot be imported: .*No module named",
        ),
        (
            ["tracker=custom", f"tracker.path={__name__}.Nobody"],
            "tracker.path=.*has no attribute 'Nobody'",
        ),
        (
            ["tracker=custom", "tracker.path=collections.Counter"],
            r"tracker.path=.* is no tracker: it has no log\(\)",
        ),
    ],
)
def test_a_class_that_is_no_tracker_is_refused(overrides, message, configure, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(configure(*TOY, *overrides), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


class Broken:
    """A tracker that fails at a record, hangs, or neither."""

    def __init__(self, *, fails_at: int = 0, hangs: bool = False):
        self.fails_at, self.hangs, self.taken, self.status = fails_at, hangs, [], None

    def log(self, record):
        if record["epochs"] == self.fails_at:
            raise ConnectionError("no route to host")
        if self.hangs:
            time.sleep(3600)
        self.taken.append(record["epochs"])

    def close(self, status):
        self.status = status


RECORDS = [{"epochs": epoch, "loss": 1 / epoch} for epoch in range(1, 6)]


@pytest.mark.parametrize("fails_at, taken", [(0, [1, 2, 3, 4, 5]), (3, [1, 2])])
def test_a_tracker_gets_every_record_until_it_fails(fails_at, taken, caplog):
    broken = Broken(fails_at=fails_at)
    feed = TrackerFeed(lambda: broken)
    for record in RECORDS:
        feed.log(record)
    feed.close("finished")
    assert broken.taken == taken and broken.status == (None if fails_at else "finished")
    assert [r.getMessage() for r in caplog.records] == [
        "the tracker failed: no route to host. The run continues without it, and metrics.jsonl holds every record"
    ] * bool(fails_at)


def test_a_tracker_that_hangs_costs_the_run_nothing_but_a_wait_at_its_end(caplog, monkeypatch):
    monkeypatch.setitem(trackers.CLOSE_SECONDS, "stopped", 0.2)
    feed, waits = TrackerFeed(lambda: Broken(hangs=True)), []
    monkeypatch.setattr(feed._thread, "join", waits.append)
    for record in RECORDS:
        feed.log(record)
    assert not waits
    feed.close("stopped")
    assert waits == [0.2] and "has not taken the last records within 0 s" in caplog.text


def test_a_run_with_a_broken_tracker_ends_with_the_same_weights(
    configure, tmp_path, monkeypatch, caplog
):
    def refuse(*args, **options):
        raise OSError(28, "No space left on device", "tracking.json")

    config = configure(*TOY)
    plain = train(config, tmp_path / "plain")
    refusing = type("Refusing", (), {"__init__": refuse})
    monkeypatch.setitem(trackers.TRACKERS, "broken", (refusing, ()))
    config = dataclasses.replace(config, tracker=TrackerConfig(name="broken"))
    assert train(config, tmp_path / "run")["weights_sha256"] == plain["weights_sha256"]
    assert caplog.text.count("the tracker failed: tracking.json: No space left on device") == 1


def test_only_the_first_rank_of_several_writes_and_a_stop_is_told(configure, tmp_path, monkeypatch):
    opened = []

    class Remembers(Broken):
        def __init__(self, folder, **options):
            super().__init__()
            self.options = options
            opened.append(self)

    monkeypatch.setitem(trackers.TRACKERS, "remembers", (Remembers, ()))
    config = dataclasses.replace(configure(*TOY), tracker=TrackerConfig("remembers"))
    part = build.part_of(config, build.open_graph(config).data)
    for rank in range(2):
        folder = tmp_path / "sweep" / "3"
        folder.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.closing(build.build_trainer(config, part.data)) as trainer,
            pytest.raises(Stopped),
            training.build_session(part, trainer, folder) as session,
        ):
            session.ranks = Ranks(rank, 1)
            session.resume(trainer)
            raise Stopped(15)
    (tracker,) = opened
    assert tracker.status == "stopped" and tracker.options["name"] == "sweep/3"
    assert tracker.options["settings"]["train.epochs"] == 4


def test_a_run_directory_of_before_is_read(configure, tmp_path):
    config = configure(*TOY)
    (tmp_path / "config.yaml").write_text("tensorboard: true\n" + keys.to_yaml(config))
    assert configuration.load(tmp_path / "config.yaml") == config

"""Trackers: the rounds of ``metrics.jsonl`` for TensorBoard, Weights & Biases, MLflow or a CSV file.

Their packages are imported when a tracker is asked for. A run never waits for one and never fails by one.
"""

import csv
import importlib
import json
import logging
import queue
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pipeline.run import files
from pipeline.run.errors import one_line

log = logging.getLogger(__name__)

# How long the end of a run waits for records to be taken.
CLOSE_SECONDS = {"finished": 60.0, "stopped": 10.0, "failed": 10.0}


class Tracker(Protocol):
    """Where records go. It is opened, used and closed in one thread, by the first rank alone.

    The constructor takes the run directory, and by keyword `name` of the run, `project` that it belongs to,
    `settings` (every key of the configuration), `best` ("max" or "min", of the metric) and `began` (seconds of the
    epoch at which the run would have begun, had it never been stopped).

    Attributes:
        last_epoch: passes over the graph up to which it holds the records of an earlier start; 0 if it begins anew.
    """

    last_epoch: int

    @staticmethod
    def check() -> None: ...
    def log(self, record: dict) -> None: ...
    def close(self, status: str) -> None: ...


class TrackerFeed:
    """Hands records to a tracker, in a thread of its own.

    What the tracker cannot take is offered again with the next record; the first failure is a warning, the others are
    not told. Records that the tracker holds from an earlier start are not handed over twice.

    Args:
        open_tracker: opens it.
        records: those that are there already.
    """

    def __init__(self, open_tracker: Callable[[], Tracker], records: list[dict]):
        self._open, self._status, self._has_warned = open_tracker, "", False
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        for record in [{}, *records]:  # the empty one opens the tracker
            self._queue.put(record)
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def log(self, record: dict) -> None:
        """Hand over a record, at once."""
        self._queue.put(record)

    def close(self, status: str) -> None:
        """Hand over the rest.

        Args:
            status: "finished", "stopped" or "failed".
        """
        self._status = status
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS[status])
        if self._thread.is_alive():
            self._warn(f"it has not taken the last records within {CLOSE_SECONDS[status]:.0f} s")

    def _work(self) -> None:
        tracker: Tracker | None = None
        waiting: list[dict] = []
        while True:
            record = self._queue.get()
            try:
                waiting += [record] if record else []
                tracker = tracker or self._open()
                while waiting:
                    if waiting[0]["epochs"] > tracker.last_epoch:
                        tracker.log(waiting[0])
                    del waiting[0]
                if record is None:
                    tracker.close(self._status)
            except BaseException as error:  # noqa: BLE001 - whatever a tracker does, the run goes on
                self._warn(one_line(error) or type(error).__name__)
            if record is None:
                return

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("the tracker failed: %s. The run goes on without it; metrics.jsonl holds every record, and a "
                        "resumed run hands over what is missing", reason)


def numbers_of(record: dict) -> dict[str, float]:
    """Return what of a record can be drawn as a curve."""
    return {key: value for key, value in record.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "round"}


def require(tracker: str, *modules: str) -> None:
    """Import the packages of a tracker.

    Raises:
        ValueError: one of them is not installed; says how to install it.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(f"tracker={tracker} cannot run: {one_line(error)}. pip install "
                             f"'parallel-epochs[{tracker}]', in a checkout pip install -e '.[{tracker}]'") from None


class RunIds:
    """Remembers in ``tracking.json`` which run of a service a run directory is, so that it is continued there."""

    def __init__(self, folder: Path, service: str):
        self._path, self._service = folder / "tracking.json", service
        try:
            self._all: dict[str, dict] = json.loads(self._path.read_text())
        except (OSError, ValueError):
            self._all = {}

    def read(self) -> dict:
        """Return what was written; empty for a new run."""
        return self._all.get(self._service, {})

    def write(self, **values: str | int) -> None:
        """Remember these values, in place of the ones before."""
        self._all[self._service] = values
        files.write_json(self._path, self._all)


class CsvTracker:
    """Writes ``metrics.csv``, a row a round."""

    def __init__(self, folder: Path, **options):
        self._path, self.last_epoch = folder / "metrics.csv", 0
        self._rows: list[dict] = []
        self._columns: list[str] = []
        self._path.unlink(missing_ok=True)

    @staticmethod
    def check() -> None:
        """Do nothing: it needs no package."""

    def log(self, record: dict) -> None:
        """Append a row; a column that was not there before makes the file anew."""
        row = {key: value for key, value in record.items() if key != "kind"}
        self._rows.append(row)
        is_new = not self._columns
        if new := [key for key in row if key not in self._columns]:
            self._columns += new
            is_new = True
        with open(self._path, "w" if is_new else "a", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            if is_new:
                writer.writeheader()
            writer.writerows(self._rows if is_new else [row])

    def close(self, status: str) -> None:
        """Do nothing: every row is written."""


class TensorBoardTracker:
    """Writes event files to the folder ``tensorboard``, from the first record on whenever it is opened."""

    def __init__(self, folder: Path, *, settings: dict, began: float, **options):
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        for old in (folder / "tensorboard").glob("events.out.tfevents.*"):
            old.unlink()
        self.last_epoch, self._began = 0, began
        self._writer = SummaryWriter(folder / "tensorboard")
        # What it takes as a hyperparameter; lists and null are texts.
        known = {key: value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
                 for key, value in settings.items()}
        writer = self._writer._get_file_writer()
        for summary in hparams(known, {"valid": 0.0})[:2]:
            writer.add_summary(summary)

    @staticmethod
    def check() -> None:
        """See :func:`require`."""
        require("tensorboard", "torch.utils.tensorboard")

    def log(self, record: dict) -> None:
        """Write a point of each curve over the epochs."""
        for key, value in numbers_of(record).items():
            self._writer.add_scalar(key, value, record["epochs"], walltime=self._began + record["wall_seconds"])
        self._writer.flush()

    def close(self, status: str) -> None:
        """Close the file."""
        self._writer.close()


class WandbTracker:
    """Logs to Weights & Biases; with WANDB_MODE=offline to files in the run directory, for ``wandb sync``."""

    def __init__(self, folder: Path, *, name: str, project: str, settings: dict, best: str = "max", **options):
        import wandb

        self._ids = RunIds(folder, "wandb")
        known = self._ids.read()
        self._id, self.last_epoch = known.get("id") or secrets.token_hex(8), known.get("epochs", 0)
        self._run = wandb.init(
            id=self._id, resume="allow", reinit="create_new", project=project, name=name, group=name.split("/")[0],
            dir=folder, config=settings, allow_val_change=True,
            settings=wandb.Settings(silent=True, console="off", disable_code=True))
        self._ids.write(id=self._id, epochs=self.last_epoch)
        self._run.define_metric("epochs")
        self._run.define_metric("*", step_metric="epochs")
        self._run.define_metric("valid", step_metric="epochs", summary=f"{best},last")

    @staticmethod
    def check() -> None:
        """Refuse a run that would not know whom to log in as.

        Raises:
            ValueError: not installed, or nobody is logged in.
        """
        require("wandb", "wandb")
        import wandb

        if wandb.setup().settings.mode != "online":
            return
        try:
            has_key = wandb.login(prompt=False)
        except Exception:  # noqa: BLE001 - the server cannot be reached, which is no reason not to train
            has_key = True
        if not has_key:
            raise ValueError("tracker=wandb: nobody is logged in. Run `wandb login`, set WANDB_API_KEY, or write "
                             "files for a later `wandb sync` with WANDB_MODE=offline")

    def log(self, record: dict) -> None:
        """Log all numbers at the step of their epoch."""
        self._run.log(numbers_of(record), step=record["epochs"])
        self._ids.write(id=self._id, epochs=record["epochs"])

    def close(self, status: str) -> None:
        """End the run, as long as it is not continued."""
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MlflowTracker:
    """Logs to MLflow, where MLFLOW_TRACKING_URI says or to ``mlflow.db`` in the working directory."""

    STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

    def __init__(self, folder: Path, *, name: str, project: str, settings: dict, began: float, **options):
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._client, self._began, self.last_epoch, ids = MlflowClient(), began, 0, RunIds(folder, "mlflow")
        self._run_id = ids.read().get("run_id")
        if self._run_id is None:
            experiment = self._client.get_experiment_by_name(project)
            number = self._client.create_experiment(project) if experiment is None else experiment.experiment_id
            self._run_id = self._client.create_run(number, run_name=name).info.run_id
            self._client.log_batch(self._run_id, params=[Param(key, str(value)[:500])
                                                         for key, value in settings.items()])
            ids.write(run_id=self._run_id)
        else:
            self._client.update_run(self._run_id, status="RUNNING")
            self.last_epoch = max((point.step for point in self._client.get_metric_history(self._run_id, "epochs")),
                                  default=0)

    @staticmethod
    def check() -> None:
        """See :func:`require`; MLflow's default store is SQLite, by SQLAlchemy."""
        require("mlflow", "mlflow", "sqlalchemy", "alembic")

    def log(self, record: dict) -> None:
        """Log all numbers at the step of their epoch, `epochs` last: it tells what has arrived."""
        from mlflow.entities import Metric

        time = int(1000 * (self._began + record["wall_seconds"]))
        numbers = numbers_of(record)
        numbers["epochs"] = numbers.pop("epochs")
        self._client.log_batch(self._run_id, metrics=[Metric(key, float(value), time, record["epochs"])
                                                      for key, value in numbers.items()])

    def close(self, status: str) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._run_id, self.STATUS[status])

"""Sends the rounds of ``metrics.jsonl`` to a tracker: TensorBoard, Weights & Biases, MLflow or a CSV file.

The tracker's packages are imported only if it is chosen. A run never waits for its tracker during training, and never
fails because of it.
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
from typing import Any, ClassVar, Protocol

from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import install_command, one_line

log = logging.getLogger(__name__)

# Seconds that the end of a run waits for the tracker to take the last records.
CLOSE_SECONDS = {"finished": 60.0, "stopped": 10.0, "failed": 10.0}


class Tracker(Protocol):
    """Takes the records of a run. Only the first rank opens it, and uses and closes it in the same thread.

    The constructor takes the run directory, and by keyword `name` of the run, `project` that it belongs to,
    `settings` (every key of the configuration), `best` ("max" or "min", of the metric) and `began` (seconds of the
    epoch at which the run would have begun, had it never been stopped).

    Attributes:
        last_epoch: epoch of the last record that it holds from an earlier start; 0 if it holds none. A class of a
            user's need not have it, nor `check`.
    """

    last_epoch: int

    @staticmethod
    def check() -> None: ...
    def log(self, record: dict) -> None: ...
    def close(self, status: str) -> None: ...


class TrackerFeed:
    """Hands records to a tracker in a thread of its own.

    A record that the tracker could not take is offered again with the next one. Only the first failure is logged, as a
    warning. Records that the tracker holds from an earlier start are not handed over twice.

    Args:
        open_tracker: opens the tracker.
        records: the records of earlier starts.
    """

    def __init__(self, open_tracker: Callable[[], Tracker], records: list[dict]):
        self._open, self._status, self._has_warned = open_tracker, "", False
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        for record in [{}, *records]:  # the empty one opens the tracker
            self._queue.put(record)
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def log(self, record: dict) -> None:
        """Queue a record, without waiting for the tracker."""
        self._queue.put(record)

    def close(self, status: str) -> None:
        """Wait until the tracker has taken all records, for a limited time.

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
                    if waiting[0]["epochs"] > getattr(tracker, "last_epoch", 0):
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
            log.warning(
                "the tracker failed: %s. The run continues without it. metrics.jsonl holds every record, and a "
                "resumed run sends the missing ones",
                reason,
            )


def numbers_of(record: dict) -> dict[str, float]:
    """Return the values of a record that can be drawn as curves."""
    return {
        key: value
        for key, value in record.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "round"
    }


def require(tracker: str, *modules: str) -> None:
    """Import the packages of a tracker.

    Raises:
        ValueError: a package is not installed. The message says how to install it.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(
                f"tracker={tracker} cannot run: {one_line(error)}. Install what it needs: "
                f"{install_command(tracker)}"
            ) from None


class RunIds:
    """Stores in ``tracking.json`` which run of a service belongs to a run directory, so that a resume continues it."""

    def __init__(self, folder: Path, service: str):
        self._path, self._service = folder / "tracking.json", service
        try:
            self._all: dict[str, dict] = json.loads(self._path.read_text())
        except (OSError, ValueError):
            self._all = {}

    def read(self) -> dict:
        """Return the stored values; an empty dict for a new run."""
        return self._all.get(self._service, {})

    def write(self, **values: str | int) -> None:
        """Store these values in place of the old ones."""
        self._all[self._service] = values
        files.write_json(self._path, self._all)


class CsvTracker:
    """Writes ``metrics.csv``, with a row for each round."""

    def __init__(self, folder: Path, **options: object):
        self._path, self.last_epoch = folder / "metrics.csv", 0
        self._rows: list[dict] = []
        self._columns: list[str] = []
        self._path.unlink(missing_ok=True)

    @staticmethod
    def check() -> None:
        """Do nothing: it needs no package."""

    def log(self, record: dict) -> None:
        """Append a row. A record with a new column rewrites the whole file."""
        row = {key: value for key, value in record.items() if key != "kind"}
        self._rows.append(row)
        is_new = not self._columns
        if new := [key for key in row if key not in self._columns]:
            self._columns += new
            is_new = True
        with open(self._path, "w" if is_new else "a", newline="", opener=files.own_file) as file:
            writer = csv.DictWriter(file, self._columns)
            if is_new:
                writer.writeheader()
            writer.writerows(self._rows if is_new else [row])

    def close(self, status: str) -> None:
        """Do nothing: every row is written."""


class TensorBoardTracker:
    """Writes event files to the folder ``tensorboard``. Every start writes all records again."""

    def __init__(self, folder: Path, *, settings: dict, began: float, **options: object):
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        files.own_folder(folder / "tensorboard")
        for old in (folder / "tensorboard").glob("events.out.tfevents.*"):
            old.unlink()
        self.last_epoch, self._began = 0, began
        self._writer = SummaryWriter(folder / "tensorboard")
        # TensorBoard takes these types as hyperparameters. Lists and null are written as text.
        known = {
            key: value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
            for key, value in settings.items()
        }
        writer = self._writer._get_file_writer()
        for summary in hparams(known, {"valid": 0.0})[:2]:
            writer.add_summary(summary)

    @staticmethod
    def check() -> None:
        """See :func:`require`."""
        require("tensorboard", "torch.utils.tensorboard")

    def log(self, record: dict) -> None:
        """Add a point to each curve over the epochs."""
        for key, value in numbers_of(record).items():
            self._writer.add_scalar(
                key, value, record["epochs"], walltime=self._began + record["wall_seconds"]
            )
        self._writer.flush()

    def close(self, status: str) -> None:
        """Close the file."""
        self._writer.close()


class WandbTracker:
    """Logs to Weights & Biases, or with WANDB_MODE=offline to files in the run directory for ``wandb sync``."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        project: str,
        settings: dict,
        best: str = "max",
        **options: object,
    ):
        import wandb

        self._ids = RunIds(folder, "wandb")
        known = self._ids.read()
        self._id, self.last_epoch = known.get("id") or secrets.token_hex(8), known.get("epochs", 0)
        self._run = wandb.init(
            id=self._id,
            resume="allow",
            reinit="create_new",
            project=project,
            name=name,
            group=name.split("/")[0],
            dir=folder,
            config=settings,
            allow_val_change=True,
            settings=wandb.Settings(silent=True, console="off", disable_code=True),
        )
        self._ids.write(id=self._id, epochs=self.last_epoch)
        self._run.define_metric("epochs")
        self._run.define_metric("*", step_metric="epochs")
        self._run.define_metric("valid", step_metric="epochs", summary=f"{best},last")

    @staticmethod
    def check() -> None:
        """Refuse a run if nobody is logged in to Weights & Biases.

        Raises:
            ValueError: wandb is not installed, or nobody is logged in.
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
            raise ValueError(
                "tracker=wandb: nobody is logged in. Run `wandb login`, set WANDB_API_KEY, or write "
                "files for a later `wandb sync` with WANDB_MODE=offline"
            )

    def log(self, record: dict) -> None:
        """Log all numbers at the step of their epoch."""
        self._run.log(numbers_of(record), step=record["epochs"])
        self._ids.write(id=self._id, epochs=record["epochs"])

    def close(self, status: str) -> None:
        """End the run. A resume continues it."""
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MlflowTracker:
    """Logs to the MLflow server of MLFLOW_TRACKING_URI, or to ``mlflow.db`` in the working directory."""

    STATUS: ClassVar = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        project: str,
        settings: dict,
        began: float,
        **options: object,
    ):
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._client, self._began, self.last_epoch, ids = (
            MlflowClient(),
            began,
            0,
            RunIds(folder, "mlflow"),
        )
        self._run_id: str = ids.read().get("run_id", "")
        if not self._run_id:
            experiment = self._client.get_experiment_by_name(project)
            number = (
                self._client.create_experiment(project)
                if experiment is None
                else experiment.experiment_id
            )
            self._run_id = self._client.create_run(number, run_name=name).info.run_id
            self._client.log_batch(
                self._run_id,
                params=[Param(key, str(value)[:500]) for key, value in settings.items()],
            )
            ids.write(run_id=self._run_id)
        else:
            self._client.update_run(self._run_id, status="RUNNING")
            self.last_epoch = max(
                (point.step for point in self._client.get_metric_history(self._run_id, "epochs")),
                default=0,
            )

    @staticmethod
    def check() -> None:
        """Refuse a run if MLflow is not installed, or SQLAlchemy, which its default store (SQLite) needs."""
        require("mlflow", "mlflow", "sqlalchemy", "alembic")

    def log(self, record: dict) -> None:
        """Log all numbers at the step of their epoch. `epochs` comes last, so that it tells what has arrived."""
        from mlflow.entities import Metric

        time = int(1000 * (self._began + record["wall_seconds"]))
        numbers = numbers_of(record)
        numbers["epochs"] = numbers.pop("epochs")
        self._client.log_batch(
            self._run_id,
            metrics=[
                Metric(key, float(value), time, record["epochs"]) for key, value in numbers.items()
            ],
        )

    def close(self, status: str) -> None:
        """Set the status with which the run ended."""
        self._client.set_terminated(self._run_id, self.STATUS[status])


CUSTOM = "custom"
TRACKERS: dict[str, Any] = {
    "none": None,
    "csv": CsvTracker,
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}


def find_tracker(name: str, path: str | None = None) -> Any:
    """Return the class of a tracker; None for none.

    Args:
        path: of the class of tracker=custom, as package.module.Class.

    Raises:
        ValueError: there is no tracker of this name, or no such class.
    """
    if name == CUSTOM:
        return _import_tracker(path)
    if name not in TRACKERS:
        raise ValueError(
            f"tracker.name={name} is unknown; choose one of {', '.join([*TRACKERS, CUSTOM])}"
        )
    if path is not None:
        raise ValueError(f"tracker.path={path} is for tracker=custom. Leave it out, or set that")
    return TRACKERS[name]


def _import_tracker(path: str | None) -> Any:
    module, _, name = (path or "").rpartition(".")
    if path is None or not module or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(
            f"tracker.path={path} does not name a class: give it as package.module.Class"
        )
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:
        raise ValueError(f"tracker.path={path} cannot be imported: {one_line(error)}") from error
    if not isinstance(found, type):
        raise ValueError(f"tracker.path={path}: {module} has no class {name}")
    for method in ("log", "close"):
        if not hasattr(found, method):
            raise ValueError(f"tracker.path={path} is no tracker: it has no {method}()")
    return found

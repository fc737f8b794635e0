"""Sends the rounds of ``metrics.jsonl`` to a tracker: TensorBoard, Weights & Biases, MLflow or a class of the user's.

The tracker's packages are imported only if it is chosen. A run never waits for its tracker during training, and never
fails because of it.
"""

import contextlib
import importlib
import json
import logging
import os
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

# The file of a run that names its runs of services.
IDS = "tracking.json"
# The project of a run, or its experiment, unless the environment names another (WANDB_PROJECT, MLFLOW_EXPERIMENT_NAME).
PROJECT = "parallel-epochs"


class Tracker(Protocol):
    """Takes the records of a run. Only the first rank opens it, and uses and closes it in the same thread.

    The constructor takes the run directory, and by keyword `name` of the run, `settings` (every key of the
    configuration), `best` ("max" or "min", of the metric) and `epochs` (those that earlier starts have recorded; later
    ones come again). A class may have a static method `check`, which refuses a run before any work.
    """

    def log(self, record: dict) -> None: ...
    def close(self, status: str) -> None: ...


class TrackerFeed:
    """Hands records to a tracker in a thread of its own, until the first failure, which is logged as a warning.

    Args:
        open_tracker: opens the tracker.
    """

    def __init__(self, open_tracker: Callable[[], Tracker]):
        self._open, self._status = open_tracker, ""
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
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
            _warn(f"it has not taken the last records within {CLOSE_SECONDS[status]:.0f} s")

    def _work(self) -> None:
        try:
            tracker = self._open()
            while (record := self._queue.get()) is not None:
                tracker.log(record)
            tracker.close(self._status)
        except BaseException as error:  # noqa: BLE001 - whatever a tracker does, the run goes on
            _warn(one_line(error) or type(error).__name__)


def _warn(reason: str) -> None:
    log.warning(
        "the tracker failed: %s. The run continues without it, and metrics.jsonl holds every record",
        reason,
    )


def numbers_of(record: dict) -> dict[str, float]:
    """Return the values of a record that can be drawn as curves."""
    return {
        key: value
        for key, value in record.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "round"
    }


def read_ids(folder: Path) -> dict[str, dict]:
    """Read which run of each service belongs to a run directory, so that a resume continues it."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads((folder / IDS).read_text())
    return {}


class TensorBoardTracker:
    """Writes event files to the folder ``tensorboard``."""

    def __init__(self, folder: Path, *, settings: dict, epochs: int, **options: object):
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        files.own_folder(folder / "tensorboard")
        self._writer = SummaryWriter(folder / "tensorboard", purge_step=epochs + 1)
        texts = {
            key: value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
            for key, value in settings.items()
        }
        for summary in hparams(texts, {"valid": 0.0})[:2]:
            self._writer._get_file_writer().add_summary(summary)

    def log(self, record: dict) -> None:
        """Add a point to each curve over the epochs."""
        for key, value in numbers_of(record).items():
            self._writer.add_scalar(key, value, record["epochs"])
        self._writer.flush()

    def close(self, status: str) -> None:
        """Close the file."""
        self._writer.close()


class WandbTracker:
    """Logs to Weights & Biases, or with WANDB_MODE=offline to files in the run directory for ``wandb sync``."""

    def __init__(self, folder: Path, *, name: str, settings: dict, best: str, **options: object):
        import wandb

        ids = read_ids(folder)
        own = ids.setdefault("wandb", {"id": secrets.token_hex(8)})["id"]
        files.write_json(folder / IDS, ids)
        self._run = wandb.init(
            id=own,
            resume="allow",
            reinit="create_new",
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            group=name.split("/")[0],
            dir=folder,
            config=settings,
            allow_val_change=True,
            settings=wandb.Settings(silent=True, console="off", disable_code=True),
        )
        self._run.define_metric("*", step_metric="epochs")
        self._run.define_metric("valid", step_metric="epochs", summary=f"{best},last")

    @staticmethod
    def check() -> None:
        """Refuse a run if nobody is logged in to Weights & Biases.

        Raises:
            ValueError: nobody is logged in.
        """
        import wandb

        try:
            has_key = wandb.setup().settings.mode != "online" or wandb.login(prompt=False)
        except Exception:  # noqa: BLE001 - the server cannot be reached, which is no reason not to train
            return
        if not has_key:
            raise ValueError(
                "tracker=wandb: nobody is logged in. Run `wandb login`, set WANDB_API_KEY, or write "
                "files for a later `wandb sync` with WANDB_MODE=offline"
            )

    def log(self, record: dict) -> None:
        """Log all numbers at the step of their epoch; the service keeps what it has of a step already."""
        self._run.log(numbers_of(record), step=record["epochs"])

    def close(self, status: str) -> None:
        """End the run. A resume continues it."""
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MlflowTracker:
    """Logs to the MLflow server of MLFLOW_TRACKING_URI, or to ``mlflow.db`` in the working directory."""

    STATUS: ClassVar = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

    def __init__(self, folder: Path, *, name: str, settings: dict, **options: object):
        import mlflow

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        ids = read_ids(folder)
        known = ids.get("mlflow", {}).get("run_id")
        run = mlflow.start_run(run_id=known, run_name=name)
        self._mlflow, self._last = mlflow, run.data.metrics.get("epochs", 0)
        if known is None:
            mlflow.log_params({key: str(value)[:500] for key, value in settings.items()})
            files.write_json(folder / IDS, ids | {"mlflow": {"run_id": run.info.run_id}})

    def log(self, record: dict) -> None:
        """Log all numbers at the step of their epoch, unless an earlier start has."""
        if record["epochs"] > self._last:
            self._mlflow.log_metrics(numbers_of(record), step=record["epochs"])

    def close(self, status: str) -> None:
        """Set the status with which the run ended."""
        self._mlflow.end_run(self.STATUS[status])


CUSTOM = "custom"
# The class of each tracker, and the packages that it imports.
TRACKERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "none": (None, ()),
    "tensorboard": (TensorBoardTracker, ("torch.utils.tensorboard",)),
    "wandb": (WandbTracker, ("wandb",)),
    "mlflow": (MlflowTracker, ("mlflow", "sqlalchemy", "alembic")),
}


def find_tracker(name: str, path: str | None = None) -> Any:
    """Return the class of a tracker, after its packages were imported; None for none.

    Args:
        path: of the class of tracker=custom, as package.module.Class.

    Raises:
        ValueError: there is no tracker of this name, no such class, or a package is not installed.
    """
    if name in TRACKERS:
        found, modules = TRACKERS[name]
        try:
            for each in modules:
                importlib.import_module(each)
        except ImportError as error:
            raise ValueError(
                f"tracker={name} cannot run: {one_line(error)}. Install what it needs: "
                f"{install_command(name)}"
            ) from None
        return found
    if name != CUSTOM:
        names = ", ".join([*TRACKERS, CUSTOM])
        raise ValueError(f"tracker.name={name} is unknown; choose one of {names}")
    module, _, own = (path or "").rpartition(".")
    try:
        found = getattr(importlib.import_module(module), own)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"tracker.path={path} cannot be imported: {one_line(error)}. Give a class as "
            "package.module.Class"
        ) from error
    if not all(hasattr(found, method) for method in ("log", "close")):
        raise ValueError(f"tracker.path={path} is no tracker: it has no log() or no close()")
    return found

"""What a run leaves to read: one line an epoch, metrics.jsonl, TensorBoard."""

import json
import logging
import math
import os
import sys
from pathlib import Path

from tqdm import tqdm

log = logging.getLogger(__name__)


class BelowError(logging.Filter):
    """Lets messages through that are no errors: those go to standard error instead (conf/hydra/job_logging)."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR


class RunLog:
    """Writes ``metrics.jsonl`` (one JSON object a line, with its ``kind``) and a line an epoch.

    Args:
        folder: the run directory; none for a rank that writes nothing.
        metric: name of the metric, for the lines.
        first_epoch: a resumed run's records from this epoch on are written again, so the old ones are dropped.
        tensorboard: also write event files for TensorBoard.

    Raises:
        ValueError: TensorBoard is asked for and not installed.
    """

    def __init__(self, folder: Path | None, *, metric: str, first_epoch: int = 0, tensorboard: bool = False):
        self.metric = metric
        self._file = self._writer = None
        if folder is None:
            return
        path = folder / "metrics.jsonl"
        self.records = [r for r in read_records(path) if r["kind"] == "epoch" and r["epoch"] < first_epoch]
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(record) + "\n" for record in self.records))
        os.replace(temporary, path)
        self._file = open(path, "a")
        self._writer = _tensorboard(folder, purge_step=first_epoch) if tensorboard else None

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *exc) -> None:
        if self._file is not None:
            self._file.close()
        if self._writer is not None:
            self._writer.close()

    def record(self, kind: str, **values) -> None:
        """Append one record."""
        if self._file is None:
            return
        record = without_nan({"kind": kind, **values})
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if kind != "epoch":
            return
        self.records.append(record)
        if self._writer is not None:
            for key, value in record.items():
                if isinstance(value, (int, float)) and key != "epoch":
                    self._writer.add_scalar(key, value, values["epoch"])

    def epoch_line(self, *, epoch: int, epochs: int, loss: float, seconds: float, hidden: float,
                   synced: float | None, scores: dict[str, float] | None, is_best: bool) -> None:
        """One aligned line; `epoch` counts passes over the graph, `synced` is the share of the time in communication."""
        parts = [f"epoch {epoch:>{len(str(epochs))}}/{epochs}", f"loss {loss:8.5f}"]
        if scores is not None:
            parts += [f"{split} {value:.4f}" for split, value in scores.items()]
            parts.append("*" if is_best else " ")
        parts.append(f"{seconds:7.2f} s, drawing {hidden:4.0%} hidden")
        if synced is not None:
            parts.append(f"gradients {synced:4.1%}")
        log.info("  ".join(parts))

    def progress(self, batches, total: int, done: int = 0):
        """The batches, behind a progress bar where somebody watches."""
        return tqdm(batches, total=total, initial=done, leave=False, unit="step",
                    disable=self._file is None or not sys.stderr.isatty())


def without_nan(value):
    """The same dicts and values with None for what JSON cannot say: a metric that is undefined is null."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_records(path: Path) -> list[dict]:
    """The records of a ``metrics.jsonl``; a last line cut short by a kill is left out."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def _tensorboard(folder: Path, *, purge_step: int):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError("tensorboard=true needs TensorBoard: pip install -e .[tensorboard]") from error
    return SummaryWriter(folder / "tensorboard", purge_step=purge_step)


def table(rows: list[tuple[str, str]], title: str) -> str:
    """Two aligned columns under a title."""
    width = max(len(name) for name, _ in rows)
    return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows)])

"""What a run leaves to read: a line an epoch, metrics.jsonl, TensorBoard."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from pipeline.run.files import without_nan

log = logging.getLogger(__name__)


class BelowError(logging.Filter):
    """Lets messages through that are no errors: those go to standard error instead (conf/hydra/job_logging)."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR


class RunLog:
    """Writes ``metrics.jsonl`` (one JSON object a line, with its ``kind``), a line an epoch, and a progress bar.

    Args:
        folder: the run directory; none for a rank that writes nothing.
        metric: name of the metric, for the lines.
        first_round: a resumed run's records from this round on are written again, so the old ones are dropped.
        tensorboard: also write event files for TensorBoard.

    Raises:
        ValueError: TensorBoard is asked for and not installed.
    """

    def __init__(self, folder: Path | None, *, metric: str, first_round: int = 0, tensorboard: bool = False):
        self.metric = metric
        self._file: TextIO | None = None
        self._writer: Any = None
        self._bar: tqdm | None = None
        if folder is None:
            return
        path = folder / "metrics.jsonl"
        kept = [r for r in read_records(path) if r["kind"] == "round" and r["round"] < first_round]
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))
        os.replace(temporary, path)
        self._file = open(path, "a")  # noqa: SIM115 - closed by close()
        self._writer = _open_tensorboard(folder, purge_step=first_round) if tensorboard else None

    def close(self) -> None:
        """Close the files."""
        self.end_bar()
        if self._file is not None:
            self._file.close()
        if self._writer is not None:
            self._writer.close()

    def record(self, kind: str, **values) -> None:
        """Append one record."""
        if self._file is None:
            return
        record: dict[str, Any] = without_nan({"kind": kind, **values})
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if kind == "round" and self._writer is not None:
            for key, value in record.items():
                if isinstance(value, (int, float)) and key != "round":
                    self._writer.add_scalar(key, value, values["round"])

    def epoch_line(self, *, epoch: int, num_epochs: int, loss: float, seconds: float, hidden: float,
                   synced: float | None, scores: dict[str, float] | None, is_best: bool) -> None:
        """Log one aligned line.

        Args:
            epoch: passes over the graph so far, of `num_epochs`.
            hidden: share of the drawing that nobody waited for.
            synced: share of the time that went into communication.
        """
        parts = [f"epoch {epoch:>{len(str(num_epochs))}}/{num_epochs}", f"loss {loss:8.5f}"]
        if scores is not None:
            parts += [f"{split} {value:.4f}" for split, value in scores.items()]
            parts.append("*" if is_best else " ")
        parts.append(f"{seconds:7.2f} s, drawing {hidden:4.0%} hidden")
        if synced is not None:
            parts.append(f"gradients {synced:4.1%}")
        log.info("  ".join(parts))

    def start_bar(self, total: int, initial: int = 0) -> None:
        """Show a progress bar of a round's steps where somebody watches."""
        self._bar = tqdm(total=total, initial=initial, leave=False, unit="step",
                         disable=self._file is None or not sys.stderr.isatty())

    def advance(self) -> None:
        """Count a step."""
        self._bar.update()

    def end_bar(self) -> None:
        """Take the progress bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def read_records(path: Path) -> list[dict]:
    """Read the records of a ``metrics.jsonl``; a last line cut short by a kill is left out."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def _open_tensorboard(folder: Path, *, purge_step: int):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError("tensorboard=true needs TensorBoard: pip install -e .[tensorboard]") from error
    return SummaryWriter(folder / "tensorboard", purge_step=purge_step)


def format_table(rows: list[tuple[str, str]], title: str) -> str:
    """Format two aligned columns under a title."""
    width = max(len(name) for name, _ in rows)
    return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows)])

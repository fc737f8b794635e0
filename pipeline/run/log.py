"""Records a run: a log line for each epoch, metrics.jsonl, and a tracker."""

import contextlib
import functools
import json
import logging
import statistics
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO, cast

from parallel_epochs.pipeline.names import SPLITS
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.contract import RoundNumbers
from parallel_epochs.pipeline.run.files import without_nan
from parallel_epochs.pipeline.run.progress import Bar, CarefulHandler, Pace, format_seconds
from parallel_epochs.pipeline.run.tracker import Tracker, TrackerFeed

log = logging.getLogger(__name__)

# Fields of a round that others compute with.
ROUND_NUMBERS = ("epochs", "step", "loss", "lr", "grad_norm", "seconds", "wall_seconds", *SPLITS)


class BelowError(logging.Filter):
    """Drops errors, which another handler writes to standard error (conf/hydra/job_logging)."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR


class LogFile(CarefulHandler, logging.FileHandler):
    """The log file of a run, which is shown on a terminal sooner or later."""

    def target(self) -> str:
        return self.baseFilename

    def _open(self) -> TextIOWrapper:
        files.is_there(Path(self.baseFilename))  # opening a pipe would wait
        return cast(
            TextIOWrapper,
            open(
                self.baseFilename,
                self.mode,
                encoding=self.encoding,
                errors=self.errors,
                opener=files.own_file,
            ),
        )

    def close(self) -> None:
        """Close the file. Messages that could not be written are lost."""
        with contextlib.suppress(OSError):
            super().close()


class RunLog:
    """Writes ``metrics.jsonl`` (one JSON object with a ``kind`` per line), a log line per epoch, and a progress bar.

    Args:
        folder: the run directory; None for a rank that writes nothing.
        metric: name of the metric, for the lines.
        first_round: a resumed run writes the records from this round on again, so the old ones are dropped. Other
            records of earlier starts stay.
        open_tracker: opens the tracker that gets the rounds too. It takes `epochs` by keyword; see
            :class:`pipeline.run.tracker.Tracker`.

    Raises:
        FileError: ``metrics.jsonl`` cannot be read or written.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        metric: str,
        first_round: int = 0,
        open_tracker: Callable[..., Tracker] | None = None,
    ):
        self.metric = metric
        self._file: TextIO | None = None
        self._tracker: TrackerFeed | None = None
        self._bar: Bar | None = None
        self._pace: Pace | None = None
        self._seconds_left: float | None = None
        self._trained = self._delayed = 0.0
        if folder is None:
            return
        self._path = path = folder / "metrics.jsonl"
        records, damaged = _parse_records(path)
        earlier = [r for r in records if r.get("round", first_round) < first_round]
        kept = [r for r in earlier if r["kind"] == "round"]
        others = [r for r in earlier if r["kind"] != "round"]
        if damaged:
            log.warning(
                "%s is damaged and kept as %s: line %d is not a record",
                path,
                files.keep_aside(path).name,
                damaged[0],
            )
        if len(kept) < first_round:
            log.warning(
                "%s: the records of %d of %d rounds are lost",
                path,
                first_round - len(kept),
                first_round,
            )
        files.write_text(path, "".join(json.dumps(record) + "\n" for record in [*others, *kept]))
        with files.naming(path, "written"):
            self._file = open(path, "a", opener=files.own_file)  # noqa: SIM115 - closed by close()
        if open_tracker is not None:
            epochs = kept[-1]["epochs"] if kept else 0
            self._tracker = TrackerFeed(functools.partial(open_tracker, epochs=epochs))

    def close(self, status: str = "finished") -> None:
        """Close the files.

        Args:
            status: of the run: "finished", "stopped" or "failed".
        """
        self.end_bar()
        if self._delayed > max(1.0, 0.1 * self._trained):
            log.info(
                "training waited %.1f s of %.1f s for batches to be drawn",
                self._delayed,
                self._trained,
            )
        if self._file is not None:
            with files.naming(self._path, "written"):
                self._file.close()
        if self._tracker is not None:
            self._tracker.close(status)

    def record(self, kind: str, **values: object) -> None:
        """Append one record."""
        if self._file is None:
            return
        record: dict[str, Any] = without_nan({"kind": kind, **values})
        with files.naming(self._path, "written"):
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        if kind == "round" and self._tracker is not None:
            self._tracker.log(record)

    def epoch_line(
        self,
        *,
        epoch: int,
        num_epochs: int,
        numbers: RoundNumbers,
        evaluation_seconds: float | None,
        scores: dict[str, float] | None,
        syncs: bool,
        is_best: bool,
    ) -> None:
        """Log one aligned line for an epoch.

        Args:
            epoch: passes over the graph so far, of `num_epochs`.
            numbers: of the training since the line before.
            syncs: whether ranks communicate.
        """
        parts = [f"epoch {epoch:>{len(str(num_epochs))}}/{num_epochs}", f"loss {numbers.loss:8.5f}"]
        if scores is not None:
            parts += [f"{split} {format_score(value)}" for split, value in scores.items()]
            parts.append("best" if is_best else "    ")
        times = f"{numbers.seconds:7.2f} s"
        if evaluation_seconds is not None:
            times += f" + {evaluation_seconds:.2f} s evaluation"
        parts.append(times)
        self._trained += numbers.seconds
        self._delayed += (1 - numbers.hidden) * numbers.draw_seconds
        if syncs:
            parts.append(f"communication {numbers.sync_seconds / numbers.seconds:4.1%}")
        if self._pace is not None and epoch < num_epochs:
            self._seconds_left = self._pace.seconds_left(epoch, num_epochs)
            parts.append(f"{format_seconds(self._seconds_left)} left")
        log.info("  ".join(parts))

    def start_bar(self, total: int, *, initial: int, epoch: int, num_epochs: int) -> None:
        """Show a progress bar for a round.

        Args:
            total: steps of the round, of which `initial` have been taken.
            epoch: passes over the graph so far, of `num_epochs`.
        """
        self._pace = self._pace or Pace(epoch)
        self._bar = Bar(
            f"training, epochs {epoch}/{num_epochs}",
            total,
            "steps",
            initial=initial,
            show=self._file is not None,
            note=self._say_time_left,
        )

    def advance(self) -> None:
        """Count a step."""
        if self._bar is not None:
            self._bar.advance()

    def end_bar(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _say_time_left(self) -> str:
        return "" if self._seconds_left is None else f"run {format_seconds(self._seconds_left)}"


def format_score(value: float) -> str:
    """Format a metric with four decimals, or a small number with four digits."""
    return f"{value:.4f}" if not 0 < abs(value) < 0.01 else f"{value:.4g}"


def read_records(path: Path) -> list[dict]:
    """Read the records of a ``metrics.jsonl``.

    A last line that a kill cut short is left out. Other lines that are not records are left out too, with a warning.

    Raises:
        FileError: it cannot be read.
    """
    records, damaged = _parse_records(path)
    if damaged:
        left_out = (
            f"{len(damaged)} lines are left out, line {damaged[0]} is the first"
            if len(damaged) > 1
            else f"line {damaged[0]} is left out"
        )
        log.warning("%s is damaged: %s", path, left_out)
    return records


def _parse_records(path: Path) -> tuple[list[dict], list[int]]:
    """Read the records of a file, and the numbers (from 1) of the lines that are not records."""
    *lines, last = files.read_bytes(path).split(b"\n") if files.is_there(path) else [b""]
    values = [_parse_record(line) for line in lines]
    records = [value for value in [*values, _parse_record(last)] if value is not None]
    return records, [number for number, value in enumerate(values, start=1) if value is None]


def _parse_record(line: bytes) -> dict | None:
    """Parse a record. Return None if the line is not one, or is one of a round with text in place of a number."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    if record["kind"] != "round":
        return record
    numbers = [
        value for name, value in record.items() if name in ROUND_NUMBERS and value is not None
    ]
    is_whole = type(record.get("round")) is int and all(
        type(value) in (int, float) for value in numbers
    )
    return record if is_whole else None


def format_table(rows: list[tuple[str, str]], title: str) -> str:
    """Format two aligned columns under a title."""
    width = max(len(name) for name, _ in rows)
    return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows)])


def mean_and_std(values: list[float]) -> str:
    """Format the mean and, for several values, their sample standard deviation (divided by n - 1)."""
    mean = format_score(statistics.fmean(values))
    decimals = len(mean.partition(".")[2])
    return f"{mean} ± {statistics.stdev(values):.{decimals}f}" if len(values) > 1 else mean

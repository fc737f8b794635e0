"""Shows the progress of a phase: a bar on a terminal, a log line per minute elsewhere."""

import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Callable

from tqdm import tqdm

from parallel_epochs.pipeline.run.errors import printable

log = logging.getLogger(__name__)

LINE_EVERY = 60.0  # seconds between two lines of a log file


class Bar:
    """The progress of a phase of `total` units, which ends with a ``with`` statement or :meth:`close`.

    On a terminal (standard error) and in a notebook it is a bar that disappears at the end of the phase. Elsewhere a
    phase that takes longer than a minute logs a line per minute.

    Args:
        text: what the phase does, as a participle.
        unit: what is counted, in the plural.
        initial: units that are done already.
        show: false for ranks that print nothing.
        note: returns a text to append, such as the time left of the whole run.
    """

    def __init__(
        self,
        text: str,
        total: int,
        unit: str,
        *,
        initial: int = 0,
        show: bool = True,
        note: Callable[[], str] = str,
    ):
        self._text, self._total, self._unit, self._show, self._note = text, total, unit, show, note
        self._done = self._initial = initial
        self._began = self._said = time.monotonic()
        kind = _kind_of_bar() if show else None
        self._tqdm = kind and kind(
            total=total,
            initial=initial,
            desc=text,
            unit=f" {unit}",
            leave=False,
            dynamic_ncols=True,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit}, {remaining} left{postfix}",
        )

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def advance(self, text: str | None = None) -> None:
        """Count a unit.

        Args:
            text: what the phase does from now on, if that changes.
        """
        self._done += 1
        self._text = text or self._text
        if self._tqdm is not None:
            if text:
                self._tqdm.set_description_str(text, refresh=False)
            if note := self._note():
                self._tqdm.set_postfix_str(note, refresh=False)
            self._tqdm.update()
        elif self._show and (now := time.monotonic()) - self._said >= LINE_EVERY:
            self._said = now
            left = (now - self._began) / (self._done - self._initial) * (self._total - self._done)
            notes = ", ".join(filter(None, (f"{format_seconds(left)} left", self._note())))
            log.info(
                "%s: %s of %s %s, %s",
                self._text,
                f"{self._done:,}",
                f"{self._total:,}",
                self._unit,
                notes,
            )

    def close(self) -> None:
        """Remove the bar."""
        if self._tqdm is not None:
            self._tqdm.close()


def _kind_of_bar() -> type[tqdm] | None:
    """Return the class of the bars of a terminal or of a notebook; none elsewhere."""
    stream = sys.stderr  # none if it was closed when this process began
    if stream is None or not (stream.isatty() or type(stream).__module__.startswith("ipykernel")):
        return None
    with warnings.catch_warnings():  # without ipywidgets, the bars are those of a terminal
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm as bar

        return bar


class CarefulHandler(logging.StreamHandler):
    """Writes no terminal's codes. When it cannot write, one line says so, and the run goes on."""

    failed = False

    def target(self) -> str:
        return "standard output"

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:
        """Print why a message could not be written, once."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.failed:
            self.failed = True
            with contextlib.suppress(OSError, AttributeError):
                reason = error.strerror or error
                print(f"{self.target()} cannot be written: {reason}", file=sys.stderr)


class TerminalHandler(CarefulHandler):
    """Writes messages above a progress bar instead of into it (conf/hydra/job_logging)."""

    def emit(self, record: logging.LogRecord) -> None:
        with (
            tqdm.external_write_mode(file=sys.stdout)
            if sys.stdout is not None
            else contextlib.nullcontext()
        ):
            super().emit(record)


class Pace:
    """Estimates the remaining time of a run from the epochs since its start.

    The first round counts only until there is a second one, as it compiles kernels and fills caches.

    Args:
        epochs: passes over the graph at the start.
    """

    def __init__(self, epochs: int):
        self._time, self._epochs, self._rounds = time.monotonic(), epochs, 0

    def seconds_left(self, epochs: int, num_epochs: int) -> float:
        """Count a round and estimate the seconds from `epochs` passes over the graph to all `num_epochs`."""
        now = time.monotonic()
        left = (now - self._time) / max(epochs - self._epochs, 1) * (num_epochs - epochs)
        self._rounds += 1
        if self._rounds == 1:
            self._time, self._epochs = now, epochs
        return left


def format_seconds(seconds: float) -> str:
    """Format a duration with two units at most: "8 s", "3 min", "2 h 5 min", "3 d 4 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"

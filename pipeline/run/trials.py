"""Compares settings of a run by short trainings and their validation metric, and keeps what each has reached."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from parallel_epochs.pipeline.names import merit
from parallel_epochs.pipeline.run import files, read_back
from parallel_epochs.pipeline.run.errors import DamagedFile, one_line
from parallel_epochs.pipeline.run.log import format_score, format_table
from parallel_epochs.pipeline.run.ranks import Ranks

log = logging.getLogger(__name__)

# The file of a run that holds its trials.
FILE = "trials.json"


@dataclass(frozen=True)
class Trial:
    """A setting that was trained for some epochs.

    Attributes:
        setting: its name.
        epochs: passes over the data.
        valid: the best validation metric; none if it is undefined, or the training failed.
        seconds: what these epochs took, beyond those of the trial of this setting before.
        metric: name of the metric.
    """

    setting: str
    epochs: int
    valid: float | None
    seconds: float
    metric: str

    @property
    def merit(self) -> float:
        """The validation metric, with the sign for which more is better."""
        return (
            -math.inf
            if self.valid is None or math.isnan(self.valid)
            else merit(self.metric, self.valid)
        )


class Trials:
    """Trains each setting for a few epochs, then the better half for more, until one is left or the time is over.

    Decisions follow from the trials that :data:`FILE` holds, so that a run that was killed makes them again without
    training these again.

    Args:
        folder: the run directory.
        train: trains a setting, until it has had so many epochs, and returns the content of its ``summary.json``, on
            the first rank at least.
    """

    def __init__(self, folder: Path, train: Callable[[str, int], dict], *, ranks: Ranks = Ranks()):
        self._path, self._train, self._ranks = folder / FILE, train, ranks
        self._known: list[Trial] = ranks.broadcast(read(folder) if ranks.is_first else [])
        self.found: list[Trial] = []

    def choose(
        self, settings: Sequence[str], *, first: int, most: int, seconds: float = math.inf
    ) -> str:
        """Return the best setting; of equal ones the first.

        Args:
            settings: their names.
            first, most: epochs of the first comparison and of the last one.
            seconds: for all trials together. A trial that has begun is finished.
        """
        tried: list[str] = []
        epochs = min(first, most)
        for name in settings:
            if tried and self._spent >= seconds:
                log.info(
                    "setting %s is left out: %g seconds are over (tune.seconds)", name, seconds
                )
                continue
            self._run(name, epochs)
            tried.append(name)
        while len(tried) > 1:
            each = sum(self._seconds_per_epoch(name) for name in tried) * math.ceil(
                math.log2(len(tried))
            )
            more = (seconds - self._spent) / max(each, 1e-9)
            longer = most if more > most else min(epochs + max(int(more) // first * first, 0), most)
            for name in tried if longer > epochs else ():
                self._run(name, longer)
            epochs = longer
            tried = sorted(tried, key=lambda name: -self._last(name).merit)[
                : math.ceil(len(tried) / 2)
            ]
        log.info("%s\nsetting %s is trained", tabulate(self.found), tried[0])
        return tried[0]

    def _run(self, name: str, epochs: int) -> None:
        """Train a setting for so many epochs, unless that is known: then the time that it took counts again here."""
        for known in self._known:
            if (known.setting, known.epochs) == (name, epochs):
                self.found.append(known)
                return
        log.info("setting %s, up to epoch %d", name, epochs)
        began, summary = time.perf_counter(), {}
        try:
            summary = self._train(name, epochs)
        except FloatingPointError as error:
            log.warning("setting %s: %s", name, one_line(error))
        seconds = round(time.perf_counter() - began, 6)
        valid, metric = summary.get("best_valid"), summary.get("metric", "")
        self.found.append(self._ranks.broadcast(Trial(name, epochs, valid, seconds, metric)))
        if self._ranks.is_first:
            files.write_json(self._path, {"trials": [asdict(trial) for trial in self.found]})

    def _last(self, name: str) -> Trial:
        return [trial for trial in self.found if trial.setting == name][-1]

    def _seconds_per_epoch(self, name: str) -> float:
        own = [trial for trial in self.found if trial.setting == name]
        return sum(trial.seconds for trial in own) / own[-1].epochs

    @property
    def _spent(self) -> float:
        return sum(trial.seconds for trial in self.found)


def read(folder: Path) -> list[Trial]:
    """Read the trials of a run; none if it has none, or if the file is damaged."""
    path = folder / FILE
    if not files.is_there(path):
        return []
    try:
        return [
            read_back.build(path, Trial, content) for content in files.read_json(path)["trials"]
        ]
    except (DamagedFile, TypeError, LookupError) as error:
        log.warning("the settings are compared again: %s", one_line(error))
        return []


def tabulate(trials: Sequence[Trial]) -> str:
    """Return a table of the last trial of each setting, the best one first."""
    last = {trial.setting: trial for trial in trials}
    rows = [
        (
            name,
            f"valid {'undefined' if trial.valid is None else format_score(trial.valid)} after "
            f"{trial.epochs} epochs, {sum(each.seconds for each in trials if each.setting == name):.1f} s",
        )
        for name, trial in sorted(last.items(), key=lambda item: (-item[1].epochs, -item[1].merit))
    ]
    return format_table(rows, "settings that were compared by validation")

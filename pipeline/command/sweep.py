"""Summarises a sweep of `python -m pipeline.train -m` when it ends."""

import os
import re
import shlex
import time
from pathlib import Path

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from parallel_epochs.pipeline.names import merit
from parallel_epochs.pipeline.run import files, words
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.log import format_score, mean_and_std

# Directories of the sweeps that this process has begun.
begun: list[Path] = []


class NoteFolder(Callback):
    """Notes where a sweep begins. Hydra tells of its end only if no member has failed."""

    def on_run_start(self, config: DictConfig, **kwargs: object) -> None:
        claim(config, config.hydra.run)

    def on_multirun_start(self, config: DictConfig, **kwargs: object) -> None:
        claim(config, config.hydra.sweep)
        begun.append(Path(config.hydra.sweep.dir))


def claim(config: DictConfig, place: DictConfig) -> None:
    """Make the directory of a run or a sweep that is named after the second of its start.

    Two may start in the same second. The later one takes the next second.

    Args:
        config: as Hydra has composed it.
        place: its part with the directory.
    """
    if (
        not re.search(r"\$\{now:[^}]*%S", OmegaConf.to_yaml(place))
        or config.get("resume")
        or "RANK" in os.environ
    ):
        return
    while True:
        try:
            Path(place.dir).mkdir(parents=True)
            return
        except OSError as error:
            if not isinstance(error, FileExistsError) or not Path(place.dir).is_dir():
                return  # Hydra reports what is in the way
        time.sleep(0.05)
        OmegaConf.clear_cache(config)  # which holds the second


def describe(folder: Path) -> str:
    """Say how many runs in the directory of a sweep have a result, and their scores, and what prints their table.

    Runs that differ only in their seeds give means and sample standard deviations (divided by n - 1). Of others the
    best one is named.
    """
    table = f"{words.command_of('report')} {shlex.quote(str(folder))}"
    return f"{_describe(folder)}; a table with means over seeds: {table}"


def _describe(folder: Path) -> str:
    members = sorted({path.parent for path in folder.glob("**/train.log")})
    summaries = {
        member: summary for member in members if (summary := _read_summary(member)) is not None
    }
    text = f"sweep in {folder}: {len(summaries):,} of {words.count(len(members), 'run')} finished"
    # A metric can be undefined on a split.
    results = {
        member: summary
        for member, summary in summaries.items()
        if all(isinstance(summary.get(key), float) for _, key in _scores(summary))
    }
    if len(results) < len(summaries):
        text += f", {len(results):,} with a metric"
    if not results:
        return text
    metrics = {summary["metric"] for summary in results.values()}
    if len(metrics) > 1:
        return f"{text}; their metrics differ: {', '.join(sorted(metrics))}"
    metric = metrics.pop()
    if (
        len(
            {
                tuple(
                    argument
                    for argument in shlex.split(summary["command"])
                    if not argument.startswith("seed=")
                )
                for summary in results.values()
            }
        )
        == 1
    ):
        scores = [
            f"{name}{metric} {mean_and_std([summary[key] for summary in results.values()])}"
            for name, key in _scores(next(iter(results.values())))
        ]
        return f"{text}; {', '.join(scores)}{' (mean ± standard deviation)' if len(results) > 1 else ''}"
    best = max(results, key=lambda member: merit(metric, results[member]["best_valid"]))
    found = [
        f"{name}{metric} {format_score(results[best][key])}" for name, key in _scores(results[best])
    ]
    return f"{text}; the best is {best}: {', '.join(found)}"


def _scores(summary: dict) -> list[tuple[str, str]]:
    """Return the names and keys of a run's scores; one without a name where no point is held out."""
    return (
        [("", "best_valid")]
        if summary["metric"] in summary.get("scores", {})
        else [("valid ", "best_valid"), ("test ", "test")]
    )


def _read_summary(folder: Path) -> dict | None:
    """Read the summary of a run; none if it has none, or a damaged one."""
    path = folder / "summary.json"
    if not files.is_there(path):
        return None
    try:
        summary = files.read_json(path)
    except DamagedFile:
        return None
    return summary if {"metric", "command"} <= summary.keys() else None

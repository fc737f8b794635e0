"""The networks that a run trains in turn: one for each use of a simple method, of which the best is kept."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.config import write_config
from parallel_epochs.pipeline.data.opened import OpenData
from parallel_epochs.pipeline.gnn.base import bases, settings
from parallel_epochs.pipeline.gnn.base.fit import Base, is_far_below
from parallel_epochs.pipeline.gnn.components import train_components
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.setup import Setup
from parallel_epochs.pipeline.names import merit
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import DamagedFile, one_line
from parallel_epochs.pipeline.run.log import format_score
from parallel_epochs.pipeline.run.ranks import Ranks

log = logging.getLogger(__name__)

# The value of task.candidate of each network that is tried, and the beginning of the name of its folder.
TRIED, FOLDER = ("network", "offset"), "candidate_"


def train_parts(
    train_one: Callable[[Setup, Path], dict],
    opened: OpenData[GNNConfig],
    folder: Path,
    *,
    ranks: Ranks = Ranks(),
) -> dict:
    """Train the model of a run, or one for each component, or one for each use of its simple method.

    Of the last, the model whose answer has the best validation metric becomes that of the run: its files stand in the
    run directory too, and its key ``task.candidate`` in ``config.yaml``. Those of the others stay in their folders.

    Args:
        train_one: trains a model in a folder.

    Returns:
        The content of ``summary.json``; empty on other ranks than the first.
    """
    if opened.config.chooses_model:
        opened = settings.choose(
            train_one, opened, folder, of_base=partial(_candidate, name="offset"), ranks=ranks
        )
    first, task = cast(Setup, opened.parts[0]), opened.config.task
    is_own = hasattr(
        opened.config.model, "path"
    )  # a class of the user's, which may expect the columns of the data
    if first.base is None or not _has_candidates(first) or is_own:
        summary = train_components(train_one, opened, folder, ranks=ranks)
        return _with_candidates(summary, task.candidate, folder) if ranks.is_first else summary
    summaries = dict[str, dict]()
    for name in TRIED:
        if skipped := ranks.broadcast(
            _why_skipped(cast(Base, first.base), summaries)
            if ranks.is_first and summaries
            else None
        ):
            log.info("candidate %s is skipped: %s", name, skipped)
            continue
        log.info("candidate %s, in %s", name, folder / f"{FOLDER}{name}")
        summaries[name] = train_one(_candidate(first, name), folder / f"{FOLDER}{name}")
    if not ranks.is_first:
        return {}

    def reached(name: str) -> list[float]:
        # Where both answer by the simple method alone, the better network stays.
        found = summaries[name]
        valid = found["best_valid"], found["network"]["valid"]
        return [merit(found["metric"], each) for each in valid]

    best = max(summaries, key=reached)
    log.info(
        "candidate %s is the model of the run, by the valid %s", best, summaries[best]["metric"]
    )
    _adopt(folder / f"{FOLDER}{best}", folder)
    write_config(keys.replaced(opened.config, {"task.candidate": best}), folder)
    return merge(summaries, best)


def _why_skipped(base: Base, summaries: dict[str, dict]) -> str | None:
    """Say why a network that reads the simple method cannot help after the one that does not; none if it may."""
    if base.name == "mean":
        return "the mean label tells a network nothing"
    network = summaries[TRIED[0]]
    simple, alone = base.scores["valid"], network["network"]["valid"]
    if is_far_below(network["metric"], simple, alone):
        return f"the simple method is far below the network (valid {format_score(simple)} and {format_score(alone)})"
    return None


def _with_candidates(summary: dict, best: str, folder: Path) -> dict:
    """Add what other candidates reached to the summary of a run that chose one of them before it was resumed."""
    paths = {
        name: path
        for name in TRIED
        if files.is_there(path := folder / f"{FOLDER}{name}" / "summary.json")
    }
    if best not in paths:
        return summary
    try:
        return merge(
            {name: files.read_json(path) for name, path in paths.items()} | {best: summary}, best
        )
    except (DamagedFile, LookupError, TypeError) as error:
        log.warning("the candidates are not told: %s", one_line(error))
        return summary


def _has_candidates(setup: Setup) -> bool:
    return (
        setup.base is not None
        and setup.config.task.candidate == keys.AUTO
        and setup.kind.reads_base
    )


def _candidate(whole: Setup, name: str) -> Setup:
    """Return the set-up of a use of the simple method, if the run has several."""
    if not _has_candidates(whole):
        return whole
    config = keys.replaced(whole.config, {"task.candidate": name})
    return Setup(
        config,
        bases.show(config, whole.data, whole.base),
        whole.device,
        f"{FOLDER}{name}",
        whole.base,
        whole.data,
    )


def _adopt(own: Path, folder: Path) -> None:
    """Give the files of a model a second name in the directory of the run."""
    for path in sorted(own.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            files.own_folder(folder / path.relative_to(own))
        elif (
            path.is_file()
            and not path.is_symlink()
            and path.name not in ("config.yaml", "summary.json", ".lock")
        ):
            files.link(path, folder / path.relative_to(own))


def merge(summaries: dict[str, dict], best: str) -> dict[str, Any]:
    """Return the summary of the best candidate, with the metrics and the time of all of them."""
    each = list(summaries.values())
    return {
        **summaries[best],
        "wall_seconds": round(sum(one["wall_seconds"] for one in each), 2),
        "peak_memory_bytes": max(one["peak_memory_bytes"] for one in each),
        "candidate": best,
        "candidates": {
            name: {key: one[key] for key in ("best_epoch", "best_valid", "test", "network")}
            for name, one in summaries.items()
        },
    }

"""Summarises a sweep of `python -m pipeline.train -m` when it ends."""

import os
import re
import shlex
import time
from pathlib import Path

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from parallel_epochs.pipeline.run import words

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
    """Say how many runs in the directory of a sweep have ended, and what prints their scores with means over seeds."""
    members = {path.parent for path in folder.glob("**/train.log")}
    done = sum((member / "summary.json").exists() for member in members)
    text = f"sweep in {folder}: {done:,} of {words.count(len(members), 'run')} finished"
    return f"{text}; a table with means over seeds: {words.command_of('report')} {shlex.quote(str(folder))}"

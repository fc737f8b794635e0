"""The configuration of a run directory: written when the run begins, compared when it is resumed."""

import dataclasses
import json
import os
from pathlib import Path

from pipeline import config as configuration, keys
from pipeline.config import Config
from pipeline.graph.components import Components
from pipeline.run import files
from pipeline.run.ranks import Ranks


def write_config(folder: Path, config: Config) -> None:
    """Write ``config.yaml``, which alone says how the run is continued."""
    files.write_text(folder / "config.yaml", configuration.to_yaml(config))


def write_start(folder: Path, config: Config, components: Components) -> None:
    """Write what is known before the first step."""
    write_config(folder, config)
    files.write_json(folder / "components.json", components.record())


def resolve(config: Config, folder: Path, *, has_overrides: bool, continues: bool = False) -> Config:
    """Choose the configuration to run in `folder`: the saved one if a run is resumed there.

    Args:
        has_overrides: whether the command gives more than ``resume=DIR``.
        continues: a run that the folder holds is meant to be continued, though `config.resume` does not say so.

    Raises:
        ValueError: the folder holds a run and none is resumed, the resumed one was configured otherwise (the message
            names the keys), or the folder cannot be written to.
    """
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{folder} cannot be written to")
    if config.resume is None:
        if not any(folder.glob("**/checkpoints/*.pt")):
            return config
        if not continues:
            raise ValueError(f"{folder} already holds a run: continue it with resume={folder}, or choose another "
                             "directory")
    saved = configuration.load(folder / "config.yaml")
    if not has_overrides:
        return saved
    free = configuration.keys_without_effect()
    if config.resume_allow_rescale:
        free |= {"parallel.num_ranks", "parallel.threads_per_rank"}
    differing = {name: text for name, text in keys.differences(saved, config).items() if name not in free}
    if differing:
        hint = ". Another number of ranks draws other partitions: resume_allow_rescale=true allows it, with the " \
               "learning rate computed anew" if "parallel.num_ranks" in differing else ""
        raise ValueError(f"{folder} was configured otherwise: {'; '.join(differing.values())}{hint}. Give the command "
                         "that started it, or resume=DIR alone")
    return config


def read_finished(config: Config, folder: Path) -> dict | None:
    """Read the summary of a run that has nothing left to do; none of any other."""
    path = folder / "summary.json"
    if not path.is_file() or not (folder / "config.yaml").is_file():
        return None
    if keys.differences(configuration.load(folder / "config.yaml"), config):
        return None
    return json.loads(path.read_text())


def with_ranks_of(config: Config, ranks: Ranks) -> Config:
    """Take over the number of ranks that torchrun has started, which need not be given again.

    Raises:
        ValueError: the configuration asks for another number.
    """
    if config.parallel.num_ranks not in (1, ranks.num_ranks):
        raise ValueError(f"torchrun has started {ranks.num_ranks} ranks, "
                         f"parallel.num_ranks={config.parallel.num_ranks} asks for others")
    return dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, num_ranks=ranks.num_ranks))

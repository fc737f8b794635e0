"""The configuration of a run directory: written when the run begins, compared when it is resumed."""

import dataclasses
import logging
import os
from collections.abc import Set
from pathlib import Path

from pipeline import config as configuration, effects, keys
from pipeline.config import Config
from pipeline.graph.components import Components
from pipeline.run import checkpoint, files
from pipeline.run.errors import DamagedFile
from pipeline.run.ranks import Ranks
from pipeline.run.session import check_settings

log = logging.getLogger(__name__)


def write_config(folder: Path, config: Config) -> None:
    """Write ``config.yaml``, which alone says how the run is continued."""
    files.write_text(folder / "config.yaml", configuration.to_yaml(config))


def write_start(folder: Path, config: Config, components: Components | None) -> None:
    """Write what is known before the first step."""
    write_config(folder, config)
    if components is not None:
        files.write_json(folder / "components.json", components.record())


def resolve(config: Config, folder: Path, *, named: Set[str] = frozenset(), continues: bool = False) -> Config:
    """Choose the configuration to run in `folder`: the saved one if a run is resumed there.

    Args:
        named: the keys that the command names. Where `config.resume` says that the run is resumed, these and those
            that its groups change are compared with the saved configuration, and all others are taken from there.
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
    if config.partition.num_parts == keys.AUTO:  # which was chosen when the run began
        config = keys.replaced(config, {"partition.num_parts": saved.partition.num_parts})
    if config.resume is not None:
        given = (named | effects.changed_keys(config)) - {"resume"}
        if unknown := given - {entry.name for entry in keys.entries(saved)}:
            raise ValueError(f"{folder} was trained with data={saved.data.source} and model={saved.model.name}, which "
                             f"have no {', '.join(sorted(unknown))}")
        config = keys.replaced(saved, {entry.name: entry.value for entry in keys.entries(config)
                                       if entry.name in given})
    free = effects.keys_without_effect(saved) | {entry.name for entry in keys.entries(config)
                                                       if entry.meaning.names_files}
    if config.resume_allow_rescale:
        free |= effects.RESCALED
    differing = {name: text for name, text in keys.differences(saved, config).items() if name not in free}
    if differing:
        hint = ". Another number of ranks draws other partitions: resume_allow_rescale=true allows it, with the " \
               "learning rate computed anew" if "parallel.num_ranks" in differing else ""
        raise ValueError(f"{folder} was configured otherwise: {'; '.join(differing.values())}{hint}. Leave out what "
                         "differs: resume=DIR takes the configuration from there")
    return config


def load_checkpoint(folder: Path, config: Config, name: str) -> dict:
    """Load a checkpoint of a run to use what it learned.

    Args:
        name: "best" or "last".

    Raises:
        ValueError: there is none, it is damaged, or the configuration is not the one it was trained with.
    """
    state = checkpoint.load(folder / "checkpoints" / f"{name}.pt")
    check_settings(folder, state, effects.settings(config))
    return state


def read_finished(config: Config, folder: Path) -> dict | None:
    """Read the summary of a run that has nothing left to do; none of any other."""
    path = folder / "summary.json"
    if not files.is_there(path) or not files.is_there(folder / "config.yaml"):
        return None
    if keys.differences(configuration.load(folder / "config.yaml"), config):
        return None
    try:
        summary = files.read_json(path)
        summary["best_valid"]
    except (DamagedFile, KeyError) as error:
        log.warning("%s has no result that can be read (%s): it is written again", path, error)
        return None
    return summary


def with_ranks_of(config: Config, ranks: Ranks) -> Config:
    """Take over the number of ranks that torchrun has started, which need not be given again.

    Raises:
        ValueError: the configuration asks for another number.
    """
    if config.parallel.name == "single" and ranks.num_ranks > 1:
        raise ValueError(f"parallel=single is one rank, torchrun has started {ranks.num_ranks}: start "
                         "python -m pipeline.train without torchrun, or choose parallel=epochs or parallel=split")
    if config.parallel.num_ranks not in (1, ranks.num_ranks):
        raise ValueError(f"torchrun has started {ranks.num_ranks} ranks, "
                         f"parallel.num_ranks={config.parallel.num_ranks} asks for others")
    return dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, num_ranks=ranks.num_ranks))

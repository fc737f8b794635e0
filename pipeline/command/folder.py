"""Chooses the configuration that runs in a directory: a new one, or that of the run which is resumed there."""

import dataclasses
import logging
import os
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

from parallel_epochs.pipeline import config as shared, keys
from parallel_epochs.pipeline.command import schema, trust
from parallel_epochs.pipeline.config import RunConfig
from parallel_epochs.pipeline.names import SCORES
from parallel_epochs.pipeline.run import files, outputs
from parallel_epochs.pipeline.run.errors import DamagedFile, FileError, one_line

if TYPE_CHECKING:
    from parallel_epochs.pipeline.run.ranks import Ranks

log = logging.getLogger(__name__)

# Files that a run writes to its directory, and would replace there.
RUN_FILES = (
    "config.yaml",
    "metrics.jsonl",
    "summary.json",
    "components.json",
    "checkpoints",
    "preprocessing.pt",
    "tracking.json",
    "layout.npz",
    "base.pt",
    "trials.json",
    SCORES,
)


def begin_or_continue(
    config: RunConfig, folder: Path, *, named: Set[str], is_named: bool, in_sweep: bool
) -> tuple[RunConfig, dict | None]:
    """Return the configuration to run in a directory, and the summary of a run that has nothing left to do there.

    Started again, a sweep trains what is missing, and a run goes on that Slurm or torchrun has restarted.

    Args:
        named: the keys that the command names.
        is_named: whether the command names the directory.
        in_sweep: whether the run is a member of a sweep.

    Raises:
        ValueError: see :func:`resolve`.
    """
    from parallel_epochs.pipeline.run.ranks import note_run, was_restarted  # imports torch

    if (
        os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
        and not config.resumes
        and not is_named
    ):
        log.warning(
            "torchrun may start this run again, in a new directory and from the beginning: name the directory "
            "by hydra.run.dir=DIR, and the run goes on there"
        )
    continues = (
        in_sweep
        or config.resume == keys.AUTO
        or os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
        or was_restarted(folder)
    )
    config = resolve(config, folder, named=named, continues=continues)
    note_run(folder)
    trust.remember(config)  # which a command names, or has trusted
    return config, read_finished(config, folder) if continues else None


def begin_together(
    config: RunConfig,
    folder: Path,
    ranks: "Ranks",
    *,
    named: Set[str],
    is_named: bool,
    in_sweep: bool,
) -> tuple[RunConfig, dict | None]:
    """Connect the ranks that another program has started, and return on each what the first one gets.

    See :func:`begin_or_continue`.

    Raises:
        ValueError: see :func:`resolve`. The first rank raises it, and so does one rank of every other machine.
        SystemExit: the same on the other ranks, which leave the message to these.
    """
    from parallel_epochs.pipeline.run import ranks as rank_tools

    config = with_ranks_of(config, ranks.num_ranks)
    rank_tools.join(rank_tools.choose_device(config.device_name, ranks), config.parallel.timeout)
    outcome: tuple[RunConfig, dict | None] | None = None
    problem: ValueError | OSError | None = None
    if ranks.is_first:
        try:
            outcome = begin_or_continue(
                config,
                folder,
                named=named | {"parallel.num_ranks"},
                is_named=is_named,
                in_sweep=in_sweep,
            )
        except (ValueError, OSError) as error:
            problem = error
    outcome, message = ranks.broadcast((outcome, None if problem is None else one_line(problem)))
    if problem is not None:
        raise problem
    if message is not None:
        raise ValueError(message) if ranks.local_rank == 0 else SystemExit(1)
    rank_tools.check_shared(folder, ranks)
    assert outcome is not None
    return outcome


def resolve(
    config: RunConfig, folder: Path, *, named: Set[str] = frozenset(), continues: bool = False
) -> RunConfig:
    """Choose the configuration to run in `folder`: the saved one if a run is resumed there.

    Args:
        named: the keys that the command names. Where `config.resume` says that the run is resumed, these and those
            that its groups change are compared with the saved configuration, and all others are taken from there.
        continues: a run that the folder holds is meant to be continued, though `config.resume` does not name it.

    Raises:
        ValueError: the folder holds a run and none is resumed, the resumed one was configured otherwise (the message
            names the keys), or the folder cannot be written to.
    """
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{folder} cannot be written to")
    resumes = config.resumes
    if not resumes:
        config = dataclasses.replace(config, resume=None)
        if not any(folder.glob("**/checkpoints/*.pt")):
            refuse_files_of_others(folder, config.data.sources())
            return config
        if not continues:
            raise ValueError(
                f"{folder} already holds a run: continue it with resume={folder}, or choose another "
                "directory"
            )
    saved = schema.load(folder / "config.yaml")
    config = _with_chosen(config, saved)
    # The values that were to be chosen when the run began are chosen, and keys of later versions had no other value.
    values = {entry.name: entry.value for entry in keys.entries(saved)}
    # A command that names a number of epochs changes tune.seconds.
    given = (named | shared.changed_keys(config) - {"tune.seconds"}) - {"resume"}
    config = keys.replaced(
        config,
        {
            entry.name: values[entry.name]
            for entry in keys.entries(config)
            if entry.name in values
            and (
                entry.value == keys.AUTO
                and entry.meaning.may_be_auto
                or entry.meaning.before is not None
                and entry.name not in given
            )
        },
    )
    if resumes:
        if unknown := given - {entry.name for entry in keys.entries(saved)}:
            raise ValueError(
                f"{folder} was trained with {saved.describe_members()}, which have no "
                f"{', '.join(sorted(unknown))}"
            )
        # Another class than that of the saved model is refused below.
        trust.check(saved, folder / "config.yaml", trust=config.trust, trains=True, named=named)
        # Trust is said in a command, and never saved.
        config = keys.replaced(
            saved,
            {entry.name: entry.value for entry in keys.entries(config) if entry.name in given}
            | {"trust": False},
        )
    free = shared.keys_without_effect(saved) | {
        entry.name for entry in keys.entries(config) if entry.meaning.names_files
    }
    if config.resume_allow_rescale:
        free |= shared.RESCALED
    differing = {
        name: text for name, text in keys.differences(saved, config).items() if name not in free
    }
    if differing:
        hint = (
            ". Another number of ranks draws other partitions: resume_allow_rescale=true allows it, with the "
            "learning rate computed anew"
            if "parallel.num_ranks" in differing
            else ""
        )
        mend = (
            "Leave these keys out: resume=DIR takes the configuration from DIR"
            if resumes
            else "Give the old values, or choose another directory"
        )
        raise ValueError(
            f"{folder} was trained with other values: {'; '.join(differing.values())}{hint}. {mend}"
        )
    return config


def _with_chosen(config: RunConfig, saved: RunConfig) -> RunConfig:
    """Take the members that were to be chosen when the run began, such as its model, from the saved configuration."""
    return dataclasses.replace(
        config,
        **{
            part: getattr(saved, part)
            for part, (name, _) in config.members.items()
            if getattr(getattr(config, part), name) == keys.AUTO
        },
    )


def refuse_files_of_others(folder: Path, reads: outputs.Sources = ()) -> None:
    """Refuse a directory whose files have the names of a run's and belong to nothing that this program began.

    Args:
        reads: what the run reads.

    Raises:
        ValueError: names the file.
    """
    reads = list(reads)
    for name in RUN_FILES:
        outputs.check_unread("hydra.run.dir", folder / name, reads)
    present = [name for name in RUN_FILES if (folder / name).exists()]
    if (
        "config.yaml" in present
    ):  # the first file of a run; one that was killed early has no checkpoint yet
        try:
            schema.load(folder / "config.yaml")
        except (ValueError, FileError) as error:
            raise ValueError(
                f"{error}. A run would replace this file: choose another directory"
            ) from None
    elif present:
        raise ValueError(
            f"{folder / present[0]} was not written by a run, as there is no config.yaml next to it. A "
            "run would replace this file: choose another directory"
        )


def read_finished(config: RunConfig, folder: Path) -> dict | None:
    """Read the summary of a run that has nothing left to do; none of any other."""
    path = folder / "summary.json"
    if not files.is_there(path) or not files.is_there(folder / "config.yaml"):
        return None
    if keys.differences(schema.load(folder / "config.yaml"), config):
        return None
    try:
        summary = files.read_json(path)
        summary["best_valid"]
    except (DamagedFile, KeyError) as error:
        log.warning("%s cannot be read (%s) and is written again", path, error)
        return None
    return summary


def with_ranks_of(config: RunConfig, num_ranks: int) -> RunConfig:
    """Take over the number of ranks that torchrun has started, which need not be given again.

    Raises:
        ValueError: the configuration asks for another number.
    """
    if config.parallel.num_ranks not in (1, num_ranks):
        raise ValueError(
            f"torchrun has started {num_ranks} ranks, and parallel.num_ranks={config.parallel.num_ranks} "
            "asks for another number. Leave parallel.num_ranks out"
        )
    config = dataclasses.replace(
        config, parallel=dataclasses.replace(config.parallel, num_ranks=num_ranks)
    )
    config.check()
    return config

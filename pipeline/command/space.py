"""Reads what `python -m pipeline.tune` searches, and how, from its command or the folder of its study.

A search is overrides with several values, in Hydra's own notation for sweeps.
"""

import dataclasses
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command import schema
from parallel_epochs.pipeline.command.journal import (
    JournalLock,
    check_is_ours,
    hold,
    mend_journal,
    readable_journal,
)
from parallel_epochs.pipeline.run.errors import install_command
from parallel_epochs.pipeline.run.words import command_of

if TYPE_CHECKING:
    from optuna.trial import Trial


@dataclass
class TuneConfig:
    """Keys of `python -m pipeline.tune`, in addition to those of a run."""

    study: str = keys.key(
        ..., "Folder of the study: its file study.journal, and a run directory for each trial."
    )
    trials: int = keys.key(
        20, "Number of trials of the study, including those of other workers.", minimum=1
    )
    pruner: str = keys.key(
        "median",
        "Which trials are stopped early. median: trials whose metric is below the median "
        "of the others at the same epoch. hyperband: those that Hyperband stops. none: no "
        "trial.",
        choices=("median", "hyperband", "none"),
    )
    startup_trials: int = keys.key(
        5, "Number of trials that must finish before the median stops a trial.", minimum=1
    )
    warmup_epochs: int = keys.key(
        0, "Number of epochs that a trial trains before the median may stop it.", minimum=0
    )
    trust: bool = keys.key(
        False,
        "Continue a study whose study.journal names Hydra's keys, or a class that you have "
        "not named in a command of your own (model=custom). Both can run code that the study's "
        "author chose.",
    )
    sampler_seed: int = keys.key(0, "Seed of the sampler (TPE).", minimum=0, below=2**31)


@dataclass(frozen=True)
class Search:
    """A search, as a command describes it.

    Attributes:
        fixed: overrides of every trial.
        space: key of each override with several values, and these values as they were typed.
    """

    fixed: list[str]
    space: dict[str, str]


def read_command(arguments: list[str]) -> tuple[dict, Search]:
    """Split a command line.

    Returns:
        The keys of :class:`TuneConfig` that it gives, and what is searched.

    Raises:
        ValueError: a key is missing or wrong.
    """
    own, fixed, space = {}, [], {}
    names = {field.name for field in dataclasses.fields(TuneConfig)}
    for typed, override in zip(
        arguments, OverridesParser.create().parse_overrides(arguments), strict=True
    ):
        if override.key_or_group in names:
            own[override.key_or_group] = override.value()
        elif override.is_sweep_override():
            space[override.get_key_element()] = typed.partition("=")[2]
        elif override.key_or_group in ("resume", "hydra.run.dir"):
            raise ValueError(
                f"{override.key_or_group} is chosen for each trial. Leave it out; to continue a study, "
                "give only study=DIR"
            )
        else:
            fixed.append(typed)
    if not own.get("study"):
        raise ValueError(
            "One argument is missing: study=DIR, the folder of the study. For example: "
            f"{command_of('tune')} study=DIR 'train.lr=tag(log,interval(1e-4,1e-2))'"
        )
    to_options(own)
    return own, Search(fixed, space)


def to_options(given: dict) -> TuneConfig:
    """Fill up with defaults.

    Raises:
        ValueError: a value is not allowed.
    """
    options = cast(
        TuneConfig, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TuneConfig), given))
    )
    keys.check(options)
    return options


def open_study(given: dict, search: Search) -> tuple[Any, Search, TuneConfig]:
    """Open the study in its folder, or make it.

    Args:
        given: keys of :class:`TuneConfig`; the others are those that the study was begun with.

    Returns:
        The study, what it searches, and how.

    Raises:
        ValueError: Optuna is not installed, or the study searches something else.
    """
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise ValueError(
            f"pipeline.tune needs Optuna, which is not installed: {install_command('optuna')}"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder = Path(given["study"])
    with hold(folder / ".study", wait=True):
        path = folder / "study.journal"
        with hold(folder / ".journal", wait=True):
            mend_journal(path)
        with readable_journal(path):
            storage = optuna.storages.JournalStorage(
                JournalFileBackend(str(path), cast(Any, JournalLock(folder)))
            )
            check_is_ours(path, storage, {field.name for field in dataclasses.fields(TuneConfig)})
            study = optuna.create_study(
                study_name="study", storage=storage, direction="maximize", load_if_exists=True
            )
            known = study.user_attrs.get("search")
        if known is None:
            check_space(search)
            known = dataclasses.asdict(search)
            study.set_user_attr("search", known)
        # Trust is said in a command, and never saved.
        options = to_options({**study.user_attrs.get("options", {}), "trust": False, **given})
        study.set_user_attr(
            "options", {**dataclasses.asdict(options), "study": str(folder), "trust": False}
        )
    pruners: dict[str, Callable] = {
        "median": lambda: optuna.pruners.MedianPruner(
            options.startup_trials, options.warmup_epochs
        ),
        "hyperband": optuna.pruners.HyperbandPruner,
        "none": optuna.pruners.NopPruner,
    }
    study.pruner = pruners[options.pruner]()
    is_typed = bool(search.fixed or search.space)
    if is_typed and search != Search(**known):
        command = shlex.join(
            [*known["fixed"], *(f"{key}={values}" for key, values in known["space"].items())]
        )
        raise ValueError(
            f"{folder} searches something else: {command}. Give study={folder} alone to continue it, or "
            "another folder"
        )
    if not is_typed and not options.trust:
        check_saved(Search(**known), folder)
    return study, Search(**known), options


def parse(key: str, values: str) -> Override:
    """Parse one entry of a space."""
    return OverridesParser.create().parse_override(f"{key}={values}")


def compose_with(search: Search, chosen: list[str]) -> tuple[DictConfig, Any]:
    """Compose the configuration of a trial, and turn it into the dataclass of its product.

    Raises:
        ValueError: a key is unknown, a value is not allowed, or a file of the dataset is missing.
    """
    with initialize_config_dir(schema.CONF, version_base="1.3"):
        cfg = compose("config", typed := [*search.fixed, *chosen])
    config = schema.to_object(cfg, typed)
    config.data.check()
    return cfg, config


def check_space(search: Search) -> dict[str, type]:
    """Compose the configuration with the first value of each key, before any work.

    Returns:
        The type of each key that has one; a group has none.

    Raises:
        ValueError: there is nothing to search, a key is unknown, or a value is not allowed.
    """
    if not search.space:
        raise ValueError(
            "nothing to search: give a key several values, as in 'train.lr=tag(log,interval(1e-4,1e-2))' "
            "or model.num_layers=2,3,4"
        )
    first = []
    for key, values in search.space.items():
        value = parse(key, values).value()
        if isinstance(value, IntervalSweep):
            first.append(f"{key}={value.start:g}")
        else:
            first.append(f"{key}={next(parse(key, values).sweep_string_iterator())}")
    cfg, _ = compose_with(search, first)
    types = {key: type(OmegaConf.select(cfg, key)) for key in search.space}
    return {key: kind for key, kind in types.items() if kind in (int, float)}


def check_saved(search: Search, folder: Path) -> None:
    """Refuse a saved study whose overrides do more than give values to keys.

    Raises:
        ValueError: an override is a flag, resolves something, or is of Hydra's own keys, which can call anything.
    """
    for override in (*search.fixed, *(f"{key}={values}" for key, values in search.space.items())):
        try:
            parsed = OverridesParser.create().parse_override(override)
            name = parsed.key_or_group
        except HydraException:
            name = "hydra"
        leaves_conf = "." not in name and ".." in override  # data=../../elsewhere
        if (
            name.startswith("hydra")
            or name in ("resume", "trust")
            or "${" in override
            or leaves_conf
        ):
            raise ValueError(
                f"{folder / 'study.journal'} holds {override}, which can do more than set a key. Give the "
                "search in the command, or, if you trust the author of the study, add trust=true"
            )


def could_suggest(search: Search, overrides: Sequence[str]) -> bool:
    """Tell whether overrides are such as :func:`suggest` returns."""
    if len(overrides) != len(search.space):
        return False
    for (key, values), override in zip(search.space.items(), overrides):
        name, equals, text = str(override).partition("=")
        space = parse(key, values)
        if name != key or not equals:
            return False
        if isinstance(space.value(), (IntervalSweep, RangeSweep)):
            if not re.fullmatch(r"-?[0-9.]+(e[+-]?[0-9]+)?", text):
                return False
        elif text not in space.sweep_string_iterator():
            return False
    return True


def suggest(trial: "Trial", search: Search, types: dict[str, type]) -> list[str]:
    """Ask a trial for a value of each key.

    Returns:
        Overrides.
    """
    chosen = []
    for key, values in search.space.items():
        override = parse(key, values)
        value, is_log = override.value(), False
        if isinstance(value, (IntervalSweep, RangeSweep)):
            is_log = "log" in value.tags
        if isinstance(value, IntervalSweep):
            pick = trial.suggest_int if types.get(key) is int else trial.suggest_float
            drawn = pick(
                key,
                types.get(key, float)(value.start),
                types.get(key, float)(value.end),
                log=is_log,
            )
        elif isinstance(value, RangeSweep) and types.get(key) is int:
            low, high, step = (
                int(cast(float, bound)) for bound in (value.start, value.stop, value.step)
            )
            last = low + (high - 1 - low) // step * step  # a range ends before its stop
            drawn = trial.suggest_int(
                key, low, last, **({"log": True} if is_log else {"step": step})
            )
        else:
            drawn = trial.suggest_categorical(key, list(override.sweep_string_iterator()))
        chosen.append(f"{key}={drawn:.4g}" if isinstance(drawn, float) else f"{key}={drawn}")
    return chosen

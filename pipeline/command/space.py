"""Reads what `python -m pipeline.tune` searches, and how, from its command or the folder of its study.

A search is overrides with several values, in Hydra's own notation for sweeps.
"""

import contextlib
import dataclasses
import logging
import shlex
import time
from collections.abc import Iterator
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
from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import install_command
from parallel_epochs.pipeline.run.words import command_of

if TYPE_CHECKING:
    from optuna.storages import JournalStorage
    from optuna.trial import Trial

log = logging.getLogger(__name__)

# Errors that Optuna raises for records that it has not written, and this file for a study of somebody else.
UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, AssertionError, RecursionError)


@dataclass
class TuneConfig:
    """Keys of `python -m pipeline.tune`, in addition to those of a run."""

    study: str = keys.key(
        ..., "Folder of the study: its file study.journal, and a run directory for each trial."
    )
    trials: int = keys.key(
        20, "Number of trials of the study, including those of other workers.", minimum=1
    )
    trust: bool = keys.key(
        False,
        "Continue a study whose study.journal names Hydra's keys, or a class that you have "
        "not named in a command of your own (model=custom). Both can run code that the study's "
        "author chose.",
    )


# Keys that studies of earlier versions have.
GONE = ("pruner", "startup_trials", "warmup_epochs", "sampler_seed")


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
        ValueError: Optuna is not installed, the study is damaged or somebody else's, or it searches something else.
    """
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise ValueError(
            f"pipeline.tune needs Optuna, which is not installed: {install_command('optuna')}"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder = Path(given["study"])
    path, is_typed = folder / "study.journal", bool(search.fixed or search.space)
    with hold(folder / ".study", wait=True):
        _cut_last_line(path)
        try:
            storage = JournalStorage(JournalFileBackend(str(path)))
            saved, options = _read_study(storage)
        except UNREADABLE as error:
            raise ValueError(
                f"{path} is damaged, or was not written by pipeline.tune with Optuna {optuna.__version__} "
                f"({type(error).__name__}). Restore it from a copy, or choose another folder"
            ) from error
        known = saved or search
        study = optuna.create_study(
            study_name="study", storage=storage, direction="maximize", load_if_exists=True
        )
        if saved is None:
            check_space(search)
            study.set_user_attr("search", dataclasses.asdict(search))
        # Trust is said in a command, and never saved.
        found = to_options({**options, "trust": False, **given})
        kept = {**dataclasses.asdict(found), "study": str(folder), "trust": False}
        study.set_user_attr("options", kept)
    study.pruner = optuna.pruners.MedianPruner()
    if is_typed and search != known:
        values = (f"{key}={values}" for key, values in known.space.items())
        raise ValueError(
            f"{folder} searches something else: {shlex.join([*known.fixed, *values])}. Give "
            f"study={folder} alone to continue it, or another folder"
        )
    if not is_typed and not found.trust:
        check_saved(known, folder)
    return study, known, found


def _read_study(storage: "JournalStorage") -> tuple[Search | None, dict]:
    """Return what the study of a journal searches, and its options; none of a new one. Else one of UNREADABLE is raised."""
    studies = storage.get_all_studies()
    if not studies:
        return None, {}
    if [study.study_name for study in studies] != ["study"]:
        raise LookupError
    attributes = studies[0].user_attrs
    if "search" not in attributes:
        return None, {}
    search = Search(**attributes["search"])
    options = {
        name: value
        for name, value in dict(attributes.get("options", {})).items()
        if name not in GONE
    }
    texts = [*search.fixed, *search.space, *search.space.values(), *options]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError
    return search, options


def _cut_last_line(path: Path) -> None:
    """Leave out a line that a full disk cut short: Optuna would add to it."""
    content = files.read_bytes(path) if files.is_there(path) else b""
    if not content and any(path.parent.glob("trial_*")):
        raise ValueError(
            f"{path} is missing or empty, but there are trials. Restore it from a copy"
        )
    if content and not content.endswith(b"\n"):
        log.warning("%s ended in the middle of a line, which is left out", path)
        kept = content[: content.rfind(b"\n") + 1]
        files.write_atomically(path, lambda file: file.write(kept))


@contextlib.contextmanager
def hold(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder with :func:`pipeline.run.files.lock`. With `wait`, wait until no other process holds the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(files.lock(folder))
                break
            except ValueError:
                if not wait:
                    raise
                time.sleep(0.02)
        yield


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
        except (HydraException, TypeError):
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

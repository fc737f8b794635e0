"""What the entry points share: Hydra, the help, and errors that a user can read. Nothing here imports torch."""

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline import config as configuration, keys
from pipeline.config import EvaluateConfig
from pipeline.data.config import DATA_SCHEMAS
from pipeline.run.errors import one_line

PACKAGE = Path(__file__).resolve().parent
# Installed, conf/ is a folder of the package; in a checkout it lies beside it.
CONF = str(PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf")
USER_ERRORS = (HydraException, OmegaConfBaseException, ValueError, FloatingPointError, OSError)

log = logging.getLogger(__name__)


def register_schema() -> None:
    """Make the schema and the resolvers of conf/ known to Hydra."""
    store = ConfigStore.instance()
    store.store(name="config_schema", node=configuration.open_schema())
    store.store(name="evaluate_schema", node=EvaluateConfig)
    for group, schemas in (("schema", DATA_SCHEMAS), ("model_schema", configuration.MODEL_SCHEMAS)):
        for name, schema in schemas.items():
            store.store(group=group, name=name, node=schema)
    OmegaConf.register_new_resolver("run_dir", choose_run_dir, replace=True)


def choose_run_dir(resume: str | None, default: str) -> str:
    """Return the run directory: that of the run to resume, which must be there before Hydra would create it."""
    if resume is not None:
        if not (Path(resume) / "config.yaml").is_file():
            raise ValueError(f"resume={resume} is not a run directory: it has no config.yaml")
        return resume
    from pipeline.run import ranks  # imports torch
    return ranks.agree("run_dir", default)


def is_readable(error: Exception) -> bool:
    """Tell whether the message says it all: a mistake of the user's, or Slurm is missing, refused a job or lost one."""
    if os.environ.get("PIPELINE_TRACEBACK") == "1":
        return False
    modules = [type(error).__module__,
               *(frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__))]
    return isinstance(error, USER_ERRORS) or any(module.startswith("submitit.") for module in modules)


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Turn a mistake of the user's into one line, in the run's log too, and an exit status of 1.

    In a sweep every error is logged and goes on to Hydra, which decides about the other members. PIPELINE_TRACEBACK=1
    shows tracebacks.
    """
    try:
        yield
    except Exception as error:
        settings = HydraConfig.get()
        in_sweep = settings.mode == RunMode.MULTIRUN
        readable = is_readable(error)
        if readable or in_sweep:
            log.error("error: %s", one_line(error), exc_info=not readable)
        if readable and not in_sweep:
            sys.exit(1)
        if in_sweep:
            # Hydra reports the first failure only, without its traceback if it happened in another process.
            error.__notes__ = [f"(log: {Path(settings.runtime.output_dir, settings.job.name)}.log)"]
        raise


def call(main: Callable[[], None]) -> None:
    """Call an entry point; what is wrong with the configuration itself becomes one line."""
    # Hydra would print tracebacks and exit by itself.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    register_schema()
    try:
        if {"--help", "-h"} & set(sys.argv[1:]):
            print(help_text(main.__module__, [argument for argument in sys.argv[1:] if not argument.startswith("-")]))
        else:
            main()
    except Exception as error:
        if not is_readable(error):
            raise
        lines = [f"error: {one_line(error)}", *getattr(error, "__notes__", [])]
        if isinstance(error, MissingConfigException) and "submitit" in str(error.missing_cfg_file):
            lines = ["error: hydra/launcher=slurm needs submitit: pip install -e .[slurm]"]
        sys.exit(" ".join(lines))


def as_options(cfg: DictConfig) -> EvaluateConfig:
    """Turn the composed configuration of `evaluate` or `predict` into its dataclass."""
    return cast(EvaluateConfig, OmegaConf.to_object(cfg))


def help_text(module: str, overrides: list[str]) -> str:
    """Describe every key of an entry point as it is composed: key=value and its meaning.

    Args:
        module: `__module__` of the entry point's main function.
    """
    module = getattr(sys.modules[module].__spec__, "name", module)
    name = module.rpartition(".")[2]
    if name in ("evaluate", "predict"):
        config, groups = EvaluateConfig(), []
    else:
        with initialize_config_dir(CONF, version_base="1.3"):
            config = configuration.to_object(compose("config", overrides))
        groups = [f"  {group}={' | '.join(members)}" for group, members in config_groups().items()]
    lines = [f"python -m {module} [key=value ...]", ""]
    if groups:
        lines += ["Groups, each a file in conf/:", *groups, "  hydra/launcher=slurm (with -m)", ""]
    lines += ["Keys, as composed:", *format_entries(keys.entries(config))]
    return "\n".join(lines)


def config_groups() -> dict[str, list[str]]:
    """List the groups of conf/ and their members; those that must be added to a run begin with a plus."""
    groups = {}
    for folder in sorted(path for path in Path(CONF).iterdir() if path.is_dir() and path.name != "hydra"):
        if members := sorted(path.stem for path in folder.glob("*.yaml")):
            groups[f"+{folder.name}" if folder.name in ("experiment", "sweep") else folder.name] = members
    return groups


def format_entries(entries: Iterable[keys.Entry]) -> list[str]:
    """Format a line for each of some keys."""
    rows = []
    for entry in entries:
        choices = f" ({' | '.join(entry.meaning.choices)})" if entry.meaning.choices else ""
        rows.append((f"{entry.name}={_as_typed(entry.value)}", f"{entry.meaning.text}{choices}"))
    width = max(len(left) for left, _ in rows)
    return [f"  {left:<{width}}  {right}" for left, right in rows]


def _as_typed(value: object) -> str:
    """Format a value as one would type it on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value)

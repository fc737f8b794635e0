"""What the entry points share: Hydra, and errors that a user can read."""

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline import distributed
from pipeline.config import DATA_SCHEMAS, Config, EvaluateConfig, one_line

CONF = str(Path(__file__).resolve().parent.parent / "conf")
USER_ERRORS = (HydraException, OmegaConfBaseException, ValueError, FloatingPointError, OSError)

log = logging.getLogger(__name__)


def register_schema() -> None:
    """Make the schema and the resolvers of conf/ known to Hydra."""
    store = ConfigStore.instance()
    store.store(name="config_schema", node=Config)
    store.store(name="evaluate_schema", node=EvaluateConfig)
    for source, schema in DATA_SCHEMAS.items():
        store.store(group="schema", name=source, node=schema)
    OmegaConf.register_new_resolver("run_dir", run_dir, replace=True)


def run_dir(resume: str | None, default: str) -> str:
    """The run directory: that of the run to resume, which must be there before Hydra would create it."""
    if resume is not None and not (Path(resume) / "config.yaml").is_file():
        raise ValueError(f"resume={resume} is not a run directory: it has no config.yaml")
    return resume or distributed.agree("run_dir", default)


def is_readable(error: Exception) -> bool:
    """Whether the message says it all: a mistake of the user's, or Slurm is missing, refused a job or lost one."""
    if os.environ.get("PIPELINE_TRACEBACK") == "1":
        return False
    modules = [type(error).__module__, *(frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__))]
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


def run(main: Callable[[], None]) -> None:
    """Call an entry point; what is wrong with the configuration itself becomes one line."""
    # Hydra would print tracebacks and exit by itself.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        main()
    except Exception as error:
        if not is_readable(error):
            raise
        lines = [f"error: {one_line(error)}", *getattr(error, "__notes__", [])]
        if isinstance(error, MissingConfigException) and "submitit" in str(error.missing_cfg_file):
            lines = ["error: hydra/launcher=slurm needs submitit: pip install -e .[slurm]"]
        sys.exit(" ".join(lines))

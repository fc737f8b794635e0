"""What the entry points share: Hydra, and errors that a user can read."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

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
    return resume or default


def wants_traceback() -> bool:
    return os.environ.get("PIPELINE_TRACEBACK") == "1"


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Turn a mistake of the user's into one line, in the run's log too, and an exit status of 1.

    In a sweep the error goes on to Hydra, which decides about the other members. PIPELINE_TRACEBACK=1 shows tracebacks.
    """
    try:
        yield
    except USER_ERRORS as error:
        if wants_traceback() or HydraConfig.get().mode == RunMode.MULTIRUN:
            raise
        log.error("error: %s", one_line(error))
        sys.exit(1)


def run(main: Callable[[], None]) -> None:
    """Call an entry point; what is wrong with the configuration itself becomes one line."""
    # Hydra would print tracebacks and exit by itself.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        main()
    except USER_ERRORS as error:
        if wants_traceback():
            raise
        sys.exit(f"error: {one_line(error)}")

"""What the entry points share: Hydra, and errors that a user can read."""

import os
import sys
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config import DATA_SCHEMAS, Config, EvaluateConfig, one_line

CONF = str(Path(__file__).resolve().parent.parent / "conf")


def register_schema() -> None:
    """Make the schema and the resolvers of conf/ known to Hydra."""
    store = ConfigStore.instance()
    store.store(name="config_schema", node=Config)
    store.store(name="evaluate_schema", node=EvaluateConfig)
    for source, schema in DATA_SCHEMAS.items():
        store.store(group="data", name=f"{source}_schema", node=schema)
    OmegaConf.register_new_resolver("run_dir", lambda resume, default: resume or default, replace=True)


def run(main) -> None:
    """Call an entry point; a mistake of the user's becomes one line instead of a traceback.

    Set HYDRA_FULL_ERROR=1 to see the traceback too.
    """
    full_error = os.environ.get("HYDRA_FULL_ERROR") == "1"
    # Hydra prints tracebacks and exits by itself unless this is set.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        main()
    except (HydraException, OmegaConfBaseException, ValueError, FloatingPointError, OSError) as error:
        if full_error:
            raise
        sys.exit(f"error: {one_line(error)}")

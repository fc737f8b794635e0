"""The commands that do not train, one function each. ``python -m pipeline.NAME`` runs the file that has its name."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import hydra
from omegaconf import DictConfig

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.config import RunConfig
from parallel_epochs.pipeline.products import product_of


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        run: does the work, given the configuration that Hydra has composed.
        schema: the file of conf/ that lists its keys.
        check: refuses a configuration before Hydra makes a run directory.
        needs_data: whether the files of the dataset must be there.
    """

    run: Callable[[DictConfig], None]
    schema: str = "prepare"
    check: Callable[[RunConfig], None] | None = None
    needs_data: bool = False


def check(config: RunConfig) -> None:
    """Refuse what the configuration and the machine rule out; see :func:`pipeline.training.check`."""
    from parallel_epochs.pipeline import training  # imports torch

    training.check(config)


def check_new(config: RunConfig) -> None:
    """Refuse what no new run can have; see :func:`pipeline.training.check_new`."""
    from parallel_epochs.pipeline import training

    training.check_new(config)


def _prepare(cfg: DictConfig) -> None:
    from parallel_epochs.pipeline import training

    training.prepare(cli.read_config(cfg))


def _describe_data(cfg: DictConfig) -> None:
    from parallel_epochs.pipeline import training

    cli.print_answer(training.describe_data(cli.read_config(cfg)))


def _find_baselines(cfg: DictConfig) -> None:
    from parallel_epochs.pipeline import training

    cli.print_answer(
        training.find_baselines(cli.read_config_of_run(cfg), f"run={cfg.run}: ")
        if "run" in cfg
        else training.find_baselines(cli.read_config(cfg))
    )


def _evaluate(cfg: DictConfig) -> None:
    run, asked = cli.open_run(cfg, "evaluate")
    product_of(run.config).evaluate(run, asked)


def _predict(cfg: DictConfig) -> None:
    run, asked = cli.open_run(cfg, "predict")
    product_of(run.config).predict(run, asked)


def _explain(cfg: DictConfig) -> None:
    run, asked = cli.open_run(cfg, "explain")
    product_of(run.config).explain(run, asked)


COMMANDS = {
    "prepare": Command(_prepare, check=check),
    "check": Command(_describe_data, check=check, needs_data=True),
    "baselines": Command(_find_baselines, check=check, needs_data=True),
    "evaluate": Command(_evaluate, "evaluate"),
    "predict": Command(_predict, "evaluate"),
    "explain": Command(_explain, "explain"),
}


def call(name: str, own: Command | None = None) -> None:
    """Be the command of that name, or the given one."""
    command = own or COMMANDS[name]
    schema = (
        "evaluate"
        if name == "baselines" and cli.takes_a_run(name, sys.argv[1:])
        else command.schema
    )

    def run(cfg: DictConfig) -> None:
        with cli.readable_errors():
            command.run(cfg)

    run.__module__ = f"parallel_epochs.pipeline.{name}"  # by which Hydra names the job
    main = hydra.main(version_base="1.3", config_path=cli.CONF, config_name=schema)(run)
    main.__module__ = "__main__"  # the file of the command, whose name the help shows
    cli.call(main, check=command.check, needs_data=command.needs_data)

"""`python -m pipeline.train`: compose a run and train it."""

import logging
import os
import shlex
import signal
import sys
from functools import partial
from pathlib import Path
from typing import cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from parallel_epochs.pipeline.command import arguments, cli, folder as run_folder, sweep
from parallel_epochs.pipeline.command.entry_points import check_new
from parallel_epochs.pipeline.config import explain_idle_keys
from parallel_epochs.pipeline.run import words
from parallel_epochs.pipeline.run.errors import Stopped
from parallel_epochs.pipeline.run.stop import end_with

log = logging.getLogger(__name__)


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="config")
def main(cfg: DictConfig) -> float | None:
    """Train a run, or what is left of it, and return the best validation metric."""
    with cli.readable_errors():
        # Torch and PyG take seconds to import: --help does not wait for them.
        from parallel_epochs.pipeline import training
        from parallel_epochs.pipeline.run import ranks as rank_tools, starts

        config = cli.read_config(cfg)
        settings = HydraConfig.get()
        folder = Path(settings.runtime.output_dir)
        ranks = rank_tools.from_environment()
        is_first = ranks is None or ranks.is_first
        begin = (
            run_folder.begin_or_continue
            if ranks is None
            else partial(run_folder.begin_together, ranks=ranks)
        )
        if starts.by_torchrun():
            end_with(os.getppid())  # a rank without its agent would keep the run directory locked
        config, summary = begin(
            config,
            folder,
            named=cli.named_keys(settings.overrides.task),
            is_named=arguments.names_run_dir(settings.overrides.hydra),
            in_sweep=settings.mode == RunMode.MULTIRUN,
        )
        if summary is not None:
            if is_first:
                log.info("%s has been trained already", folder)
            return summary["best_valid"]
        if is_first and (idle := explain_idle_keys(config)):
            log.info("%s", idle)
        # In a sweep, what runs this member alone.
        typed = settings.overrides.task if settings.mode == RunMode.MULTIRUN else sys.argv[1:]
        command = f"{words.command_of('train')} {shlex.join(typed)}".strip()
        log_config = cast(dict, OmegaConf.to_container(settings.job_logging, resolve=True))
        try:
            return training.run(config, folder, command, log_config=log_config).get("best_valid")
        except Stopped as stopped:
            begun = (folder / "config.yaml").exists()
            log.info(
                "%s; %s",
                stopped,
                f"continue with resume={folder}" if begun else "training had not begun",
            )
            # The program that started this one may handle the signal: submitit puts the job back into Slurm's queue.
            if stopped.signum not in (0, signal.SIGINT) and callable(
                signal.getsignal(stopped.signum)
            ):
                signal.raise_signal(stopped.signum)
            sys.exit(stopped.exit_status)


if __name__ == "__main__":
    try:
        cli.call(main, check=check_new, needs_data=True)
    finally:
        for begun in sweep.begun:
            print(sweep.describe(begun))

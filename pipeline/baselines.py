"""`python -m pipeline.baselines`: what simple methods reach on a dataset, before anything deep is trained on it."""

import hydra
from omegaconf import DictConfig

from parallel_epochs.pipeline.command import cli


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="prepare")
def main(cfg: DictConfig) -> None:
    """Print the scores of simple methods, and keep them in the cache for the runs on this dataset."""
    with cli.readable_errors():
        from parallel_epochs.pipeline import training  # imports torch
        print(training.find_baselines(cli.read_config(cfg)))


if __name__ == "__main__":
    cli.call(main, check="check", needs_data=True)

"""`python -m pipeline.check`: open a dataset as training would, train nothing, and say what was found."""

import hydra
from omegaconf import DictConfig

from parallel_epochs.pipeline.command import cli


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="prepare")
def main(cfg: DictConfig) -> None:
    """Print what there is of a dataset, and what is odd about it."""
    with cli.readable_errors():
        from parallel_epochs.pipeline import training  # imports torch
        print(training.describe_data(cli.read_config(cfg)))


if __name__ == "__main__":
    cli.call(main, check="check", needs_data=True)

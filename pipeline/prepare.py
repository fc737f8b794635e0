"""`python -m pipeline.prepare`: download and prepare everything that a run needs, and say how long it took."""

import hydra
from omegaconf import DictConfig

from parallel_epochs.pipeline.command import cli


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="prepare")
def main(cfg: DictConfig) -> None:
    """Prepare what a run needs."""
    with cli.readable_errors():
        from parallel_epochs.pipeline import training  # imports torch
        training.prepare(cli.read_config(cfg))


if __name__ == "__main__":
    cli.call(main, check="check")

"""`python -m pipeline.predict run=DIR predictions=FILE output=TABLE`: what a checkpoint predicts, or its vectors."""

import hydra
from omegaconf import DictConfig

from parallel_epochs.pipeline.command import cli


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="evaluate")
def main(cfg: DictConfig) -> None:
    """Save a run's predictions."""
    with cli.readable_errors():
        product, options, config = cli.open_run(cfg, predicts=True)
        product.predictions.predict(options, config)


if __name__ == "__main__":
    cli.call(main)

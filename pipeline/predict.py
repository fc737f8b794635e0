"""`python -m pipeline.predict run=DIR predictions=FILE output=TABLE`: what a checkpoint predicts, or its vectors."""

import hydra
from omegaconf import DictConfig

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.products import product_of


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="evaluate")
def main(cfg: DictConfig) -> None:
    """Save a run's predictions."""
    with cli.readable_errors():
        run, asked = cli.open_run(cfg, predicts=True)
        product_of(run.config.trainer.name).predictions.predict(run, **asked)


if __name__ == "__main__":
    cli.call(main)

"""`python -m pipeline.evaluate run=DIR`: the metrics of a checkpoint, by views or exactly, and its predictions."""

import hydra
from omegaconf import DictConfig

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.products import product_of


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="evaluate")
def main(cfg: DictConfig) -> None:
    """Evaluate a run."""
    with cli.readable_errors():
        run, asked = cli.open_run(cfg, predicts=False)
        product_of(run.config.trainer.name).predictions.evaluate(run, **asked)


if __name__ == "__main__":
    cli.call(main)

"""`python -m pipeline.evaluate run=DIR`: the metrics of a checkpoint, by views or exactly, and its predictions."""

import hydra
from omegaconf import DictConfig, OmegaConf

from pipeline import cli


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="evaluate")
def main(cfg: DictConfig) -> None:
    """Evaluate a run."""
    with cli.readable_errors():
        if OmegaConf.is_missing(cfg, "run"):
            raise ValueError("which run? python -m pipeline.evaluate run=DIR")
        from pipeline import restore  # torch and PyG take seconds to import: --help does not wait for them
        restore.evaluate(cli.as_options(cfg))


if __name__ == "__main__":
    cli.run(main)

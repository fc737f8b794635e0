"""`python -m pipeline.predict run=DIR predictions=FILE output=TABLE`: what a checkpoint predicts, or its vectors."""

import hydra
from omegaconf import DictConfig, OmegaConf

from pipeline import cli


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="evaluate")
def main(cfg: DictConfig) -> None:
    """Save a run's predictions."""
    with cli.readable_errors():
        if OmegaConf.is_missing(cfg, "run") or cfg.predictions is None and cfg.output is None:
            raise ValueError("of which run, and where to? python -m pipeline.predict run=DIR predictions=FILE, or "
                             "output=TABLE for a table of nodes")
        from pipeline import restore  # torch and PyG take seconds to import: --help does not wait for them
        restore.predict(cli.as_options(cfg))


if __name__ == "__main__":
    cli.call(main)

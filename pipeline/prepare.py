"""`python -m pipeline.prepare`: download and prepare everything that a run needs, and say how long it took."""

import hydra
from omegaconf import DictConfig

from parallel_epochs.pipeline.command import cli, schema
from parallel_epochs.pipeline.config import RunConfig


def fill_caches(config: RunConfig) -> None:
    """Fill the caches for a configuration: dataset, prepared graph, partitions by METIS, nearest neighbours.

    Raises:
        ValueError: the dataset is inconsistent, or the partition impossible.
        OSError: a download failed.
    """
    from parallel_epochs.pipeline.run.ranks import choose_device

    config.data.download()
    build = cli.product_of(config.trainer.name).build
    for part in build.open_data(config, choose_device(config.device)).parts:
        build.prepare(part)


def check(config: RunConfig) -> None:
    """Refuse a configuration that no run can have, before anything is downloaded.

    Raises:
        ValueError: names the key.
    """
    from parallel_epochs.pipeline import training
    training.check(config)


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="prepare")
def main(cfg: DictConfig) -> None:
    """Prepare what a run needs."""
    with cli.readable_errors():
        fill_caches(schema.to_object(cfg))


if __name__ == "__main__":
    cli.call(main, check)

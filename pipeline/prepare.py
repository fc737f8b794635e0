"""`python -m pipeline.prepare`: download and prepare everything that a run needs, and say how long it took."""

import logging
import time

import hydra
from omegaconf import DictConfig

from pipeline import cli, config as configuration
from pipeline.config import Config
from pipeline.data.config import OGBConfig, OGBLinkConfig

log = logging.getLogger(__name__)


def fill_caches(config: Config) -> None:
    """Fill the caches for a configuration: dataset, prepared graph, METIS cut.

    Raises:
        ValueError: the dataset is inconsistent, or the partition impossible.
        OSError: a download failed.
    """
    from pipeline import build, build_embedding, footprint
    from pipeline.schedule import Share

    if isinstance(config.data, OGBConfig) and config.data.folder is None:
        from pipeline.data import ogb_link, ogb_node
        needed = ogb_link.needed if isinstance(config.data, OGBLinkConfig) else None
        ogb_node.download(config.data.name, config.data.root, needed)
    graph = build.open_graph(config)
    config, parts = footprint.resolve(config, graph, build.choose_device(config.device)), graph.parts
    if config.trainer.name in build_embedding.TRAINERS:
        build_embedding.prepare(config, parts[0][1])
        return
    for _, part in parts:
        loader, start = build.build_loader(config, part), time.perf_counter()
        drawn = loader.draw(0, Share())
        loader.measure(drawn, time.perf_counter() - start)


def check(config: Config) -> None:
    """Refuse a configuration that no run can have, before anything is downloaded.

    Raises:
        ValueError: names the key.
    """
    from pipeline import build
    build.check(config)


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="prepare")
def main(cfg: DictConfig) -> None:
    """Prepare what a run needs."""
    with cli.readable_errors():
        fill_caches(configuration.to_object(cfg))


if __name__ == "__main__":
    cli.call(main, check)

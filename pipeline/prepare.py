"""`python -m pipeline.prepare`: download and prepare everything that a run needs, and say how long it took."""

import logging
import time

import hydra
from omegaconf import DictConfig

from pipeline import cli, config as configuration, graph, ogb_folder
from pipeline.config import Config, OGBConfig
from pipeline.data import load
from pipeline.loop import partitioner_of
from pipeline.partition import describe

log = logging.getLogger(__name__)


def run(config: Config) -> None:
    """Fill the caches for a configuration: dataset, prepared graph, METIS cut.

    Raises:
        ValueError: the dataset is inconsistent, or the partition impossible.
        OSError: a download failed.
    """
    if isinstance(config.data, OGBConfig) and config.data.folder is None:
        ogb_folder.download(config.data.name, config.data.root)
    data = load(config.data, config.cache_dir)
    log.info("graph: %s", graph.structure(data.edge_index))
    start = time.perf_counter()
    components = graph.connected_components(data)
    log.info("%s\ncomponents found in %.1f s", components, time.perf_counter() - start)
    for _, part in graph.parts(data, components, config.data.components, config.data.min_component_size):
        partitioner = partitioner_of(config, part)
        start = time.perf_counter()
        partition = partitioner.draw(0)
        seconds = time.perf_counter() - start
        log.info("partition: %s, %s", config.partition.name, describe(part.edge_index, partition, seconds))


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="prepare")
def main(cfg: DictConfig) -> None:
    with cli.readable_errors():
        run(configuration.to_object(cfg))


cli.register_schema()

if __name__ == "__main__":
    cli.run(main)

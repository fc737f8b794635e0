"""`python -m pipeline.prepare`: download and prepare everything that a run needs, and say how long it took."""

import logging
import time
from pathlib import Path

import hydra
from omegaconf import DictConfig

from pipeline import cli, config as configuration, graph, ogb_folder
from pipeline.config import Config, OGBConfig
from pipeline.data import load
from pipeline.partition import Partitioner, describe

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
    log.info("%s", graph.connected_components(data))
    log.info("components found in %.1f s", time.perf_counter() - start)
    partitioner = Partitioner(
        data.edge_index, name=config.partition.name, num_parts=config.partition.num_parts, seed=config.seed,
        num_micro_parts=config.partition.num_micro_parts, cache=Path(config.cache_dir) / "partitions")
    start = time.perf_counter()
    partition = partitioner.draw(0)
    seconds = time.perf_counter() - start
    log.info("partition: %s, %s", config.partition.name, describe(data.edge_index, partition, seconds))


@hydra.main(version_base="1.3", config_path=cli.CONF, config_name="prepare")
def main(cfg: DictConfig) -> None:
    with cli.readable_errors():
        run(configuration.to_object(cfg))


cli.register_schema()

if __name__ == "__main__":
    cli.run(main)

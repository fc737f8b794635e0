"""A dataset that is ready for training."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch

from parallel_epochs.pipeline.data.base_config import DataConfig
from parallel_epochs.pipeline.data.cache import download, load  # noqa: F401 - who opens data may download them first
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.graph.components import Components

log = logging.getLogger(__name__)


class HasData(Protocol):
    """The configuration of any product: it names a dataset and the folder of the cache."""

    data: DataConfig
    cache_dir: str


Config = TypeVar("Config", bound=HasData)


@dataclass
class Part(Generic[Config]):
    """A part of the data that gets a model of its own: all of it, or a connected component.

    Attributes:
        config: the configuration of its run.
        data: what is trained on.
        device: where it is trained.
        number: of the component where there are several.
    """

    config: Config
    data: Graph
    device: torch.device
    number: str | None = None


@dataclass
class OpenData(Generic[Config]):
    """An opened dataset.

    Attributes:
        config: of the run, with what was chosen by the data.
        data: all of it.
        parts: what gets a model each.
        components: of a graph; None where another process has told of them, and of what is no single graph.
    """

    config: Config
    data: Graph
    parts: list[Part[Config]] = field(default_factory=list)
    components: Components | None = None


def open_whole(
    config: Config,
    device: torch.device,
    check: Callable[[Config, Graph], None],
    describe: Callable[[Graph], str],
    content_hash: str | None = None,
) -> OpenData[Config]:
    """Open a dataset that one model is trained on, check it and describe it in the log.

    Args:
        config: the configuration of a run.
        check: refuses data that do not fit a configuration.
        describe: what the log says of the data.
        content_hash: of the data, where another process has opened them a moment ago and told of it in the log.

    Raises:
        ValueError: the dataset is inconsistent, or as `check`.
    """
    data = load(config.data, config.cache_dir, content_hash=content_hash)
    check(config, data)
    if content_hash is None:
        log.info("%s", describe(data))
    return OpenData(config, data, [Part(config, data, device)])

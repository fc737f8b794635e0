"""A dataset that is ready for training."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.graph.components import Components


@dataclass
class Part:
    """What gets a model of its own: all of the data, or a connected component.

    Attributes:
        config: the configuration of its run.
        data: what is trained on.
        device: where it is trained.
        number: of the component where there are several.
    """

    config: Any
    data: Data
    device: torch.device
    number: str | None = None


@dataclass
class OpenData:
    """An opened dataset.

    Attributes:
        config: of the run, with what was chosen by the data.
        data: all of it.
        parts: what gets a model each.
        components: of a graph; None where another process has told of them, and of what is no single graph.
    """

    config: Any
    data: Data
    parts: list[Part] = field(default_factory=list)
    components: Components | None = None

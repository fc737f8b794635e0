"""Tasks by name: what each asks of a configuration and of the data, and how it is built."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

from torch_geometric.data import Data

from parallel_epochs.pipeline.data.base_config import refuse_without_labels
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.tasks.graph import GraphTask
from parallel_epochs.pipeline.gnn.tasks.link import LinkTask
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.gnn.trainer import Task
from parallel_epochs.pipeline.metrics import KINDS, METRICS, hits_at, kind_of


@dataclass(frozen=True)
class TaskKind:
    """A task.

    Attributes:
        build: builds it for a graph; a ValueError if it does not fit.
        check: refuses a configuration, before anything is opened.
        check_data: refuses a dataset, before the task is built.
    """

    build: Callable[[GNNConfig, Data], Task]
    check: Callable[[GNNConfig], None]
    check_data: Callable[[GNNConfig, Data], None]


def build_task(config: GNNConfig, data: Data) -> Task:
    """Build what is learned on a graph.

    Raises:
        ValueError: it does not fit the graph.
    """
    return TASKS[config.task.name].build(config, data)


def with_labels(task: type[NodeTask]) -> TaskKind:
    """Return the record of a task that learns labels."""
    return TaskKind(lambda config, data: task(_with_metric(config, data), label_input=config.train.label_input),
                    _check_metric, _check_labels)


def _with_metric(config: GNNConfig, data: Data) -> Data:
    if config.task.metric is None:
        return data
    data = copy.copy(data)
    data.metric = config.task.metric
    return data


def _check_metric(config: GNNConfig) -> None:
    if config.task.metric not in (None, *METRICS):
        raise ValueError(f"task.metric={config.task.metric} is unknown; choose one of {', '.join(METRICS)}")


def _check_has_labels(config: GNNConfig, data: Data) -> None:
    if "ptr" not in data and "train_mask" not in data:
        refuse_without_labels(config.data.origin(), "save y and masks, or y with data.split=random"
                              if config.data.source == "file" else "give them with the graph")


def _check_labels(config: GNNConfig, data: Data) -> None:
    _check_has_labels(config, data)
    check_metric(config.task.metric, data.metric)


def check_metric(chosen: str | None, metric: str) -> None:
    """Refuse a metric of other labels than the dataset has.

    Args:
        metric: that of the dataset.

    Raises:
        ValueError: names those that fit.
    """
    if chosen is not None and kind_of(chosen) != kind_of(metric):
        raise ValueError(f"task.metric={chosen} is a metric of {kind_of(chosen)}, and the dataset ({metric}) has "
                         f"{kind_of(metric)}. Choose one of {', '.join(KINDS[kind_of(metric)])}")


def _build_link(config: GNNConfig, data: Data) -> LinkTask:
    return LinkTask(data, hidden_channels=config.model.hidden_channels, metric=config.task.metric,
                    valid_edges=config.task.valid_edges)


def _check_link(config: GNNConfig) -> None:
    if config.task.metric is not None:
        hits_at(config.task.metric)


# One line for each member of tasks/.
TASKS: dict[str, TaskKind] = {"node": with_labels(NodeTask), "graph": with_labels(GraphTask),
                              "link": TaskKind(_build_link, _check_link, _check_has_labels)}

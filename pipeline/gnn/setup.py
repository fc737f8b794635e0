"""What is trained on one graph."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.opened import Part
from parallel_epochs.pipeline.gnn import estimate
from parallel_epochs.pipeline.gnn.features import NodeTable
from parallel_epochs.pipeline.gnn.loaders.build import build_loader
from parallel_epochs.pipeline.gnn.model import build_model, build_table
from parallel_epochs.pipeline.gnn.relations import Neighbours
from parallel_epochs.pipeline.gnn.tasks.build import TASKS, TaskOptions
from parallel_epochs.pipeline.gnn.tasks.losses import LossOptions
from parallel_epochs.pipeline.gnn.trainer import Loader, Task


def machine_of(config: Any) -> estimate.Machine:
    """Describe what holds a run of trainer=gnn."""
    return estimate.machine_of(config.device, config.parallel.num_ranks, config.memory)


def build_task(config: Any, data: Data) -> Task:
    """Build what is learned on a graph.

    Raises:
        ValueError: it does not fit the graph.
    """
    return TASKS[config.task.name].build(data, task_options(config))


def task_options(config: Any) -> TaskOptions:
    """Collect what a run of trainer=gnn asks of its task."""
    task = config.task
    loss = LossOptions(task.label_smoothing, task.class_weights, task.focal_gamma)
    return TaskOptions(task.metric, config.train.label_input, config.model.hidden_channels, task.valid_edges, loss,
                       config.evaluation.smooth, task.text_scores)


@dataclass
class Setup(Part):
    """What is trained on a graph: its task, its loader and its model, each built once, when it is first needed."""

    @cached_property
    def task(self) -> Task:
        """What is learned."""
        return build_task(self.config, self.data)

    @cached_property
    def loader(self) -> Loader:
        """What makes the batches."""
        return build_loader(self.config, self.data, self.device)

    @cached_property
    def model(self) -> torch.nn.Module:
        """The model, on its device, with its first weights."""
        torch.manual_seed(self.config.seed)
        return build_model(self.config, self.data, self.task).to(self.device)

    @cached_property
    def neighbours(self) -> Neighbours:
        """Of a graph with several types of nodes, by which relations the test nodes have neighbours."""
        return Neighbours(self.data, self.data.test_mask.nonzero().squeeze(1))

    @cached_property
    def table(self) -> NodeTable | None:
        """The learned node features; None where the model sees those of the data."""
        return build_table(self.config, self.data, self.device)

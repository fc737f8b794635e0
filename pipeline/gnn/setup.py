"""Sets up what is trained on one graph."""

import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.column_names import Channel, name_nodes
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.opened import Part
from parallel_epochs.pipeline.gnn import warm_start
from parallel_epochs.pipeline.gnn.base.fit import Base
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.contract import Loader, Task
from parallel_epochs.pipeline.gnn.features import NodeTable
from parallel_epochs.pipeline.gnn.kinds.base import Kind
from parallel_epochs.pipeline.gnn.kinds.build import kind_of
from parallel_epochs.pipeline.gnn.loaders.build import build_loader
from parallel_epochs.pipeline.gnn.model import build_model, build_table
from parallel_epochs.pipeline.gnn.relations import Neighbours


@dataclass
class Setup(Part[GNNConfig]):
    """The set-up of training on a graph: its task, loader and model, each built once, when it is first needed.

    Attributes:
        base: the simple method that the run begins at; none without one.
        bare: the graph without columns of the simple method; none where that is `data`.
    """

    base: Base | None = None
    bare: Graph | None = None

    @property
    def kind(self) -> Kind:
        """The kind: what is learned, and what its rows are."""
        return kind_of(self.config)

    @cached_property
    def task(self) -> Task:
        """How it is learned."""
        return self.kind.task(self.data)

    @cached_property
    def loader(self) -> Loader:
        """The loader, which makes the batches."""
        return build_loader(self.config, self.data, self.kind, self.device)

    @cached_property
    def model(self) -> torch.nn.Module:
        """The model, on its device, with its first weights."""
        torch.manual_seed(self.config.seed)
        return build_model(self.kind, self.data, self.task).to(self.device)

    def begin(self) -> None:
        """Give the model the weights of the run that train.init names, if there is one.

        Raises:
            ValueError: that model has other layers.
        """
        if (init := self.config.train.init) is not None:
            warm_start.begin(
                init,
                self.model,
                self.table,
                self.task,
                inputs=(bool(self.config.train.label_input), self.config.task.reads_base),
            )

    @cached_property
    def neighbours(self) -> Neighbours:
        """The relations by which test nodes have neighbours, in a graph with several types of nodes."""
        return Neighbours(self.data, self.data.test_mask.nonzero().squeeze(1))

    def channels(self, width: int) -> list[list[Channel]]:
        """Name the columns of what a model reads of the nodes of each type.

        Args:
            width: their number.
        """
        data, bare = self.data, self.bare or self.data
        found, types = name_nodes(self.config.data, bare), bare.types
        if "x_tables" in data:
            return found
        num_table = 0 if self.table is None else self.table.weight.size(1)
        num_labels = width - data.x.size(1) - num_table
        front = [Channel("known label")] * num_labels + [Channel("learned vector")] * num_table
        if self.base is not None and self.base.rows is not None and self.config.task.reads_base:
            place = 0 if types.homogeneous else types.names.index(str(types.labelled))
            first = (
                bare.x.size(1) - bare.num_categories if types.homogeneous else types.widths[place]
            )
            found[place][first:first] = [Channel("simple method")] * self.base.rows.size(1)
        return [(front + names + [Channel("")] * width)[:width] for names in found]

    @cached_property
    def table(self) -> NodeTable | None:
        """The learned node features; None where the model sees those of the data."""
        return build_table(self.config, self.data, self.device)

    def inputs(self) -> Data:
        """Return the inputs of the network: ``x``, ``edge_index``, ``edge_attr``, and of graphs ``ptr``."""
        data, table = copy.copy(self.data), self.table
        data.n_id = torch.arange(data.num_nodes)
        if table is not None:
            data = table.attach(data, torch.device("cpu"))
        found = Data(
            x=self.kind.inputs(data, self.task),
            edge_index=torch.as_tensor(data.edge_index).long(),
            edge_attr=data.edge_attr,
        )
        if not self.kind.is_one_graph:
            found.ptr = data.ptr
        return found

"""Folds of training rows: each is scored by models that were fitted without it."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.tables.scores import NUM_FOLDS
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.tasks.edge import EdgeTask, find_ends
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask
from parallel_epochs.pipeline.gnn.tasks.row import RowTask
from parallel_epochs.pipeline.run.seeds import stream


def divide(inputs: Inputs, seed: int) -> Int[Tensor, " num_rows"]:
    """Divide the training rows into folds; -1 for all other rows. Rows of a group are in one, if there are enough."""
    rows = inputs.labels.train.nonzero().squeeze(1)
    group = number_groups(inputs.data, inputs.task, rows)
    if int(group.max()) < NUM_FOLDS:
        group = torch.arange(len(rows))
    order = stream("folds of bases", seed).permutation(int(group.max()) + 1)
    out = torch.full((len(inputs.labels.train),), -1)
    out[rows] = torch.from_numpy(order % NUM_FOLDS)[group]
    return out


def number_groups(
    data: Data, task: NodeTask, rows: Int[Tensor, " num_rows"]
) -> Int[Tensor, " num_rows"]:
    """Number the groups of some rows, from 0 on: one of them may tell the label of another.

    A group is what the split keeps together (data.split_by), the rows about one node of a label table, or the edges
    between the same two nodes. Any other row is a group of its own.
    """
    if "groups" in data:
        return data.groups[rows].unique(return_inverse=True)[1]
    if isinstance(task, EdgeTask | RowTask):
        first = data.types.nodes_of(data.types.labelled).start
        ends = find_ends(data)[rows - first].sort(1).values
        return ends.unique(dim=0, return_inverse=True)[1]
    return torch.arange(len(rows))


def halves(num_values: int) -> list[Bool[Tensor, " num_values"]]:
    """Divide values into two halves at random, always in the same way."""
    half = torch.from_numpy(stream("halves", 0).permutation(num_values) % 2)
    return [half == number for number in (0, 1)]

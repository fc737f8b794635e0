"""Folds of training rows: each is scored by models that were fitted without it."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from parallel_epochs.pipeline.data.tables.scores import NUM_FOLDS
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.tasks.edge import EdgeTask, find_ends
from parallel_epochs.pipeline.gnn.tasks.row import RowTask
from parallel_epochs.pipeline.run.seeds import stream


def divide(inputs: Inputs, seed: int) -> Int[Tensor, " num_rows"]:
    """Divide the training rows into folds; -1 for all other rows.

    Rows about one node of a label table are in one fold, and edges between the same two nodes: splits keep them
    together, as one of them may tell the label of another.
    """
    rows = inputs.labels.train.nonzero().squeeze(1)
    group = torch.arange(len(rows))
    if isinstance(inputs.task, EdgeTask | RowTask):
        ends = find_ends(inputs.data)[rows - inputs.own.start].sort(1).values
        found = ends.unique(dim=0, return_inverse=True)[1]
        group = found if int(found.max()) >= NUM_FOLDS else group
    order = stream("folds of bases", seed).permutation(int(group.max()) + 1)
    out = torch.full((len(inputs.labels.train),), -1)
    out[rows] = torch.from_numpy(order % NUM_FOLDS)[group]
    return out


def halves(num_values: int) -> list[Bool[Tensor, " num_values"]]:
    """Divide values into two halves at random, always in the same way."""
    half = torch.from_numpy(stream("halves", 0).permutation(num_values) % 2)
    return [half == number for number in (0, 1)]

"""Columns of labelled edges, which are nodes between their ends: the ends' own columns, and labels of other edges."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.structure import find_degrees
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.base.method import Method
from parallel_epochs.pipeline.gnn.tasks.edge import EdgeTask, find_ends

# Columns of an end and labels that are read, at most, and the weight of the mean label among those of other edges.
MOST_COLUMNS, MOST_LABELS, PRIOR = 128, 128, 1.0
# The ends that the edges of a group share.
GROUPS = {"source": (0,), "target": (1,), "pair": (0, 1)}


def are_edges(inputs: Inputs) -> bool:
    """Tell whether the rows are labelled edges."""
    return isinstance(inputs.task, EdgeTask)


def columns_of_ends(inputs: Inputs) -> Float[Tensor, "num_edges columns"]:
    """Return the columns of the nodes at both ends, and how many edges these have."""
    data, ends = inputs.data, find_ends(inputs.data)
    degrees = find_degrees(data.edge_index, data.num_nodes).in_degree.float().log1p()
    x, parts = data.x[:, : max(data.types.widths)][:, :MOST_COLUMNS].float(), []
    for end in ends.unbind(1):
        known = (end >= 0).float().unsqueeze(1)
        own = end.clamp(min=0)
        parts += [x[own] * known, degrees[own].unsqueeze(1) * known]
    return torch.cat(parts, dim=1)


def labels_of_ends(
    inputs: Inputs, known: Bool[Tensor, " num_rows"]
) -> Float[Tensor, "num_edges columns"]:
    """Return the mean label of the other known edges of the same source, of the same target, of both, and of both the
    other way round, and how many they are.

    A mean is that of the edges and of one more edge with the mean label of all.
    """
    ends, parts = find_ends(inputs.data), []
    groups = [number_groups(inputs.data, ends[:, list(columns)]) for columns in GROUPS.values()]
    mean = inputs.labels.mean(known)
    means = [mean_of_others(inputs, group, known, mean) for group in groups] + [
        _mean_of_reverse(inputs, ends, known, mean)
    ]
    for values, num in means:
        parts += [values[:, :MOST_LABELS], num.log1p()]
    return torch.cat(parts, dim=1)


def number_groups(data: Data, ends: Int[Tensor, "num_edges columns"]) -> Int[Tensor, " num_edges"]:
    """Number the edges whose nodes in some columns are the same; -1 for those that lack one."""
    keys = ends[:, 0] if ends.size(1) == 1 else ends[:, 0] * data.num_nodes + ends[:, 1]
    group = keys.unique(return_inverse=True)[1]
    return torch.where((ends >= 0).all(1), group, -1)


def mean_of_others(
    inputs: Inputs, group: Int[Tensor, " num_edges"], known: Bool[Tensor, " num_rows"], mean: Tensor
) -> tuple[Float[Tensor, "num_edges columns"], Float[Tensor, "num_edges columns_or_one"]]:
    """Compute the mean label of the other known edges of a group, and how many there are."""
    values, marks = _sums(inputs, known)
    total, num = _of_group(group, values), _of_group(group, marks)
    return _mean(inputs, total - values, num - marks, mean)


def _mean_of_reverse(
    inputs: Inputs, ends: Tensor, known: Tensor, mean: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the mean label of the known edges in the other direction, and how many there are."""
    values, marks = _sums(inputs, known)
    both = torch.cat([ends, ends.flip(1)])
    group, is_loop = number_groups(inputs.data, both), (ends[:, 0] == ends[:, 1]).unsqueeze(1)
    found = [
        _of_group(group, torch.cat([own.masked_fill(is_loop, 0), torch.zeros_like(own)]))[
            len(ends) :
        ]
        for own in (values, marks)
    ]
    return _mean(inputs, found[0], found[1], mean)


def _sums(inputs: Inputs, known: Tensor) -> tuple[Tensor, Tensor]:
    """Return the known labels of the edges, 0 for others, and 1 for each known one."""
    marks = inputs.labels.known(known)[inputs.own].float()
    return inputs.labels.y[inputs.own].nan_to_num() * marks, marks


def _of_group(group: Tensor, values: Tensor) -> Tensor:
    """Sum values over each group, and return the sum of that of each edge."""
    own = group.clamp(min=0)
    values = values.masked_fill((group < 0).unsqueeze(1), 0)
    return values.new_zeros(len(group), values.size(1)).index_add_(0, own, values)[own] * (
        group >= 0
    ).unsqueeze(1)


def _mean(inputs: Inputs, total: Tensor, num: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    total, num = total.clamp(min=0) if not inputs.labels.are_values else total, num.clamp(min=0)
    return (total + PRIOR * mean) / (num + PRIOR), num[:, :1]


def methods(end: str, inputs: Inputs, seed: int) -> Iterator[Method]:
    """Yield the mean label of the other edges at the same end, for classes their shares."""
    yield Method(
        end,
        f"{inputs.labels.mean_name} of the {end}",
        lambda known: {"end": end, "mean": inputs.labels.mean(known)},
        predict,
        leaves_out=True,
        reads_labels=True,
    )


def predict(inputs: Inputs, fitted: dict, known: Tensor, asked: Tensor | None = None) -> Tensor:
    """Predict the mean label of the other known edges at the same end, and a little of that of all."""
    ends = find_ends(inputs.data)[:, list(GROUPS[fitted["end"]])]
    group = number_groups(inputs.data, ends)
    rows, _ = mean_of_others(inputs, group, known, fitted["mean"])
    return inputs.among_all(rows, fitted["mean"])

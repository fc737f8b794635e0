"""Columns that summarise the neighbours and the edges of each node, relation by relation, for simple methods."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.relation import reverses_of
from parallel_epochs.pipeline.data.scaling import AT_ONCE, standardise
from parallel_epochs.pipeline.gnn.base.method import TooLong
from parallel_epochs.pipeline.run import pulse

NUM_HOPS = 2
# Columns of the nodes and of the edges of a relation that are summarised, and shares among them; and columns that a
# type may get in all.
MOST_COLUMNS, MOST_SHARES, MOST_OF_TYPE = 128, 32, 10_000
# A column of numbers gives mean, maximum, minimum and standard deviation, a column of shares the mean alone.
NUM_STATISTICS = 4
# Rows by which columns are chosen, and numbers that are summarised at a time.
SAMPLE, NUMBERS = 1 << 16, 1 << 22

# A column, again itself (earlier versions had marks of empty cells there), and 1 for numbers or 0 for shares.
Column = list[int]


@dataclass(frozen=True)
class Summaries:
    """The columns that are summarised.

    Attributes:
        edges: those of the edges of each relation.
        nodes: for each hop and relation, those of the nodes at the beginning, which hops before may have made.
        widths: number of the summaries of each type.
        moments: mean and deviation of each of them, type by type; empty before they are known.
    """

    edges: list[list[Column]]
    nodes: list[list[list[Column]]]
    widths: list[int]
    moments: list[list[float]]


def summarise(
    data: Data, place: int, plan: Summaries | None = None
) -> tuple[Float[Tensor, "num_nodes columns"], Summaries]:
    """Summarise the incoming edges and the neighbours of the nodes of a type.

    For each relation, a node gets the logarithm of 1 + the number of edges, a mark that there is none, and summaries of
    each column of the edges and of the nodes at their beginning: mean, maximum, minimum and standard deviation, or the
    mean alone of a column that is 0 or 1, or mostly 0. Hop 2 has the mean of each column of hop 1 of these nodes. Each
    column is then brought to mean 0 and variance 1, and is 0 where there is nothing to summarise. Labels and times are
    not read.

    Args:
        place: number of the type.
        plan: what the summaries of the training graph are made with, in place of what this one tells.

    Raises:
        TooLong: there are too many columns.
    """
    types = data.types
    widths = [data.x.size(1)] if types.homogeneous else types.widths
    plan, wide = plan or _plan(data, widths), list[np.ndarray]()
    for name, own, more in zip(types.names, widths, plan.widths, strict=True):
        nodes = types.nodes_of(name)
        wide.append(np.zeros((len(nodes), own + more), np.float32))
        wide[-1][:, :own] = data.x[nodes.start : nodes.stop, :own].numpy()
    begins = list(widths)
    for hop, of_hop in enumerate(plan.nodes):
        for number, (source, _, target) in enumerate(types.relations):
            end, begin = types.names.index(target), types.names.index(source)
            rows, start = wide[end], begins[end]
            places, src, ptr = _edges_of(data, number)
            if not hop:
                rows[:, start], rows[:, start + 1] = np.log1p(np.diff(ptr)), np.diff(ptr) == 0
                attr = np.empty((0, 0)) if data.edge_attr is None else data.edge_attr.numpy()
                start = _fill(rows, start + 2, attr, places, plan.edges[number], ptr)
            begins[end] = _fill(rows, start, wide[begin], src, of_hop[number], ptr)
            pulse.renew()
    found = list[Tensor]()
    first = sum(plan.widths[:place]) if plan.moments else 0
    for values in torch.from_numpy(wide[place][:, widths[place] :]).split(AT_ONCE, dim=1):
        used = _moments(values.double())
        if plan.moments:
            used = torch.tensor(plan.moments, dtype=torch.float64)[:, first:][:, : values.size(1)]
            first += values.size(1)
        values.copy_(standardise(values, used)[0].nan_to_num_(0.0))
        found.append(used)
    if not plan.moments:
        moments = torch.zeros(2, sum(plan.widths), dtype=torch.float64)
        first = sum(plan.widths[:place])
        moments[:, first : first + plan.widths[place]] = torch.cat(found, 1)
        plan = replace(plan, moments=moments.tolist())
    return torch.from_numpy(wide[place][:, widths[place] :]), plan


def _edges_of(data: Data, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the places of the edges of a relation, their sources within its type, and where each target's begin."""
    types = data.types
    source, target = (types.nodes_of(types.relations[number][place]) for place in (0, 2))
    edges = data.edge_index.as_tensor().numpy()
    places = np.arange(edges.shape[1])
    if not types.homogeneous:
        places = np.flatnonzero(data.edge_attr[:, 0].numpy() == number)
    ptr = np.searchsorted(edges[1, places], np.arange(target.start, target.stop + 1))
    return places, edges[0, places] - source.start, ptr


def _plan(data: Data, widths: Sequence[int]) -> Summaries:
    """Choose the columns that are summarised, and the place of each summary."""
    types, of_edges = data.types, _columns_of_edges(data)
    own = list[list[tuple[Column, int]]]()
    for name, width in zip(types.names, widths, strict=True):
        nodes = types.nodes_of(name)
        rows = data.x[nodes.start : nodes.stop : max(len(nodes) // SAMPLE, 1)].numpy()
        own.append(_varying(rows, range(width)))
    edges, ends = [_choose(columns) for columns in of_edges], list(widths)
    nodes, last = list[list[list[Column]]](), [range(0)] * len(widths)
    for hop in range(NUM_HOPS):
        firsts = list(ends)
        nodes.append([])
        for number, (source, _, target) in enumerate(types.relations):
            begin, end = types.names.index(source), types.names.index(target)
            if hop:
                chosen = [[column, column, 0] for column in last[begin][:MOST_COLUMNS]]
            else:
                chosen = _choose(own[begin])
                ends[end] += 2 + _width(edges[number])
            nodes[hop].append(chosen)
            ends[end] += _width(chosen)
        last = [range(*span) for span in zip(firsts, ends, strict=True)]
    more = [end - width for end, width in zip(ends, widths, strict=True)]
    if max(more) > MOST_OF_TYPE:
        raise TooLong(
            f"summaries of neighbours would have {max(more):,} columns, and {MOST_OF_TYPE:,} are the most"
        )
    return Summaries(edges, nodes, more, [])


def _width(columns: list[Column]) -> int:
    return sum(NUM_STATISTICS if column[2] else 1 for column in columns)


def _choose(columns: list[tuple[Column, int]]) -> list[Column]:
    """Choose columns of the nodes, or of the edges, of a relation: numbers, and then the commonest shares.

    Many numbers give their means alone.
    """
    columns = sorted(columns, key=lambda entry: (-entry[0][2], -entry[1], entry[0][0]))
    num_numbers = sum(column[2] for column, _ in columns)
    chosen = [column for column, _ in columns[: num_numbers + MOST_SHARES]][:MOST_COLUMNS]
    if NUM_STATISTICS * num_numbers > MOST_COLUMNS:
        chosen = [[place, mark, 0] for place, mark, _ in chosen]
    return sorted(chosen)


def _columns_of_edges(data: Data) -> list[list[tuple[Column, int]]]:
    """Find the columns of each relation whose values differ, see :func:`_varying`."""
    types, attr, found = data.types, data.edge_attr, list[list[tuple[Column, int]]]()
    reverses = reverses_of(types.relations)
    for number in range(len(types.relations)):
        if attr is None:
            found.append([])
        elif number >= len(types.edge_columns) and number in reverses:
            found.append(found[reverses[number]])  # it has the features of what it reverses
        else:
            columns = range(int(not types.homogeneous), attr.size(1))
            if types.edge_columns:
                first, width = types.edge_columns[number]
                columns = range(first, first + width)
            places = _edges_of(data, number)[0]
            rows = attr.numpy()[places[:: max(len(places) // SAMPLE, 1)]]
            found.append(_varying(rows, columns))
    return found


def _varying(rows: np.ndarray, columns: Sequence[int]) -> list[tuple[Column, int]]:
    """Find the columns whose values differ, each with the number of its values that are not 0."""
    found = []
    for column in columns:
        values = rows[:, column]
        if len(values) and values.min() < values.max():
            filled = int(np.count_nonzero(values))
            is_number = 2 * filled > len(values) and not np.isin(values, (0, 1)).all()
            found.append(([column, column, int(is_number)], filled))
    return found


def _moments(values: Float[Tensor, "num_nodes columns"]) -> Float[Tensor, "2 columns"]:
    mean = values.nanmean(0).nan_to_num(0.0)
    return torch.stack([mean, (values - mean).square().nanmean(0).nan_to_num(0.0).sqrt()])


def _fill(
    rows: np.ndarray,
    start: int,
    x: np.ndarray,
    of_edges: np.ndarray,
    columns: list[Column],
    ptr: np.ndarray,
) -> int:
    """Write statistics of columns of some edges, NaN where there is nothing to summarise, those of numbers first.

    Args:
        rows: of the destinations.
        start: the first column.
        x: what is summarised.
        of_edges: the row of each edge.
        ptr: where the edges of each destination begin.

    Returns:
        The first column behind them.
    """
    at_once, offsets = max(NUMBERS // max(int(ptr[-1]), 1), 1), torch.from_numpy(ptr)
    for is_number in (1, 0):
        own = [column for column in columns if column[2] == is_number]
        for place in range(0, len(own), at_once):
            values = torch.from_numpy(
                np.stack(
                    [x[of_edges, column[0]] for column in own[place : place + at_once]], axis=1
                ).astype(np.float64)
            )
            for number, found in enumerate(_statistics(values, offsets, only_mean=not is_number)):
                first = start + number * len(own) + place
                rows[:, first : first + found.size(1)] = found.numpy()
        start += _width(own)
    return start


def _statistics(
    values: Float[Tensor, "num_edges columns"], offsets: Tensor, *, only_mean: bool
) -> list[Tensor]:
    """Return mean, maximum, minimum and standard deviation of what is known, NaN where nothing is."""
    known = ~values.isnan()

    def reduce(numbers: Tensor, how: str, initial: float = 0.0) -> Tensor:
        return torch.segment_reduce(
            numbers.contiguous(), how, offsets=offsets, axis=0, initial=initial
        )

    total = reduce(known.double(), "sum")
    mean = reduce(values.nan_to_num(0.0), "sum") / total
    if only_mean:
        return [mean]
    deviation = (values - mean.repeat_interleave(offsets.diff(), dim=0)).nan_to_num(0.0)
    ends = [
        reduce(values.masked_fill(~known, end), how, end).masked_fill(total == 0, torch.nan)
        for how, end in (("max", -torch.inf), ("min", torch.inf))
    ]
    return [mean, *ends, (reduce(deviation.square(), "sum") / total).sqrt()]

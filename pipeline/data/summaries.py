"""Columns that summarise the neighbours and the edges of each node, relation by relation, before the graph is cut."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import SCHEMA, GraphTypes
from parallel_epochs.pipeline.data.propagate import (
    AT_ONCE,
    adopt_others,
    refuse_too_large,
    standardise,
)
from parallel_epochs.pipeline.data.relation import reverses_of
from parallel_epochs.pipeline.graph.reading import edge_blocks
from parallel_epochs.pipeline.graph.store import COPIED, StoreWriter
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.read_back import build
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# The value of a prepared graph that says what its summaries are made with.
SUMMARIES = "summaries"
# Columns that a relation gives to the nodes at its end, for each hop, and shares of its nodes among them; and columns
# that a type may get in all.
MOST_OF_RELATION, MOST_SHARES, MOST_OF_TYPE = 128, 32, 10_000
# A column of numbers gives mean, maximum, minimum and standard deviation, a column of shares the mean alone.
NUM_STATISTICS = 4
# Rows by which columns are chosen, bytes of edges that are read at a time, and numbers that are summarised at a time.
SAMPLE, BLOCK, NUMBERS = 1 << 16, 1 << 22, 1 << 22
SECONDS_OF_DAY = 86400.0

# A column, the column that marks its empty cells or again itself, and 1 for numbers or 0 for shares.
Column = list[int]
# The columns that mark the empty cells of others: of the nodes of each type, and of the edges of each relation but the
# reverse ones.
Marks = tuple[Sequence[Mapping[int, int]], Sequence[Mapping[int, int]]]
NO_MARKS: Marks = ((), ())
# The value of an opened graph with them.
MARKS = "marks"


@dataclass(frozen=True)
class Summaries:
    """The columns that are summarised.

    Attributes:
        edges: those of the edges of each relation. Their time is the column behind the last.
        nodes: for each hop and relation, those of the nodes at the beginning, which hops before may have made.
        widths: number of the summaries of each type.
        moments: mean and deviation of each of them, type by type; empty before they are known.
    """

    edges: list[list[Column]]
    nodes: list[list[list[Column]]]
    widths: list[int]
    moments: list[list[float]]


def check_plan(path: Path, values: dict[str, Any]) -> None:
    """Refuse what a file says of summaries, unless it is a plan with its moments.

    Raises:
        DamagedFile: it is none, or one of another version.
    """
    plan = build(path, Summaries, values)
    if [len(part) for part in plan.moments] != [sum(plan.widths)] * 2:
        raise DamagedFile(f"{path}: summaries: there must be two moments of each")


def summarise(
    data: Graph, num_hops: int, marks: Marks = NO_MARKS, plan: Summaries | None = None
) -> Graph:
    """Give the nodes of a graph in memory columns that summarise their incoming edges and their neighbours.

    For each relation, a node gets the logarithm of 1 + the number of edges, a mark that there is none, and summaries of
    each column of the edges, of their time, and of each column of the nodes at their beginning: mean, maximum, minimum
    and standard deviation, or the mean alone of a column that is 0 or 1, or mostly 0. Hop k has the mean of each column
    of hop k - 1 of these nodes. Empty cells do not count. Each column is then brought to mean 0 and variance 1 over the
    nodes of its type, and is 0 where there is nothing to summarise. Labels are not read.

    Args:
        data: a prepared graph, see :func:`pipeline.data.cache.load`.
        num_hops: at least 1.
        marks: which columns mark empty cells.
        plan: what the summaries of the training graph are made with, in place of what this one tells.

    Returns:
        The graph, whose ``x`` has the new columns behind those of each type, with :data:`SUMMARIES`.

    Raises:
        ValueError: there are too many columns, this machine cannot hold them, or edges have no times.
    """
    plan = plan or _plan(data, num_hops, marks)
    time = 0 if data.edge_attr is None else data.edge_attr.size(1)
    if "edge_time" not in data and any(
        column[0] == time for columns in plan.edges for column in columns
    ):
        raise ValueError(
            "data.summaries: the model reads the times of edges, and these have none. Name their column "
            "by data.edges.time"
        )
    shape = _shape_of(data, plan)
    refuse_too_large(f"data.summaries={num_hops}", *shape)
    out, types = np.empty(shape, np.float32), data.types
    data[SUMMARIES] = asdict(_write(out, data, plan))
    data.x = torch.from_numpy(out)
    if not types.homogeneous:
        data.types = _widened(types, plan)
    return data


def write_summarised(writer: StoreWriter, data: Graph, num_hops: int, marks: Marks) -> None:
    """Write the store of a graph in a store, with summaries, see :func:`summarise`; its other arrays are shared.

    Raises:
        ValueError: there are too many columns.
        FileError: a store cannot be read, or there is no room for the new one.
    """
    values, plan = adopt_others(writer, data), _plan(data, num_hops, marks)
    shape = _shape_of(data, plan)
    with writer.write(x=(shape, torch.float32)) as arrays:
        plan = _write(np.memmap(arrays["x"].path, np.float32, "r+", shape=shape), data, plan)
    schema = {} if data.types.homogeneous else {SCHEMA: _widened(data.types, plan).to_value()}
    writer.finish(values | schema | {SUMMARIES: asdict(plan)})


def _widened(types: GraphTypes, plan: Summaries) -> GraphTypes:
    return replace(
        types, widths=[own + more for own, more in zip(types.widths, plan.widths, strict=True)]
    )


def _shape_of(data: Graph, plan: Summaries) -> tuple[int, int]:
    return data.num_nodes, max(_widened(data.types, plan).widths) + data.num_categories


def _plan(data: Graph, num_hops: int, marks: Marks) -> Summaries:
    """Choose the columns that are summarised, and the place of each summary."""
    types, relations = data.types, data.types.relations
    found = _columns_of_edges(data, marks[1])
    own = [_columns_of_nodes(data, place, marks[0]) for place in range(len(types.names))]
    next_column, left = dict(zip(types.names, types.widths, strict=True)), 0
    last = {
        name: list[tuple[int, int]]() for name in types.names
    }  # the less the second, the sooner it is passed on
    edges, nodes = list[list[Column]](), list[list[list[Column]]]()
    for hop in range(num_hops):
        made = {name: list[tuple[int, int]]() for name in types.names}
        nodes.append([])
        for number, (source, _, target) in enumerate(relations):
            if hop:
                passed = sorted(sorted(last[source], key=lambda entry: entry[1])[:MOST_OF_RELATION])
                nodes[hop].append([[column, column, 0] for column, _ in passed])
                orders, left = (
                    [order for _, order in passed],
                    left + len(last[source]) - len(passed),
                )
            else:
                of_edges, of_nodes, more = _choose(found[number], own[types.names.index(source)])
                edges.append(of_edges)
                nodes[0].append(of_nodes)
                numbers = sum(column[2] for column in of_nodes) * NUM_STATISTICS
                orders, left = (
                    [
                        0,
                        0,
                        *[1] * _width(of_edges),
                        *[2] * numbers,
                        *[3] * (_width(of_nodes) - numbers),
                    ],
                    left + more,
                )
            made[target] += [
                (next_column[target] + place, order) for place, order in enumerate(orders)
            ]
            next_column[target] += len(orders)
        last = made
    widths = [
        next_column[name] - width for name, width in zip(types.names, types.widths, strict=True)
    ]
    if max(widths) > MOST_OF_TYPE:
        raise ValueError(
            f"data.summaries={num_hops} makes {max(widths):,} columns for nodes of one type, which has "
            f"{count(len(relations), 'relation')} at most; {MOST_OF_TYPE:,} are possible. Lower it"
        )
    if types.homogeneous:  # the one-hot species stay behind all others
        nodes[0] = [
            [
                [place + widths[0] if place >= types.widths[0] else place for place in column[:2]]
                + column[2:]
                for column in columns
            ]
            for columns in nodes[0]
        ]
    if left:
        log.info(
            "summaries: %s left out, for a relation gives at most %d at each hop, and %d shares",
            count(left, "column"),
            MOST_OF_RELATION,
            MOST_SHARES,
        )
    return Summaries(edges, nodes, widths, [])


def _width(columns: list[Column]) -> int:
    return sum(NUM_STATISTICS if column[2] else 1 for column in columns)


def _choose(
    edges: list[tuple[Column, int]], nodes: list[tuple[Column, int]]
) -> tuple[list[Column], list[Column], int]:
    """Choose as many columns as a relation may give: those of the edges first, and numbers before the commonest shares.

    More shares help neither trees nor networks. If all statistics of the numbers of nodes are too many, these give
    their means alone.

    Returns:
        Columns of the edges and of the nodes, and the number of those that are left out.
    """
    room, num_found = MOST_OF_RELATION - 2, len(edges) + len(nodes)  # without the number and mark
    nodes = sorted(nodes, key=lambda entry: (-entry[0][2], -entry[1], entry[0][0]))
    nodes = nodes[: sum(column[2] for column, _ in nodes) + MOST_SHARES]
    if _width([column for column, _ in (*edges, *nodes) if column[2]]) > room:
        nodes = [([place, mark, 0], times) for (place, mark, _), times in nodes]
    chosen: tuple[list[Column], list[Column]] = [], []
    for kind, columns in enumerate((edges, nodes)):
        for column, _ in sorted(columns, key=lambda entry: (-entry[0][2], -entry[1], entry[0][0])):
            if _width([column]) <= room:
                room -= _width([column])
                chosen[kind].append(column)
        chosen[kind].sort()
    return *chosen, num_found - len(chosen[0]) - len(chosen[1])


def _columns_of_nodes(
    data: Graph, place: int, marks: Sequence[Mapping[int, int]]
) -> list[tuple[Column, int]]:
    """Find the columns of a type whose values differ, as :func:`_varying`; species count, the one-hot type does not."""
    nodes, width = data.types.nodes_of(data.types.names[place]), data.types.widths[place]
    step = max(len(nodes) // SAMPLE, 1)
    columns = range(data.x.size(1) if data.types.homogeneous else width)
    return _varying(
        data.x[nodes.start : nodes.stop : step].numpy(), columns, marks[place] if marks else {}
    )


def _columns_of_edges(
    data: Graph, marks: Sequence[Mapping[int, int]]
) -> list[list[tuple[Column, int]]]:
    """Find the columns of each relation whose values differ, see :func:`_varying`."""
    types, attr, found = data.types, data.edge_attr, list[list[tuple[Column, int]]]()
    num_columns, reverses = 0 if attr is None else attr.size(1), reverses_of(types.relations)
    relation = None if types.homogeneous else attr[:, 0].numpy()
    for number in range(len(types.relations)):
        if number >= len(types.edge_columns) and number in reverses:
            found.append(
                found[reverses[number]]
            )  # its edges have the features of those that it reverses
            continue
        first, width = (
            (0, num_columns)
            if types.homogeneous
            else (types.edge_columns[number] if types.edge_columns else (1, num_columns - 1))
        )
        places = (
            np.arange(data.num_edges) if relation is None else np.flatnonzero(relation == number)
        )
        places = places[:: max(len(places) // SAMPLE, 1)]
        rows = _rows_of_edges(data, None if attr is None else attr.numpy()[places], places)
        columns = [*range(first, first + width), *range(num_columns, rows.shape[1])]
        found.append(_varying(rows, columns, marks[number] if marks else {}))
    return found


def _rows_of_edges(data: Graph, attr: np.ndarray | None, places: np.ndarray) -> np.ndarray:
    """Put the times of edges, in days, behind their features; NaN stands for no time."""
    rows = np.empty((len(places), 0), np.float32) if attr is None else attr
    if "edge_time" not in data:
        return rows
    times = data.edge_time.numpy()[places] / SECONDS_OF_DAY
    return np.column_stack([rows, np.where(np.isfinite(times), times, np.nan)])


def _varying(
    rows: np.ndarray, columns: Sequence[int], marks: Mapping[int, int]
) -> list[tuple[Column, int]]:
    """Find the columns whose values differ, each with the number of its values that are not 0."""
    found = []
    for column in columns:
        values = _known(rows, slice(None), [[column, marks.get(column, column), 0]])
        values = values[~np.isnan(values)]
        if len(values) and values.min() < values.max():
            filled = int(np.count_nonzero(values))
            is_number = 2 * filled > len(values) and not np.isin(values, (0, 1)).all()
            found.append(([column, marks.get(column, column), int(is_number)], filled))
    return found


def _known(
    x: np.ndarray, rows: np.ndarray | slice, columns: list[Column]
) -> Float[np.ndarray, "num_rows columns"]:
    """Return columns of some rows, float64, NaN for empty cells. Of averaged rows a mark is the share that is empty."""
    found = []
    for place, mark, _ in columns:
        values = x[rows, place].astype(np.float64)
        if mark != place:
            share = 1.0 - x[rows, mark].astype(np.float64)
            values = np.where(share > 0, values / np.where(share > 0, share, 1.0), np.nan)
        found.append(values)
    return np.stack(found, axis=1)


def _write(out: np.ndarray, data: Graph, plan: Summaries) -> Summaries:
    """Write the columns of a graph with its summaries; returns the plan with the moments, if it had none."""
    types, num_own, found = data.types, data.x.size(1) - data.num_categories, list[Tensor]()
    for first in range(0, data.num_nodes, COPIED):
        rows = data.x[first : first + COPIED].numpy()
        out[first : first + COPIED] = 0
        out[first : first + COPIED, :num_own] = rows[:, :num_own]
        out[first : first + COPIED, out.shape[1] - data.num_categories :] = rows[:, num_own:]
        pulse.renew()
    begins = dict(zip(types.names, types.widths, strict=True))
    for hop in range(len(plan.nodes)):
        begins = _write_hop(out, data, plan, hop, begins)
    for name, own, width in zip(types.names, types.widths, plan.widths, strict=True):
        nodes = types.nodes_of(name)
        for values in torch.from_numpy(out[nodes.start : nodes.stop, own : own + width]).split(
            AT_ONCE, dim=1
        ):
            column = sum(part.size(1) for part in found)
            used = (
                torch.tensor(plan.moments, dtype=torch.float64)[:, column : column + values.size(1)]
                if plan.moments
                else _moments(values.double())
            )
            values.copy_(standardise(values, used)[0].nan_to_num_(0.0))
            found.append(used)
            pulse.renew()
    return replace(plan, moments=torch.cat(found, dim=1).tolist())


def _moments(values: Float[Tensor, "num_nodes columns"]) -> Float[Tensor, "2 columns"]:
    mean = values.nanmean(0).nan_to_num(0.0)
    return torch.stack([mean, (values - mean).square().nanmean(0).nan_to_num(0.0).sqrt()])


def _write_hop(
    out: np.ndarray, data: Graph, plan: Summaries, hop: int, begins: dict[str, int]
) -> dict[str, int]:
    """Write the summaries of a hop, NaN where there is nothing to summarise.

    Args:
        begins: first column of the hop, for each type.

    Returns:
        The columns behind them.
    """
    types, (indptr, _) = data.types, data.edge_index.get_csc()[0]
    for first, ptr, src, *attr in edge_blocks(
        data, BLOCK, features=hop == 0 or not types.homogeneous
    ):
        columns = dict(begins)
        for number, (_, _, target) in enumerate(types.relations):
            nodes, start = types.nodes_of(target), columns[target]
            columns[target] += _width(plan.nodes[hop][number]) + (
                0 if hop else 2 + _width(plan.edges[number])
            )
            low, high = max(first, nodes.start), min(first + len(ptr) - 1, nodes.stop)
            if low >= high:
                continue
            places = np.arange(ptr[low - first], ptr[high - first])
            own = ptr[low - first : high - first + 1] - ptr[low - first]
            if not types.homogeneous:
                is_own = attr[0][places, 0] == number
                places, own = places[is_own], np.concatenate([[0], is_own.cumsum()])[own]
            rows = out[low:high]
            if not hop:
                rows[:, start], rows[:, start + 1] = np.log1p(np.diff(own)), np.diff(own) == 0
                of_edges = _rows_of_edges(
                    data, attr[0][places] if attr else None, places + int(indptr[first])
                )
                start = _fill(rows, start + 2, of_edges, slice(None), plan.edges[number], own)
            _fill(rows, start, out, src[places], plan.nodes[hop][number], own)
        pulse.renew()
    return columns


def _fill(
    rows: np.ndarray,
    start: int,
    x: np.ndarray,
    of_edges: np.ndarray | slice,
    columns: list[Column],
    ptr: np.ndarray,
) -> int:
    """Write statistics of columns of some edges, those of numbers first; returns the first column behind them.

    Args:
        rows: of the destinations.
        start: the first column.
        x: what is summarised.
        of_edges: the row of each edge.
        ptr: where the edges of each destination begin.
    """
    at_once, offsets = max(NUMBERS // max(int(ptr[-1]), 1), 1), torch.from_numpy(ptr)
    for is_number in (1, 0):
        own = [column for column in columns if column[2] == is_number]
        for place in range(0, len(own), at_once):
            values = torch.from_numpy(_known(x, of_edges, own[place : place + at_once]))
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

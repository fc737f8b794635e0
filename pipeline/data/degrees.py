"""Degrees of the nodes, as columns of their features: log(1 + degree), brought to mean 0 and variance 1.

Averages and softmax weights of neighbours do not tell a model how many neighbours there are; these columns do. A graph
has one column where in- and out-degree are the same everywhere, and two otherwise. In a graph with several types of
nodes, the degrees of each relation have columns of their own.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import SCHEMA, GraphTypes
from parallel_epochs.pipeline.data.relation import reverses_of
from parallel_epochs.pipeline.data.scaling import standardise
from parallel_epochs.pipeline.graph.reading import edge_blocks
from parallel_epochs.pipeline.graph.store import COPIED, MANIFEST, StoreWriter
from parallel_epochs.pipeline.run import files, pulse

# The array of a prepared graph with mean and deviation of each column of degrees.
DEGREE_MOMENTS = "degree_moments"
# A type with more columns of degrees than this has those of all its relations together.
MOST = 64


@dataclass(frozen=True)
class Slots:
    """Columns of degrees, numbered within those of each type of nodes.

    Attributes:
        incoming: column of each relation's in-degree.
        outgoing: column of each relation's out-degree; -1 where the in-degree of its reverse relation is the same.
        widths: number of columns of each type.
    """

    incoming: list[int]
    outgoing: list[int]
    widths: list[int]


def can_have_degrees(data: Graph) -> bool:
    """Tell whether columns of degrees can join ``x``, whose columns are then numbers and not categories."""
    return "x_tables" not in data


def add_degrees(
    data: Graph, moments: Float[Tensor, "2 columns"] | None = None, *, num_last: int = 0
) -> None:
    """Give a graph in memory columns of degrees, behind the own columns of each type of nodes.

    Args:
        data: a prepared graph, which gets another ``x``, the array :data:`DEGREE_MOMENTS` [2, columns], float64, and,
            if it has several types, others of these.
        moments: those of the training data, in place of the graph's own.
        num_last: columns of ``x`` behind those of categories.
    """
    counts, widths = _count(data, None if moments is None else moments.size(1))
    out = np.empty(_shape_of(data, widths, num_last), np.float32)
    data[DEGREE_MOMENTS] = _write(out, data, counts, widths, moments, num_last)
    data.x = torch.from_numpy(out)
    if not data.types.homogeneous:
        data.types = with_degrees(data.types, widths)


def count_degrees(data: Graph, num_columns: int) -> Int[np.ndarray, "num_nodes num_columns"]:
    """Count the edges of each node of a graph with one type of nodes, by column, int32."""
    return _count(data, num_columns)[0]


def scale_degrees(
    counts: Int[np.ndarray, "num_nodes num_columns"], moments: Float[Tensor, "2 columns"]
) -> Tensor:
    """Turn degrees into columns of features by the moments of a training, float32."""
    return standardise(torch.from_numpy(np.log1p(counts, dtype=np.float32)), moments)[0]


def write_degrees(writer: StoreWriter, data: Graph, *, num_last: int = 0) -> None:
    """Write the store of a graph with columns of degrees, see :func:`add_degrees`.

    The other arrays are links to those of the graph's own store, or copies where the file system has no such links.

    Args:
        data: a graph in a store.

    Raises:
        FileError: a store cannot be read, or there is no room for the new one.
    """
    counts, widths = _count(data, None)
    shape, folder = _shape_of(data, widths, num_last), data.store
    assert folder is not None
    manifest = files.read_json(folder / MANIFEST)
    for name, entry in manifest["arrays"].items():
        if name != "x":
            writer.adopt(name, folder / f"{name}.bin", entry)
    if not writer.has("x", DEGREE_MOMENTS):
        moments = (2, sum(widths)), torch.float64
        with writer.write(x=(shape, torch.float32), **{DEGREE_MOMENTS: moments}) as arrays:
            out = np.empty(shape, np.float32)
            if math.prod(shape):  # an empty file cannot be mapped
                out = np.memmap(arrays["x"].path, np.float32, "r+", shape=shape)
            found = _write(out, data, counts, widths, None, num_last)
            arrays[DEGREE_MOMENTS].write(0, found.numpy())
    values = manifest["values"] | {"num_categories": data.num_categories}
    types = {} if data.types.homogeneous else {SCHEMA: with_degrees(data.types, widths).to_value()}
    writer.finish(values | types)


def with_degrees(types: GraphTypes, widths: list[int]) -> GraphTypes:
    """Return types whose nodes have columns of degrees, too.

    Args:
        widths: number of these columns of each type.
    """
    return replace(
        types, widths=[own + more for own, more in zip(types.widths, widths)], degrees=widths
    )


def without_degrees(types: GraphTypes) -> GraphTypes:
    """Undo :func:`with_degrees`; types without columns of degrees are returned as they are."""
    if not types.degrees:
        return types
    widths = [width - own for width, own in zip(types.widths, types.degrees)]
    return replace(types, degrees=[], widths=widths)


def slots_of(types: GraphTypes) -> Slots:
    """Number the columns of degrees."""
    reverse = reverses_of(types.relations)
    counted = {*reverse, *reverse.values()}  # by the in-degrees of each other
    width, incoming, outgoing = dict.fromkeys(types.names, 0), list[int](), list[int]()
    for number, (source, _, target) in enumerate(types.relations):
        incoming.append(width[target])
        width[target] += 1
        outgoing.append(-1 if number in counted else width[source])
        width[source] += number not in counted
    if max(width.values()) <= MOST:
        return Slots(incoming, outgoing, list(width.values()))
    outgoing = [min(column, 1) for column in outgoing]
    return Slots(
        [0] * len(incoming),
        [1 if column >= 0 else -1 for column in outgoing],
        [1 + (max(outgoing) >= 0)] * len(types.names),
    )


def _count(data: Graph, num_columns: int | None) -> tuple[np.ndarray, list[int]]:
    """Count the edges of each node, reading them once.

    Args:
        num_columns: of a graph with one type of nodes; none to have the out-degree where it differs.

    Returns:
        [num_nodes, columns], int32, and the number of columns of each type.
    """
    types = data.types
    slots = slots_of(types)
    incoming, outgoing, width = *map(np.array, (slots.incoming, slots.outgoing)), max(slots.widths)
    counts = np.zeros((data.num_nodes, width), np.int32)
    for first, ptr, src, *attr in edge_blocks(data, features=not types.homogeneous):
        num_rows = len(ptr) - 1
        relation = attr[0][:, 0].astype(np.int64) if attr else np.zeros(len(src), np.int64)
        rows = np.repeat(np.arange(num_rows), np.diff(ptr))
        found = np.bincount(rows * width + incoming[relation], minlength=num_rows * width)
        counts[first : first + num_rows] += found.reshape(num_rows, width).astype(np.int32)
        column = outgoing[relation]
        leaving = column >= 0
        places = src[leaving].astype(np.int64) * width + column[leaving]
        # A number of another type makes numpy slow.
        np.add.at(counts.reshape(-1), places, np.int32(1))
    if not types.homogeneous:
        return counts, slots.widths
    first = int(data.get("x_source") == "degree")  # such an x is made of the in-degree
    if num_columns is None:
        num_columns = 1 + (not np.array_equal(counts[:, 0], counts[:, 1])) - first
    return counts[:, first : first + num_columns], [num_columns]


def _shape_of(data: Graph, widths: list[int], num_last: int) -> tuple[int, int]:
    own = max(width + more for width, more in zip(_own_widths(data, num_last), widths))
    return len(data.x), own + data.num_categories + num_last


def _own_widths(data: Graph, num_last: int) -> list[int]:
    return [width - num_last for width in data.types.widths]


def _write(
    out: np.ndarray,
    data: Graph,
    counts: np.ndarray,
    widths: list[int],
    moments: Tensor | None,
    num_last: int,
) -> Tensor:
    """Write ``x`` with columns of degrees, and return their moments."""
    own, num_behind = _own_widths(data, num_last), data.num_categories + num_last
    num_own, place, found = data.x.size(1) - num_behind, 0, [torch.empty(2, 0, dtype=torch.float64)]
    for first in range(0, len(out), COPIED):
        rows = data.x[first : first + COPIED].numpy()
        out[first : first + COPIED] = 0
        out[first : first + COPIED, :num_own] = rows[:, :num_own]
        out[first : first + COPIED, out.shape[1] - num_behind :] = rows[:, num_own:]
        pulse.renew()
    for name, width, more in zip(data.types.names, own, widths):
        if not more:
            continue
        nodes, columns = data.types.nodes_of(name), slice(place, place + more)
        values = torch.from_numpy(
            np.log1p(counts[nodes.start : nodes.stop, :more], dtype=np.float32)
        )
        scaled, used = standardise(values, None if moments is None else moments[:, columns])
        out[nodes.start : nodes.stop, width : width + more] = scaled.numpy()
        found.append(used)
        place += more
    return torch.cat(found, dim=1)

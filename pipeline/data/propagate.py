"""Node features that are averaged over the neighbours, hop by hop, before the graph is cut."""

import logging
import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.models.messages import update_all
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.graph.reading import edge_blocks
from parallel_epochs.pipeline.graph.store import COPIED, MANIFEST, StoreWriter
from parallel_epochs.pipeline.run import files, pulse
from parallel_epochs.pipeline.run.memory import machine_memory
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# A column is constant, but for rounding, if its deviation is a smaller part of its mean.
LEAST_DEVIATION = 1e-6
# Columns that are brought to mean 0 and variance 1 at a time.
AT_ONCE = 16
# The part of the machine's memory that the columns of a graph on disk may take while they are propagated.
SHARE = 1 / 16
# Numbers of four bytes that memory holds for each number of such a column: read, averaged, of the next hop, in float64.
HELD = 8


def propagate(
    data: Graph,
    num_hops: int,
    moments: Float[Tensor, "num_hops 2 channels"] | None = None,
) -> tuple[Float[Tensor, "num_nodes channels_of_all_hops"], Float[Tensor, "num_hops 2 channels"]]:
    """Average the features of a graph's nodes over their incoming edges `num_hops` times, and keep every result.

    Hop k is the mean of hop k - 1 over the sources of a node's edges, and hop 0 is ``x``. These are the inputs of
    "SIGN: Scalable Inception Graph Neural Networks" (https://arxiv.org/abs/2004.11198), with the adjacency matrix whose
    rows sum to 1. Each column of hop 1 and later is then brought to mean 0 and variance 1 over all nodes, for means of
    many neighbours hardly differ; a column with the same value everywhere becomes 0.

    Args:
        data: a prepared graph, see :func:`pipeline.data.cache.load`.
        num_hops: at least 1.
        moments: what this function returned second for another graph, in place of the numbers of this one.

    Returns:
        [num_nodes, (num_hops + 1) * channels + num_categories], float32: all hops, then the one-hot species of ``x``;
        and mean and deviation of each hop but the first, float64.
    """
    out = np.empty(_shape_of(data, num_hops), np.float32)
    found = _write_hops(out, data, num_hops, data.x.size(1), moments)
    return torch.from_numpy(out), found


def write_propagated(
    writer: StoreWriter,
    data: Graph,
    num_hops: int,
    *,
    most_bytes: int | None = None,
) -> None:
    """Write the store of a graph whose features are propagated, see :func:`propagate`.

    The other arrays are links to those of the graph's own store, or copies where the file system has no such links.
    The columns are propagated some at a time, and each hop reads the edges once.

    Args:
        data: a graph in a store.
        most_bytes: memory that the columns may take. None: a sixteenth of the machine's. One column is always held.

    Raises:
        FileError: a store cannot be read, or there is no room for the new one.
    """
    log.info(
        "data: reading the features of neighbours over %s of the whole graph",
        count(num_hops, "hop"),
    )
    shape, channels = _shape_of(data, num_hops), data.x.size(1) - data.num_categories
    most = int(machine_memory() * SHARE) if most_bytes is None else most_bytes
    step = max(most // (4 * HELD * max(data.num_nodes, 1)), 1)
    step -= step % AT_ONCE if step > AT_ONCE else 0  # the bits do not depend on it
    values = write_wider(
        writer,
        data,
        shape,
        ("hop_moments", (num_hops, 2, channels)),
        lambda out: _write_hops(out, data, num_hops, step),
    )
    writer.finish(values)


def write_wider(
    writer: StoreWriter,
    data: Graph,
    shape: tuple[int, int],
    moments: tuple[str, tuple[int, ...]],
    fill: Callable[[np.ndarray], Tensor],
) -> dict[str, object]:
    """Write an ``x`` with more columns and the moments that scale them; take all other arrays of a graph's store.

    Args:
        shape: of the new ``x``.
        moments: their name and shape.
        fill: writes ``x``, which may be a mapped file, and returns the moments, float64.

    Returns:
        The values of the new store.
    """
    values, (name, size) = adopt_others(writer, data), moments
    if not writer.has("x", name):
        entries = {"x": (shape, torch.float32), name: (size, torch.float64)}
        with writer.write(**entries) as arrays:
            out = np.empty(shape, np.float32)
            if math.prod(shape):  # an empty file cannot be mapped
                out = np.memmap(arrays["x"].path, np.float32, "r+", shape=shape)
            arrays[name].write(0, fill(out).numpy())
    return values | {"num_categories": data.num_categories}


def adopt_others(writer: StoreWriter, data: Graph) -> dict[str, object]:
    """Take all arrays but ``x`` of a graph's store; returns its values."""
    folder = data.store
    assert folder is not None
    manifest = files.read_json(folder / MANIFEST)
    for name, entry in manifest["arrays"].items():
        if name != "x":
            writer.adopt(name, folder / f"{name}.bin", entry)
    return manifest["values"]


def _shape_of(data: Graph, num_hops: int) -> tuple[int, int]:
    return len(data.x), (data.x.size(1) - data.num_categories) * (
        num_hops + 1
    ) + data.num_categories


def _write_hops(
    out: np.ndarray,
    data: Graph,
    num_hops: int,
    step: int,
    moments: Tensor | None = None,
) -> Tensor:
    """Write what :func:`propagate` returns first, some columns of ``x`` at a time, and return the second."""
    own, categories = data.x.split(
        [data.x.size(1) - data.num_categories, data.num_categories], dim=1
    )
    channels, found = own.size(1), []
    _copy(out[:, out.shape[1] - data.num_categories :], categories)
    for first in range(0, channels, max(step, 1)):
        values = own[:, first : first + step].contiguous()
        columns, of_hops = slice(first, first + values.size(1)), []
        for hop in range(num_hops + 1):
            if hop:
                values = _average_in_blocks(data, values)
                scaled, used = standardise(
                    values, None if moments is None else moments[hop - 1][:, columns]
                )
                of_hops.append(used)
            _copy(out[:, hop * channels + first :][:, : values.size(1)], scaled if hop else values)
        found.append(torch.stack(of_hops))
    return torch.cat(found, dim=2) if found else torch.empty(num_hops, 2, 0, dtype=torch.float64)


def _average_in_blocks(data: Graph, x: Tensor) -> Tensor:
    """Average features over the incoming edges of each node, which are read once."""
    out = torch.empty_like(x)
    for first, ptr, src in edge_blocks(data):
        num_rows = len(ptr) - 1
        ends = torch.stack(
            [
                torch.from_numpy(src),
                torch.arange(num_rows, dtype=torch.int32).repeat_interleave(
                    torch.from_numpy(ptr).diff()
                ),
            ]
        )
        block = from_csc(
            ends.to(torch.from_numpy(src).dtype), torch.from_numpy(ptr), num_src=len(x)
        )
        out[first : first + num_rows] = update_all(block, "copy_u", "mean", u=x, num_src=len(x))
    return out


def standardise(x: Tensor, moments: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Bring columns to mean 0 and variance 1, by their own moments or by those of another graph [2, channels].

    A column with the same value everywhere becomes 0.

    Returns:
        The columns, and the moments that were used, float64.
    """
    out, found = torch.empty_like(x), []
    for place, (values, scaled) in enumerate(
        zip(x.split(AT_ONCE, dim=1), out.split(AT_ONCE, dim=1))
    ):
        values = values.double()
        first = place * AT_ONCE
        found.append(
            _moments(values) if moments is None else moments[:, first : first + values.size(1)]
        )
        mean, deviation = found[-1]
        is_constant = deviation <= LEAST_DEVIATION * mean.abs()
        scaled.copy_((values - mean).div_(deviation).masked_fill_(is_constant, 0.0))
    return out, torch.cat(found, dim=1)


def _moments(values: Tensor) -> Tensor:
    return torch.stack([values.mean(0), values.std(0, correction=0)])


def _copy(out: np.ndarray, values: Tensor) -> None:
    """Copy columns into an array, which may be a mapped file, some rows at a time."""
    for first in range(0, len(values), COPIED):
        out[first : first + COPIED] = values[first : first + COPIED].numpy()
        pulse.renew()

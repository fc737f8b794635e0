"""Many graphs of the user's own: read in parallel processes, put together as one union, divided into splits."""

import logging
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields
from functools import partial
from multiprocessing import active_children, get_context
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.splits import divide, shuffle_all
from parallel_epochs.pipeline.metrics import CLASS_METRICS
from parallel_epochs.pipeline.names import MASKS
from parallel_epochs.pipeline.run.launch import follow_parent, start_rank_server
from parallel_epochs.pipeline.run.progress import Bar

if TYPE_CHECKING:
    from parallel_epochs.pipeline.data.config import ManyGraphsConfig

log = logging.getLogger(__name__)

# Graphs that a process reads at a time. Fewer than the second are not worth starting processes, which takes seconds.
CHUNK, MANY = 256, 2048

Item = TypeVar("Item")


@dataclass
class Graphs:
    """Some graphs, their rows one below the other.

    Attributes:
        num_nodes: of each graph [num_graphs].
        num_edges: of each graph [num_graphs].
        edges: sources and destinations [2, all edges], in each graph numbered from 0.
        x: features of the nodes [all nodes, columns], or none.
        edge_attr: features of the edges [all edges, columns], or none.
        y: labels [num_graphs, columns], or none.
    """

    num_nodes: np.ndarray
    num_edges: np.ndarray
    edges: np.ndarray
    x: np.ndarray | None = None
    edge_attr: np.ndarray | None = None
    y: np.ndarray | None = None


def concatenate(parts: Sequence[Graphs]) -> Graphs:
    """Put graphs that have the same attributes one below the other.

    Args:
        parts: at least one.
    """

    def join(name: str) -> np.ndarray | None:
        values = [getattr(part, name) for part in parts]
        return (
            None if values[0] is None else np.concatenate(values, axis=1 if name == "edges" else 0)
        )

    return Graphs(**{field.name: cast(np.ndarray, join(field.name)) for field in fields(Graphs)})


def read_in_parallel(read: Callable[[Item], Graphs], items: Sequence[Item]) -> Graphs:
    """Read graphs in several processes, in the order of the items; few of them in this process.

    A process has one item open at a time, and what it has read comes back through a pipe: the number of open files does
    not depend on that of the items.

    Args:
        read: a function of a module; all that it returns has the same attributes.
        items: what it takes, at least one; they are sent to the processes.

    Raises:
        ValueError: as `read` raises it for the first of the items that it refuses; or a process was killed.
    """
    num_workers = min(len(os.sched_getaffinity(0)), math.ceil(len(items) / CHUNK))
    chunks = [items[first : first + CHUNK] for first in range(0, len(items), CHUNK)]
    read_chunk, parts = partial(_read_chunk, read), []
    with Bar("reading graphs", len(chunks), f"times {CHUNK}") as bar:
        if num_workers == 1 or len(items) < MANY:
            for chunk in chunks:
                parts.append(read_chunk(chunk))
                bar.advance()
            return concatenate(parts)
        log.info("data: reading %s graphs in %d processes", f"{len(items):,}", num_workers)
        start_rank_server()  # which has the imports behind it
        others = active_children()
        with ProcessPoolExecutor(num_workers, get_context("forkserver"), _begin_worker) as pool:
            try:
                # Not pool.map, which cancels the others when one fails: Python 3.11 stumbles over that as they end.
                for future in [pool.submit(read_chunk, chunk) for chunk in chunks]:
                    parts.append(future.result())
                    bar.advance()
            except (
                BaseException
            ) as error:  # Ctrl-C, say: leaving the pool would wait for what its processes are doing
                for process in set(active_children()) - set(others):
                    process.kill()
                if isinstance(error, BrokenProcessPool):
                    raise ValueError(
                        "a process that read graphs was killed, perhaps for lack of memory: give "
                        f"it more, or fewer processors than {num_workers}"
                    ) from None
                raise
    return concatenate(parts)


def _begin_worker() -> None:
    follow_parent()
    torch.set_num_threads(1)


def _read_chunk(read: Callable[[Item], Graphs], items: Sequence[Item]) -> Graphs:
    return concatenate([read(item) for item in items])


def as_union(graphs: Graphs, *, metric: str | None = None, masks: Sequence[Tensor] = ()) -> Graph:
    """Make one disjoint union of graphs, with their labels if they have them.

    Args:
        metric: of the labels; none: that which :func:`infer_metric` finds.
        masks: which graphs are in the train, the valid and the test split, each [num_graphs], bool.

    Returns:
        As :func:`pipeline.data.readers.ogb_graph.read`, but ``x_tables`` and ``edge_tables``.
    """
    ptr = np.concatenate([[0], np.cumsum(graphs.num_nodes)])
    data = Graph(
        edge_index=torch.from_numpy(graphs.edges + np.repeat(ptr[:-1], graphs.num_edges)),
        num_nodes=int(ptr[-1]),
        ptr=torch.from_numpy(ptr),
    )
    if graphs.y is not None:
        metric = infer_metric(graphs.y) if metric is None else metric
        y = torch.from_numpy(graphs.y)
        data.update(
            {
                "metric": metric,
                "y": y if metric in CLASS_METRICS else y.float(),
                **dict(zip(MASKS, masks, strict=True)),
            }
        )
    for key, value in (("x", graphs.x), ("edge_attr", graphs.edge_attr)):
        if value is not None:
            data[key] = torch.from_numpy(value)
    return data


def divide_graphs(count: int, config: "ManyGraphsConfig") -> list[Tensor]:
    """Divide graphs by random into training, validation and test; returns their masks [count], bool."""
    order = shuffle_all(count, config.graph_seed)
    return divide(order, count, config.train_fraction, config.valid_fraction)


def infer_metric(y: np.ndarray) -> str:
    """Say what measures labels: "rocauc" those of 0, 1 and NaN, "acc" whole numbers in a column, "rmse" others."""
    if np.isin(y[~np.isnan(y)], (0, 1)).all():
        return "rocauc"
    return "acc" if y.shape[1] == 1 and np.issubdtype(y.dtype, np.integer) else "rmse"

"""Connected components, and the parts of a graph that get a model each."""

import ctypes
import logging
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse import csgraph
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import choose_dtype
from parallel_epochs.models.kernels.native import pointer
from parallel_epochs.pipeline.graph.reading import edge_blocks
from parallel_epochs.pipeline.graph.store import ArrayFile, StoreWriter, write_rows
from parallel_epochs.pipeline.graph.stream import LIBRARY
from parallel_epochs.pipeline.graph.subgraph import GRAPH_KEYS, NODE_KEYS, induced_subgraph
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# Takes the component with this number, of these nodes in ascending order, from a graph, or from where it is kept.
Take = Callable[[int, Tensor], Data]


@dataclass
class Component:
    """The size of a connected component."""

    num_nodes: int
    num_edges: int
    num_train: int
    num_labelled: int


@dataclass
class Components:
    """Connected components, the largest first.

    Attributes:
        index: component of each node, [num_nodes], int64.
        components: one entry for each.
    """

    index: Tensor
    components: list[Component]

    def __str__(self) -> str:
        sizes = [c.num_nodes for c in self.components]
        single = sum(size == 1 for size in sizes)
        lines = [
            f"components: {len(sizes):,}, of which {count(single, 'is a single node', 'are single nodes')}"
        ]
        for rank, c in enumerate(self.components[:5], start=1):
            if c.num_nodes == 1 and rank > 1:
                break
            lines.append(
                f"  {rank}: {count(c.num_nodes, 'node')}, {count(c.num_edges, 'edge')}, "
                f"{count(c.num_labelled, 'node')} in a split, {c.num_train:,} of them for training"
            )
        rest = sizes[len(lines) - 1 :]
        if rest:
            lines.append(f"  and {len(rest):,} more of {min(rest):,} to {max(rest):,} nodes")
        return "\n".join(lines)

    def pack(self) -> dict:
        """Take this apart into tensors, for :meth:`unpack`."""
        return {
            "index": self.index,
            "table": torch.tensor([astuple(c) for c in self.components]).reshape(-1, 4),
        }

    @classmethod
    def unpack(cls, packed: dict) -> "Components":
        """Put together what :meth:`pack` took apart."""
        return cls(packed["index"], [Component(*row) for row in packed["table"].tolist()])

    def record(self) -> dict:
        """For components.json: the hundred largest and the number of all."""
        return {
            "num_components": len(self.components),
            "largest": [asdict(c) for c in self.components[:100]],
            "num_single_nodes": sum(c.num_nodes == 1 for c in self.components),
        }


def find_components(data: Data) -> Components:
    """Find the (weakly) connected components of a graph with ``train_mask``, ``valid_mask`` and ``test_mask``."""
    (indptr, _), _ = data.edge_index.get_csc()
    found, label = label_components(data)
    sizes = np.bincount(label, minlength=found)
    order = np.argsort(-sizes, kind="stable")
    rank = np.empty(found, np.int64)
    rank[order] = np.arange(found)
    index = rank[label]
    labelled = (data.train_mask | data.valid_mask | data.test_mask).numpy()

    def count_by_component(weights: np.ndarray) -> list[int]:
        return np.bincount(index, weights=weights, minlength=found).astype(np.int64).tolist()

    columns = (
        sizes[order].tolist(),
        count_by_component(np.diff(indptr.numpy())),
        count_by_component(data.train_mask.numpy()),
        count_by_component(labelled),
    )
    return Components(torch.from_numpy(index), [Component(*row) for row in zip(*columns)])


def label_components(data: Data) -> tuple[int, np.ndarray]:
    """Number the (weakly) connected components of a graph by their lowest nodes, reading its edges once.

    Memory holds 4 bytes a node and some blocks of edges.

    Returns:
        How many there are, and that of each node.
    """
    library = LIBRARY.get()
    parent = np.arange(data.num_nodes, dtype=np.int32)
    for first, ptr, src in edge_blocks(data):
        if library is None:
            dst = np.repeat(np.arange(first, first + len(ptr) - 1), np.diff(ptr))
            ends = sp.coo_array(
                (np.ones(len(src)), (parent[src], parent[dst])),
                shape=(data.num_nodes, data.num_nodes),
            )
            # Labels are numbers of nodes as well, and those of one component are equal: a parent like any other.
            parent = csgraph.connected_components(ends, directed=False)[1][parent]
        else:
            join = library.stream_join_32 if src.dtype == np.int32 else library.stream_join_64
            join(
                pointer(torch.from_numpy(src)),
                pointer(torch.from_numpy(ptr)),
                ctypes.c_int64(first),
                ctypes.c_int64(len(ptr) - 1),
                pointer(torch.from_numpy(parent)),
            )
    if library is not None:
        library.stream_roots(pointer(torch.from_numpy(parent)), ctypes.c_int64(len(parent)))
    roots, label = np.unique(parent, return_inverse=True)
    return len(roots), label


def select_component(
    data: Data, components: Components, which: str, take: Take | None = None
) -> Data:
    """The part of a graph to train on: "all", "largest", or the K-th largest component.

    Args:
        take: takes the part of its nodes; :func:`induced_subgraph` if not given.

    Raises:
        ValueError: there are fewer than K components, or the K-th holds no training node.
    """
    if which == "all" or len(components.components) == 1 and which in ("largest", "1"):
        return data
    number = 1 if which == "largest" else int(which)
    if number > len(components.components):
        raise ValueError(
            f"data.components={which} does not exist: the graph's components are numbered from 1 to "
            f"{len(components.components):,}"
        )
    component = components.components[number - 1]
    if component.num_train == 0:
        raise ValueError(
            f"data.components={which}: none of its {component.num_nodes:,} nodes is in the training "
            "split. Choose another component"
        )
    left_out = sum(c.num_labelled for c in components.components) - component.num_labelled
    log.info(
        "component %d: %s; the others hold %s, left out of the run",
        number,
        count(component.num_nodes, "node"),
        count(left_out, "labelled node"),
    )
    nodes = (components.index == number - 1).nonzero().squeeze(1)
    return induced_subgraph(data, nodes) if take is None else take(number, nodes)


def split_components(
    data: Data, components: Components, which: str, min_size: int, take: Take | None = None
) -> list[tuple[str | None, Data]]:
    """The graphs to train a model on each, with the number of its component where there are several.

    Args:
        which: "separate" for the largest component with a training node and every further one of `min_size` nodes;
            else as for :func:`select_component`.
        take: as for :func:`select_component`.

    Raises:
        ValueError: no component holds a training node; or as :func:`select_component`.
    """
    if which != "separate":
        return [(None, select_component(data, components, which, take))]
    trained = [
        number
        for number, component in enumerate(components.components, start=1)
        if component.num_train
    ]
    if not trained:
        raise ValueError("data.components=separate: no component has a node of the training split")
    for number, component in enumerate(components.components, start=1):
        if component.num_nodes >= min_size and not component.num_train:
            log.info(
                "component %d: %s nodes, none of the train split: the model of component %d will predict them",
                number,
                f"{component.num_nodes:,}",
                trained[0],
            )
    return [
        (str(number), select_component(data, components, str(number), take))
        for number in trained
        if number == trained[0] or components.components[number - 1].num_nodes >= min_size
    ]


def write_component(writer: StoreWriter, data: Data, nodes: Tensor) -> None:
    """Write a component of a graph as a store, reading the edges of the graph once.

    Args:
        nodes: of the component, in ascending order, int64: no edge leads from them or to them from elsewhere.
    """
    (indptr, _), _ = data.edge_index.get_csc()
    degrees = indptr.diff()[nodes]
    num_edges = int(degrees.sum())
    dtype = choose_dtype(len(nodes), num_edges)
    writer.put(
        "indptr", torch.cat([degrees.new_zeros(1, dtype=torch.int64), degrees.cumsum(0)]).to(dtype)
    )
    if not writer.has("edges"):
        shapes: dict = {"edges": ((2, num_edges), dtype)}
        if data.edge_attr is not None:
            shapes["edge_attr"] = ((num_edges, *data.edge_attr.shape[1:]), data.edge_attr.dtype)
        with writer.write(**shapes) as arrays:
            _write_edges(arrays, data, nodes)
    write_rows(writer, "x", data.x, nodes)
    for key in NODE_KEYS:
        if key != "x" and data.get(key) is not None:
            writer.put(key, data[key].index_select(0, nodes))
    writer.put("n_id", nodes)
    writer.finish({key: data[key] for key in GRAPH_KEYS if key in data} | {"num_nodes": len(nodes)})


def _write_edges(arrays: dict[str, ArrayFile], data: Data, nodes: Tensor) -> None:
    """Write the edges of a component, those of each node in the order that they have in the graph."""
    local = torch.full((data.num_nodes,), -1, dtype=arrays["edges"].dtype).numpy()
    local[nodes.numpy()] = np.arange(len(nodes))
    num_edges, at = arrays["edges"].shape[1], 0
    for first, ptr, src, *attr in edge_blocks(data, features=True):
        dst = np.repeat(local[first : first + len(ptr) - 1], np.diff(ptr))
        kept = dst >= 0
        arrays["edges"].write(at, local[src[kept]])
        arrays["edges"].write(num_edges + at, dst[kept])
        if attr:
            arrays["edge_attr"].write(at * attr[0][:1].size, attr[0][kept].reshape(-1))
        at += int(kept.sum())

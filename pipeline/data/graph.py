"""A graph that is ready for training: PyG's ``Data`` that knows its types of nodes, its kind and its store."""

import json
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import from_csc
from parallel_epochs.pipeline.data.graph_types import EDGE, NODE, SCHEMA, GraphTypes
from parallel_epochs.pipeline.graph import ranges
from parallel_epochs.pipeline.graph.store import MANIFEST, StoreWriter, check_once, open_store
from parallel_epochs.pipeline.run.errors import DamagedFile


class DataKind(StrEnum):
    """The kind of an opened dataset.

    Attributes:
        GRAPH: one graph, perhaps with labels of its nodes.
        PAIRS: one graph, with pairs of nodes to be linked in place of labels.
        GRAPHS: many graphs in one, each with its own labels.
        TRIPLES: a knowledge graph.
        VECTORS: points without edges.
    """

    GRAPH = "graph"
    PAIRS = "pairs"
    GRAPHS = "graphs"
    TRIPLES = "triples"
    VECTORS = "vectors"


class Graph(Data):
    """A dataset as readers give it and as training opens it.

    It is PyG's ``Data``, and works wherever one does. See :func:`pipeline.data.cache.load` for the tensors that it has
    when it is prepared.
    """

    @property
    def types(self) -> GraphTypes:
        """The types of nodes and the relations. A homogeneous graph has one of each."""
        if "types" in self._store:
            return self._store["types"]
        width = 0 if self.x is None else self.x.size(1) - self.get("num_categories", 0)
        return GraphTypes(
            [NODE],
            [self.num_nodes],
            [width],
            [(NODE, EDGE, NODE)],
            NODE if "y" in self else None,
            homogeneous=True,
        )

    @types.setter
    def types(self, types: GraphTypes) -> None:
        self._store["types"] = types

    @property
    def kind(self) -> DataKind:
        """The kind of the dataset: a graph, a graph with pairs of nodes, many graphs, triples or vectors."""
        if "triples" in self:
            return DataKind.TRIPLES
        if "ptr" in self:
            return DataKind.GRAPHS
        if "train_pairs" in self:
            return DataKind.PAIRS
        return DataKind.VECTORS if self.edge_index is None else DataKind.GRAPH

    @property
    def store(self) -> Path | None:
        """The folder of the store that holds the arrays; none for a graph that is in memory alone."""
        return self._store.get("store")

    @store.setter
    def store(self, folder: Path | None) -> None:
        self._store["store"] = folder

    @property
    def on_disk(self) -> bool:
        """Tell whether the arrays of the store are read block by block, rather than their rows by random access."""
        return self._store.get("on_disk", False)

    @on_disk.setter
    def on_disk(self, on_disk: bool) -> None:
        self._store["on_disk"] = on_disk


def pack(graph: Data) -> dict[str, Any]:
    """Take a graph apart into tensors and plain values, for :func:`unpack`."""
    packed = {
        key: value
        for key, value in graph.to_dict().items()
        if key not in ("edge_index", "types", "store", "on_disk") and value is not None
    }
    if "types" in graph:
        packed[SCHEMA] = graph.types.to_value()
    if graph.edge_index is None:  # triples
        return packed
    packed["edges"] = graph.edge_index.as_tensor()
    packed["indptr"] = graph.edge_index.get_csc()[0][0]
    return packed


def unpack(packed: Mapping[str, Any]) -> Graph:
    """Put a graph together again, its edges, if it has any, with their CSC."""
    graph = Graph(
        **{
            key: value
            for key, value in packed.items()
            if key not in ("edges", "indptr", SCHEMA, "types", "store", "on_disk")
        }
    )
    if "edges" in packed:
        graph.edge_index = from_csc(packed["edges"], packed["indptr"])
    if SCHEMA in packed:
        graph.types = GraphTypes.from_value(packed[SCHEMA])
    return graph


def write_graph(writer: StoreWriter, graph: Data, **values: object) -> None:
    """Write a graph whose edges are sorted by destination: every tensor as an array, everything else as a value.

    Args:
        values: more of them.
    """
    packed = pack(graph)
    plain = {name: value for name, value in packed.items() if not isinstance(value, Tensor)}
    json.dumps(plain)  # what it cannot say is no value of a graph
    tensors = {name: value for name, value in packed.items() if isinstance(value, Tensor)}
    with writer.write(
        **{name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}
    ) as arrays:
        for name, value in tensors.items():
            arrays[name].write(0, value.contiguous().reshape(-1).numpy())
    writer.finish({**plain, **values})


def open_graph(path: Path, *, verify: bool = True) -> Graph:
    """Open a store of a graph; see :func:`pipeline.graph.store.open_store`.

    Returns:
        ``edge_index``, an ``EdgeIndex`` sorted by destination with its CSC filled, the other arrays and values, and
        ``store``. All tensors lie in their files.

    Raises:
        DamagedFile: its types are none.
    """
    tensors, values = open_store(path, verify=verify)
    if verify:
        bounds = {name: values.get(name) for name in ("num_nodes", "num_relations")}
        check = partial(ranges.check_graph, path, {**bounds, **tensors})
        if "triples" in tensors:  # the record of a check does not know their bounds
            check()
        else:
            check_once(path, ranges.GRAPH_ARRAYS, check)
    try:
        graph = unpack({**tensors, **values})
    except ValueError as error:
        raise DamagedFile(f"{path / MANIFEST}: {error}") from None
    graph.store = path
    return graph

"""The keys that every dataset has."""

from dataclasses import dataclass
from typing import ClassVar

from pipeline.keys import key


@dataclass
class DataConfig:
    """Keys of every dataset.

    Attributes:
        holds: "graph", one graph; "graphs", many, each with labels of its own; "triples", a knowledge graph; "vectors",
            points without edges. A trainer says what it takes.
        is_stored: whether the cache keeps a store of it, see :mod:`pipeline.graph.store`, also without `on_disk`.
    """

    holds: ClassVar[str] = "graph"
    is_stored: ClassVar[bool] = False
    source: str = key("", "the reader of the dataset", shapes_graph=True)
    components: str = key("all", "connected components to train on: all, largest, K for the K-th largest (from 1), or "
                          "separate for a model each")
    min_component_size: int = key(100, "nodes; under `separate`, smaller components get no model of their own",
                                  minimum=1)
    to_undirected: bool = key(False, "add the missing reverse edges", shapes_graph=True)
    add_self_loops: bool = key(False, "add the missing self-loops", shapes_graph=True)
    node_features: str = key("sum", "for a graph without any: the features of the incident edges summed, or log_sum, "
                             "their logarithms standardised", choices=("sum", "log_sum"), shapes_graph=True)
    on_disk: bool = key(False, "leave the graph in files, and read it once an epoch, block by block: for graphs larger "
                        "than memory", changes_numbers=False)

    def origin(self) -> str:
        """Say where the graph comes from, for messages."""
        return f"data={self.source}"

    def check(self) -> None:
        """Refuse a dataset whose files are not there, or whose sizes are impossible.

        Raises:
            ValueError: names the key, and says where files were looked for and how to get them.
        """

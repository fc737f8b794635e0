"""Kinds by name: what is learned, as ``task=`` chooses it."""

from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.kinds.base import Kind
from parallel_epochs.pipeline.gnn.kinds.edges import EdgeKind
from parallel_epochs.pipeline.gnn.kinds.graphs import GraphKind
from parallel_epochs.pipeline.gnn.kinds.links import LinkKind
from parallel_epochs.pipeline.gnn.kinds.nodes import NodeKind
from parallel_epochs.pipeline.gnn.kinds.rows import RowKind

# One line for each member of kinds/.
KINDS: dict[str, type[Kind]] = {
    "node": NodeKind,
    "edge": EdgeKind,
    "graph": GraphKind,
    "link": LinkKind,
}


def kind_of(config: GNNConfig) -> Kind:
    """Return what a run learns: of task=node with a label table, its rows."""
    if config.task.name == "node" and config.data.has_rows:
        return RowKind(config)
    return KINDS[config.task.name](config)

"""How far a model's prediction of a node reaches into the graph."""

import torch

from parallel_epochs.models.networks import blockwise
from parallel_epochs.models.networks.deepgcn import DeeperGCN
from parallel_epochs.models.networks.pyg import PyGModel
from parallel_epochs.models.networks.relational import TypedModel

# A layer that divides by the degrees of sources reads the edges of one hop more.
ONE_HOP_MORE = ("GCNConv",)


def count_hops(model: torch.nn.Module) -> tuple[int, str]:
    """Count the hops against the edges that the prediction of a node reads, if each layer reads incoming edges alone.

    The edges that enter nodes up to one hop less away then give the same predictions as the whole graph.

    Args:
        model: a model in evaluation mode.

    Returns:
        The number of hops, and an empty text; or 0 and the reason why they are not known.
    """
    if isinstance(model, PyGModel):
        if model.pool != "none":
            return 0, "model.pool reads all nodes of a graph"
        # Without blocks, features of edges that a layer updates depend on the nodes at their ends alone.
        if not model.updates_edges and not model.splits:
            if all(
                any(kind.__name__ in ONE_HOP_MORE for kind in type(layer.conv).__mro__)
                for layer in model.layers
            ):
                return len(model.layers) + 1, ""
            return (
                0,
                f"its layers ({model.title}) read more of the graph than the edges that enter a node",
            )
        return len(model.layers), ""
    if isinstance(model, TypedModel):
        return (
            (len(model.layers), "")
            if model.pool == "none"
            else (0, "model.pool reads all nodes of a graph")
        )
    if not isinstance(model, DeeperGCN):
        return 0, f"it is not known how far {type(model).__name__} reads"
    reason = blockwise.why_not(model)
    return (0, reason) if reason else (len(model.norms), "")

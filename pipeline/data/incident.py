"""Node features that are made of the edges of each node."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def incident_features(
    indptr: Int[Tensor, " num_nodes_plus_1"],
    edge_attr: Float[Tensor, "num_edges edge_dim"] | None,
    kind: str,
    moments: Float[Tensor, "2 channels"] | None = None,
) -> Float[Tensor, "num_nodes channels"]:
    """Make node features of the features of each node's incoming edges, or of their number if they have none.

    Args:
        indptr: where the edges of each node begin.
        edge_attr: [num_edges, edge_dim], of edges sorted by destination, or none.
        kind: "sum": sums; "log_sum": log1p of the sums' absolute values with the sums' signs, each column brought to
            mean 0 and variance 1.
        moments: what :func:`moments_of_edges` found in another graph, in place of the numbers of this one.

    Returns:
        [num_nodes, edge_dim], or [num_nodes, 1] of no edge features, float32.
    """
    total = _total(indptr, edge_attr, kind)
    if kind == "log_sum":
        mean, deviation = _moments(total) if moments is None else moments
        total = (total - mean) / deviation
    return total.float()


def moments_of_edges(indptr: Tensor, edge_attr: Tensor | None, kind: str) -> Tensor | None:
    """Return what :func:`incident_features` takes from all of a graph: mean and deviation of "log_sum" [2, channels],
    float64, nothing for others.
    """
    return _moments(_total(indptr, edge_attr, kind)) if kind == "log_sum" else None


def _total(indptr: Tensor, edge_attr: Tensor | None, kind: str) -> Tensor:
    if edge_attr is None or not edge_attr.size(1):
        total = indptr.diff().double().unsqueeze(1)
    else:
        total = torch.segment_reduce(edge_attr, "sum", offsets=indptr.long(), axis=0, initial=0)
    total = total.double()
    return total.sign() * total.abs().log1p() if kind == "log_sum" else total


def _moments(values: Tensor) -> Tensor:
    return torch.stack([values.mean(0), values.std(0, correction=0).clamp(min=1e-6)])

"""Node features that are made of the edges of each node."""
# ruff: noqa: F722 (shapes are strings)

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.models.aggregate.reference_in_blocks import cut_into_blocks
from parallel_epochs.pipeline.run import pulse

# Intervals that the values of an edge feature are counted in: equal parts of its range.
NUM_INTERVALS = 10
# Numbers of edges, and of the result, that are counted at a time.
NUMBERS = 1 << 22


def incident_features(edge_index: EdgeIndex, edge_attr: Float[Tensor, "num_edges edge_dim"] | None,
                      kind: str) -> Float[Tensor, "num_nodes channels"]:
    """Make node features of the features of each node's incoming edges, or of their number if they have none.

    Args:
        edge_index: sorted by destination.
        edge_attr: [num_edges, edge_dim] or none.
        kind: "sum": sums; "log_sum": log1p of the sums' absolute values with the sums' signs, each column brought to
            mean 0 and variance 1; "counts": log2 of 1 + the number of edges whose feature lies in each of
            :data:`NUM_INTERVALS` equal parts of its range, in the manner of GIPA (https://arxiv.org/abs/2301.08209).

    Returns:
        [num_nodes, edge_dim], [num_nodes, edge_dim * NUM_INTERVALS] for counts, or [num_nodes, 1] of no edge features.
    """
    (indptr, _), _ = edge_index.get_csc()
    if edge_attr is None:
        return scale(indptr.diff().double().unsqueeze(1), kind)
    if kind == "counts":
        pieces = count_edges(edge_attr.numpy(), indptr.numpy())
        return torch.cat([edge_attr.new_empty(0, edge_attr.size(1) * NUM_INTERVALS), *(rows for _, rows in pieces)])
    return scale(torch.segment_reduce(edge_attr, "sum", offsets=indptr.long(), axis=0, initial=0).double(), kind)


def scale(total: Float[Tensor, "num_nodes channels"], kind: str) -> Float[Tensor, "num_nodes channels"]:
    """Make node features of sums over edges, or of numbers of edges, float64; see :func:`incident_features`."""
    if kind == "counts":
        return (total + 1).log2().float()
    if kind == "log_sum":
        total = total.sign() * total.abs().log1p()
        total = (total - total.mean(0)) / total.std(0, correction=0).clamp(min=1e-6)
    return total.float()


def count_edges(edge_attr: Float[np.ndarray, "num_edges edge_dim"],
                indptr: Int[np.ndarray, " num_nodes_plus_1"]) -> Iterator[tuple[int, Tensor]]:
    """Count the edges of each node by the values of their features, some nodes at a time.

    Args:
        edge_attr: of edges sorted by destination, perhaps mapped from a file: it is read twice.
        indptr: where the edges of each node begin.

    Yields:
        The first of the next nodes, and their features [num_rows, edge_dim * NUM_INTERVALS], float32; see
        :func:`incident_features`.
    """
    channels = edge_attr.shape[1]
    at_once, num_rows = max(NUMBERS // channels, 1), max(NUMBERS // (channels * NUM_INTERVALS), 1)
    low, high = np.full(channels, np.inf), np.full(channels, -np.inf)
    for begin in range(0, len(edge_attr), at_once):
        rows = edge_attr[begin:begin + at_once]
        low, high = np.minimum(low, rows.min(0)), np.maximum(high, rows.max(0))
        pulse.renew()
    width = np.where(high > low, high - low, 1.0)
    for first, last in cut_into_blocks(torch.from_numpy(indptr), at_once, num_rows):
        ptr = indptr[first:last + 1].astype(np.int64)
        found = np.zeros((last - first) * channels * NUM_INTERVALS, np.int64)
        for begin in range(ptr[0], ptr[-1], at_once):  # more than once for a node with more edges
            end = min(begin + at_once, ptr[-1])
            interval = ((edge_attr[begin:end] - low) / width * NUM_INTERVALS).astype(np.int64)
            node = np.repeat(np.arange(last - first), np.diff(ptr.clip(begin, end)))
            column = node[:, None] * channels + np.arange(channels)
            place = column * NUM_INTERVALS + interval.clip(0, NUM_INTERVALS - 1)
            found += np.bincount(place.ravel(), minlength=len(found))
            pulse.renew()
        yield first, scale(torch.from_numpy(found.reshape(last - first, -1)).double(), "counts")

"""Node features that are made of the edges of each node."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric import EdgeIndex

from parallel_epochs.models.edge_index import cut_into_blocks
from parallel_epochs.pipeline.run import pulse

# Intervals that the values of an edge feature are counted in: equal parts of its range.
NUM_INTERVALS = 10
# Numbers of edges, and of the result, that are counted at a time.
NUMBERS = 1 << 22


def incident_features(
    edge_index: EdgeIndex,
    edge_attr: Float[Tensor, "num_edges edge_dim"] | None,
    kind: str,
    moments: Float[Tensor, "2 moments"] | None = None,
) -> Float[Tensor, "num_nodes channels"]:
    """Make node features of the features of each node's incoming edges, or of their number if they have none.

    Args:
        edge_index: sorted by destination.
        edge_attr: [num_edges, edge_dim] or none.
        kind: "sum": sums; "log_sum": log1p of the sums' absolute values with the sums' signs, each column brought to
            mean 0 and variance 1; "counts": log2 of 1 + the number of edges whose feature lies in each of
            :data:`NUM_INTERVALS` equal parts of its range, in the manner of GIPA (https://arxiv.org/abs/2301.08209).
        moments: what :func:`moments_of_edges` found in another graph, in place of the numbers of this one.

    Returns:
        [num_nodes, edge_dim], [num_nodes, edge_dim * NUM_INTERVALS] for counts, or [num_nodes, 1] of no edge features.
    """
    (indptr, _), _ = edge_index.get_csc()
    width = num_channels(0 if edge_attr is None else edge_attr.size(1), kind)
    return torch.cat(
        [
            torch.empty(0, width),
            *(rows for _, rows in incident_rows(indptr, edge_attr, kind, moments)),
        ]
    )


def num_channels(edge_dim: int, kind: str) -> int:
    """Return the number of columns that :func:`incident_features` makes."""
    return edge_dim * (NUM_INTERVALS if kind == "counts" else 1) or 1


def incident_rows(
    indptr: Int[Tensor, " num_nodes_plus_1"],
    edge_attr: Float[Tensor, "num_edges edge_dim"] | None,
    kind: str,
    moments: Float[Tensor, "2 moments"] | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Yield some rows of :func:`incident_features` at a time, with the number of the first; `edge_attr` may be a file."""
    if edge_attr is not None and edge_attr.size(1) and kind == "counts":
        yield from _count_edges(edge_attr.numpy(), indptr.numpy(), moments)
    else:
        yield 0, _scale(_total(indptr, edge_attr), kind, moments)


def moments_of_edges(
    edge_index: EdgeIndex, edge_attr: Float[Tensor, "num_edges edge_dim"] | None, kind: str
) -> Float[Tensor, "2 moments"] | None:
    """Return what :func:`incident_features` takes from all of a graph, float64: mean and deviation of "log_sum", least
    and greatest features of "counts", nothing for others.
    """
    if kind == "counts" and edge_attr is not None:
        return torch.from_numpy(np.stack(_range(edge_attr.numpy())))
    (indptr, _), _ = edge_index.get_csc()
    return (
        torch.stack(_moments(_logarithm(_total(indptr, edge_attr)))) if kind == "log_sum" else None
    )


def _scale(
    total: Float[Tensor, "num_nodes channels"],
    kind: str,
    moments: Float[Tensor, "2 moments"] | None = None,
) -> Float[Tensor, "num_nodes channels"]:
    """Make node features of sums over edges, or of numbers of edges, float64; see :func:`incident_features`."""
    if kind == "counts":
        return (total + 1).log2().float()
    if kind == "log_sum":
        total = _logarithm(total)
        mean, deviation = _moments(total) if moments is None else moments
        total = (total - mean) / deviation
    return total.float()


def _total(
    indptr: Int[Tensor, " num_nodes_plus_1"], edge_attr: Float[Tensor, "num_edges edge_dim"] | None
) -> Float[Tensor, "num_nodes channels"]:
    if edge_attr is None or not edge_attr.size(1):
        return indptr.diff().double().unsqueeze(1)
    return torch.segment_reduce(edge_attr, "sum", offsets=indptr.long(), axis=0, initial=0).double()


def _logarithm(total: Float[Tensor, "num_nodes channels"]) -> Float[Tensor, "num_nodes channels"]:
    return total.sign() * total.abs().log1p()


def _moments(
    values: Float[Tensor, "num_nodes channels"],
) -> tuple[Float[Tensor, " channels"], Float[Tensor, " channels"]]:
    return values.mean(0), values.std(0, correction=0).clamp(min=1e-6)


def _count_edges(
    edge_attr: Float[np.ndarray, "num_edges edge_dim"],
    indptr: Int[np.ndarray, " num_nodes_plus_1"],
    moments: Float[Tensor, "2 moments"] | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Count the edges of each node by the values of their features, some nodes at a time.

    Args:
        edge_attr: of edges sorted by destination, perhaps mapped from a file: it is read twice.
        indptr: where the edges of each node begin.
        moments: least and greatest features; none: those of `edge_attr`.

    Yields:
        The first of the next nodes, and their features [num_rows, edge_dim * NUM_INTERVALS], float32; see
        :func:`incident_features`.
    """
    channels = edge_attr.shape[1]
    at_once, num_rows = max(NUMBERS // channels, 1), max(NUMBERS // (channels * NUM_INTERVALS), 1)
    low, high = _range(edge_attr) if moments is None else moments.numpy()
    width = np.where(high > low, high - low, 1.0)
    for first, last in cut_into_blocks(torch.from_numpy(indptr), at_once, num_rows):
        ptr = indptr[first : last + 1].astype(np.int64)
        found = np.zeros((last - first) * channels * NUM_INTERVALS, np.int64)
        for begin in range(ptr[0], ptr[-1], at_once):  # more than once for a node with more edges
            end = min(begin + at_once, ptr[-1])
            share = (edge_attr[begin:end] - low) / width * NUM_INTERVALS
            interval = share.clip(0, NUM_INTERVALS - 1).astype(
                np.int64
            )  # of other data, far from those of the range
            node = np.repeat(np.arange(last - first), np.diff(ptr.clip(begin, end)))
            column = node[:, None] * channels + np.arange(channels)
            place = column * NUM_INTERVALS + interval
            found += np.bincount(place.ravel(), minlength=len(found))
            pulse.renew()
        yield first, _scale(torch.from_numpy(found.reshape(last - first, -1)).double(), "counts")


def _range(
    edge_attr: Float[np.ndarray, "num_edges edge_dim"],
) -> tuple[Float[np.ndarray, " edge_dim"], Float[np.ndarray, " edge_dim"]]:
    """Find the least and the greatest value of each column, float64, reading some rows at a time."""
    channels = edge_attr.shape[1]
    low, high, at_once = (
        np.full(channels, np.inf),
        np.full(channels, -np.inf),
        max(NUMBERS // channels, 1),
    )
    for begin in range(0, len(edge_attr), at_once):
        rows = edge_attr[begin : begin + at_once]
        low, high = np.minimum(low, rows.min(0)), np.maximum(high, rows.max(0))
        pulse.renew()
    return low, high

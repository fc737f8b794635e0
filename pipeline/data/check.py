"""Refuses graphs that would fail later or train on nonsense."""

import logging

import torch
from torch import Tensor
from torch_geometric.data import Data

from pipeline.graph.edges import plain_edges
from pipeline.metrics import CLASS_METRICS
from pipeline.names import MASKS

log = logging.getLogger(__name__)


def check(data: Data) -> None:
    """Check that edges, features, labels and splits fit each other.

    Raises:
        ValueError: edges or labels that do not fit the nodes, features that are not finite, no training node.
    """
    _check_edges(data)
    _check_attributes(data)
    masks = torch.stack([data[mask].bool() for mask in MASKS])
    _check_splits(masks)
    _check_labels(data, masks)


def _check_edges(data: Data) -> None:
    edge_index = data.edge_index
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.is_floating_point():
        raise ValueError(f"edge_index must be integers of shape [2, num_edges], not {edge_index.dtype} of "
                         f"{list(edge_index.shape)}")
    if edge_index.numel():
        low, high = (int(bound) for bound in torch.aminmax(plain_edges(edge_index)))
        if low < 0 or high >= data.num_nodes:
            raise ValueError(f"edge_index is out of range: it names node {low if low < 0 else high}, the graph has "
                             f"nodes 0 to {data.num_nodes - 1}")


def _check_attributes(data: Data) -> None:
    num_nodes = data.num_nodes
    for key, rows, unit, dims in (
            ("x", num_nodes, "nodes", 2), ("edge_attr", data.edge_index.size(1), "edges", 2),
            ("y", num_nodes, "nodes", 2), ("species", num_nodes, "nodes", 1),
            *((mask, num_nodes, "nodes", 1) for mask in MASKS)):
        value = data.get(key)
        if value is None:
            continue
        if value.dim() != dims:
            raise ValueError(f"{key} must have {dims} dimensions, not the shape {list(value.shape)}")
        if value.size(0) != rows:
            raise ValueError(f"{key} has {value.size(0):,} rows for {rows:,} {unit}")
        if key in ("x", "edge_attr") and not torch.isfinite(value).all():
            bad = int((~torch.isfinite(value)).any(1).nonzero()[0])
            raise ValueError(f"{key} is not finite: row {bad} holds {value[bad].tolist()[:8]}")


def _check_splits(masks: Tensor) -> None:
    if not bool(masks[0].any()):
        raise ValueError("the train split is empty: train_mask selects no node")
    if bool((masks.sum(0) > 1).any()):
        raise ValueError(f"the splits overlap: node {int((masks.sum(0) > 1).nonzero()[0])} is in more than one")
    if not bool(masks[1].any()):
        log.warning("the valid split is empty: the last epoch counts as the best one")


def _check_labels(data: Data, masks: Tensor) -> None:
    if data.get("species") is not None and int(data.species.min()) < 0:
        raise ValueError(f"species holds {int(data.species.min())}; species are numbered from 0")
    if data.metric in CLASS_METRICS:
        if data.y.size(1) != 1:
            raise ValueError(f"y must have one column of classes for the metric {data.metric}, not {data.y.size(1)}")
        labels = data.y[masks.any(0)]
        if int(labels.min()) < 0:
            raise ValueError(f"y holds the class {int(labels.min())} in a split; classes are numbered from 0")
    else:
        known = data.y[~data.y.isnan()]
        if not bool(((known == 0) | (known == 1)).all()):
            raise ValueError(f"y must hold 0, 1 or NaN for the metric {data.metric}")
        if bool(data.y[masks[0]].isnan().all()):
            raise ValueError("y is NaN for every node of the train split: there is nothing to learn")

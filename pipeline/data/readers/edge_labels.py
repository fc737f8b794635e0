"""A saved ``Data`` with a label for each edge, as a ``HeteroData`` in which each edge is a node between its ends."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.check import check_edge_index, check_tensor
from parallel_epochs.pipeline.data.config import FileConfig
from parallel_epochs.pipeline.data.splits import divide, has_label, shuffle, shuffle_groups
from parallel_epochs.pipeline.data.tables.schema import EDGE_TYPE, NODE_TYPE
from parallel_epochs.pipeline.names import MASKS

log = logging.getLogger(__name__)

LABELS = "edge_label"
# More edges than this part may not be in another split than their reverse of the same label: few are so by chance.
PARTED = 0.2
OF_EDGES = ("edge_index", "edge_attr", LABELS, *MASKS)


def split_edges(
    saved: Mapping, config: FileConfig, times: Tensor | None, *, needs_labels: bool
) -> dict[Any, Any]:
    """Return the parts of a ``HeteroData`` of a graph whose edges have labels.

    Args:
        saved: attributes of the graph, ``edge_index``, ``edge_label`` and perhaps masks of the edges among them.
        config: how the edges are divided; whether edges of validation and test send no messages.
        times: of the edges, for a split by time.
        needs_labels: whether there are labels and splits. Otherwise all edges send.

    Raises:
        ValueError: labels or masks do not fit the edges, or masks part the two directions of an edge.
    """
    origin = config.path
    for name in ("edge_index", *[LABELS] * needs_labels):
        check_tensor(name, saved.get(name))
    index = saved["edge_index"].as_subclass(Tensor).long()
    check_edge_index(index)
    num_edges, edge = index.size(1), {"x": saved.get("edge_attr"), "num_nodes": index.size(1)}
    if isinstance(edge["x"], Tensor) and edge["x"].dim() == 1:
        edge["x"] = edge["x"].unsqueeze(1)
    shown = torch.ones(num_edges, dtype=torch.bool)
    if needs_labels:
        y = saved[LABELS].reshape(len(saved[LABELS]), -1)
        if len(y) != num_edges:
            raise ValueError(
                f"{origin}: {LABELS} has {len(y):,} rows, and there are {num_edges:,} edges: give each "
                "its label, nan or -1 where it is not known"
            )
        groups = _group(index)
        if config.split is not None:
            masks = _divide(has_label(y), groups, times, config)
        else:
            masks = {name: saved[name] for name in MASKS if name in saved}
            _check_masks(origin, masks, groups, y)
        edge |= {"y": saved[LABELS], **masks}
        edge |= {key: saved[key] for key in ("metric",) if key in saved}
        train, valid, test = masks.values()
        shown = ~(valid | test)
        if times is not None:
            shown &= train | (times <= times[train].max())
    node = {key: saved[key] for key in ("x", "num_nodes", "names", "names_ptr") if key in saved}
    if "x" not in node:
        node.setdefault("num_nodes", int(index.max()) + 1)
    parts: dict[Any, Any] = {"_global_store": {}, NODE_TYPE: node, EDGE_TYPE: edge}
    for name, ends in zip(("source", "target"), index, strict=True):
        both = torch.stack([torch.arange(num_edges), ends])
        parts[EDGE_TYPE, f"{EDGE_TYPE}_{name}", NODE_TYPE] = {"edge_index": both[:, shown]}
        parts[NODE_TYPE, f"rev_{EDGE_TYPE}_{name}", EDGE_TYPE] = {"edge_index": both.flip(0)}
    log.info(
        "%s: %s of %s edges send no messages, as they are predicted or later",
        origin,
        f"{int((~shown).sum()):,}",
        f"{num_edges:,}",
    )
    return parts


def _group(index: Tensor) -> np.ndarray:
    """Number groups of edges: those between two nodes that are linked in both directions, and every other edge."""
    low, high = index.amin(0), index.amax(0)
    keys = low * (int(high.max()) + 1 if len(high) else 0) + high
    pair = keys.unique(return_inverse=True)[1].numpy()
    rises, falls = (index[0] < index[1]).numpy(), (index[0] > index[1]).numpy()
    both = np.isin(pair, np.intersect1d(pair[rises], pair[falls]))
    return np.where(both, pair, len(pair) + np.arange(len(pair)))


def _divide(
    known: np.ndarray, groups: np.ndarray, times: Tensor | None, config: FileConfig
) -> dict[str, Tensor]:
    """Divide the edges with labels; those of a group stay together, as one may tell the label of another."""
    edges, of_order = np.flatnonzero(known), None
    is_grouped = len(np.unique(groups[edges])) < len(edges)
    if times is not None:
        # A group has the time of its first edge with a label; without groups each edge is one.
        place = np.unique(groups, return_inverse=True)[1] if is_grouped else np.arange(len(groups))
        first = np.full(len(groups), np.inf)
        np.minimum.at(first, place[edges], times.numpy()[edges])
        order = np.lexsort((place, first[place]))
        order = order[known[order]]
        of_order = place[order] if is_grouped else None
    elif is_grouped:
        order, of_order = shuffle_groups(edges, groups[edges], config.graph_seed)
    else:
        order = shuffle(known, config.graph_seed)
    fractions = config.train_fraction, config.valid_fraction
    masks = divide(order, len(known), *fractions, unit="edge", groups=of_order)
    return dict(zip(MASKS, masks, strict=True))


def _check_masks(origin: str, masks: dict[str, Tensor], groups: np.ndarray, y: Tensor) -> None:
    """Refuse masks that are missing, that do not fit the edges, or that part many edges from their copies in reverse."""
    if missing := [name for name in MASKS if name not in masks]:
        raise ValueError(
            f"{origin}: there is no {', '.join(missing)} of the edges. Add what is missing, or set "
            "data.split=random"
        )
    for name, mask in masks.items():
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != groups.shape:
            raise ValueError(
                f"{origin}: {name} must be true or false for each of the {len(groups):,} edges"
            )
    split = np.stack(list(masks.values())).T @ np.arange(1, 4)
    chosen = np.flatnonzero(split)
    frame = pd.DataFrame(y.double().nan_to_num(-1).numpy()).assign(split=split).iloc[chosen]
    spread = frame.groupby(groups[chosen]).transform("nunique")
    is_parted = (spread["split"] > 1) & (spread.drop(columns="split") == 1).all(axis=1)
    num_parted = int(is_parted.sum())
    if num_parted > PARTED * len(chosen):
        raise ValueError(
            f"{origin}: {num_parted:,} of {len(chosen):,} edges are there in both directions with one label, and "
            "the masks put the two into different splits, so that one tells the label of the other. Save the "
            "edges in one direction, or set data.split=random, which keeps them together"
        )

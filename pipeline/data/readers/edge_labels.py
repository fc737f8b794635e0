"""A saved ``Data`` with a label for each edge, as a ``HeteroData`` in which each edge is a node between its ends."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.check import check_edge_index, check_tensor
from parallel_epochs.pipeline.data.splits import divide, shuffle, shuffle_groups
from parallel_epochs.pipeline.data.tables.schema import EDGE_TYPE, NODE_TYPE
from parallel_epochs.pipeline.names import MASKS

log = logging.getLogger(__name__)

LABELS = "edge_label"
# More edges than this part may not be in another split than their reverse of the same label: few are so by chance.
PARTED = 0.2
OF_EDGES = ("edge_index", "edge_attr", LABELS, *MASKS)


def split_edges(
    origin: str,
    saved: Mapping,
    *,
    split: str | None,
    times: Tensor | None,
    fractions: tuple[float, float],
    seed: int,
    hides: bool,
    needs_labels: bool,
) -> dict[Any, Any]:
    """Return the parts of a ``HeteroData`` of a graph whose edges have labels.

    Args:
        origin: of the graph, for messages.
        saved: attributes of the graph, ``edge_index``, ``edge_label`` and perhaps masks of the edges among them.
        split: how the edges are divided, in place of masks: "random", or by "time".
        times: of the edges, for a split by time.
        fractions: for training and validation.
        seed: of a random split.
        hides: whether edges of validation and test send no messages.
        needs_labels: whether there are labels and splits. Otherwise all edges send.

    Raises:
        ValueError: labels or masks do not fit the edges, or masks part the two directions of an edge.
    """
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
        known = (~y.isnan().all(1) if y.is_floating_point() else (y >= 0).all(1)).numpy()
        groups = _group(index)
        if split is not None:
            masks = _divide(known, groups, times, fractions, seed)
        else:
            masks = {name: saved[name] for name in MASKS if name in saved}
            _check_masks(origin, masks, groups, y)
        edge |= {"y": saved[LABELS], **masks} | {
            key: saved[key] for key in ("metric",) if key in saved
        }
        shown = ~(masks[MASKS[1]] | masks[MASKS[2]]) if hides else shown
        if hides and times is not None:
            shown &= masks[MASKS[0]] | (times <= times[masks[MASKS[0]]].max())
    node = {key: saved[key] for key in ("x", "num_nodes", "names", "names_ptr") if key in saved}
    if "x" not in node:
        node.setdefault("num_nodes", int(index.max()) + 1)
    parts: dict[Any, Any] = {"_global_store": {}, NODE_TYPE: node, EDGE_TYPE: edge}
    for name, ends in zip(("source", "target"), index, strict=True):
        both = torch.stack([torch.arange(num_edges), ends])
        parts[EDGE_TYPE, f"{EDGE_TYPE}_{name}", NODE_TYPE] = {"edge_index": both[:, shown]}
        parts[NODE_TYPE, f"rev_{EDGE_TYPE}_{name}", EDGE_TYPE] = {"edge_index": both.flip(0)}
    log.info(
        "%s: %s of %s edges send no messages, as they are predicted or later (task.hide_labelled)",
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
    known: np.ndarray,
    groups: np.ndarray,
    times: Tensor | None,
    fractions: tuple[float, float],
    seed: int,
) -> dict[str, Tensor]:
    """Divide the edges with labels; those of a group stay together, as one may tell the label of another."""
    edges = np.flatnonzero(known)
    of_order, is_grouped = None, len(np.unique(groups[edges])) < len(edges)
    if is_grouped and times is not None:
        when, place = times.numpy(), np.unique(groups, return_inverse=True)[1]
        first = np.full(len(groups), np.inf)
        np.minimum.at(first, place[edges], when[edges])
        order = np.lexsort((place, first[place]))
        order = order[known[order]]
        of_order = place[order]
    elif is_grouped:
        order, of_order = shuffle_groups(edges, groups[edges], seed)
    else:
        order = shuffle(known, seed) if times is None else times.argsort(stable=True).numpy()
        order = order if times is None else order[known[order]]
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
    split = sum(number * mask.long() for number, mask in enumerate(masks.values(), start=1))
    rows = torch.cat([torch.as_tensor(split)[:, None].double(), y.double()], dim=1).nan_to_num(-1)
    chosen = torch.as_tensor(split) > 0
    place = torch.from_numpy(np.unique(groups, return_inverse=True)[1])[chosen, None]
    shape, places = (len(groups), rows.size(1)), place.expand(-1, rows.size(1))
    low, high = (
        torch.zeros(shape, dtype=torch.float64).scatter_reduce(
            0, places, rows[chosen], how, include_self=False
        )
        for how in ("amin", "amax")
    )
    is_parted = (low[:, 0] < high[:, 0]) & (low[:, 1:] == high[:, 1:]).all(1)
    num_parted = int(is_parted[place[:, 0]].sum())
    if num_parted > PARTED * len(place):
        raise ValueError(
            f"{origin}: {num_parted:,} of {len(place):,} edges are there in both directions with one label, and "
            "the masks put the two into different splits, so that one tells the label of the other. Save the "
            "edges in one direction, or set data.split=random, which keeps them together"
        )

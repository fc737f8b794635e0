"""A saved ``Data`` with a label for each edge, as a ``HeteroData`` in which each edge is a node between its ends."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from parallel_epochs.pipeline.data.check import check_edge_index, check_tensor
from parallel_epochs.pipeline.data.splits import divide, shuffle
from parallel_epochs.pipeline.data.tables.labelled_edges import EDGE_TYPE, NODE_TYPE
from parallel_epochs.pipeline.names import MASKS

log = logging.getLogger(__name__)

LABELS = "edge_label"
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
        ValueError: labels or masks do not fit the edges, or each edge is there in both directions.
    """
    for name in ("edge_index", *[LABELS] * needs_labels):
        check_tensor(name, saved.get(name))
    index = saved["edge_index"].as_subclass(Tensor).long()
    check_edge_index(index)
    num_edges, edge = index.size(1), {"x": saved.get("edge_attr"), "num_nodes": index.size(1)}
    if isinstance(edge["x"], Tensor) and edge["x"].dim() == 1:
        edge["x"] = edge["x"].unsqueeze(1)
    _refuse_both_ways(origin, index)
    shown = torch.ones(num_edges, dtype=torch.bool)
    if needs_labels:
        y = saved[LABELS].reshape(len(saved[LABELS]), -1)
        if len(y) != num_edges:
            raise ValueError(
                f"{origin}: {LABELS} has {len(y):,} rows, and there are {num_edges:,} edges: give each "
                "its label, nan or -1 where it is not known"
            )
        masks = {name: saved[name] for name in MASKS if name in saved}
        if split is not None:
            known = (~y.isnan().all(1) if y.is_floating_point() else (y >= 0).all(1)).numpy()
            order = shuffle(known, seed) if times is None else times.argsort(stable=True).numpy()
            masks = dict(
                zip(
                    MASKS,
                    divide(order[known[order]], num_edges, *fractions, unit="edge"),
                    strict=True,
                )
            )
        for name, mask in masks.items():
            if (
                not isinstance(mask, Tensor)
                or mask.dtype != torch.bool
                or mask.shape != (num_edges,)
            ):
                raise ValueError(
                    f"{origin}: {name} must be true or false for each of the {num_edges:,} edges"
                )
        if missing := [name for name in MASKS if name not in masks]:
            raise ValueError(
                f"{origin}: there is no {', '.join(missing)} of the edges. Add what is missing, or set "
                "data.split=random"
            )
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


def _refuse_both_ways(origin: str, index: Tensor) -> None:
    """Refuse a graph in which each edge is there twice, of which one would tell the label of the other."""
    between = index[:, index[0] != index[1]]
    pairs = (
        [own[0] * (int(index.max()) + 1) + own[1] for own in (between, between.flip(0))]
        if len(between[0])
        else []
    )
    if pairs and torch.equal(pairs[0].sort().values, pairs[1].sort().values):
        raise ValueError(
            f"{origin}: each edge is there in both directions, and one would tell the label of the other. "
            "Save the edges in one direction; messages are sent in both"
        )

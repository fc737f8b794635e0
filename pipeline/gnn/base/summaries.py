"""Columns that trees read: a node's own, those of its neighbours, degrees, PageRank, and labels of neighbours."""

from collections.abc import Iterator
from itertools import islice

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.messages import update_all
from parallel_epochs.models.structure import find_degrees
from parallel_epochs.pipeline.gnn.base.edges import are_edges, columns_of_ends, labels_of_ends
from parallel_epochs.pipeline.gnn.base.graphs import count_patterns
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.base.propagation import PRIOR, both_steps, edge_weights
from parallel_epochs.pipeline.gnn.tasks.row import RowTask

# Steps of PageRank, and its chance to follow an edge.
STEPS, DAMPING = 20, 0.85
# Columns are tried in these parts: a node's own; its degrees and PageRank; summaries of both over its neighbours; and
# labels of neighbours. Those of graphs are sums, and counts of patterns. Those of labelled edges are the columns of
# both ends, and labels of other edges there. More columns are not better: a tree may look at too many of them.
PARTS = ("own", "degrees", "neighbours", "labels", "patterns", "ends", "labels of ends")
# Columns of a node, or of edges, of which neighbours are summarised, and labels of neighbours, at most.
MOST_COLUMNS, MOST_LABELS = 256, 128


def summarise(
    inputs: Inputs, known: Bool[Tensor, " num_rows"], parts: tuple[str, ...]
) -> Float[Tensor, "num_own columns"]:
    """Return the columns of the rows that may have labels.

    Args:
        known: rows whose labels their neighbours read; no row reads its own.
        parts: of :data:`PARTS`.
    """
    if {"degrees", "patterns"} & set(parts) and not inputs.structure:
        patterns = (
            count_patterns(inputs.data, getattr(inputs.task, "num_last", 0))
            if inputs.are_graphs
            else None
        )
        inputs.structure = _of_structure(inputs) if patterns is None else {"patterns": patterns}
    found = [inputs.hop(0)] if "own" in parts else []
    found += [
        inputs.structure[part] for part in ("degrees", "neighbours", "patterns") if part in parts
    ]
    found += [inputs.relations] if "relations" in parts else []
    found += [_of_labels(inputs, known)] if "labels" in parts else []
    found += [columns_of_ends(inputs)] if "ends" in parts else []
    found += [labels_of_ends(inputs, known)] if "labels of ends" in parts else []
    return torch.cat(found, dim=1)


def choices(inputs: Inputs) -> list[tuple[str, ...]]:
    """Return the parts that are tried together."""
    own = ("own",) if inputs.hop(0).size(1) else ()
    if inputs.are_graphs:
        has_patterns = inputs.data.get("x_tables") is not None
        return [own, ("patterns",), (*own, "patterns")] if has_patterns else [own]
    if are_edges(inputs):
        return [
            parts
            for parts in (
                own,
                (*own, "labels of ends"),
                (*own, "ends"),
                (*own, "ends", "labels of ends"),
            )
            if parts
        ]
    several = (
        [own]
        if isinstance(inputs.task, RowTask)
        else [own, (*own, "labels"), (*own, "degrees", "labels")]
    )
    if inputs.has_relations:
        several += [(*own, "relations"), *[(*own, "relations", "labels")] * (len(several) > 1)]
    elif len(inputs.data.types.names) == 1:  # the columns of each type are its own
        several += [(*own, "degrees", "neighbours"), (*own, "degrees", "neighbours", "labels")]
    return [parts for parts in several if parts]


def _of_structure(inputs: Inputs) -> dict[str, Tensor]:
    """Compute degrees, PageRank and means of the edges' columns, and of all these and a node's own columns the means
    over one hop and two, and the maxima over one.
    """
    data, own = inputs.data, inputs.own
    edges, num = data.edge_index, data.num_nodes
    found = [find_degrees(edges, num).in_degree.float().log1p().unsqueeze(1), _page_rank(inputs)]
    if data.edge_attr is not None and data.edge_attr.size(1):
        found.append(
            update_all(
                edges, "copy_e", "mean", e=data.edge_attr[:, :MOST_COLUMNS].float(), num_dst=num
            )
        )
    degrees = torch.cat(found, dim=1)
    if len(data.types.names) > 1:
        return {"degrees": degrees[own]}
    columns = torch.cat([inputs.hop(0)[:, :MOST_COLUMNS], degrees], 1)
    once = update_all(edges, "copy_u", "mean", u=columns, num_src=num)
    return {
        "degrees": degrees,
        "neighbours": torch.cat(
            [
                once,
                update_all(edges, "copy_u", "mean", u=once, num_src=num),
                update_all(edges, "copy_u", "max", u=columns, num_src=num),
            ],
            dim=1,
        ),
    }


def _page_rank(inputs: Inputs) -> Tensor:
    """Compute the logarithm of PageRank times the number of nodes."""
    edges, num = inputs.data.edge_index, inputs.data.num_nodes
    src = edges.as_tensor()[0].long()
    share = torch.bincount(src, minlength=num).clamp(min=1).float().reciprocal()
    share, rank = share.unsqueeze(1), torch.ones(num, 1)
    for _ in range(STEPS):
        rank = (
            1 - DAMPING + DAMPING * update_all(edges, "copy_u", "sum", u=rank * share, num_src=num)
        )
    return rank.log()


def _of_labels(inputs: Inputs, known: Tensor) -> Tensor:
    """Compute the mean labels one step and two steps away without a node's own, and how many of them are known."""
    if inputs.of_labels is None or not torch.equal(inputs.of_labels[0], known):
        weights = list(weights_of_labels(inputs.data))
        mean = inputs.labels.mean(known)
        parts = []
        for values, num in zip(*both_steps(inputs.data, inputs.labels, weights[-1], known)):
            parts += [((values + PRIOR * mean) / (num + PRIOR))[:, :MOST_LABELS], num[:, :1]]
        inputs.of_labels = known, torch.cat(parts, dim=1)[inputs.own]
    return inputs.of_labels[1]


def weights_of_labels(data: Data) -> Iterator[Float[Tensor, " num_edges"]]:
    """Yield equal weights of the edges and, where it is not negative, the sum of their columns; labels take the last."""
    return islice(edge_weights(data), 2)

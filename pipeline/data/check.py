"""Refuses datasets that would fail later or train on nonsense: graphs, pairs, triples and vectors."""

import logging
import math

import torch
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline.data.graph import DataKind
from parallel_epochs.pipeline.graph.pairs import PairSet, check_pairs as check_table
from parallel_epochs.pipeline.metrics import CLASS_METRICS, METRICS, VALUE_METRICS
from parallel_epochs.pipeline.names import MASKS, PAIRS
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# A class or a species that no node has costs memory as any other; so many more of them than nodes have are a mistake.
SPARSE_NUMBERING = 10
# So many nodes for each edge are a mistake as well, unless there are few in all.
SPARSE_EDGES, FEW_NODES = 1000, 10_000_000
# The root of what float32 ends at.
LARGEST_SQUARED = 1.8e19
# Above it, float32 does not hold every whole number.
LARGEST_WHOLE = 1 << 24
ROUNDED = "%s: float32 rounds %s whole numbers above 2^24, such as %s to %s: different ones may become equal. %s"


def check(data: Data) -> None:
    """Check that edges, features, labels and splits fit each other; for a link task, pairs in place of the latter. A
    graph may also come without labels and splits.

    Raises:
        ValueError: what is no dense tensor of numbers, edges or labels that do not fit the nodes, features that are
            not finite, no training node; see also :func:`check_pairs`.
    """
    kind = data.kind
    if kind is DataKind.TRIPLES:
        if not int(data.triple_ptr[1]):
            raise ValueError("the train split is empty: there is no triple to learn from")
        return
    for key in ("x", "edge_index", "edge_attr", "y", "species", *MASKS):
        if data.get(key) is not None and not (key == "x" and data.x.is_sparse):
            check_tensor(key, data[key])
    unit = "graph" if kind is DataKind.GRAPHS else "node"
    check_edge_index(data.edge_index)
    check_range(data.edge_index, data.num_nodes)
    _check_attributes(data, unit)
    if kind is DataKind.PAIRS:
        check_pairs(data)
        return
    if data.get("species") is not None:
        _check_numbering("species", "species", data.species)
    if data.get("y") is None:
        return  # edges alone
    masks = torch.stack([data[mask].bool() for mask in MASKS])
    check_splits(masks, unit)
    _check_labels(data, masks, unit)


def check_tensor(key: str, value: object) -> None:
    """Check that an attribute of a graph is a dense tensor of real numbers with a row for each node or edge.

    Raises:
        ValueError: names the attribute, and says how to save it.
    """
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{key} must be a tensor, not a {type(value).__name__}: save torch.tensor(...) of it"
        )
    if value.layout != torch.strided or value.is_nested or value.is_quantized or value.is_meta:
        raise ValueError(f"{key} must be a dense tensor with content: save {key}.to_dense()")
    if value.is_complex():
        raise ValueError(
            f"{key} holds complex numbers: save their real and imaginary parts as columns"
        )
    if value.dim() == 0:
        raise ValueError(f"{key} is a single number; it must have a row for each node or edge")


def _is_integer(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def check_metric(metric: str | None) -> None:
    """Refuse a name that is none of a metric's.

    Raises:
        ValueError: names the key.
    """
    if metric not in (None, *METRICS):
        raise ValueError(f"data.metric={metric} is unknown; choose one of {', '.join(METRICS)}")


def check_edge_index(edge_index: Tensor) -> None:
    """Check that edges are integers of shape [2, num_edges].

    Raises:
        ValueError: they are not.
    """
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or not _is_integer(edge_index):
        turned = edge_index.dim() == 2 and edge_index.size(1) == 2
        raise ValueError(
            f"edge_index must be integers of shape [2, num_edges], not {edge_index.dtype} of "
            f"{list(edge_index.shape)}{': save edge_index.t()' if turned else ''}"
        )


def check_range(edge_index: Tensor, num_nodes: int) -> None:
    """Check that edges are between nodes of the graph.

    Raises:
        ValueError: names a node that is none.
    """
    if edge_index.numel():
        low, high = (int(bound) for bound in torch.aminmax(plain_edges(edge_index)))
        if low < 0 or high >= num_nodes:
            raise ValueError(
                f"edge_index is out of range: it names node {low if low < 0 else high}, the graph has "
                f"nodes 0 to {num_nodes - 1}"
            )


def check_numbering(name: str, num_nodes: int, num_edges: int) -> None:
    """Refuse numbers of nodes that only a mistake explains: every number below the largest is a node and takes memory.

    Args:
        name: of what holds the numbers, for messages.

    Raises:
        ValueError: says how many nodes the largest number means.
    """
    if num_nodes > FEW_NODES and num_nodes > SPARSE_EDGES * num_edges:
        raise ValueError(
            f"{name} names node {num_nodes - 1:,} and has {count(num_edges, 'edge')}: every number below "
            "is a node too. Number the nodes from 0 without gaps, or save the edges as a text file for "
            "data=edges, whose ids may be any"
        )


def check_rows(key: str, value: Tensor, rows: int, of: str) -> None:
    """Check that an attribute has as many rows as the graph has nodes, edges or graphs.

    Raises:
        ValueError: it has not.
    """
    if value.size(0) != rows:
        raise ValueError(f"{key} has {value.size(0):,} rows for {rows:,} {of}")


def _check_attributes(data: Data, unit: str) -> None:
    num_nodes = data.num_nodes
    labelled = data.ptr.numel() - 1 if unit == "graph" else num_nodes
    for key, rows, of, dims in (
        ("x", num_nodes, "nodes", 2),
        ("edge_attr", data.edge_index.size(1), "edges", 2),
        ("y", labelled, f"{unit}s", 2),
        ("species", num_nodes, "nodes", 1),
        *((mask, labelled, f"{unit}s", 1) for mask in MASKS),
    ):
        value = data.get(key)
        if value is None:
            continue
        if value.dim() != dims:
            raise ValueError(
                f"{key} must have {count(dims, 'dimension')}, not the shape {list(value.shape)}"
            )
        check_rows(key, value, rows, of)
        if dims == 2 and value.size(1) == 0:
            raise ValueError(f"{key} has no columns" + ("" if key == "y" else ": leave it out"))
        if key in ("x", "edge_attr"):
            check_features(key, value)


def check_features(key: str, value: Tensor) -> None:
    """Check that features are finite in float32.

    Raises:
        ValueError: names the first place that is not.
    """
    numbers = value.values() if value.is_sparse else value
    wrong = ~torch.isfinite(numbers.float())
    if bool(wrong.any()):
        place = wrong.nonzero()[0]
        row, column = (value.indices()[:, place[0]] if value.is_sparse else place).tolist()
        found = numbers[tuple(place)].item()
        # Training computes in float32, which holds less than float64.
        beyond = " in float32, which ends at 3.4e38" if math.isfinite(found) else ""
        raise ValueError(f"{key} is not finite{beyond}: row {row}, column {column} holds {found:g}")


def as_float32(key: str, value: Tensor) -> Tensor:
    """Convert numbers to float32. The log says where whole numbers above 2**24 lose digits, and may become equal.

    Args:
        key: of the numbers, for the log.
    """
    converted = value.float()
    if (
        value.dtype in (torch.float64, torch.int32, torch.int64)
        and value.layout == torch.strided
        and value.numel()
    ):
        # Numbers are compared in their own type. The largest of int64 has no equal there.
        exact = value.double() if value.is_floating_point() else value
        is_whole = (exact.abs() > LARGEST_WHOLE) & (exact == exact.round())
        lost = is_whole & (converted.to(exact.dtype) != exact)
        if count_lost := int(lost.sum()):
            place = tuple(lost.nonzero()[0].tolist())
            log.warning(
                ROUNDED,
                key,
                f"{count_lost:,}",
                f"{exact[place]:,.0f}",
                f"{converted[place]:,.0f}",
                "Subtract a constant or divide before saving, to keep their differences",
            )
    return converted


def find_large(key: str, value: Tensor) -> str | None:
    """Say where a matrix holds a number whose square overflows float32; None if nowhere.

    Args:
        key: what the matrix is called.
    """
    if not value.numel() or not float(value.abs().max()) > LARGEST_SQUARED:
        return None
    row, column = (int(place) for place in (value.abs() > LARGEST_SQUARED).nonzero()[0])
    return (
        f"column {column} of {key} holds {value[row, column]:.4g}, and the square of a number beyond "
        f"{LARGEST_SQUARED:.2g} overflows float32: divide the column by a constant"
    )


def check_splits(masks: Tensor, unit: str) -> None:
    """Refuse a training split that is empty, and splits that overlap; masks are [3, num_nodes].

    Raises:
        ValueError: names the split, or the first node in two of them.
    """
    if not bool(masks[0].any()):
        raise ValueError(f"the train split is empty: train_mask selects no {unit}")
    if bool((masks.sum(0) > 1).any()):
        raise ValueError(
            f"the splits overlap: {unit} {int((masks.sum(0) > 1).nonzero()[0])} is in more than one"
        )
    if not bool(masks[1].any()):
        log.warning("the valid split is empty: the last epoch counts as the best one")


def _check_labels(data: Data, masks: Tensor, unit: str) -> None:
    if data.metric in CLASS_METRICS:
        if data.y.size(1) != 1:
            raise ValueError(
                f"y must have one column of classes for the metric {data.metric}, not {data.y.size(1)}. "
                'Of binary tasks save metric="rocauc"; task.metric=macro_f1 chooses another for a run'
            )
        _check_numbering("y", "class", data.y[:, 0], masks.any(0))
        return
    y = data.y.float()
    if data.metric in VALUE_METRICS:
        if len(wrong := y.isinf().nonzero()):
            row, column = (int(place) for place in wrong[0])
            raise ValueError(
                f"y is infinite in float32: row {row}, column {column} holds {data.y[row, column]:g}; NaN "
                "stands for an unknown value"
            )
    elif not bool(((y == 0) | (y == 1) | y.isnan()).all()):
        raise ValueError(
            f"y must hold 0, 1 or NaN for the metric {data.metric}; for classes save whole numbers "
            'in one column, with metric="acc", and for real values any with metric="rmse" or "mae"'
        )
    if bool(y[masks[0]].isnan().all()):
        raise ValueError(f"y is NaN for every {unit} of the train split: there is nothing to learn")


def _check_numbering(key: str, what: str, numbers: Tensor, of: Tensor | None = None) -> None:
    """Check numbers of classes or species: whole, from 0, and not far beyond as many as there are.

    Args:
        of: which rows count; None: all of them.
    """
    rows = torch.arange(len(numbers)) if of is None else of.nonzero().squeeze(1)
    counted = numbers[rows].double()
    wrong = ~counted.isfinite() | (counted != counted.round()) | (counted < 0)
    if bool(wrong.any()):
        raise ValueError(
            f"{key} holds {counted[wrong][0].item():.10g} in row {int(rows[wrong][0])}; each {what} must be a "
            "whole number from 0"
        )
    largest, found = int(counted.max()), counted.unique().numel()
    if largest >= max(1000, SPARSE_NUMBERING * found):
        raise ValueError(
            f"{key} holds the {what} {largest:,}, but only {found:,} different ones: number them from 0 "
            f"without gaps, as torch.unique({key}, return_inverse=True)[1] does"
        )


def check_pairs(data: Data) -> None:
    """Check that the pairs of a link task fit the nodes, and that there is something to learn.

    Raises:
        ValueError: what is no table of node numbers, a pair outside of the nodes, no training pair, or no pair of nodes
            that is not a training pair.
    """
    for key in PAIRS:
        if key not in data:
            raise ValueError(f"{key} is missing: a link task needs {', '.join(PAIRS)}")
        check_table(key, data[key], data.num_nodes)
    if not len(data.train_pairs):
        raise ValueError("train_pairs is empty: there is no training pair to learn from")
    linked = PairSet(data.train_pairs, data.num_nodes)
    if linked.is_complete:
        raise ValueError(
            f"all {len(linked):,} pairs of the {data.num_nodes:,} nodes are training pairs, so no "
            "negative pair can be drawn"
        )
    for part in ("valid", "test"):
        if not len(data[f"{part}_pairs"]):
            log.warning(
                "%s_pairs is empty: %s",
                part,
                "the last epoch counts as the best one"
                if part == "valid"
                else "there is no test metric",
            )
        elif known := int(linked.contains(data[f"{part}_pairs"]).sum()):
            log.info(
                "pairs: %s of %s %s pairs are training pairs too",
                f"{known:,}",
                f"{len(data[f'{part}_pairs']):,}",
                part,
            )


def check_vectors(data: Data) -> None:
    """Check that there are three vectors at least, as the perplexity asks for, of finite numbers.

    Raises:
        ValueError: says which number is none.
    """
    x = data.x
    if len(x) < 3:
        raise ValueError(f"a layout needs at least three vectors; there are {len(x)}")
    if not x.size(1):
        raise ValueError("the vectors have no numbers")
    check_features("a vector", x)
    if large := find_large("the vectors", x):
        raise ValueError(large)

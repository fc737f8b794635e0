"""Refuses pairs of nodes from which no link could be learned, or that would fail later."""

import logging

import torch
from torch import Tensor
from torch_geometric.data import Data

from pipeline.graph.pairs import PairSet
from pipeline.names import PAIRS

log = logging.getLogger(__name__)


def check_pairs(data: Data) -> None:
    """Check that the pairs of a link task fit the nodes, and that there is something to learn.

    Raises:
        ValueError: what is no table of node numbers, a pair outside of the nodes, no training pair, or no pair of nodes
            that is not a training pair.
    """
    for key in PAIRS:
        _check_table(key, data.get(key), data.num_nodes)
    if not len(data.train_pairs):
        raise ValueError("train_pairs is empty: there is no training pair to learn from")
    linked = PairSet(data.train_pairs, data.num_nodes)
    if linked.is_complete:
        raise ValueError(f"all {len(linked):,} pairs of the {data.num_nodes:,} nodes are training pairs: there is no "
                         "other to tell them from")
    for part in ("valid", "test"):
        if not len(data[f"{part}_pairs"]):
            log.warning("%s_pairs is empty: %s", part, "the last epoch counts as the best one" if part == "valid" else
                        "there is no test metric")
        elif known := int(linked.contains(data[f"{part}_pairs"]).sum()):
            log.info("pairs: %s of %s %s pairs are training pairs too", f"{known:,}", f"{len(data[f'{part}_pairs']):,}",
                     part)


def _check_table(key: str, pairs: object, num_nodes: int) -> None:
    if not isinstance(pairs, Tensor):
        raise ValueError(f"{key} is missing: a link task needs {', '.join(PAIRS)}")
    if pairs.is_floating_point() or pairs.dtype == torch.bool or pairs.dim() != 2 or pairs.size(1) != 2:
        raise ValueError(f"{key} must be integers of shape [num_pairs, 2], not {pairs.dtype} of {list(pairs.shape)}")
    outside = ((pairs < 0) | (pairs >= num_nodes)).any(1).nonzero()
    if len(outside):
        row = int(outside[0])
        raise ValueError(f"{key} is out of range: row {row} is the pair {pairs[row].tolist()}, the graph has nodes 0 "
                         f"to {num_nodes - 1}")

"""Refuses triples from which nothing could be learned, or that would fail later."""

import torch
from torch import Tensor
from torch_geometric.data import Data


def check_triples(data: Data) -> None:
    """Check that the triples of a knowledge graph fit its entities and relations, and that some are for training.

    Raises:
        ValueError: no table of numbers, a number outside, splits that do not fit, or no training triple.
    """
    triples, ptr = data.triples, data.triple_ptr
    if not isinstance(triples, Tensor) or triples.dtype != torch.int64 or triples.dim() != 2 or triples.size(1) != 3:
        raise ValueError("triples must be a tensor of int64 of the shape [num_triples, 3]")
    if ptr.numel() != 4 or int(ptr[0]) or int(ptr[3]) != len(triples) or bool((ptr.diff() < 0).any()):
        raise ValueError(f"triple_ptr={ptr.tolist()} must divide {len(triples):,} triples into training, validation "
                         "and test")
    if not int(ptr[1]):
        raise ValueError("the train split is empty: there is no triple to learn from")
    bounds = torch.tensor([data.num_nodes, data.num_relations, data.num_nodes])
    outside = ((triples < 0) | (triples >= bounds)).any(1).nonzero()
    if len(outside):
        row = int(outside[0])
        raise ValueError(f"triples is out of range: row {row} is {triples[row].tolist()}, there are {data.num_nodes:,} "
                         f"entities and {data.num_relations:,} relations, numbered from 0")

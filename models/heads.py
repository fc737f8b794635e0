"""From the rows of nodes to a row of each graph."""
# ruff: noqa: F722 (shapes are strings)

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.utils import segment

POOLS = ("none", "mean", "sum", "max")


def pool_graphs(h: Float[Tensor, "num_nodes channels"], ptr: Int[Tensor, " num_graphs_plus_1"] | None,
                pool: str) -> Float[Tensor, "num_rows channels"]:
    """Reduce the nodes of each graph to their mean, sum or largest value per channel.

    Args:
        h: [num_nodes, channels]
        ptr: where each graph's nodes begin [num_graphs + 1]; no graph is empty. None: one graph.
        pool: one of `POOLS`; "none" returns `h` itself.

    Returns:
        [num_graphs, channels], at least float32.
    """
    if pool == "none":
        return h
    ptr = torch.tensor([0, h.size(0)], device=h.device) if ptr is None else ptr
    return segment(h.to(torch.promote_types(h.dtype, torch.float32)), ptr, reduce=pool)

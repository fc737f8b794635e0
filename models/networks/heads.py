"""Pooling of nodes to graphs, and the last linear layer, whose inputs are a model's embeddings."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric.utils import segment

POOLS = ("none", "mean", "sum", "max")


def pool_graphs(
    h: Float[Tensor, "num_nodes channels"], ptr: Int[Tensor, " num_graphs_plus_1"] | None, pool: str
) -> Float[Tensor, "num_rows channels"]:
    """Reduce the rows of each graph's nodes to one row: their mean, their sum or their maximum per channel.

    Args:
        h: [num_nodes, channels]
        ptr: index of each graph's first node [num_graphs + 1]; no graph is empty. None: all nodes are one graph.
        pool: one of `POOLS`; "none" returns `h` itself.

    Returns:
        [num_graphs, channels], at least float32.
    """
    if pool == "none":
        return h
    ptr = torch.tensor([0, h.size(0)], device=h.device) if ptr is None else ptr
    return reduce_graphs(h.to(torch.promote_types(h.dtype, torch.float32)), ptr, pool)


def reduce_graphs(
    h: Float[Tensor, "num_nodes channels"], ptr: Int[Tensor, " num_graphs_plus_1"], reduce: str
) -> Float[Tensor, "num_graphs channels"]:
    """Reduce the rows of each graph's nodes by "mean", "sum" or "max"."""
    # int64: torch_scatter, which PyG calls where it is installed, takes no other pointers.
    return segment(h, ptr.long(), reduce=reduce)


def graph_of(ptr: Int[Tensor, " num_graphs_plus_1"], num_nodes: int) -> Int[Tensor, " num_nodes"]:
    """Return the number of each node's graph: how many graphs end in front of it."""
    ends = ptr[1:].long()
    return (
        ptr.new_zeros(num_nodes + 1, dtype=torch.int64)
        .index_add(0, ends, torch.ones_like(ends))
        .cumsum(0)[:-1]
    )


def find_head(model: torch.nn.Module) -> torch.nn.Linear | None:
    """Find the last layer of a model: a linear layer ``head`` of the model itself, or of the user's model within it."""
    heads = (getattr(module, "head", None) for module in (model, getattr(model, "model", None)))
    return next((head for head in heads if isinstance(head, torch.nn.Linear)), None)


def keep_inputs(head: torch.nn.Linear) -> Callable[[], Tensor]:
    """Record the inputs of a layer.

    Returns:
        A function that returns the inputs of all calls since it was last called, one below the other. It raises a
        ValueError if there was no call.
    """
    kept: list[Tensor] = []

    def keep(_: object, inputs: tuple[Tensor, ...]) -> None:
        kept.append(inputs[0])

    def take() -> Tensor:
        if not kept:
            raise ValueError(
                "embeddings=true needs a model that calls its head, which this one does not: leave it out"
            )
        inputs = torch.cat(kept)
        kept.clear()
        return inputs

    head.register_forward_pre_hook(keep)
    return take

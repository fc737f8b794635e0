"""From the rows of nodes to a row of each graph, and to predictions."""
# ruff: noqa: F722 (shapes are strings)

from collections.abc import Callable

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


def find_head(model: torch.nn.Module) -> torch.nn.Linear | None:
    """Find the last layer of a model: a linear map called ``head``, of itself or of the user's own that it calls."""
    heads = (getattr(module, "head", None) for module in (model, getattr(model, "model", None)))
    return next((head for head in heads if isinstance(head, torch.nn.Linear)), None)


def keep_inputs(head: torch.nn.Linear) -> Callable[[], Tensor]:
    """Keep what a layer reads in each call; returns a function that gives them, the calls since the last time.

    Its ValueError says that the layer was not called since.
    """
    kept: list[Tensor] = []

    def keep(_, inputs: tuple[Tensor, ...]) -> None:
        kept.append(inputs[0])

    def take() -> Tensor:
        if not kept:
            raise ValueError("embeddings=true: the model has not called its head; leave it out")
        inputs = torch.cat(kept)
        kept.clear()
        return inputs

    head.register_forward_pre_hook(keep)
    return take

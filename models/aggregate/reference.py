"""The reference aggregation in plain torch: any device, autograd by torch, tensors of edges x channels."""
# ruff: noqa: F722 (shapes are strings)

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import forward_ad
from torch_geometric import EdgeIndex

from . import blocks
from .reduce import aggregate_edges

AGGREGATIONS = ("softmax", "softmax_sg", "softmax_sum", "power", "power_sum", "powermean", "mean", "max", "add")
MAX_BLOCK_EDGES = 1 << 18


def aggregate(
    x: Float[Tensor, "num_src channels"],
    edge_index: Int[Tensor, "2 num_edges"],
    edge_attr: Float[Tensor, "num_edges edge_dim"] | None = None,
    weight: Float[Tensor, "channels edge_dim"] | None = None,
    bias: Float[Tensor, " channels"] | None = None,
    *,
    aggr: str = "softmax",
    t: float | Tensor = 1.0,
    p: float | Tensor = 1.0,
    y: float | Tensor = 0.0,
    eps: float = 1e-7,
    num_dst: int | None = None,
    max_block_edges: int | None = None,
) -> Float[Tensor, "num_dst channels"]:
    """Aggregate the messages ``relu(x_j + e_ij) + eps`` at every destination node.

    ``softmax`` weighs each message by ``softmax_j(t * m_ij)`` per channel, ``softmax_sg`` does so without a gradient
    through the weights. ``power`` is ``(mean_j clamp(m_ij, 1e-7, 10)^p)^(1/p)``. ``softmax_sum`` and ``power_sum`` are
    these, multiplied by ``degree^sigmoid(y)``. ``max`` divides its gradient evenly among ties. ``powermean`` is PyG's:
    it clamps both the messages and their mean to [1e-4, 100]; where p is the number 1 it clamps nothing.
    See "DeeperGCN: All You Need to Train Deeper GCNs" (https://arxiv.org/abs/2006.07739).

    More than `max_block_edges` edges are aggregated in blocks of destinations, forward and backward, so that the
    tensors of edges x channels hold one block: see :func:`models.aggregate.blocks.aggregate`.

    Args:
        x: features of the source nodes, [num_src, channels], floating point.
        edge_index: source and destination of each edge, [2, num_edges], int32 or int64.
        edge_attr: features of the edges, [num_edges, edge_dim], or [num_edges, channels] if there is no `weight`.
        weight: linear encoder of the edge features, [channels, edge_dim].
        bias: the encoder's bias, [channels].
        aggr: one of `AGGREGATIONS`.
        t: inverse temperature of softmax, a number or a tensor of one element.
        p: exponent of power, a number or a tensor of one element, not zero.
        y: logit of the degree's exponent, a number or a tensor of one element.
        eps: added to every message.
        num_dst: number of destination nodes; that of the source nodes if not given.
        max_block_edges: most edges in a block; a node with more edges is a block of its own. None: `MAX_BLOCK_EDGES`.

    Returns:
        [num_dst, channels], zero for a destination without edges (``powermean``: 1e-4^(1/p)).

    Raises:
        ValueError: unknown `aggr`.
    """
    check_aggr(aggr)
    num_dst = x.size(0) if num_dst is None else num_dst
    aggr = replace_power_of_one(aggr, p)
    max_block_edges = MAX_BLOCK_EDGES if max_block_edges is None else max_block_edges
    if edge_index.size(1) > max_block_edges and not is_transformed():
        return blocks.aggregate(x, edge_index, edge_attr, weight, bias, t, p, y, aggr=aggr, eps=eps, num_dst=num_dst,
                                max_block_edges=max_block_edges)
    src, dst = edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index
    return aggregate_edges(x.index_select(0, src), dst, edge_attr, weight, bias, t, p, y, aggr=aggr, eps=eps,
                           num_dst=num_dst)


def check_aggr(aggr: str) -> None:
    """Raise a ValueError that names the aggregations if `aggr` is none of them."""
    if aggr not in AGGREGATIONS:
        raise ValueError(f"aggr={aggr} is unknown; choose one of {', '.join(AGGREGATIONS)}")


def replace_power_of_one(aggr: str, p: float | Tensor) -> str:
    """Return "mean" for a ``powermean`` whose p is the number 1, else `aggr` itself."""
    return "mean" if aggr == "powermean" and not isinstance(p, Tensor) and p == 1 else aggr


def is_transformed() -> bool:
    """Tell whether Python sees stand-ins for the tensors' values: torch.compile, torch.jit.trace, torch.func, dual."""
    return (torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()
            or forward_ad._current_level >= 0)

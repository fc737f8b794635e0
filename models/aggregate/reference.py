"""The reference aggregation in plain torch: any device, autograd by torch, tensors of edges x channels."""
# ruff: noqa: F722 (shapes are strings)

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric import EdgeIndex

AGGREGATIONS = ("softmax", "softmax_sg", "softmax_sum", "power", "power_sum", "powermean", "mean", "max", "add")
POWER_RANGE, POWERMEAN_RANGE = (1e-7, 10.0), (1e-4, 100.0)


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
    max_block_edges: int = 1 << 18,
) -> Float[Tensor, "num_dst channels"]:
    """Aggregate the messages ``relu(x_j + e_ij) + eps`` at every destination node.

    ``softmax`` weighs each message by ``softmax_j(t * m_ij)`` per channel, ``softmax_sg`` does so without a gradient
    through the weights. ``power`` is ``(mean_j clamp(m_ij, 1e-7, 10)^p)^(1/p)``. ``softmax_sum`` and ``power_sum`` are
    these, multiplied by ``degree^sigmoid(y)``. ``max`` divides its gradient evenly among ties. ``powermean`` is PyG's:
    it clamps both the messages and their mean to [1e-4, 100]; where p is the number 1 it clamps nothing.
    See "DeeperGCN: All You Need to Train Deeper GCNs" (https://arxiv.org/abs/2006.07739).

    Without gradients, and where the edges are an ``EdgeIndex`` sorted by destination, the destinations are aggregated
    in blocks of at most `max_block_edges` edges, so that memory does not grow with the number of edges.

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
        max_block_edges: most edges in a block; a node with more edges is a block of its own.

    Returns:
        [num_dst, channels], zero for a destination without edges (``powermean``: 1e-4^(1/p)).

    Raises:
        ValueError: unknown `aggr`.
    """
    check_aggr(aggr)
    num_dst = x.size(0) if num_dst is None else num_dst
    aggr = replace_power_of_one(aggr, p)
    options = dict(aggr=aggr, t=t, p=p, y=y, eps=eps)

    if not isinstance(edge_index, EdgeIndex):
        src, dst = edge_index
        return _aggregate_edges(x, src, dst, edge_attr, weight, bias, num_dst, **options)
    if torch.is_grad_enabled() or not edge_index.is_sorted_by_col or edge_index.size(1) <= max_block_edges:
        src, dst = edge_index.as_tensor()
        return _aggregate_edges(x, src, dst, edge_attr, weight, bias, num_dst, **options)

    (indptr, src), _ = edge_index.get_csc()
    dst = edge_index.as_tensor()[1]
    out = None
    for first, last in _cut_into_blocks(indptr, max_block_edges):
        edges = slice(int(indptr[first]), int(indptr[last]))
        attr = None if edge_attr is None else edge_attr[edges]
        block = _aggregate_edges(x, src[edges], dst[edges] - first, attr, weight, bias, last - first, **options)
        if out is None:
            out = block.new_zeros(num_dst, block.size(1))
        out[first:last] = block
    return out


def check_aggr(aggr: str) -> None:
    """Raise a ValueError that names the aggregations if `aggr` is none of them."""
    if aggr not in AGGREGATIONS:
        raise ValueError(f"aggr={aggr} is unknown; choose one of {', '.join(AGGREGATIONS)}")


def replace_power_of_one(aggr: str, p: float | Tensor) -> str:
    """Return "mean" for a ``powermean`` whose p is the number 1, else `aggr` itself."""
    return "mean" if aggr == "powermean" and not isinstance(p, Tensor) and p == 1 else aggr


def _cut_into_blocks(indptr: Tensor, max_edges: int) -> list[tuple[int, int]]:
    """Cut the rows into consecutive ranges of at most `max_edges` edges, or of a single row."""
    blocks, first, num_rows = [], 0, indptr.numel() - 1
    while first < num_rows:
        limit = indptr[first] + max_edges
        last = int(torch.searchsorted(indptr, limit, right=True)) - 1
        last = min(max(last, first + 1), num_rows)
        blocks.append((first, last))
        first = last
    return blocks


def _aggregate_edges(x, src, dst, edge_attr, weight, bias, num_dst, *, aggr, t, p, y, eps):
    message = x.index_select(0, src)
    if edge_attr is not None:
        message = message + (edge_attr if weight is None else torch.nn.functional.linear(edge_attr, weight, bias))
    message = message.relu() + eps
    # Sums of many terms lose too much in 16 bits.
    message = message.to(torch.promote_types(message.dtype, torch.float32))
    return _reduce(message, dst, num_dst, aggr=aggr, t=t, p=p, y=y).to(x.dtype)


def _reduce(message, dst, num_dst, *, aggr, t, p, y):
    if aggr == "add":
        return _sum(message, dst, num_dst)
    if aggr == "max":
        index = dst.long().unsqueeze(1).expand_as(message)
        zeros = message.new_zeros(num_dst, message.size(1))
        return zeros.scatter_reduce(0, index, message, "amax", include_self=False)

    degree = torch.zeros(num_dst, dtype=message.dtype, device=message.device)
    degree = degree.index_add_(0, dst, torch.ones_like(dst, dtype=message.dtype)).unsqueeze(1)
    if aggr == "mean":
        return _sum(message, dst, num_dst) / degree.clamp(min=1)
    if aggr.startswith("power"):
        limits = POWERMEAN_RANGE if aggr == "powermean" else POWER_RANGE
        mean = _sum(message.clamp(*limits).pow(p), dst, num_dst) / degree.clamp(min=1)
        if aggr == "powermean":
            return mean.clamp(*limits).pow(1 / p)
        # The power of an empty mean has no finite gradient; a one in its place is masked again below.
        out = mean.masked_fill(degree == 0, 1.0).pow(1 / p) * (degree > 0)
    else:
        out = _softmax(message, dst, num_dst, t, semi_grad=aggr == "softmax_sg")
    if aggr.endswith("_sum"):
        exponent = torch.sigmoid(torch.as_tensor(y, dtype=message.dtype, device=message.device))
        out = out * degree.clamp(min=1).pow(exponent)
    return out


def _sum(message: Tensor, dst: Tensor, num_dst: int) -> Tensor:
    return message.new_zeros(num_dst, message.size(1)).index_add(0, dst, message)


def _softmax(message: Tensor, dst: Tensor, num_dst: int, t: float | Tensor, *, semi_grad: bool) -> Tensor:
    with torch.set_grad_enabled(torch.is_grad_enabled() and not semi_grad):
        logit = message * t
        # The maximum only guards exp against overflow: the result does not depend on it, so it needs no gradient.
        with torch.no_grad():
            index = dst.long().unsqueeze(1).expand_as(logit)
            zeros = logit.new_zeros(num_dst, logit.size(1))
            maximum = zeros.scatter_reduce(0, index, logit, "amax", include_self=False)
        share = (logit - maximum.index_select(0, dst)).exp()
        total = _sum(share, dst, num_dst)
        total = total.masked_fill(total == 0, 1.0)
    return _sum(share * message, dst, num_dst) / total

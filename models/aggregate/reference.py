"""The reference aggregation in plain torch, for any device. It builds tensors of edges x channels."""

from jaxtyping import Float, Int
from torch import Tensor

from parallel_epochs.models.aggregate.reduce import aggregate_edges
from parallel_epochs.models.edge_index import plain_edges

AGGREGATIONS = ("softmax", "softmax_sg", "softmax_sum", "powermean", "mean", "max", "add")


def aggregate(
    x: Float[Tensor, "num_src channels"],
    edge_index: Int[Tensor, "2 num_edges"],
    edge_attr: Float[Tensor, "num_edges edge_columns"] | None = None,
    weight: Float[Tensor, "channels edge_dim"] | None = None,
    bias: Float[Tensor, " channels"] | None = None,
    *,
    aggr: str = "softmax",
    t: float | Tensor = 1.0,
    p: float | Tensor = 1.0,
    eps: float = 1e-7,
    num_dst: int | None = None,
    table: Float[Tensor, "num_relations channels"] | None = None,
) -> Float[Tensor, "num_dst channels"]:
    """Aggregate the messages ``relu(x_j + e_ij) + eps`` at every destination node.

    ``softmax`` weights each message by ``softmax_j(t * m_ij)`` per channel, and ``softmax_sg`` does so without a
    gradient through the weights. ``softmax_sum`` multiplies ``softmax`` by the root of the degree. ``powermean`` is
    ``clamp(mean_j clamp(m_ij)^p)^(1/p)``, where both are clamped to [1e-4, 100], but nothing if p is the number 1.
    ``max`` divides its gradient evenly among ties.
    See "DeeperGCN: All You Need to Train Deeper GCNs" (https://arxiv.org/abs/2006.07739).

    With a `table`, column 0 of `edge_attr` is the number of the edge's relation, and ``e_ij`` is the encoding of the
    other columns plus the relation's row of the table. The number has no gradient.

    Args:
        x: features of the source nodes, [num_src, channels], floating point.
        edge_index: source and destination of each edge, [2, num_edges], int32 or int64.
        edge_attr: features of the edges, [num_edges, edge_dim], or [num_edges, channels] without `weight`. With `table`
            relations and features, [num_edges, 1 + edge_dim], or [num_edges, 1] without `weight`.
        weight: linear encoder of the edge features, [channels, edge_dim].
        bias: the encoder's bias, [channels].
        aggr: one of `AGGREGATIONS`.
        t: inverse temperature of softmax, a number or a tensor of one element.
        p: exponent of powermean, a number or a tensor of one element, not zero.
        eps: added to every message.
        num_dst: number of destination nodes. None: as many as source nodes.
        table: a row for each relation, [num_relations, channels].

    Returns:
        [num_dst, channels], zero for a destination without edges (``powermean``: 1e-4^(1/p)).

    Raises:
        ValueError: unknown `aggr`.
        IndexError: a relation is not a whole number from 0 to num_relations - 1.
    """
    check_aggr(aggr)
    num_dst = x.size(0) if num_dst is None else num_dst
    aggr = replace_power_of_one(aggr, p)
    src, dst = plain_edges(edge_index)
    return aggregate_edges(
        x.index_select(0, src),
        dst,
        edge_attr,
        weight,
        bias,
        table,
        t,
        p,
        aggr=aggr,
        eps=eps,
        num_dst=num_dst,
    )


def check_aggr(aggr: str) -> None:
    """Raise a ValueError that lists the aggregations if `aggr` is not one of them."""
    if aggr not in AGGREGATIONS:
        raise ValueError(f"aggr={aggr} is unknown; choose one of {', '.join(AGGREGATIONS)}")


def replace_power_of_one(aggr: str, p: float | Tensor) -> str:
    """Return "mean" for a ``powermean`` whose p is the number 1, otherwise `aggr` itself."""
    return "mean" if aggr == "powermean" and not isinstance(p, Tensor) and p == 1 else aggr

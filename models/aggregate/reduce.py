"""The formulas of all aggregations in plain torch, from the messages of the edges to the destinations."""

import torch
from torch import Tensor

from parallel_epochs.models.aggregate import relation_table

# Bounds of the messages of a power mean, and of the mean of their powers.
POWER_RANGE = (1e-4, 100.0)
# Up to this exponent, powers of any number in this range, and sums of millions of them, fit into float32.
_MILD_POWER = 4.0
# float32 rounds a logit of this size to 3e-5.
_STEEP_LOGIT = 1024.0


def aggregate_edges(x_j, dst, edge_attr, weight, bias, table, t, p, *, aggr, eps, num_dst):
    """Aggregate all edges at once, as :func:`models.aggregate.aggregate` does.

    Args:
        x_j: features of each edge's source [num_edges, channels].
        dst: destination of each edge [num_edges].
    """
    message = x_j
    if table is not None:
        message = message + relation_table.encode_edges(edge_attr, weight, bias, table)
    elif edge_attr is not None:
        message = message + (
            edge_attr if weight is None else torch.nn.functional.linear(edge_attr, weight, bias)
        )
    message = message.relu() + eps
    # Sums of many terms would lose too much in 16 bits.
    message = message.to(torch.promote_types(message.dtype, torch.float32))
    return reduce(message, dst, num_dst, aggr=aggr, t=t, p=p).to(x_j.dtype)


def reduce(message, dst, num_dst, *, aggr, t, p):
    """Reduce messages [num_edges, channels] at their destinations to [num_dst, channels]."""
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
    if aggr == "powermean":
        message = message.clamp(*POWER_RANGE)
        base = _find_base_of_powers(message, dst, num_dst, p)
        if base is not None:
            message = message / base.index_select(0, dst)
        mean = _sum(message.pow(p), dst, num_dst) / degree.clamp(min=1)
        return _clamp_mean(mean, base, p)
    out = _softmax(message, dst, num_dst, t, semi_grad=aggr == "softmax_sg")
    return out * root(degree.clamp(min=1)) if aggr == "softmax_sum" else out


def root(degree: Tensor) -> Tensor:
    """Return the root of degrees, in the bits of a power of a tensor, which ``sqrt`` does not have."""
    return degree.pow(torch.tensor(0.5, dtype=degree.dtype))


def _sum(message: Tensor, dst: Tensor, num_dst: int) -> Tensor:
    return message.new_zeros(num_dst, message.size(1)).index_add(0, dst, message)


def _find_extreme(message: Tensor, dst: Tensor, num_dst: int, sign: float | Tensor) -> Tensor:
    """Find the largest message of each destination, or the smallest if `sign` is negative; 0 without messages."""
    index = dst.long().unsqueeze(1).expand_as(message)
    zeros = message.new_zeros(num_dst, message.size(1))
    sign = sign.to(message.dtype) if isinstance(sign, Tensor) else sign
    return zeros.scatter_reduce(0, index, message * sign, "amax", include_self=False) * sign


@torch.no_grad()
def _find_base_of_powers(
    message: Tensor, dst: Tensor, num_dst: int, p: float | Tensor
) -> Tensor | None:
    """Find divisors of the messages [num_dst, channels] that keep all their powers within float32's range.

    A power mean is homogeneous, so the result does not depend on them. They are None or 1 where p is so small that no
    power can leave the range.
    """
    if not isinstance(p, Tensor) and abs(p) <= _MILD_POWER:
        return None
    p = torch.as_tensor(p, dtype=message.dtype, device=message.device)
    base = _find_extreme(message, dst, num_dst, p.sign())
    return torch.where((p.abs() <= _MILD_POWER) | (base == 0), 1.0, base)


def _clamp_mean(mean: Tensor, base: Tensor | None, p: float | Tensor) -> Tensor:
    """Compute ``mean.clamp(*POWER_RANGE) ** (1 / p)`` from the mean of messages that were divided by `base`."""
    mild = mean.clamp(*POWER_RANGE).pow(1 / p)
    if base is None:
        return mild
    p = torch.as_tensor(p, dtype=mean.dtype, device=mean.device)
    is_mild = p.abs() <= _MILD_POWER
    p = p.masked_fill(
        is_mild, _MILD_POWER
    )  # otherwise unused powers of 1 / p would make its gradient NaN
    low, high = (torch.full_like(p, limit) for limit in POWER_RANGE)
    with torch.no_grad():
        log_mean = mean.log() + p * base.log()
    out = mean.masked_fill(mean == 0, 1.0).pow(1 / p) * base
    out = torch.where(log_mean < low.log(), low.pow(1 / p), out)
    out = torch.where(log_mean > high.log(), high.pow(1 / p), out)
    return torch.where(is_mild, mild, out)


def _softmax(
    message: Tensor, dst: Tensor, num_dst: int, t: float | Tensor, *, semi_grad: bool
) -> Tensor:
    with torch.set_grad_enabled(torch.is_grad_enabled() and not semi_grad):
        # Two constants are subtracted that do not change the result, so they need no gradient. The largest logit keeps
        # exp from overflowing. The base of the messages keeps large logits from being rounded: only differences of
        # logits matter, and gradients are those of a difference from the mean.
        with torch.no_grad():
            sign = t.sign() if isinstance(t, Tensor) else float(t > 0) - float(t < 0)
            extreme = _find_extreme(message, dst, num_dst, sign)
            maximum = extreme * t
            steep = maximum.abs() > _STEEP_LOGIT
            base = torch.where(steep, extreme, 0.0)
            maximum = torch.where(steep, 0.0, maximum).index_select(0, dst)
        above = message - base.index_select(0, dst)
        share = (above * t - maximum).exp()
        total = _sum(share, dst, num_dst)
        total = total.masked_fill(total == 0, 1.0)
    if semi_grad:
        above = message - base.index_select(0, dst)
    return base + _sum(share * above, dst, num_dst) / total

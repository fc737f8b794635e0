"""The aggregations in Triton: messages of one destination in forward, one edge in backward.

This is the counterpart of kinds.h. The state of a destination is three vectors over the channels, (base, total,
weighted). power keeps sums of weights 2^(l - base), where base is the largest exponent l so far. softmax keeps sums of
weights 2^((u - base) * |t| * log2(e)), where u is the message, negated if t is negative, and base is the largest u so
far. max keeps the bits of the maximum and the number of ties. add keeps its sum in `total`. Vectors that a kind does
not use stay constant and cost nothing.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
SMALLEST_NORMAL = tl.constexpr(1.17549435e-38)
MAGNITUDE, SIGN = tl.constexpr(0x7FFFFFFF), tl.constexpr(-0x80000000)
INF = tl.constexpr(float("inf"))
# log2 of the largest power mean, and how far the rounding of a mean at its bound may carry its log2.
MOST, ROUNDING = tl.constexpr(126.95), tl.constexpr(5.8e-6)


@triton.jit
def make_message(z, eps):
    """Compute relu(z) + eps. A NaN stays a NaN, unlike in a plain maximum."""
    return tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL) + eps


@triton.jit
def clamp(m, low, high):
    """Clamp messages to [low, high]. A NaN stays a NaN."""
    return tl.minimum(
        tl.maximum(m, low, propagate_nan=tl.PropagateNan.ALL),
        high,
        propagate_nan=tl.PropagateNan.ALL,
    )


@triton.jit
def start_state(KIND: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the state of a destination without messages."""
    zero = tl.zeros((BLOCK_D,), tl.float32)
    if KIND == "max":
        base = tl.full((BLOCK_D,), -1, tl.int32)
    elif KIND == "add":
        base = zero
    else:
        base = tl.full((BLOCK_D,), -INF, tl.float32)
    return base, zero, zero


@triton.jit
def make_states(m, valid, param, low, high, KIND: tl.constexpr):
    """Turn each message of a block into the state of a destination with only this message [BLOCK_E, BLOCK_D]."""
    one = tl.full(m.shape, 1.0, tl.float32)
    if KIND == "add":
        base = m
        total = tl.where(valid, m, 0.0)
        weighted = m
    elif KIND == "max":
        # Messages are not negative, so their bits have the same order, with the bits of a NaN above all.
        base = tl.where(valid, m.to(tl.int32, bitcast=True) & MAGNITUDE, -1)
        total = one
        weighted = m
    elif KIND == "power":
        weighted = tl.log2(clamp(m, low, high))
        base = tl.where(valid, weighted * param, -INF)
        total = one
    else:
        weighted = m
        base = tl.where(valid, tl.where(param < 0, -m, m), -INF)
        total = one
    return base, total, weighted


@triton.jit
def find_slope(param, KIND: tl.constexpr):
    """Return the factor from base to exponent. It is never 0, as 0 times infinity would be NaN."""
    if KIND == "power":
        slope = 1.0
    else:
        slope = tl.where(param == 0, 1e-30, tl.abs(param) * LOG2_E)
    return slope


@triton.jit
def merge_states(state, states, param, KIND: tl.constexpr):
    """Merge a state [BLOCK_D] with a block of other states, along their first axis."""
    base, total, weighted = state
    bases, totals, weighteds = states
    if KIND == "add":
        return base, total + tl.sum(totals, 0), weighted
    elif KIND == "max":
        top = tl.maximum(base, tl.max(bases, 0))
        ties = tl.where(base == top, total, 0.0) + tl.sum(
            tl.where(bases == top[None, :], totals, 0.0), 0
        )
        return top, ties, weighted
    else:
        top = tl.maximum(base, tl.max(bases, 0))
        slope = find_slope(param, KIND)
        scale, scales = tl.exp2((base - top) * slope), tl.exp2((bases - top[None, :]) * slope)
        return (
            top,
            total * scale + tl.sum(scales * totals, 0),
            weighted * scale + tl.sum(scales * weighteds, 0),
        )


@triton.jit
def finish_state(state, degree, param, low, high, KIND: tl.constexpr, FILLS: tl.constexpr):
    """Return the results of :func:`models.aggregate.ops.forward`: without messages zeros, or with FILLS a mean's lower
    bound.
    """
    base, total, weighted = state
    empty = degree == 0
    divisor = tl.where(empty, 1.0, total)
    zero = tl.zeros_like(total)
    if KIND == "add":
        return total, zero, zero
    elif KIND == "max":
        return tl.where(empty, 0.0, base.to(tl.float32, bitcast=True)), total, zero
    elif KIND == "power":
        base = tl.where(empty, 0.0, base)
        log_out = (base + tl.log2(divisor / tl.maximum(degree, 1).to(tl.float32))) / param
        if FILLS:
            log_out = tl.where(empty, -INF / param, log_out)
        first, second = (
            tl.minimum(tl.log2(low) / param, MOST),
            tl.minimum(tl.log2(high) / param, MOST),
        )
        least, greatest = tl.minimum(first, second), tl.maximum(first, second)
        clamped = (log_out < least - ROUNDING) | (log_out > greatest + ROUNDING)
        log_out = tl.where(clamped, tl.minimum(tl.maximum(log_out, least), greatest), log_out)
        out = tl.exp2(log_out)
        if not FILLS:
            out = tl.where(empty, 0.0, out)
        slope = out * (LN_2 / param) * (tl.where(clamped, 0.0, weighted / divisor) - log_out)
        return (
            out,
            tl.where(clamped, INF, base + tl.log2(divisor)),
            tl.where(log_out < MOST, slope, 0.0),
        )
    else:
        return (
            weighted / divisor,
            tl.where(empty, 0.0, base) * find_slope(param, KIND) + tl.log2(divisor),
            zero,
        )


@triton.jit
def pack_pair(grad, out, stat, KIND: tl.constexpr):
    """Return the two numbers of a destination that each of its edges reads in backward."""
    if KIND == "max":
        return grad / tl.maximum(stat, 1.0), out
    elif KIND == "power":
        return stat, grad * out
    elif KIND == "softmax_sg":
        return stat, grad
    else:
        # The gradient's magnitude goes into the exponent, its sign to `out`, which has none.
        magnitude = tl.abs(grad)
        first = tl.where(magnitude < SMALLEST_NORMAL, INF, stat - tl.log2(magnitude))
        sign = grad.to(tl.int32, bitcast=True) & SIGN
        return first, (out.to(tl.int32, bitcast=True) & MAGNITUDE | sign).to(
            tl.float32, bitcast=True
        )


@triton.jit
def differentiate(m, first, second, param, low, high, KIND: tl.constexpr):
    """Compute the gradient for each message, and its part of the gradient for t (softmax alone)."""
    if KIND == "add":
        return first, first
    elif KIND == "max":
        q = tl.where(m == second, first, 0.0)
        return q, q
    elif KIND == "power":
        inside = clamp(m, low, high)
        q = second * tl.exp2(tl.log2(inside) * (param - 1.0) - first)
        return tl.where(inside == m, q, 0.0), q
    elif KIND == "softmax_sg":
        q = tl.exp2(m * (param * LOG2_E) - first) * second
        return q, q
    else:
        sign = second.to(tl.int32, bitcast=True) & SIGN
        share = tl.exp2(m * (param * LOG2_E) - first)
        share = (share.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
        above = m - tl.abs(second)
        r = share * above
        # Written as a variance: in the form share * m * (m - out) the rounding of `out` would not cancel.
        return r * param + share, r * above

"""The aggregations in Triton: messages of one destination in forward, one edge in backward.

This is the counterpart of kinds.h. The state of a destination is three vectors over the channels, (base, total,
weighted). softmax keeps sums of weights 2^((u - base) * |t| * log2(e)), where u is the message, negated if t is
negative, and base is the largest u so far. max keeps the bits of the maximum and the number of ties. add keeps its
sum in `total`. Vectors that a kind does not use stay constant and cost nothing.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
SMALLEST_NORMAL = tl.constexpr(1.17549435e-38)
MAGNITUDE, SIGN = tl.constexpr(0x7FFFFFFF), tl.constexpr(-0x80000000)
INF = tl.constexpr(float("inf"))


@triton.jit
def make_message(z, eps):
    """Compute relu(z) + eps. A NaN stays a NaN, unlike in a plain maximum."""
    return tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL) + eps


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
def make_states(m, valid, param, KIND: tl.constexpr):
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
    else:
        weighted = m
        base = tl.where(valid, tl.where(param < 0, -m, m), -INF)
        total = one
    return base, total, weighted


@triton.jit
def find_slope(param):
    """Return the factor from base to exponent. It is never 0, as 0 times infinity would be NaN."""
    return tl.where(param == 0, 1e-30, tl.abs(param) * LOG2_E)


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
        slope = find_slope(param)
        scale, scales = tl.exp2((base - top) * slope), tl.exp2((bases - top[None, :]) * slope)
        return (
            top,
            total * scale + tl.sum(scales * totals, 0),
            weighted * scale + tl.sum(scales * weighteds, 0),
        )


@triton.jit
def finish_state(state, degree, param, KIND: tl.constexpr):
    """Return the results of :func:`models.aggregate.ops.forward`, zeros without messages."""
    base, total, weighted = state
    empty = degree == 0
    divisor = tl.where(empty, 1.0, total)
    if KIND == "add":
        return total, total
    elif KIND == "max":
        return tl.where(empty, 0.0, base.to(tl.float32, bitcast=True)), total
    else:
        return (
            weighted / divisor,
            tl.where(empty, 0.0, base) * find_slope(param) + tl.log2(divisor),
        )


@triton.jit
def pack_pair(grad, out, stat, KIND: tl.constexpr):
    """Return the two numbers of a destination that each of its edges reads in backward."""
    if KIND == "max":
        return grad / tl.maximum(stat, 1.0), out
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
def differentiate(m, first, second, param, KIND: tl.constexpr):
    """Compute the gradient for each message, and its part of the gradient for t (softmax alone)."""
    if KIND == "add":
        return first, first
    elif KIND == "max":
        q = tl.where(m == second, first, 0.0)
        return q, q
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

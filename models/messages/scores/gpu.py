"""The scores of attention in Triton. Each function has a branch for each score; the formulas are in dot.py and others.

Keys, queries and encoded features `z` of edges are [BLOCK_E, BLOCK_C], with BY_HEAD [BLOCK_E]; those of the walk's row
have one row. Scores are times log2(e).
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def score_edges(p, keys, queries, z):
    """Return the argument of the leaky ReLU, or for "dot" the encoded key, and the scores [BLOCK_E]."""
    if p.SCORE == "dot":
        x = keys + z
        return x, tl.sum(queries * x, 1) * p.scale
    else:
        x = keys + queries + z
        activated = tl.where(x > 0.0, x, x * p.slope)
        if p.SCORE == "gat":
            return x, activated * LOG2_E
        else:
            return x, tl.sum(activated * p.vector[None, :], 1) * LOG2_E


@triton.jit
def differentiate(p, grad, x):
    """Return the common part of the gradients of keys, queries and `att` from those of the scores."""
    if p.SCORE == "dot":
        return grad * (p.scale / LOG2_E)
    elif p.SCORE == "gat":
        return grad * tl.where(x > 0.0, 1.0, p.slope)
    else:
        return grad[:, None] * tl.where(x > 0.0, 1.0, p.slope)


@triton.jit
def split(p, grad, x, queries):
    """Return the gradients of queries, keys and, for "gatv2", `att` from their common part."""
    if p.SCORE == "dot":
        return grad[:, None] * x, grad[:, None] * queries, grad
    elif p.SCORE == "gat":
        return grad, grad, grad
    else:
        return grad * p.vector[None, :], grad * p.vector[None, :], grad * x


@triton.jit
def sum_keys(p, grad, queries):
    """Return the sum of the gradients of the keys of a block of edges, which have one source."""
    if p.SCORE == "dot":
        return tl.sum(grad[:, None] * queries, 0)
    elif p.SCORE == "gat":
        return tl.sum(grad, 0)
    else:
        return tl.sum(grad, 0) * p.vector

"""The reference operators in plain torch, for any device and dtype. They build the message of every edge."""

import math

import torch
from torch import Tensor

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.models.kernels.operator import is_transformed
from parallel_epochs.models.kernels.sorting import check_ends
from parallel_epochs.models.messages.inputs import Call, align
from parallel_epochs.models.messages.operations import OPERATIONS


def update_all(call: Call, reduce: str) -> Tensor:
    """Compute :func:`models.messages.update_all`."""
    edges = _ends(call)
    message = _compute_messages(call, edges)
    return reduce_messages(message, edges[1], call.num_dst, reduce).to(call.dtype)


def apply_edges(call: Call) -> Tensor:
    """Compute :func:`models.messages.apply_edges`."""
    return _compute_messages(call, _ends(call)).to(call.dtype)


def edge_softmax(call: Call) -> Tensor:
    """Compute :func:`models.messages.edge_softmax` of a call of ``copy_e``."""
    return softmax(_widen(call.operands["e"]), _ends(call)[1], call.num_dst).to(call.dtype)


def softmax(scores: Tensor, dst: Tensor, num_dst: int) -> Tensor:
    """Compute the softmax of scores [num_edges, *heads] over the edges of each destination."""
    largest = reduce_messages(scores.detach(), dst, num_dst, "max")
    share = (scores - largest.index_select(0, dst)).exp()
    return share / reduce_messages(share, dst, num_dst, "sum").index_select(0, dst)


def combine(operation: str, left: Tensor, right: Tensor | None = None) -> Tensor:
    """Combine two operands, whose shapes broadcast, into messages."""
    return left if right is None else OPERATIONS[operation](left, right)


def reduce_messages(message: Tensor, dst: Tensor, num_dst: int, reduce: str) -> Tensor:
    """Reduce messages [num_edges, *trailing] at their destinations to [num_dst, *trailing]."""
    shape, ones = (num_dst, *message.shape[1:]), (1,) * (message.dim() - 1)
    if reduce == "sum":
        return message.new_zeros(shape).index_add(0, dst, message)
    degree = (
        message.new_zeros(num_dst)
        .index_add_(0, dst, torch.ones_like(dst, dtype=message.dtype))
        .view(-1, *ones)
    )
    if reduce == "mean":
        return reduce_messages(message, dst, num_dst, "sum") / degree.clamp(min=1)
    index = dst.long().view(-1, *ones).expand_as(message)
    if reduce == "prod":
        return message.new_ones(shape).scatter_reduce(0, index, message, "prod")
    # Torch counts an initial value that equals the result as one of the ties. NaN equals nothing.
    out = message.new_full(shape, math.nan).scatter_reduce(
        0, index, message, f"a{reduce}", include_self=False
    )
    return torch.where(degree == 0, 0.0, out)


def _ends(call: Call) -> Tensor:
    edge_index = plain_edges(call.edge_index)
    if edge_index.device.type == "cpu" and not is_transformed():  # a check would wait for a GPU
        check_ends(edge_index, call.num_src, call.num_dst)
    return edge_index


def _compute_messages(call: Call, edges: Tensor) -> Tensor:
    rows = {"u": edges[0], "v": edges[1]}
    num_dims = max(operand.dim() - 1 for operand in call.operands.values())
    values = []
    for name in call.message.names:
        operand = _widen(align(call.operands[name], num_dims))
        values.append(operand.index_select(0, rows[name]) if name in rows else operand)
    return combine(call.message.operation, *values)


def _widen(operand: Tensor) -> Tensor:
    # Sums of many terms would lose too much in 16 bits.
    return operand.to(torch.promote_types(operand.dtype, torch.float32))

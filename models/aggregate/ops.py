"""The fused aggregation as torch custom operators: forward and backward.

Each operator has a C++ kernel for CPU tensors (cpu.py) and a Triton kernel for CUDA tensors (gpu.py). Both return the
same shapes and dtypes and share the derivatives that are registered here.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parallel_epochs.models import notice
from parallel_epochs.models.aggregate import cpu
from parallel_epochs.models.aggregate.cpu import KINDS, AggregateCall
from parallel_epochs.models.aggregate.reduce import aggregate_edges
from parallel_epochs.models.kernels.operator import differentiate_again, operator

__all__ = [
    "KINDS",
    "AggregateCall",
    "allocate_gradients",
    "allocate_outputs",
    "backward",
    "forward",
]

DIFFERENTIABLE = ("x", "attr", "weight", "bias", "table", "param")
_NUM_STATS = {"softmax": 1, "softmax_sg": 1, "powermean": 2, "add": 0, "max": 1}


def allocate_outputs(call: AggregateCall, save: bool):
    """Allocate the three results of :func:`forward`."""
    shape = (call.edges[0].size(0) - 1, call.x.size(1))
    num_stats = _NUM_STATS[call.aggr] if save else 0
    shapes = (shape, *(shape if i < num_stats else (0,) for i in range(2)))
    return tuple(call.x.new_empty(shape, dtype=torch.float32) for shape in shapes)


@operator("aggregate", allocate_outputs)
def forward(call: AggregateCall, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Aggregate messages by destination.

    Args:
        save: whether backward will follow.

    Returns:
        out [num_dst, channels], float32, and two tensors of the same shape for backward. These are for softmax the log2
        of the sum of exponentials, for powermean the log2 of the sum of powers (infinite where the mean was
        clamped) and the derivative by p, for max the number of ties. A tensor that is not needed has no elements.

    Raises:
        IndexError: an edge has an end, a row of features or a relation that does not exist.
    """
    outputs = allocate_outputs(call, save)
    cpu.forward(call, outputs)
    return outputs


class Needed(NamedTuple):
    """Tell which arguments need gradients: `attr`, `weight` or `bias`, and `table`."""

    need_attr: bool
    need_weight: bool
    need_table: bool


def allocate_gradients(call: AggregateCall, needed: Needed):
    """Allocate the six results of :func:`backward`."""
    x, attr, weight, table = call.x, call.attr, call.weight, call.table
    nothing = x.new_empty((0,))
    return (
        x.new_empty(x.shape),
        (attr.new_empty if table is None else attr.new_zeros)(attr.shape)
        if needed.need_attr
        else nothing,
        weight.new_empty(weight.shape) if needed.need_weight else nothing.clone(),
        weight.new_empty((weight.size(0),)) if needed.need_weight else nothing.clone(),
        table.new_empty(table.shape) if needed.need_table else nothing.clone(),
        x.new_empty(call.param.shape, dtype=torch.float32),
    )


class AggregateResults(NamedTuple):
    """The arguments of :func:`backward` in addition to the call.

    Attributes:
        grad: gradient of `out` [num_dst, channels].
        out, stat, stat2: the results of :func:`forward`; softmax, powermean and max need `out`.
    """

    grad: Tensor
    out: Tensor | None
    stat: Tensor
    stat2: Tensor


@operator("aggregate_backward", allocate_gradients)
def backward(
    results: AggregateResults, call: AggregateCall, needed: Needed
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`forward` for x, attr, weight, bias, table and param.

    Returns:
        One gradient for each, with its shape and dtype; a gradient that is not needed has no elements. That of the
        relations in column 0 of `attr` is 0.
    """
    grads = allocate_gradients(call, needed)
    cpu.backward(results, call, grads)
    return grads


def _keep(output, call, save):
    assert save and call.edges[3] is not None, (
        "backward needs the edges sorted by source and what forward saves for it"
    )
    out, stat, stat2 = output
    reads_out = call.aggr in ("softmax", "powermean", "max")
    return (out if reads_out else None, stat, stat2), (stat, stat2)


def _differentiate(needed, gradients, kept, call, save):
    grad = gradients[0]
    if torch.is_grad_enabled():
        return _differentiate_twice(needed, grad, call)
    # Relations alone have no gradient.
    need_attr = "attr" in needed and (call.table is None or call.weight is not None)
    needs = Needed(need_attr, bool(needed & {"weight", "bias"}), "table" in needed)
    grads = backward(AggregateResults(grad, *kept), call, needs)
    found = dict(zip(DIFFERENTIABLE, grads, strict=True))
    if not need_attr:
        found["attr"] = None
    if call.aggr == "softmax_sg":
        found["param"] = None
    return found


def _differentiate_twice(needed, grad, call):
    """Compute gradients that have gradients themselves, in plain torch with tensors of edges x channels."""
    notice.warn(
        "aggregation: the reference computes gradients of gradients, with tensors of edges x channels"
    )
    _, _, _, rowptr, dst, position = call.edges
    # Views, as one input may have been computed from another.
    inputs = {
        name: None if (tensor := getattr(call, name)) is None else tensor.view_as(tensor)
        for name in DIFFERENTIABLE
    }
    x, attr, *encoder, param = inputs.values()
    src = torch.arange(x.size(0), device=x.device).repeat_interleave(rowptr.diff().long())
    rows = attr if attr is None or position is None else attr.index_select(0, position)
    out = aggregate_edges(
        x.index_select(0, src),
        dst,
        rows,
        *encoder,
        param,
        param,
        aggr=call.aggr,
        eps=call.eps,
        num_dst=grad.size(0),
    )
    return differentiate_again(needed, out, inputs, grad)


forward.register_autograd(_differentiate, _keep)

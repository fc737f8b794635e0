"""The fused aggregation as torch custom operators: forward and backward.

Each operator has a C++ kernel for CPU tensors (cpu.py) and a Triton kernel for CUDA tensors (gpu.py). Both return the
same shapes and dtypes and share the derivatives that are registered here.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from parallel_epochs.models import notice
from parallel_epochs.models.aggregate import cpu
from parallel_epochs.models.aggregate.cpu import KINDS
from parallel_epochs.models.aggregate.reduce import aggregate_edges
from parallel_epochs.models.kernels.operator import differentiate_again, operator
from parallel_epochs.models.structure import Structure

__all__ = ["KINDS", "allocate_gradients", "allocate_outputs", "backward", "forward"]

# Those of forward's arguments that have gradients: x, attr, weight, bias, table and param.
_DIFFERENTIABLE = (0, 2, 3, 4, 5, 6)
_NUM_STATS = {"softmax": 1, "softmax_sg": 1, "power": 2, "powermean": 2, "add": 0, "max": 1}


def allocate_outputs(x, edges, aggr, save):
    """Allocate the three results of :func:`forward`."""
    shape = (edges[0].size(0) - 1, x.size(1))
    num_stats = _NUM_STATS[aggr] if save else 0
    shapes = (shape, *(shape if i < num_stats else (0,) for i in range(2)))
    return tuple(x.new_empty(shape, dtype=torch.float32) for shape in shapes)


@operator("aggregate", allocate_outputs)
def forward(
    x: Tensor,
    edges: Sequence[Tensor | None],
    attr: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    table: Tensor | None,
    param: Tensor,
    aggr: str,
    eps: float,
    low: float,
    high: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Aggregate messages by destination.

    Args:
        x: features of the source nodes [num_src, channels], float32 (on CUDA also 16 bits).
        edges: the fields of a :class:`models.structure.Structure`; positions are rows in `attr`. Only backward reads
            the order by source.
        attr: edge features [num_edges, edge_dim], or [num_edges, channels] without `weight`; dtype as `x`. With `table`
            the number of the relation and the features [num_edges, 1 + edge_dim], or [num_edges, 1] without `weight`.
        weight: linear encoder of the edge features [channels, edge_dim], float32.
        bias: the encoder's bias [channels], float32.
        table: a row for each relation [num_relations, channels], float32, which is added to its edges' messages.
        param: t or p, one element.
        aggr: one of `KINDS`.
        eps: added to every message.
        low: power and powermean clamp messages, and the mean of their powers, from below to this.
        high: they clamp these from above to this.
        save: whether backward will follow.

    Returns:
        out [num_dst, channels], float32, and two tensors of the same shape for backward. These are for softmax the log2
        of the sum of exponentials, for power and powermean the log2 of the sum of powers (infinite where the mean was
        clamped) and the derivative by p, for max the number of ties. A tensor that is not needed has no elements.

    Raises:
        IndexError: an edge has an end, a row of features or a relation that does not exist.
    """
    outputs = allocate_outputs(x, edges, aggr, save)
    cpu.forward(
        x, Structure(*edges), attr, weight, bias, table, param, aggr, eps, low, high, outputs
    )
    return outputs


def allocate_gradients(x, attr, weight, table, param, need_attr, need_weight, need_table):
    """Allocate the six results of :func:`backward`."""
    nothing = x.new_empty((0,))
    return (
        x.new_empty(x.shape),
        (attr.new_empty if table is None else attr.new_zeros)(attr.shape) if need_attr else nothing,
        weight.new_empty(weight.shape) if need_weight else nothing.clone(),
        weight.new_empty((weight.size(0),)) if need_weight else nothing.clone(),
        table.new_empty(table.shape) if need_table else nothing.clone(),
        x.new_empty(param.shape, dtype=torch.float32),
    )


@operator("aggregate_backward", allocate_gradients)
def backward(
    grad: Tensor,
    out: Tensor | None,
    stat: Tensor,
    stat2: Tensor,
    x: Tensor,
    edges: Sequence[Tensor | None],
    attr: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    table: Tensor | None,
    param: Tensor,
    aggr: str,
    eps: float,
    low: float,
    high: float,
    need_attr: bool,
    need_weight: bool,
    need_table: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`forward` for x, attr, weight, bias, table and param.

    Args:
        grad: gradient of `out` [num_dst, channels].
        out: what :func:`forward` returned first [num_dst, channels]; softmax, power, powermean and max need it.
        stat: what :func:`forward` returned second.
        stat2: what :func:`forward` returned third.
        x: as in :func:`forward`, like all arguments that are not listed here.
        need_attr: whether `attr` has a gradient.
        need_weight: whether `weight` or `bias` has a gradient.
        need_table: whether `table` has a gradient.

    Returns:
        One gradient for each, with its shape and dtype; a gradient that is not needed has no elements. That of the
        relations in column 0 of `attr` is 0.
    """
    grads = allocate_gradients(x, attr, weight, table, param, need_attr, need_weight, need_table)
    cpu.backward(
        grad,
        out,
        stat,
        stat2,
        x,
        Structure(*edges),
        attr,
        weight,
        bias,
        table,
        param,
        aggr,
        eps,
        low,
        high,
        grads,
    )
    return grads


def _setup_context(ctx, inputs, output):
    x, edges, attr, weight, bias, table, param, ctx.aggr, *ctx.numbers, save = inputs
    assert save and edges[3] is not None, (
        "backward needs the edges sorted by source and what forward saves for it"
    )
    out, stat, stat2 = output
    ctx.mark_non_differentiable(stat, stat2)
    ctx.set_materialize_grads(False)
    kept = out if ctx.aggr in ("softmax", "power", "powermean", "max") else None
    ctx.save_for_backward(kept, stat, stat2, x, attr, weight, bias, table, param, *edges)


def _backward(ctx, grad, _, __):
    if grad is None:
        return (None,) * 12
    differentiate = _differentiate_twice if torch.is_grad_enabled() else _differentiate
    grad_x, *others = differentiate(ctx, grad)
    return grad_x, None, *others, *(None,) * 5


def _differentiate(ctx, grad):
    need_x, need_attr, need_weight, need_bias, need_table, need_param = (
        ctx.needs_input_grad[i] for i in _DIFFERENTIABLE
    )
    *results, x, attr, weight, bias, table, param = (saved := ctx.saved_tensors)[
        :9
    ]  # checkpointing gives them once
    need_attr = need_attr and (
        table is None or weight is not None
    )  # relations alone have no gradient
    grads = backward(
        grad,
        *results,
        x,
        Structure(*saved[9:]),
        attr,
        weight,
        bias,
        table,
        param,
        ctx.aggr,
        *ctx.numbers,
        need_attr,
        need_weight or need_bias,
        need_table,
    )
    needed = (
        need_x,
        need_attr,
        need_weight,
        need_bias,
        need_table,
        need_param and ctx.aggr != "softmax_sg",
    )
    return [value if need else None for value, need in zip(grads, needed, strict=True)]


def _differentiate_twice(ctx, grad):
    """Compute gradients that have gradients themselves, in plain torch with tensors of edges x channels."""
    notice.warn(
        "aggregation: the reference computes gradients of gradients, with tensors of edges x channels"
    )
    x, attr, weight, bias, table, param, _, _, _, rowptr, dst, position = ctx.saved_tensors[3:]
    # Views, as one input may have been computed from another.
    inputs = x, attr, weight, bias, table, param = [
        None if tensor is None else tensor.view_as(tensor)
        for tensor in (x, attr, weight, bias, table, param)
    ]
    eps, low, high = ctx.numbers
    src = torch.arange(x.size(0), device=x.device).repeat_interleave(rowptr.diff().long())
    rows = attr if attr is None or position is None else attr.index_select(0, position)
    out = aggregate_edges(
        x.index_select(0, src),
        dst,
        rows,
        weight,
        bias,
        table,
        param,
        param,
        0.0,
        aggr=ctx.aggr,
        eps=eps,
        num_dst=grad.size(0),
        limits=(low, high),
    )
    return differentiate_again(ctx, _DIFFERENTIABLE, out, inputs, grad)


forward.register_autograd(_backward, setup_context=_setup_context)

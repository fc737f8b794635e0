"""Several reductions of what sources send, in one pass over the edges, forward and backward."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from parallel_epochs.models import notice
from parallel_epochs.models.kernels.layout import fill
from parallel_epochs.models.kernels.operator import operator
from parallel_epochs.models.messages import cpu, reference
from parallel_epochs.models.messages.cpu import PARTS, SeveralProblem
from parallel_epochs.models.structure import Structure, find_structure

# Those for which backward needs the numbers of ties.
EXTREMES = ("max", "min")


def reduce_several(
    edge_index: Tensor, values: Tensor, num_dst: int, parts: tuple[str, ...]
) -> dict[str, Tensor]:
    """Reduce the values of the sources of each destination in several ways.

    Args:
        edge_index: [2, num_edges], a tensor or an ``EdgeIndex``.
        values: [num_src, *trailing].
        parts: some of :data:`PARTS`.

    Returns:
        [num_dst, *trailing] for each part: 0 for a destination without edges. Ties of "max" and "min" share their
        gradient evenly.

    Raises:
        IndexError: an edge has an end that is not in the graph.
    """
    save = torch.is_grad_enabled() and values.requires_grad
    structure = find_structure(edge_index, values.size(0), num_dst, by_source=save)
    found, _ = several(values.float(), structure, " ".join(parts), save)
    return {name: part.to(values.dtype) for name, part in zip(parts, found, strict=True)}


def find_extremes(parts: str) -> list[str]:
    """Return those of the parts that have numbers of ties."""
    return [name for name in parts.split() if name in EXTREMES]


def allocate(values, edges, parts, save):
    """Allocate the results of :func:`several`."""
    shape = (edges[0].numel() - 1, *values.shape[1:])
    return (
        values.new_empty(len(parts.split()), *shape),
        values.new_empty(len(find_extremes(parts)) if save else 0, *shape),
    )


@operator("several", allocate)
def several(
    values: Tensor, edges: Sequence[Tensor | None], parts: str, save: bool
) -> tuple[Tensor, Tensor]:
    """Compute :func:`reduce_several`.

    Args:
        values: [num_src, *trailing], float32.
        edges: the fields of a :class:`models.structure.Structure`. Only backward reads the order by source.
        parts: names, with blanks between them.
        save: whether backward will follow.

    Returns:
        The results [num_parts, num_dst, *trailing], and the numbers of ties of the extremes among the parts, in their
        order; none without `save`.
    """
    results, ties = allocate(values, edges, parts, save)
    found = dict(zip(parts.split(), results))
    _call(edges[0], edges[1], values, results=found, ties=dict(zip(find_extremes(parts), ties)))
    return results, ties


@operator(
    "several_backward",
    lambda values: torch.empty_like(values, memory_format=torch.contiguous_format),
)
def backward(
    gradient: Tensor,
    results: Tensor,
    ties: Tensor,
    values: Tensor,
    edges: Sequence[Tensor | None],
    parts: str,
) -> Tensor:
    """Compute the gradient of the values of :func:`several`.

    Args:
        gradient: that of the results, [num_parts, num_dst, *trailing].
    """
    out = torch.empty_like(values, memory_format=torch.contiguous_format)
    _call(
        edges[3],
        edges[4],
        values,
        results=dict(zip(parts.split(), results)),
        gradients=divide_by_ties(gradient, ties, parts),
        out=out,
    )
    return out


def divide_by_ties(gradient: Tensor, ties: Tensor, parts: str) -> dict[str, Tensor]:
    """Return the gradient of each part [num_dst, *trailing], that of an extreme divided by the numbers of ties."""
    counts = dict(zip(find_extremes(parts), ties))
    return {
        name: grad / counts[name] if name in counts else grad
        for name, grad in zip(parts.split(), gradient)
    }


def _call(
    ptr: Tensor,
    other: Tensor,
    values: Tensor,
    *,
    results: dict[str, Tensor],
    ties: dict[str, Tensor] | None = None,
    gradients: dict[str, Tensor] | None = None,
    out: Tensor | None = None,
) -> None:
    """Run the kernel: forward with the values of the other nodes, backward (with `out`) with those of the rows."""
    if values.shape[1:].numel() == 0:
        return
    arrays = dict(ptr=ptr, other=other, values=values, out=out)
    problem = fill(
        SeveralProblem,
        arrays,
        num_rows=ptr.numel() - 1,
        num_others=next(iter(results.values())).size(0) if out is not None else values.size(0),
        num_edges=other.numel(),
        channels=values.shape[1:].numel(),
        backward=out is not None,
    )
    parts = {
        (field, name): tensor.contiguous()
        for field, tensors in (("results", results), ("ties", ties), ("gradients", gradients))
        for name, tensor in (tensors or {}).items()
    }
    for (field, name), tensor in parts.items():
        getattr(problem, field)[PARTS.index(name)] = tensor.data_ptr()
    cpu.check_status(cpu.LIBRARY.get().several_run(ctypes.byref(problem)), problem)


def _set_up(ctx, inputs, output):
    values, edges, ctx.parts, save = inputs
    assert save, "backward needs what forward saves for it"
    results, ties = output
    ctx.mark_non_differentiable(ties)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(results, ties, values, *edges)


def _differentiate(ctx, gradient, _):
    if gradient is None:
        return (None,) * 4
    results, ties, values, *edges = ctx.saved_tensors
    if not torch.is_grad_enabled():
        return backward(gradient, results, ties, values, Structure(*edges), ctx.parts), *(None,) * 3
    notice.warn(
        "messages: the reference computes gradients of gradients, with tensors of edges x channels"
    )
    indptr, src = edges[:2]
    to = torch.arange(indptr.numel() - 1, device=src.device).repeat_interleave(indptr.diff().long())
    sent = values.index_select(0, src[: to.numel()])
    found = torch.stack(
        [
            reference.reduce_messages(
                sent * sent if name == "square" else sent,
                to,
                indptr.numel() - 1,
                "sum" if name == "square" else name,
            )
            for name in ctx.parts.split()
        ]
    )
    return torch.autograd.grad(found, values, gradient, create_graph=True)[0], *(None,) * 3


several.register_autograd(_differentiate, setup_context=_set_up)

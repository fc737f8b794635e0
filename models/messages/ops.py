"""The fused operators of messages as torch custom operators: forward and backward."""

from collections.abc import Sequence

import torch
from torch import Tensor

from parallel_epochs.models import notice
from parallel_epochs.models.kernels.operator import operator
from parallel_epochs.models.messages import reference
from parallel_epochs.models.messages.cpu import Walk
from parallel_epochs.models.messages.inputs import MESSAGES, Message, align
from parallel_epochs.models.structure import Structure

# Numbers of each row that backward needs: ties; the number of zeros, and the product of the others.
_NUM_STATS = {"max": 1, "min": 1, "prod": 2}
# Messages of softmax and of its gradient.
_EXP, _PRODUCT = Message("e", "exp", "v"), Message("e", "mul", "g")


def allocate_rows(u, v, e, edges, message, reduce, save):
    """Return empty tensors for what :func:`update_all` computes."""
    indptr = edges[0]
    shape = (indptr.size(0) - 1, *_message_shape(message, u, v, e))
    num_stats = _NUM_STATS.get(reduce, 0) if save else 0
    shapes = (shape, *(shape if i < num_stats else (0,) for i in range(2)))
    return tuple(indptr.new_empty(shape, dtype=torch.float32) for shape in shapes)


@operator("update_all", allocate_rows)
def update_all(
    u: Tensor | None,
    v: Tensor | None,
    e: Tensor | None,
    edges: Sequence[Tensor | None],
    num_src: int,
    message: str,
    reduce: str,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Reduce messages by destination.

    Args:
        u: values of the source nodes [num_src, *trailing], float32.
        v: values of the destination nodes [num_dst, *trailing], float32.
        e: values of the edges [num_edges, *trailing], float32 or 16 bits.
        edges: the fields of a :class:`models.structure.Structure`; positions are rows in `e`. Only the gradient of `u`
            needs the order by source.
        num_src: number of source nodes.
        message: one of `MESSAGES`, but no ``dot``.
        reduce: "sum", "max", "min" or "prod".
        save: whether backward will follow.

    Returns:
        out [num_dst, *trailing], float32, and two tensors of the same shape for backward. These are for max and min the
        number of ties, for prod the number of zeros and the product of all others. A tensor that is not needed has no
        elements.
    """
    out, stat, stat2 = allocate_rows(u, v, e, edges, message, reduce, save)
    walk = _by_destination(u, v, e, edges, num_src, message)
    walk.forward(reduce, out=out, stat=stat, stat2=stat2)
    return out, stat, stat2


def _allocate_edges(u, v, e, ends, message, dtype):
    return ends.new_empty((ends.size(1), *_message_shape(message, u, v, e)), dtype=dtype)


@operator("apply_edges", _allocate_edges)
def apply_edges(
    u: Tensor | None,
    v: Tensor | None,
    e: Tensor | None,
    ends: Tensor,
    edges: Sequence[Tensor | None],
    num_src: int,
    num_dst: int,
    message: str,
    dtype: torch.dtype,
) -> Tensor:
    """Compute the message of every edge.

    Args:
        ends: source and destination of each edge [2, num_edges], in any order.
        edges: the fields of a :class:`models.structure.Structure` of the same edges, for backward only.
        message: one of `MESSAGES`.
        dtype: of the result; float32, bfloat16 or float16.

    Returns:
        [num_edges, *trailing], in the order of `ends`.
    """
    out = _allocate_edges(u, v, e, ends, message, dtype)
    walk = Walk(
        ("v", "u"),
        (num_dst, num_src),
        (None, *ends),
        MESSAGES[message],
        named(u, v, e),
        _full_shape(message, u, v, e),
    )
    walk.forward("none", edge_out=out)
    return out


@operator("edge_softmax", lambda scores: scores.new_empty(scores.shape))
def edge_softmax(
    scores: Tensor, ends: Tensor, edges: Sequence[Tensor | None], num_src: int
) -> Tensor:
    """Compute the softmax of scores [num_edges, *heads] over the edges of each destination.

    Args:
        ends: source and destination of each edge [2, num_edges], in any order.
        edges: the fields of a :class:`models.structure.Structure` of the same edges, sorted by destination at least.
    """
    order = Structure(*edges).by_destination
    sizes = order[0].size(0) - 1, num_src
    largest, sums = (
        scores.new_empty((sizes[0], *scores.shape[1:]), dtype=torch.float32) for _ in range(2)
    )
    _by_destination(None, None, scores, edges, num_src, "copy_e").forward("max", out=largest)
    operands = {"e": scores, "v": largest}
    walk = Walk(("v", "u"), sizes, order, _EXP, operands, scores.shape[1:])
    walk.forward("sum", out=sums)
    return _apply_unsorted(_EXP, operands, ends, 1 / sums)


@operator("edge_softmax_backward", lambda out: out.new_empty(out.shape))
def edge_softmax_backward(
    grad: Tensor, out: Tensor, ends: Tensor, edges: Sequence[Tensor | None], num_src: int
) -> Tensor:
    """Compute the gradient of :func:`edge_softmax` from that of its result."""
    order = Structure(*edges).by_destination
    sums = out.new_empty((order[0].size(0) - 1, *out.shape[1:]), dtype=torch.float32)
    operands = {"e": out, "g": grad}
    walk = Walk(("v", "u"), (sums.size(0), num_src), order, _PRODUCT, operands, out.shape[1:])
    walk.forward("sum", out=sums)
    return _apply_unsorted(_PRODUCT, operands, ends, sums)


def _apply_unsorted(message, operands, ends, second):
    scores = operands["e"]
    out = torch.empty_like(scores, memory_format=torch.contiguous_format)
    walk = Walk(
        ("v", "u"),
        (second.size(0), torch.iinfo(torch.int64).max),
        (None, *ends),
        message,
        operands,
        scores.shape[1:],
    )
    walk.forward("none", edge_out=out, second=second)
    return out


def allocate_gradients(u, v, e, needed):
    """Return empty tensors for what :func:`backward` computes."""
    like = next(tensor for tensor in (u, v, e) if tensor is not None)
    return tuple(
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        if name in needed
        else like.new_empty((0,))
        for name, tensor in zip("uve", (u, v, e))
    )


@operator("messages_backward", allocate_gradients)
def backward(
    grad: Tensor,
    out: Tensor | None,
    stat: Tensor | None,
    stat2: Tensor | None,
    u: Tensor | None,
    v: Tensor | None,
    e: Tensor | None,
    edges: Sequence[Tensor | None],
    num_src: int,
    message: str,
    reduce: str,
    needed: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`update_all`, or of :func:`apply_edges` if `reduce` is "none".

    Args:
        grad: gradient of the result, [num_dst, *trailing] in float32, or [num_edges, *trailing].
        out: the first result of :func:`update_all`; the next two are its others. Max, min and prod need them.
        needed: names of the operands whose gradients are needed, such as "ue".

    Returns:
        One gradient for each of u, v and e, with its shape and dtype; one that is not needed has no elements.
    """
    operands, shape, parsed = named(u, v, e), _full_shape(message, u, v, e), MESSAGES[message]
    of = "e" if reduce == "none" else "v"
    grad, second = find_factors(grad, out, stat, stat2, reduce)
    sides = {name: side + 1 for side, name in enumerate(parsed.names) if name in needed}
    grads = allocate_gradients(u, v, e, needed)
    full = {
        name: grad.new_empty((operands[name].size(0), *shape), dtype=torch.float32)
        for name in "uv"
        if name in needed
    }
    edge = dict(edge_side=sides["e"], edge_out=grads[2]) if "e" in needed else {}
    # Numbers of heads are summed while the walk by source has the rows of both ends. Whole rows of edges are cheaper by
    # destination, and leave a plain sum to the walk by source.
    by_source = (
        edge if "u" in needed and e is not None and e.shape[1:].numel() < shape.numel() else {}
    )
    by_destination = {} if by_source else edge
    if "u" in needed:
        structure = Structure(*edges)
        walk = Walk(
            ("u", "v"),
            (num_src, structure.indptr.size(0) - 1),
            structure.by_source,
            parsed,
            operands,
            shape,
        )
        walk.backward(reduce, grad, second, of=of, row_side=sides["u"], out=full["u"], **by_source)
    if "v" in needed:
        by_destination = by_destination | dict(row_side=sides["v"], out=full["v"])
    if by_destination:
        walk = _by_destination(u, v, e, edges, num_src, message)
        walk.backward(reduce, grad, second, of=of, **by_destination)
    u_and_v = (
        sum_to(full[name], operands[name]) if name in full else empty
        for name, empty in zip("uv", grads)
    )
    return *u_and_v, grads[2]


def find_factors(grad, out, stat, stat2, reduce):
    """Compute what backward reads of each row: the factors of its messages' gradients."""
    if reduce == "prod":
        one_zero, whole = grad * stat2, grad * out
        return whole, torch.where(stat == 1, one_zero, whole)
    return (grad / stat, out) if reduce in ("max", "min") else (grad, None)


def sum_to(gradient: Tensor, operand: Tensor) -> Tensor:
    """Sum a gradient [num_nodes, *shape] over the dimensions in which the operand was broadcast."""
    return gradient.sum_to_size(align(operand, gradient.dim() - 1).shape).reshape(operand.shape)


def named(u, v, e) -> dict[str, Tensor]:
    """Return the operands that there are, by name."""
    return {name: tensor for name, tensor in (("u", u), ("v", v), ("e", e)) if tensor is not None}


def _full_shape(message, u, v, e) -> torch.Size:
    """Return the shape of an edge's message before ``dot`` sums it."""
    return torch.broadcast_shapes(*(tensor.shape[1:] for tensor in named(u, v, e).values()))


def _message_shape(message, u, v, e) -> tuple[int, ...]:
    shape = _full_shape(message, u, v, e)
    return (*shape[:-1], 1) if MESSAGES[message].operation == "dot" else tuple(shape)


def _by_destination(u, v, e, edges, num_src, message) -> Walk:
    order = Structure(*edges).by_destination
    return Walk(
        ("v", "u"),
        (order[0].size(0) - 1, num_src),
        order,
        MESSAGES[message],
        named(u, v, e),
        _full_shape(message, u, v, e),
    )


def _set_up_rows(ctx, inputs, output):
    *operands, edges, ctx.num_src, ctx.message, ctx.reduce, save = inputs
    assert save, "backward needs what forward saves for it"
    out, stat, stat2 = output
    ctx.mark_non_differentiable(stat, stat2)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(out if ctx.reduce in _NUM_STATS else None, stat, stat2, *operands, *edges)


def _set_up_edges(ctx, inputs, output):
    u, v, e, _, edges, ctx.num_src, _, ctx.message, _ = inputs
    ctx.reduce = "none"
    ctx.save_for_backward(None, None, None, u, v, e, *edges)


def _differentiate(ctx, grad):
    """Compute the gradients of u, v and e, or none for those that need none."""
    if grad is None:
        return None, None, None
    needed = "".join(name for name, need in zip("uve", ctx.needs_input_grad) if need)
    if torch.is_grad_enabled():
        return _differentiate_twice(ctx, grad, needed)
    tensors = ctx.saved_tensors
    grads = backward(
        grad, *tensors[:6], Structure(*tensors[6:]), ctx.num_src, ctx.message, ctx.reduce, needed
    )
    return [gradient if name in needed else None for name, gradient in zip("uve", grads)]


def _differentiate_twice(ctx, grad, needed):
    """Compute gradients that have gradients themselves, in plain torch with the message of every edge."""
    notice.warn(
        "messages: the reference computes gradients of gradients, with tensors of edges x channels"
    )
    _, _, _, u, v, e, indptr, src, position, *_ = ctx.saved_tensors
    operands = named(u, v, e)
    dst = torch.arange(indptr.numel() - 1, device=src.device).repeat_interleave(
        indptr.diff().long()
    )
    rows = {"u": src, "v": dst, "e": position}
    num_dims = max(operand.dim() - 1 for operand in operands.values())
    values = [align(operands[name], num_dims).float() for name in MESSAGES[ctx.message].names]
    values = [
        value if rows[name] is None else value.index_select(0, rows[name])
        for name, value in zip(MESSAGES[ctx.message].names, values)
    ]
    out = reference.combine(MESSAGES[ctx.message].operation, *values)
    if ctx.reduce != "none":
        out = reference.reduce_messages(out, dst, indptr.numel() - 1, ctx.reduce)
    elif position is not None:
        grad = grad.index_select(0, position)
    grads = torch.autograd.grad(
        out, [operands[name] for name in needed], grad.to(out.dtype), create_graph=True
    )
    found = dict(zip(needed, grads))
    return [found.get(name) for name in "uve"]


update_all.register_autograd(
    lambda ctx, grad, _, __: (*_differentiate(ctx, grad), *(None,) * 5), setup_context=_set_up_rows
)
apply_edges.register_autograd(
    lambda ctx, grad: (*_differentiate(ctx, grad), *(None,) * 6), setup_context=_set_up_edges
)


def _set_up_softmax(ctx, inputs, output):
    scores, ends, edges, ctx.num_src = inputs
    ctx.save_for_backward(scores, output, ends, *edges)


def _differentiate_softmax(ctx, grad):
    scores, out, ends, *edges = ctx.saved_tensors
    if not torch.is_grad_enabled():
        return edge_softmax_backward(grad, out, ends, Structure(*edges), ctx.num_src), *(None,) * 3
    out = reference.softmax(scores.float(), ends[1], edges[0].numel() - 1)
    return torch.autograd.grad(out, scores, grad.float(), create_graph=True)[0], *(None,) * 3


edge_softmax.register_autograd(_differentiate_softmax, setup_context=_set_up_softmax)

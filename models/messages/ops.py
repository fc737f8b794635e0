"""The fused operators of messages as torch custom operators: forward and backward."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from parallel_epochs.models import notice
from parallel_epochs.models.kernels.operator import differentiate_again, operator
from parallel_epochs.models.messages import reference
from parallel_epochs.models.messages.cpu import EdgeWalk
from parallel_epochs.models.messages.inputs import MESSAGES, Message, align
from parallel_epochs.models.structure import Structure

# Numbers of each row that backward needs: ties; the number of zeros, and the product of the others.
_NUM_STATS = {"max": 1, "min": 1, "prod": 2}
# Messages of softmax and of its gradient.
_EXP, _PRODUCT = Message("e", "exp", "v"), Message("e", "mul", "g")


class MessageCall(NamedTuple):
    """The arguments of :func:`update_all` and :func:`apply_edges`.

    Attributes:
        u: values of the source nodes [num_src, *trailing], float32.
        v: values of the destination nodes [num_dst, *trailing], float32.
        e: values of the edges [num_edges, *trailing], float32 or 16 bits.
        edges: the fields of a :class:`models.structure.Structure`; positions are rows in `e`. Only the gradient of `u`
            needs the order by source, and :func:`apply_edges` needs none without gradients.
        num_src: number of source nodes.
        message: one of `MESSAGES`; of :func:`update_all` no ``dot``.
        reduce: "sum", "max", "min" or "prod"; of :func:`apply_edges` "none".
    """

    u: Tensor | None
    v: Tensor | None
    e: Tensor | None
    edges: Sequence[Tensor | None]
    num_src: int
    message: str
    reduce: str

    @property
    def operands(self) -> dict[str, Tensor]:
        """The operands that there are, by name."""
        return {
            name: tensor for name, tensor in zip("uve", self[:3], strict=True) if tensor is not None
        }

    @property
    def full_shape(self) -> torch.Size:
        """The shape of an edge's message before ``dot`` sums it."""
        return torch.broadcast_shapes(*(tensor.shape[1:] for tensor in self.operands.values()))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an edge's message."""
        shape = self.full_shape
        return (*shape[:-1], 1) if MESSAGES[self.message].operation == "dot" else tuple(shape)

    def walk(self, by: str, order: tuple, *, num_dst: int | None = None) -> EdgeWalk:
        """Make a walk over edges whose rows are destinations ("v") or sources ("u")."""
        num_dst = self.edges[0].size(0) - 1 if num_dst is None else num_dst
        names, sizes = ("v", "u"), (num_dst, self.num_src)
        if by == "u":
            names, sizes = names[::-1], sizes[::-1]
        message = MESSAGES[self.message]
        return EdgeWalk(names, sizes, order, message, self.operands, self.full_shape)


def allocate_rows(call: MessageCall, save: bool):
    """Return empty tensors for what :func:`update_all` computes."""
    indptr = call.edges[0]
    shape = (indptr.size(0) - 1, *call.shape)
    num_stats = _NUM_STATS.get(call.reduce, 0) if save else 0
    shapes = (shape, *(shape if i < num_stats else (0,) for i in range(2)))
    return tuple(indptr.new_empty(shape, dtype=torch.float32) for shape in shapes)


@operator("update_all", allocate_rows)
def update_all(call: MessageCall, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Reduce messages by destination.

    Args:
        save: whether backward will follow.

    Returns:
        out [num_dst, *trailing], float32, and two tensors of the same shape for backward. These are for max and min the
        number of ties, for prod the number of zeros and the product of all others. A tensor that is not needed has no
        elements.
    """
    out, stat, stat2 = allocate_rows(call, save)
    walk = call.walk("v", Structure(*call.edges).by_destination)
    walk.forward(call.reduce, out=out, stat=stat, stat2=stat2)
    return out, stat, stat2


def _allocate_edges(call, ends, dtype):
    return ends.new_empty((ends.size(1), *call.shape), dtype=dtype)


@operator("apply_edges", _allocate_edges)
def apply_edges(call: MessageCall, ends: Tensor, num_dst: int, dtype: torch.dtype) -> Tensor:
    """Compute the message of every edge.

    Args:
        ends: source and destination of each edge [2, num_edges], in any order.
        dtype: of the result; float32, bfloat16 or float16.

    Returns:
        [num_edges, *trailing], in the order of `ends`.
    """
    out = _allocate_edges(call, ends, dtype)
    call.walk("v", (None, *ends), num_dst=num_dst).forward("none", edge_out=out)
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
    call = MessageCall(None, None, scores, edges, num_src, "copy_e", "max")
    largest, _, _ = allocate_rows(call, False)
    call.walk("v", Structure(*edges).by_destination).forward("max", out=largest)
    return _scale_edges(_EXP, {"e": scores, "v": largest}, ends, edges, num_src, torch.reciprocal)


@operator("edge_softmax_backward", lambda out: out.new_empty(out.shape))
def edge_softmax_backward(
    grad: Tensor, out: Tensor, ends: Tensor, edges: Sequence[Tensor | None], num_src: int
) -> Tensor:
    """Compute the gradient of :func:`edge_softmax` from that of its result."""
    return _scale_edges(_PRODUCT, {"e": out, "g": grad}, ends, edges, num_src, lambda sums: sums)


def _scale_edges(message, operands, ends, edges, num_src, scale) -> Tensor:
    """Compute messages of edges from what `scale` makes of their sums at the destinations."""
    scores, order = operands["e"], Structure(*edges).by_destination
    shape, num_dst = scores.shape[1:], order[0].size(0) - 1
    sums = scores.new_empty((num_dst, *shape), dtype=torch.float32)
    walk = EdgeWalk(("v", "u"), (num_dst, num_src), order, message, operands, shape)
    walk.forward("sum", out=sums)
    out = torch.empty_like(scores, memory_format=torch.contiguous_format)
    sizes = num_dst, torch.iinfo(torch.int64).max
    walk = EdgeWalk(("v", "u"), sizes, (None, *ends), message, operands, shape)
    walk.forward("none", edge_out=out, second=scale(sums))
    return out


def allocate_gradients(call: MessageCall, needed: str):
    """Return empty tensors for what :func:`backward` computes."""
    like = next(iter(call.operands.values()))
    return tuple(
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        if name in needed
        else like.new_empty((0,))
        for name, tensor in zip("uve", call[:3], strict=True)
    )


class MessageResults(NamedTuple):
    """The arguments of :func:`backward` in addition to the call.

    Attributes:
        grad: gradient of the result, [num_dst, *trailing] in float32, or [num_edges, *trailing].
        out, stat, stat2: the results of :func:`update_all`; max, min and prod need them.
    """

    grad: Tensor
    out: Tensor | None
    stat: Tensor | None
    stat2: Tensor | None


@operator("messages_backward", allocate_gradients)
def backward(
    results: MessageResults, call: MessageCall, needed: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`update_all`, or of :func:`apply_edges` if `reduce` is "none".

    Args:
        needed: names of the operands whose gradients are needed, such as "ue".

    Returns:
        One gradient for each of u, v and e, with its shape and dtype; one that is not needed has no elements.
    """
    reduce, structure, shape = call.reduce, Structure(*call.edges), call.full_shape
    of = "e" if reduce == "none" else "v"
    grad, second = find_factors(results, reduce)
    sides, grads, full = prepare_gradients(call, needed, grad)
    edge = dict(edge_side=sides["e"], edge_out=grads[2]) if "e" in needed else {}
    # Numbers of heads are summed while the walk by source has the rows of both ends. Whole rows of edges are cheaper by
    # destination, and leave a plain sum to the walk by source.
    by_source = (
        edge
        if "u" in needed and call.e is not None and call.e.shape[1:].numel() < shape.numel()
        else {}
    )
    by_destination = {} if by_source else edge
    if "u" in needed:
        walk = call.walk("u", structure.by_source)
        walk.backward(reduce, grad, second, of=of, row_side=sides["u"], out=full["u"], **by_source)
    if "v" in needed:
        by_destination = by_destination | dict(row_side=sides["v"], out=full["v"])
    if by_destination:
        walk = call.walk("v", structure.by_destination)
        walk.backward(reduce, grad, second, of=of, **by_destination)
    return sum_gradients(call, grads, full)


def find_factors(results: MessageResults, reduce: str) -> tuple[Tensor, Tensor | None]:
    """Compute what backward reads of each row: the factors of its messages' gradients."""
    grad, out, stat, stat2 = results
    if reduce == "prod":
        one_zero, whole = grad * stat2, grad * out
        return whole, torch.where(stat == 1, one_zero, whole)
    return (grad / stat, out) if reduce in ("max", "min") else (grad, None)


def prepare_gradients(call: MessageCall, needed: str, grad: Tensor):
    """Return the side of the message on which each needed operand stands, 1 or 2; the tensors for the results; and those
    for the gradients of nodes [num_nodes, *full_shape], by name.
    """
    names, shape, operands = MESSAGES[call.message].names, call.full_shape, call.operands
    sides = {name: side + 1 for side, name in enumerate(names) if name in needed}
    full = {
        name: grad.new_empty((operands[name].size(0), *shape), dtype=torch.float32)
        for name in "uv"
        if name in needed
    }
    return sides, allocate_gradients(call, needed), full


def sum_gradients(call: MessageCall, grads, full) -> tuple[Tensor, Tensor, Tensor]:
    """Sum the gradients of nodes over the dimensions in which the operands were broadcast."""
    u, v, e = grads
    found = []
    for operand, name, empty in zip(call[:2], "uv", (u, v), strict=True):
        if name in full:
            shape = align(operand, full[name].dim() - 1).shape
            empty = full[name].sum_to_size(shape).reshape(operand.shape)
        found.append(empty)
    return *found, e


def _keep_rows(output, call, save):
    assert save, "backward needs what forward saves for it"
    out, stat, stat2 = output
    return (out if call.reduce in _NUM_STATS else None, stat, stat2), (stat, stat2)


def _differentiate(needed, gradients, kept, call, *_):
    """Compute the gradients of u, v and e."""
    grad, names = gradients[0], "".join(name for name in "uve" if name in needed)
    if torch.is_grad_enabled():
        return _differentiate_twice(needed, grad, call)
    results = MessageResults(grad, *(kept or (None, None, None)))
    return dict(zip("uve", backward(results, call, names), strict=True))


def _differentiate_twice(needed, grad, call):
    """Compute gradients that have gradients themselves, in plain torch with the message of every edge."""
    notice.warn(
        "messages: the reference computes gradients of gradients, with tensors of edges x channels"
    )
    indptr, src, position, *_ = call.edges
    num_dst, message = indptr.numel() - 1, MESSAGES[call.message]
    dst = torch.arange(num_dst, device=src.device).repeat_interleave(indptr.diff().long())
    rows = {"u": src, "v": dst, "e": position}
    num_dims = max(operand.dim() - 1 for operand in call.operands.values())
    values = []
    for name in message.names:
        value = align(call.operands[name], num_dims).float()
        values.append(value if rows[name] is None else value.index_select(0, rows[name]))
    out = reference.combine(message.operation, *values)
    if call.reduce != "none":
        out = reference.reduce_messages(out, dst, num_dst, call.reduce)
    elif position is not None:
        grad = grad.index_select(0, position)
    return differentiate_again(needed, out, call.operands, grad.to(out.dtype))


update_all.register_autograd(_differentiate, _keep_rows)
apply_edges.register_autograd(_differentiate, lambda output, *_: ((), ()))


def _differentiate_softmax(needed, gradients, kept, scores, ends, edges, num_src):
    (grad,), (out,) = gradients, kept
    if not torch.is_grad_enabled():
        return {"scores": edge_softmax_backward(grad, out, ends, edges, num_src)}
    out = reference.softmax(scores.float(), ends[1], edges[0].numel() - 1)
    return differentiate_again(needed, out, {"scores": scores}, grad.float())


edge_softmax.register_autograd(_differentiate_softmax, lambda output, *_: ((output,), ()))

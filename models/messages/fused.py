"""The fused operators, which compute what the reference does: they find the sorted edges and call the kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.models.kernels.choose import Fused
from parallel_epochs.models.kernels.sorting import check_ends
from parallel_epochs.models.messages import cpu, ops
from parallel_epochs.models.messages.inputs import Call, align
from parallel_epochs.models.messages.operations import KERNELS
from parallel_epochs.models.structure import find_structure

KERNEL = Fused("messages", cpu, "gpu_messages")
# Most channels that share a number of an edge, of whose gradient a GPU program computes the sum.
_MAX_GROUP = 1024


def why_not_fused(call: Call, function: str = "update_all", reduce: str = "sum") -> str:
    """Return the reason why the kernels cannot compute a call, or an empty text."""
    for name, operand in call.operands.items():
        if operand.dtype not in cpu.DTYPES:
            return f"{name} has dtype {operand.dtype}, but the kernel computes in float32"
    if call.message.operation not in (*KERNELS, "dot"):
        return f"there is no kernel of {call.name}"
    return (
        why_no_gpu_kernel(call, function, reduce) if call.edge_index.device.type == "cuda" else ""
    )


def why_no_gpu_kernel(call: Call, function: str, reduce: str) -> str:
    """Return the reason why a call that the CPU's kernels take has no kernel on a GPU, or an empty text."""
    if function != "update_all":
        return f"there is no GPU kernel of {function}"
    if reduce == "prod" or call.message.operation == "dot" and reduce in ("max", "min"):
        return f"there is no GPU kernel of {call.name} with {reduce}"
    e, shape = (
        call.get("e"),
        torch.broadcast_shapes(*(operand.shape[1:] for operand in call.operands.values())),
    )
    if e is None or not e.requires_grad or e.shape[1:].numel() in (0, shape.numel()):
        return ""
    trailing = align(e, len(shape)).shape[1:]
    num_heads = next((i for i, size in enumerate(trailing) if size != shape[i]), len(shape))
    if trailing[num_heads:].numel() != 1 or shape[num_heads:].numel() > _MAX_GROUP:
        return f"there is no GPU kernel for the gradient of edge values {list(e.shape)} in messages of {list(shape)}"
    return ""


def update_all(call: Call, reduce: str) -> Tensor:
    """Compute :func:`models.messages.update_all`."""
    if call.message.operation == "dot":
        return _reduce_dots(call, reduce)
    structure, num_src = _find_structure(call)
    save = _needs_gradient(call)
    share = None
    if reduce == "mean":
        reduce = "sum"
        share = (
            structure[0]
            .diff()
            .clamp(min=1)
            .to(torch.float32)
            .reciprocal()
            .reshape(-1, *(1,) * len(call.trailing))
        )
        if call.message.operation == "copy":  # the walk multiplies its sums on the way
            name = call.message.left
            call, share = (
                call._replace(name=f"{name}_mul_v", operands=call.operands | {"v": share}),
                None,
            )
    out, _, _ = ops.update_all(_describe(call, structure, num_src, reduce), save)
    return (out if share is None else out * share).to(call.dtype)


def apply_edges(call: Call) -> Tensor:
    """Compute :func:`models.messages.apply_edges`."""
    edge_index = call.edge_index
    structure: Sequence[Tensor | None] = (None,) * 6
    num_src, num_dst = (_bound(count) for count in (call.num_src, call.num_dst))
    if _needs_gradient(call):
        structure, num_src = _find_structure(call)
        num_dst = structure[0].numel() - 1
    ends = plain_edges(edge_index)
    try:
        given = _describe(call, structure, num_src, "none")
        return ops.apply_edges(given, ends, num_dst, call.dtype)
    except IndexError:
        check_ends(ends, call.num_src, call.num_dst)
        raise


def edge_softmax(call: Call) -> Tensor:
    """Compute :func:`models.messages.edge_softmax` of a call of ``copy_e``."""
    structure, num_src = _find_structure(call)
    return ops.edge_softmax(call.operands["e"], plain_edges(call.edge_index), structure, num_src)


def _reduce_dots(call: Call, reduce: str) -> Tensor:
    if reduce in ("sum", "mean"):  # the sums over edges and over the last dimension change places
        product = call._replace(name=call.name.replace("dot", "mul"), dtype=torch.float32)
        return update_all(product, reduce).sum(-1, keepdim=True).to(call.dtype)
    dots = apply_edges(call._replace(dtype=torch.float32))
    copy = Call(
        call.edge_index,
        "copy_e",
        {"e": dots},
        call.num_src,
        call.num_dst,
        call.trailing,
        call.dtype,
    )
    return update_all(copy, reduce)


def _needs_gradient(call: Call) -> bool:
    return torch.is_grad_enabled() and any(
        operand.requires_grad for operand in call.operands.values()
    )


def _find_structure(call: Call):
    """Sort the edges by destination, and by source if a gradient needs that; also count the source nodes."""
    u, edge_index = call.get("u"), call.edge_index
    num_src, num_dst = (
        _count(edge_index, row, count) for row, count in enumerate((call.num_src, call.num_dst))
    )
    by_source = u is not None and u.requires_grad and torch.is_grad_enabled()
    return find_structure(edge_index, num_src, num_dst, by_source=by_source), num_src


def _count(edge_index: Tensor, row: int, count: int | None) -> int:
    """Return a number of nodes, or the least that the edges need where nobody has told it."""
    return (
        count if count is not None else int(edge_index[row].max()) + 1 if edge_index.numel() else 0
    )


def _bound(count: int | None) -> int:
    return torch.iinfo(torch.int64).max if count is None else count


def _describe(call: Call, edges: Sequence[Tensor | None], num_src: int, reduce: str):
    """Return what the operators take. Nodes are cast to float32; the kernel reads 16 bits of edges as they are."""
    u, v, e = (call.get(name) for name in "uve")
    u, v = (None if nodes is None else nodes.float() for nodes in (u, v))
    return ops.MessageCall(u, v, e, edges, num_src, call.name, reduce)

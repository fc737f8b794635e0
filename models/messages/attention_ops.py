"""The fused attention as torch custom operators, forward and backward, with the calls of the compiled C++ code."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from parallel_epochs.models import notice
from parallel_epochs.models.kernels.layout import fill, read_structure
from parallel_epochs.models.kernels.native import NativeLibrary
from parallel_epochs.models.kernels.operator import differentiate_again, operator
from parallel_epochs.models.messages.attention_reference import (
    DIFFERENTIABLE,
    AttentionCall,
    attend,
)
from parallel_epochs.models.messages.scores import SCORES
from parallel_epochs.models.structure import Structure

AttentionProblem = read_structure(Path(__file__).with_name("attention.h"), "AttentionProblem")
LIBRARY = NativeLibrary(
    "fused attention",
    Path(__file__).with_name("attention_cpu.cpp"),
    otherwise="the reference attention runs instead",
)


def needs_sources(score: str, message: Tensor, attr: Tensor | None) -> bool:
    """Return whether backward reads the edges sorted by source: on a GPU, and where the score says so."""
    return message.is_cuda or SCORES[score].by_source[attr is not None and attr.size(1) > 0]


def allocate_outputs(call: AttentionCall, return_weights: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty tensors for what :func:`forward` computes."""
    num_dst, heads = call.target.size(0), call.message.size(1)
    shapes = (
        (num_dst, *call.message.shape[1:]),
        (num_dst, heads),
        (call.num_positions if return_weights else 0, heads),
    )
    out, lse, weights = (call.message.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return out, lse, weights


@operator("attention", allocate_outputs)
def forward(call: AttentionCall, return_weights: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Attend by destination.

    All floating-point tensors are float32. The GPU kernel reads 16 bits, too, but for `weight` and `att`. There is
    always a `target`, and backward reads the order by source if :func:`needs_sources`.

    Args:
        return_weights: whether the weights are computed.

    Returns:
        The output [num_dst, heads, channels], log2 of the sum of exponentials [num_dst, heads], and the weights
        [num_positions, heads], which have no elements if they were not asked for.
    """
    out, lse, weights = allocate_outputs(call, return_weights)
    written = dict(out=out, lse=lse, weights=weights.zero_() if return_weights else None)
    order = Structure(*call.edges).by_destination
    _run(LIBRARY.get().attention_forward, call, order, **written)
    return out, lse, weights


def allocate_gradients(call: AttentionCall, need_attr: bool) -> list[Tensor]:
    """Return tensors for what :func:`backward` computes."""
    grads = []
    for name in DIFFERENTIABLE:
        tensor, is_attr = getattr(call, name), name.endswith("attr")
        if tensor is None or is_attr and not need_attr:
            grads.append(call.message.new_empty(0))
        else:  # of removed edges, which are not visited, the gradient is 0
            grads.append((tensor.new_zeros if is_attr else tensor.new_empty)(tensor.shape))
    return grads


@operator("attention_backward", allocate_gradients)
def backward(
    grad: Tensor, out: Tensor, lse: Tensor, call: AttentionCall, need_attr: bool
) -> list[Tensor]:
    """Compute the gradients of :func:`forward`.

    Args:
        grad: gradient of `out` [num_dst, heads, channels].
        out: what :func:`forward` returned first.
        lse: what :func:`forward` returned second.
        need_attr: whether `attr` and `loop_attr` have gradients.

    Returns:
        One gradient for each of `DIFFERENTIABLE`, with its shape; one that does not exist or is not needed has no
        elements.
    """
    grads = allocate_gradients(call, need_attr)
    written = {
        f"grad_{name}": value
        for name, value in zip(DIFFERENTIABLE, grads, strict=True)
        if getattr(call, name) is not None and (need_attr or not name.endswith("attr"))
    }
    structure = Structure(*call.edges)
    by_source = needs_sources(call.score, call.message, call.attr)
    order = structure.by_source if by_source else structure.by_destination
    given = dict(gradient=grad, out=out, lse=lse)
    _run(LIBRARY.get().attention_backward, call, order, **given, **written)
    return grads


def _run(function, call: AttentionCall, order: tuple, **arrays: Tensor | None) -> None:
    attr, (num_src, heads, channels) = call.attr, call.message.shape
    ends = dict(zip(("ptr", "other", "position"), order, strict=True))
    problem = fill(
        AttentionProblem,
        call._asdict() | ends | arrays,
        num_dst=call.target.size(0),
        num_src=num_src,
        num_listed=0 if attr is None else attr.size(0),
        heads=heads,
        channels=channels,
        edge_dim=0 if attr is None else attr.size(1),
        score=list(SCORES).index(call.score),
        seed=int(call.seed),
    )
    status = function(ctypes.byref(problem))
    if status == 2:
        raise MemoryError(
            f"attention from {problem.num_src:,} to {problem.num_dst:,} nodes with {heads} heads "
            f"of {channels:,} channels does not fit into memory"
        )
    if status:
        raise IndexError(
            f"an edge has an end that is not in the graph, which has {problem.num_src:,} and "
            f"{problem.num_dst:,} nodes and {call.num_positions:,} edges"
        )


def _keep(output, call, return_weights):
    assert call.edges[3] is not None or not needs_sources(call.score, call.message, call.attr), (
        "edges by source are missing"
    )
    return output[:2], output[1:2] if return_weights else output[1:]


def _differentiate(needed, gradients, kept, call, return_weights):
    grad, _, grad_weights = gradients
    if grad_weights is None and not torch.is_grad_enabled():
        grads = backward(grad, *kept, call, bool(needed & {"attr", "loop_attr"}))
        return dict(zip(DIFFERENTIABLE, grads, strict=True))
    # Gradients of the weights, or gradients that have gradients themselves, in plain torch.
    notice.warn(
        "attention: the reference computes gradients of attention weights and gradients of gradients, with "
        "tensors of edges x channels"
    )
    indptr, src, position, *_ = call.edges
    num_dst = call.target.size(0)
    dst = torch.arange(num_dst, device=src.device).repeat_interleave(indptr.diff().long())
    order = torch.arange(dst.numel(), device=src.device) if position is None else position
    with torch.enable_grad():
        inputs = call.change(
            lambda tensor: tensor.view_as(tensor)
        )  # one may be computed from another
        wide = inputs.change(Tensor.float)
        results = attend(wide, src[: dst.numel()], dst, order[: dst.numel()], num_dst)
        given = [
            (result, value)
            for result, value in zip(results, (grad, grad_weights), strict=True)
            if value is not None
        ]
        outputs, gradients = zip(*given, strict=True)
        return differentiate_again(needed, outputs, inputs._asdict(), gradients)


forward.register_autograd(_differentiate, _keep)

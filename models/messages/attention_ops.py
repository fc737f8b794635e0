"""The fused attention as torch custom operators, forward and backward, with the calls of the compiled C++ code."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from parallel_epochs.models import notice
from parallel_epochs.models.kernels.layout import fill, read_structure
from parallel_epochs.models.kernels.native import NativeLibrary
from parallel_epochs.models.kernels.operator import differentiate_again, operator
from parallel_epochs.models.messages.attention_reference import attend
from parallel_epochs.models.messages.scores import SCORES
from parallel_epochs.models.structure import Structure

# Those of forward's arguments that have gradients: message, source, target, attr, loop_attr, weight and att.
_DIFFERENTIABLE = (0, 1, 2, 4, 5, 6, 7)


AttentionProblem = read_structure(Path(__file__).with_name("attention.h"), "AttentionProblem")
LIBRARY = NativeLibrary(
    "fused attention",
    Path(__file__).with_name("attention_cpu.cpp"),
    otherwise="the reference attention runs instead",
)


def needs_sources(score: str, message: Tensor, attr: Tensor | None) -> bool:
    """Return whether backward reads the edges sorted by source: on a GPU, and where the score says so."""
    return message.is_cuda or SCORES[score].by_source[attr is not None and attr.size(1) > 0]


def allocate_outputs(
    message: Tensor, target: Tensor, num_positions: int, return_weights: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty tensors for what :func:`forward` computes."""
    num_dst, heads = target.size(0), message.size(1)
    shapes = (
        (num_dst, *message.shape[1:]),
        (num_dst, heads),
        (num_positions if return_weights else 0, heads),
    )
    out, lse, weights = (message.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return out, lse, weights


@operator("attention", allocate_outputs)
def forward(
    message: Tensor,
    source: Tensor | None,
    target: Tensor,
    edges: Sequence[Tensor | None],
    attr: Tensor | None,
    loop_attr: Tensor | None,
    weight: Tensor | None,
    att: Tensor | None,
    seed: Tensor,
    score: str,
    slope: float,
    dropout: float,
    edge_dropout: float,
    num_positions: int,
    return_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend by destination.

    All floating-point tensors are float32. The GPU kernel reads 16 bits, too, but for `weight` and `att`.

    Args:
        message: [num_src, heads, channels].
        source: [num_src, heads, channels] for "dot", [num_src, heads] for "gat".
        target: [num_dst, heads, channels], for "gat" [num_dst, heads].
        edges: the fields of a :class:`models.structure.Structure`. Backward reads the order by source if
            :func:`needs_sources`.
        attr: edge features of the first positions [num_edges, edge_dim].
        loop_attr: edge features of the others [num_loops, edge_dim].
        weight: linear encoder of the edge features [heads * channels, edge_dim], for "gat" [heads, edge_dim].
        att: [heads, channels], for "gatv2".
        seed: one int64.
        score: one of `SCORES`.
        slope: negative slope of the leaky ReLU.
        dropout: probability in [0, 1].
        edge_dropout: probability in [0, 1].
        num_positions: number of edges in the caller's order.
        return_weights: whether the weights are computed.

    Returns:
        The output [num_dst, heads, channels], log2 of the sum of exponentials [num_dst, heads], and the weights
        [num_positions, heads], which have no elements if they were not asked for.
    """
    out, lse, weights = allocate_outputs(message, target, num_positions, return_weights)
    _call(
        LIBRARY.get().attention_forward,
        message,
        source,
        target,
        Structure(*edges).by_destination,
        attr,
        loop_attr,
        weight,
        att,
        seed,
        score,
        slope,
        dropout,
        edge_dropout,
        num_positions,
        out=out,
        lse=lse,
        weights=weights.zero_() if return_weights else None,
    )
    return out, lse, weights


def allocate_gradients(
    message, source, target, attr, loop_attr, weight, att, need_attr
) -> list[Tensor]:
    """Return tensors for what :func:`backward` computes."""
    given = (
        message,
        source,
        target,
        attr if need_attr else None,
        loop_attr if need_attr else None,
        weight,
        att,
    )
    return [
        message.new_empty(0)
        if tensor is None
        # Removed edges are not visited.
        else tensor.new_zeros(tensor.shape)
        if tensor is attr or tensor is loop_attr
        else tensor.new_empty(tensor.shape)
        for tensor in given
    ]


@operator("attention_backward", allocate_gradients)
def backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    message: Tensor,
    source: Tensor | None,
    target: Tensor,
    edges: Sequence[Tensor | None],
    attr: Tensor | None,
    loop_attr: Tensor | None,
    weight: Tensor | None,
    att: Tensor | None,
    seed: Tensor,
    score: str,
    slope: float,
    dropout: float,
    edge_dropout: float,
    num_positions: int,
    need_attr: bool,
) -> list[Tensor]:
    """Compute the gradients of :func:`forward`.

    Args:
        grad: gradient of `out` [num_dst, heads, channels].
        out: what :func:`forward` returned first.
        lse: what :func:`forward` returned second.
        need_attr: whether `attr` and `loop_attr` have gradients.

    Returns:
        One gradient each for message, source, target, attr, loop_attr, weight and att, with its shape; one that does
        not exist or is not needed has no elements.
    """
    grads = allocate_gradients(message, source, target, attr, loop_attr, weight, att, need_attr)
    names = "message", "source", "target", "attr", "loop_attr", "weight", "att"
    given = (
        message,
        source,
        target,
        attr if need_attr else None,
        loop_attr if need_attr else None,
        weight,
        att,
    )
    written = {
        f"grad_{name}": value
        for name, value, tensor in zip(names, grads, given, strict=True)
        if tensor is not None
    }
    structure = Structure(*edges)
    order = structure.by_source if needs_sources(score, message, attr) else structure.by_destination
    _call(
        LIBRARY.get().attention_backward,
        message,
        source,
        target,
        order,
        attr,
        loop_attr,
        weight,
        att,
        seed,
        score,
        slope,
        dropout,
        edge_dropout,
        num_positions,
        gradient=grad,
        out=out,
        lse=lse,
        **written,
    )
    return grads


def _call(
    function,
    message,
    source,
    target,
    order,
    attr,
    loop_attr,
    weight,
    att,
    seed,
    score,
    slope,
    dropout,
    edge_dropout,
    num_positions,
    **arrays,
) -> None:
    ptr, other, position = order
    problem = fill(
        AttentionProblem,
        dict(
            message=message,
            source=source,
            target=target,
            ptr=ptr,
            other=other,
            position=position,
            attr=attr,
            loop_attr=loop_attr,
            weight=weight,
            att=att,
            **arrays,
        ),
        num_dst=target.size(0),
        num_src=message.size(0),
        num_positions=num_positions,
        num_listed=0 if attr is None else attr.size(0),
        heads=message.size(1),
        channels=message.size(2),
        edge_dim=0 if attr is None else attr.size(1),
        score=list(SCORES).index(score),
        seed=int(seed),
        slope=slope,
        dropout=dropout,
        edge_dropout=edge_dropout,
    )
    status = function(ctypes.byref(problem))
    if status == 2:
        raise MemoryError(
            f"attention from {problem.num_src:,} to {problem.num_dst:,} nodes with {problem.heads} heads "
            f"of {problem.channels:,} channels does not fit into memory"
        )
    if status:
        raise IndexError(
            f"an edge has an end that is not in the graph, which has {problem.num_src:,} and "
            f"{problem.num_dst:,} nodes and {num_positions:,} edges"
        )


def _setup_context(ctx, inputs, output):
    *nodes, edges, attr, loop_attr, weight, att, seed, ctx.score = inputs[:10]
    *ctx.numbers, return_weights = inputs[10:]
    assert edges[3] is not None or not needs_sources(ctx.score, nodes[0], attr), (
        "edges by source are missing"
    )
    out, lse, weights = output
    ctx.mark_non_differentiable(*((lse,) if return_weights else (lse, weights)))
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(out, lse, *nodes, attr, loop_attr, weight, att, seed, *edges)


def _backward(ctx, grad, _, grad_weights):
    grads = [None] * 15
    if grad is not None or grad_weights is not None:
        by_reference = torch.is_grad_enabled() or grad_weights is not None
        differentiate = _differentiate_by_reference if by_reference else _differentiate
        for i, value in zip(_DIFFERENTIABLE, differentiate(ctx, grad, grad_weights), strict=True):
            grads[i] = value
    return tuple(grads)


def _differentiate(ctx, grad, _):
    need_attr = ctx.needs_input_grad[4] or ctx.needs_input_grad[5]
    saved = ctx.saved_tensors  # checkpointing gives them once
    grads = backward(
        grad, *saved[:5], Structure(*saved[10:]), *saved[5:10], ctx.score, *ctx.numbers, need_attr
    )
    return [
        value if ctx.needs_input_grad[i] else None
        for i, value in zip(_DIFFERENTIABLE, grads, strict=True)
    ]


def _differentiate_by_reference(ctx, grad, grad_weights):
    """Compute gradients of the weights, or gradients that have gradients themselves, in plain torch."""
    notice.warn(
        "attention: the reference computes gradients of attention weights and gradients of gradients, with "
        "tensors of edges x channels"
    )
    _, _, message, source, target, attr, loop_attr, weight, att, seed, indptr, src, position, *_ = (
        ctx.saved_tensors
    )
    slope, dropout, edge_dropout, num_positions = ctx.numbers
    dst = torch.arange(target.size(0), device=src.device).repeat_interleave(indptr.diff().long())
    src = src[: dst.numel()]
    position = (
        torch.arange(dst.numel(), device=src.device)
        if position is None
        else position[: dst.numel()]
    )
    with torch.enable_grad():
        # Views, as one input may have been computed from another.
        inputs = [
            None if tensor is None else tensor.view_as(tensor)
            for tensor in (message, source, target, attr, loop_attr, weight, att)
        ]
        wide = [None if tensor is None else tensor.float() for tensor in inputs]
        results = attend(
            src,
            dst,
            position,
            *wide,
            seed,
            score=ctx.score,
            slope=slope,
            dropout=dropout,
            edge_dropout=edge_dropout,
            num_dst=target.size(0),
            num_positions=num_positions,
        )
        given = [
            (result, value)
            for result, value in zip(results, (grad, grad_weights), strict=True)
            if value is not None
        ]
        return differentiate_again(
            ctx,
            _DIFFERENTIABLE,
            [result for result, _ in given],
            inputs,
            [value for _, value in given],
        )


forward.register_autograd(_backward, setup_context=_setup_context)

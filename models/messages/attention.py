"""Attention along edges as one operator: scores, softmax over the edges of a destination, dropout and weighted sum."""

import functools
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from parallel_epochs.models.edge_index import check_edges
from parallel_epochs.models.kernels.choose import Fused
from parallel_epochs.models.messages import attention_ops, attention_reference
from parallel_epochs.models.messages.attention_reference import DIFFERENTIABLE, AttentionCall
from parallel_epochs.models.messages.scores import SCORES
from parallel_epochs.models.structure import find_structure, find_structure_with_loops

KERNEL = Fused("attention", attention_ops, "gpu_attention")
# Largest numbers of channels of a head and of edge features that the GPU kernel holds in its registers.
MAX_CHANNELS, MAX_EDGE_DIM = 512, 64


def attention(
    message: Float[Tensor, "num_src heads channels"],
    source: Float[Tensor, "num_src heads *channels"] | None,
    target: Float[Tensor, "num_dst heads *channels"] | None,
    edge_index: Int[Tensor, "2 num_edges"],
    edge_attr: Float[Tensor, "num_edges edge_dim"] | None = None,
    weight: Float[Tensor, "rows edge_dim"] | None = None,
    att: Float[Tensor, "heads channels"] | None = None,
    *,
    score: str,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    edge_dropout: float = 0.0,
    seed: Int[Tensor, " one"] | None = None,
    num_dst: int | None = None,
    num_loops: int | None = None,
    loop_attr: Float[Tensor, "num_loops edge_dim"] | None = None,
    return_weights: bool = False,
    kernel: str = "auto",
) -> Float[Tensor, "num_dst heads channels"] | tuple[Tensor, Float[Tensor, "num_positions heads"]]:
    """Sum the messages at every destination with weights that are the softmax of scores, separately for each head.

    The score of the edge from j to i is for "gatv2" ``att . leaky_relu(message_j + target_i + weight e)``, for "gat"
    ``leaky_relu(source_j + target_i + weight e)``, and for "dot" ``target_i . (source_j + weight e) / sqrt(channels)``.
    For "dot", ``weight e`` is added to the message, too. The encoded edge features are never written to memory.

    Dropout is a function of (seed, edge, head), edge dropout of (seed, edge). Both are computed again in backward, and
    the reference drops what the kernel drops.

    Args:
        message: [num_src, heads, channels], floating point.
        source: [num_src, heads, channels] for "dot", [num_src, heads] for "gat", none for "gatv2".
        target: [num_dst, heads, channels], or [num_dst, heads] or none for "gat".
        edge_index: [2, num_edges], a tensor or an ``EdgeIndex``.
        edge_attr: features of the edges [num_edges, edge_dim].
        weight: their linear encoder [heads * channels, edge_dim], for "gat" [heads, edge_dim].
        att: [heads, channels], for "gatv2".
        score: one of `SCORES`.
        negative_slope: of the leaky ReLU.
        dropout: probability that the weight of an edge and head is dropped, after the softmax.
        edge_dropout: probability that an edge is removed for all heads, before the softmax.
        seed: decides what is dropped. None: drawn from torch's random state, if anything is dropped.
        num_dst: number of destinations. None: the rows of `target`, or `num_src`.
        num_loops: replaces the self-loops among the edges by one of each of the first nodes. None: leaves them.
        loop_attr: edge features of these self-loops [num_loops, edge_dim].
        return_weights: whether to return the weights, too; for "gat" and "gatv2" after dropout, for "dot" before it.
        kernel: "fused", "reference" or "auto", see :func:`models.aggregate.aggregate`.

    Returns:
        [num_dst, heads, channels], 0 for a destination without edges. With `return_weights` also the weights
        [num_edges + num_loops, heads], in the order of `edge_index`, then of the new self-loops; 0 for removed edges.

    Raises:
        ValueError: unknown `score` or `kernel`, shapes that do not match, or ``kernel="fused"`` where it cannot run.
        IndexError: an edge has an end that is not in the graph.
    """
    if num_dst is None:
        num_dst = message.size(0) if target is None else target.size(0)
    if edge_attr is None or weight is None or edge_attr.size(1) == 0:
        edge_attr = weight = loop_attr = None
    if seed is None:
        drops = dropout or edge_dropout
        place = message.device  # of whose random state a CUDA graph draws anew in each replay
        seed = (
            torch.randint(2**62, (1,), device=place)
            if drops
            else torch.zeros(1, dtype=torch.int64, device=place)
        )
    call = AttentionCall(
        message=message,
        source=source,
        target=target,
        edges=(),
        attr=edge_attr,
        loop_attr=loop_attr,
        weight=weight,
        att=att,
        seed=seed.to(message.device),
        score=score,
        slope=float(negative_slope),
        dropout=float(dropout),
        edge_dropout=float(edge_dropout),
        num_positions=edge_index.size(1) + (num_loops or 0),
    )
    _check(call, edge_index, num_dst, num_loops)
    dtype = functools.reduce(
        torch.promote_types,
        (tensor.dtype for tensor in (message, source, target, att) if tensor is not None),
    )
    reason = KERNEL.why_reference(kernel, message.device.type, lambda: _why_not_fused(call))
    call = call.change(partial(_widen, call=call, is_reference=bool(reason)))
    if reason:
        out, weights = attention_reference.attention(call, edge_index, num_dst, num_loops)
    else:
        out, weights = attend_fused(call, edge_index, num_dst, num_loops, return_weights)
    return (out.to(dtype), weights.to(dtype)) if return_weights else out.to(dtype)


def attend_fused(
    call: AttentionCall, edge_index: Tensor, num_dst: int, num_loops: int | None, returns: bool
) -> tuple[Tensor, Tensor]:
    """Compute :func:`attention_reference.attention` without a tensor of edges x channels: sort the edges, and call the
    kernel. The weights have no elements unless they are returned.
    """
    message = call.message
    tensors = (getattr(call, name) for name in DIFFERENTIABLE)
    by_source = (
        attention_ops.needs_sources(call.score, message, call.attr)
        and torch.is_grad_enabled()
        and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    )
    if num_loops is None:
        edges = find_structure(edge_index, message.size(0), num_dst, by_source=by_source)
    else:
        edges = find_structure_with_loops(edge_index, message.size(0), num_dst, num_loops)
    target = call.target
    if target is None:
        target = message.new_zeros((num_dst, message.size(1)))
    out, _, weights = attention_ops.forward(call._replace(target=target, edges=edges), returns)
    return out, weights


def _widen(tensor: Tensor, call: AttentionCall, is_reference: bool) -> Tensor:
    """Cast 16 bits to float32, except for what the GPU kernel reads as it is: nodes and edge features of one dtype."""
    if tensor.dtype.itemsize != 2:
        return tensor
    kept: tuple = ()
    if tensor.is_cuda and not is_reference:
        kept = (call.message, call.source, call.target)
        if call.loop_attr is None or call.loop_attr.dtype == call.attr.dtype:
            kept += (call.attr, call.loop_attr)
    return tensor if any(tensor is other for other in kept) else tensor.float()


def _check(call: AttentionCall, edge_index: Tensor, num_dst: int, num_loops: int | None) -> None:
    score, message = call.score, call.message
    if score not in SCORES:
        raise ValueError(f"score={score} is unknown; choose one of {', '.join(SCORES)}")
    for name in ("dropout", "edge_dropout"):
        if not 0 <= getattr(call, name) <= 1:
            raise ValueError(f"{name} must be in [0, 1], not {getattr(call, name):g}")
    if message.dim() != 3 or not message.is_floating_point():
        raise ValueError(
            f"message is {message.dtype} of shape {tuple(message.shape)}, but must be floating point "
            "[num_src, heads, channels]"
        )
    check_edges(edge_index)
    num_src, heads, channels = message.shape
    kind = SCORES[score]
    vector = (heads,) if kind.by_head else (heads, channels)
    edge_dim = None if call.weight is None else call.weight.size(-1)
    rows = heads if kind.by_head else heads * channels
    has_loops = call.attr is not None and bool(num_loops)
    for name, tensor, expected, needed in (
        (
            "source",
            call.source,
            (num_src, *vector) if kind.reads_source else None,
            kind.reads_source,
        ),
        ("target", call.target, (num_dst, *vector), kind.needs_target),
        ("att", call.att, (heads, channels) if kind.reads_att else None, kind.reads_att),
        ("weight", call.weight, (rows, edge_dim), False),
        ("edge_attr", call.attr, (edge_index.size(1), edge_dim), False),
        ("loop_attr", call.loop_attr, (num_loops, edge_dim), has_loops),
    ):
        if tensor is None and not needed:
            continue
        if tensor is None or expected is None or tensor.shape != expected:
            found = "is missing" if tensor is None else f"has shape {tuple(tensor.shape)}"
            must = "left out" if expected is None else f"{list(expected)}"
            raise ValueError(
                f"{name} {found}, but must be {must} for score={score} and message {list(message.shape)}"
            )
        if tensor.device != message.device or edge_index.device != message.device:
            raise ValueError(
                f"tensors are on '{tensor.device}', '{edge_index.device}' and '{message.device}': move "
                "them to one device"
            )


def _why_not_fused(call: AttentionCall) -> str:
    device, channels = call.message.device.type, call.message.size(-1)
    edge_dim = 0 if call.attr is None else call.attr.size(1)
    if device not in SCORES[call.score].kernels and device in ("cpu", "cuda"):
        return f"there is no kernel of score={call.score} on '{device}'"
    for name in DIFFERENTIABLE:
        tensor = getattr(call, name)
        if tensor is not None and tensor.dtype == torch.float64:
            return "a tensor has dtype torch.float64, but the kernel computes in float32"
    if device == "cuda" and channels > MAX_CHANNELS:
        return f"a head has {channels} channels, and the GPU kernel takes up to {MAX_CHANNELS}"
    if device == "cuda" and edge_dim > MAX_EDGE_DIM:
        return f"edge_attr has {edge_dim} features, and the GPU kernel encodes up to {MAX_EDGE_DIM}"
    return ""

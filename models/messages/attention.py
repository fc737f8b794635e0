"""Attention along edges as one operator: scores, softmax over the edges of a destination, dropout and weighted sum."""

import functools

import torch
from jaxtyping import Float, Int
from torch import Tensor

from parallel_epochs.models.kernels.choose import Fused
from parallel_epochs.models.messages import attention_fused, attention_ops, attention_reference
from parallel_epochs.models.messages.scores import SCORES

KERNEL = Fused("attention", attention_ops, "gpu_attention")


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
    tensors = message, source, target, edge_attr, loop_attr, weight, att
    _check(*tensors, edge_index, score, num_dst, num_loops)
    for name, share in (("dropout", dropout), ("edge_dropout", edge_dropout)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} must be in [0, 1], not {share}")
    if seed is None:
        drops = dropout or edge_dropout
        place = message.device  # of whose random state a CUDA graph draws anew in each replay
        seed = (
            torch.randint(2**62, (1,), device=place)
            if drops
            else torch.zeros(1, dtype=torch.int64, device=place)
        )
    dtype = functools.reduce(
        torch.promote_types,
        (tensor.dtype for tensor in (message, source, target, att) if tensor is not None),
    )
    reason = _why_reference(tensors, kernel, score)
    run = attention_reference.attention if reason else attention_fused.attention
    message, source, target, edge_attr, loop_attr, weight, att = _widen(*tensors, reason)
    out, weights = run(
        message,
        source,
        target,
        edge_index,
        edge_attr,
        loop_attr,
        weight,
        att,
        seed.to(message.device),
        score=score,
        slope=negative_slope,
        dropout=dropout,
        edge_dropout=edge_dropout,
        num_dst=num_dst,
        num_loops=num_loops,
        **({} if reason else {"return_weights": return_weights}),
    )
    return (out.to(dtype), weights.to(dtype)) if return_weights else out.to(dtype)


def _widen(message, source, target, edge_attr, loop_attr, weight, att, reason):
    """Cast 16 bits to float32, except for what the GPU kernel reads as it is: nodes and edge features of one dtype."""
    tensors = message, source, target, edge_attr, loop_attr, weight, att
    kept = (
        ()
        if reason or not message.is_cuda
        else (message, source, target)
        + (
            (edge_attr, loop_attr)
            if loop_attr is None or loop_attr.dtype == edge_attr.dtype
            else ()
        )
    )
    return [
        tensor.float()
        if tensor is not None
        and tensor.dtype.itemsize == 2
        and not any(tensor is other for other in kept)
        else tensor
        for tensor in tensors
    ]


def _check(
    message,
    source,
    target,
    edge_attr,
    loop_attr,
    weight,
    att,
    edge_index,
    score,
    num_dst,
    num_loops,
) -> None:
    if score not in SCORES:
        raise ValueError(f"score={score} is unknown; choose one of {', '.join(SCORES)}")
    if message.dim() != 3 or not message.is_floating_point():
        raise ValueError(
            f"message is {message.dtype} of shape {tuple(message.shape)}, but must be floating point "
            "[num_src, heads, channels]"
        )
    if (
        edge_index.dim() != 2
        or edge_index.size(0) != 2
        or edge_index.dtype not in (torch.int32, torch.int64)
    ):
        raise ValueError(
            f"edge_index is {edge_index.dtype} of shape {tuple(edge_index.shape)}, but must be int32 or "
            f"int64 [2, num_edges]"
        )
    num_src, heads, channels = message.shape
    kind = SCORES[score]
    vector = (heads,) if kind.by_head else (heads, channels)
    edge_dim = None if weight is None else weight.size(-1)
    rows = heads if kind.by_head else heads * channels
    for name, tensor, expected, needed in (
        ("source", source, (num_src, *vector) if kind.reads_source else None, kind.reads_source),
        ("target", target, (num_dst, *vector), kind.needs_target),
        ("att", att, (heads, channels) if kind.reads_att else None, kind.reads_att),
        ("weight", weight, (rows, edge_dim), False),
        ("edge_attr", edge_attr, (edge_index.size(1), edge_dim), False),
        ("loop_attr", loop_attr, (num_loops, edge_dim), edge_attr is not None and bool(num_loops)),
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


def _why_reference(tensors, kernel: str, score: str) -> str:
    """Return the reason why the reference runs, or an empty text if the fused kernel runs."""
    return KERNEL.why_reference(
        kernel, tensors[0].device.type, lambda: _why_not_fused(score, *tensors)
    )


def _why_not_fused(score, message, *others) -> str:
    if message.device.type not in SCORES[score].kernels and message.device.type in ("cpu", "cuda"):
        return f"there is no kernel of score={score} on '{message.device.type}'"
    for tensor in (message, *others):
        if tensor is not None and tensor.dtype == torch.float64:
            return "a tensor has dtype torch.float64, but the kernel computes in float32"
    edge_attr = others[2] if others else None
    return (
        attention_fused.why_too_wide(
            message.size(-1), 0 if edge_attr is None else edge_attr.size(1)
        )
        if message.is_cuda
        else ""
    )

"""The fused attention, which computes what the reference does: it finds the sorted edges and calls the kernel."""

import torch
from torch import Tensor

from parallel_epochs.models.messages import attention_ops as ops
from parallel_epochs.models.structure import find_structure, find_structure_with_loops

# Largest numbers of channels of a head and of edge features that the GPU kernel holds in its registers.
_MAX_CHANNELS, _MAX_EDGE_DIM = 512, 64


def why_too_wide(channels: int, edge_dim: int) -> str:
    """Return the reason why the GPU kernel cannot take heads of this width or so many edge features, or nothing."""
    if channels > _MAX_CHANNELS:
        return f"a head has {channels} channels, and the GPU kernel takes up to {_MAX_CHANNELS}"
    if edge_dim > _MAX_EDGE_DIM:
        return (
            f"edge_attr has {edge_dim} features, and the GPU kernel encodes up to {_MAX_EDGE_DIM}"
        )
    return ""


def attention(
    message: Tensor,
    source: Tensor | None,
    target: Tensor | None,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    loop_attr: Tensor | None,
    weight: Tensor | None,
    att: Tensor | None,
    seed: Tensor,
    *,
    score: str,
    slope: float,
    dropout: float,
    edge_dropout: float,
    num_dst: int,
    num_loops: int | None,
    return_weights: bool,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`models.messages.attention_reference.attention` without a tensor of edges x channels."""
    num_src = message.size(0)
    by_source = (
        ops.needs_sources(score, message, edge_attr)
        and torch.is_grad_enabled()
        and any(
            tensor is not None and tensor.requires_grad
            for tensor in (message, source, target, edge_attr, loop_attr, weight, att)
        )
    )
    if num_loops is None:
        structure = find_structure(edge_index, num_src, num_dst, by_source=by_source)
    else:
        structure = find_structure_with_loops(edge_index, num_src, num_dst, num_loops)
    if target is None:
        target = message.new_zeros((num_dst, message.size(1)))
    out, _, weights = ops.forward(
        message,
        source,
        target,
        structure,
        edge_attr,
        loop_attr,
        weight,
        att,
        seed,
        score,
        float(slope),
        float(dropout),
        float(edge_dropout),
        edge_index.size(1) + (num_loops or 0),
        return_weights,
    )
    return out, weights

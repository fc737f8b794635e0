"""The fused attention, which computes what the reference does: it finds the sorted edges and calls the kernel."""

import torch
from torch import Tensor

from parallel_epochs.models.messages import attention_ops as ops
from parallel_epochs.models.structure import find_structure, find_structure_with_loops


@torch.compiler.assume_constant_result
def why_no_kernel(device: str) -> str:
    """Return the reason why the kernel cannot run on a device, or an empty text."""
    return ops.LIBRARY.missing() if device == "cpu" else f"tensors are on '{device}', but the kernel runs on 'cpu' only"


@torch.compiler.assume_constant_result
def name_kernel(device: str) -> str:
    """Name the kernel of a device, as "fused-cpu (avx512)"."""
    return f"fused-{device} ({ops.get_simd()})"


def attention(message: Tensor, source: Tensor | None, target: Tensor | None, edge_index: Tensor,
              edge_attr: Tensor | None, loop_attr: Tensor | None, weight: Tensor | None, att: Tensor | None,
              seed: Tensor, *, score: str, slope: float, dropout: float, edge_dropout: float, num_dst: int,
              num_loops: int | None, return_weights: bool) -> tuple[Tensor, Tensor]:
    """Compute :func:`models.messages.attention_reference.attention` without a tensor of edges x channels."""
    num_src = message.size(0)
    # Backward of the other scores reads the edges by destination.
    by_source = score == "gat" and torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad
        for tensor in (message, source, target, edge_attr, loop_attr, weight, att))
    if num_loops is None:
        structure = find_structure(edge_index, num_src, num_dst, by_source=by_source)
    else:
        structure = find_structure_with_loops(edge_index, num_src, num_dst, num_loops)
    if target is None:
        target = message.new_zeros((num_dst, message.size(1)))
    out, _, weights = ops.forward(
        message, source, target, *structure, edge_attr, loop_attr, weight,
        att, seed, score, float(slope), float(dropout), float(edge_dropout), edge_index.size(1) + (num_loops or 0),
        return_weights)
    return out, weights

"""Sums of gated messages on the CPU, as :class:`models.convs.gated_conv.ResGatedGraphConv` needs them."""

import ctypes
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from parallel_epochs.models.kernels.layout import fill, read_structure
from parallel_epochs.models.kernels.native import NativeLibrary

# As in gated.h.
MAX_EDGE_DIM, NUM_CHUNKS = 32, 64


GatedProblem = read_structure(Path(__file__).with_name("gated.h"), "GatedProblem")
LIBRARY = NativeLibrary("gated sums", Path(__file__).with_name("gated.cpp"), otherwise="they run in plain torch")


def sum_gated(key: Float[Tensor, "num_dst channels"], query: Float[Tensor, "num_src channels"],
              value: Float[Tensor, "num_src channels"], attr: Float[Tensor, "num_edges edge_dim"] | None,
              of_gate: Float[Tensor, "channels edge_dim"] | None, of_value: Float[Tensor, "channels edge_dim"] | None,
              structure: tuple) -> Float[Tensor, "num_dst channels"]:
    """Compute ``sum_j sigmoid(key_i + query_j + of_gate e_ij) * (value_j + of_value e_ij)``.

    Args:
        structure: a :class:`models.structure.Structure`, with the order by source if backward follows.

    Raises:
        IndexError: an edge has an end that is not in the graph.
    """
    weight = None if of_gate is None or of_value is None else torch.cat([of_gate, of_value]).t()
    return _SumGated.apply(key, torch.cat([query, value], dim=1), attr, weight, structure)


class _SumGated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, key, pair, attr, weight, structure):
        given = [None if tensor is None else tensor.detach().float().contiguous()
                 for tensor in (key, pair, attr, weight)]
        out = torch.empty_like(given[0])
        _call("gated_forward", given, structure.by_destination, given[0].size(0), given[1].size(0), out=out)
        ctx.save_for_backward(*given)
        ctx.structure, ctx.dtypes = structure, [None if tensor is None else tensor.dtype for tensor in (
            key, pair, attr, weight)]
        return out.to(key.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        given = ctx.saved_tensors
        key, pair, attr, weight = given
        grad_attr = torch.zeros_like(attr) if attr is not None and ctx.needs_input_grad[2] else None
        parts = None if weight is None else weight.new_zeros(NUM_CHUNKS, *weight.shape)
        grads = [torch.empty_like(key), torch.empty_like(pair), grad_attr, parts]
        gradient = gradient.float().contiguous()
        _call("gated_backward_by_destination", given, ctx.structure.by_destination, key.size(0), pair.size(0),
              gradient=gradient, grad_key=grads[0], grad_attr=grad_attr, grad_weight=parts)
        _call("gated_backward_by_source", given, ctx.structure.by_source, pair.size(0), key.size(0), gradient=gradient,
              grad_pair=grads[1])
        if parts is not None:
            grads[3] = parts.sum(0)
        return *(None if grad is None else grad.to(dtype) for grad, dtype in zip(grads, ctx.dtypes, strict=True)), None


def _call(name: str, given, order, num_rows: int, num_others: int, **outputs) -> None:
    """Run a pass over edges that are sorted by row: pointers, nodes at the other ends, and positions."""
    key, pair, attr, weight = given
    order = dict(zip(("ptr", "other", "position"), order, strict=True))
    problem = fill(
        GatedProblem, dict(key=key, pair=pair, attr=attr, weight=weight, **order, **outputs), num_rows=num_rows,
        num_others=num_others, num_edges=order["other"].numel(), channels=key.size(1),
        edge_dim=0 if attr is None else attr.size(1))
    if getattr(LIBRARY.get(), name)(ctypes.byref(problem)):
        raise IndexError("edge_index names a node that is not in the graph, or an EdgeIndex was changed after it was "
                         "sorted: make a new EdgeIndex of the right edges")

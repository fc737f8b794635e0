"""Sums of gated messages, as :class:`models.convs.gated_conv.ResGatedGraphConv` needs them."""

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
LIBRARY = NativeLibrary(
    "gated sums", Path(__file__).with_name("gated.cpp"), otherwise="they run in plain torch"
)


def sum_gated(
    key: Float[Tensor, "num_dst channels"],
    query: Float[Tensor, "num_src channels"],
    value: Float[Tensor, "num_src channels"],
    attr: Float[Tensor, "num_edges edge_dim"] | None,
    of_gate: Float[Tensor, "channels edge_dim"] | None,
    of_value: Float[Tensor, "channels edge_dim"] | None,
    structure: tuple,
) -> Float[Tensor, "num_dst channels"]:
    """Compute ``sum_j sigmoid(key_i + query_j + of_gate e_ij) * (value_j + of_value e_ij)``.

    Args:
        structure: a :class:`models.structure.Structure`, with the order by source if backward follows.

    Raises:
        IndexError: an edge has an end that is not in the graph.
    """
    weight = None if of_gate is None or of_value is None else torch.cat([of_gate, of_value])
    return _SumGated.apply(key, torch.cat([query, value], dim=1), attr, weight, structure)


class _SumGated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, key, pair, attr, weight, structure):
        given = [
            None if tensor is None else tensor.detach().float().contiguous()
            for tensor in (key, pair, attr, weight)
        ]
        out = torch.empty_like(given[0])
        _run("forward", given, structure.by_destination, pair.size(0), out)
        ctx.save_for_backward(*given)
        ctx.structure, ctx.dtypes = (
            structure,
            [None if tensor is None else tensor.dtype for tensor in (key, pair, attr, weight)],
        )
        return out.to(key.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        given = ctx.saved_tensors
        key, pair, attr, _ = given
        gradient = gradient.float().contiguous()
        grads = [
            torch.empty_like(key),
            torch.empty_like(pair),
            torch.zeros_like(attr) if attr is not None and ctx.needs_input_grad[2] else None,
        ]
        structure = ctx.structure
        grads.append(
            _run(
                "destination",
                given,
                structure.by_destination,
                pair.size(0),
                grads[0],
                gradient,
                grads[2],
            )
        )
        _run("source", given, structure.by_source, key.size(0), grads[1], gradient)
        return *(
            None if grad is None else grad.to(dtype)
            for grad, dtype in zip(grads, ctx.dtypes, strict=True)
        ), None


def _run(
    name: str,
    given,
    order,
    num_others: int,
    written: Tensor,
    gradient: Tensor | None = None,
    grad_attr: Tensor | None = None,
) -> Tensor | None:
    """Run a pass over edges that are sorted by row.

    Args:
        name: "forward", "destination" or "source".
        given: keys [num_dst, channels], queries and values [num_src, 2 * channels], edge features or none, and their
            weights for gates and values [2 * channels, edge_dim] or none.
        order: pointers, nodes at the other ends, and positions.
        num_others: number of nodes at the other ends.
        written: the sums, or the gradient of the keys, or that of the queries and values; written.
        gradient: gradient of the sums.
        grad_attr: gradient of the edge features, which are zeros; written in the pass "destination".

    Returns:
        The gradient of the weights in the pass "destination", otherwise none.
    """
    key, pair, attr, weight = given
    parts = None
    if weight is not None:
        weight = weight.t().contiguous()
        parts = weight.new_zeros(NUM_CHUNKS if name == "destination" else 0, *weight.shape)
    order = dict(zip(("ptr", "other", "position"), order, strict=True))
    function, field = {
        "forward": ("gated_forward", "out"),
        "destination": ("gated_backward_by_destination", "grad_key"),
        "source": ("gated_backward_by_source", "grad_pair"),
    }[name]
    problem = fill(
        GatedProblem,
        dict(
            key=key,
            pair=pair,
            attr=attr,
            weight=weight,
            **order,
            gradient=gradient,
            grad_attr=grad_attr,
            grad_weight=parts,
            **{field: written},
        ),
        num_rows=written.size(0),
        num_others=num_others,
        num_edges=order["other"].numel(),
        channels=key.size(1),
        edge_dim=0 if attr is None else attr.size(1),
    )
    if getattr(LIBRARY.get(), function)(ctypes.byref(problem)):
        raise IndexError(
            "edge_index names a node that is not in the graph, or an EdgeIndex was changed after it was "
            "sorted: make a new EdgeIndex of the right edges"
        )
    return None if parts is None else parts.sum(0).t()

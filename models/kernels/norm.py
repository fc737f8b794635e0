"""LayerNorm, ReLU and dropout of float32 rows on the CPU as one torch custom operator."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from parallel_epochs.models.kernels.layout import fill, read_structure
from parallel_epochs.models.kernels.native import NativeLibrary
from parallel_epochs.models.kernels.operator import differentiate_again, operator

NormProblem = read_structure(Path(__file__).with_name("norm.h"), "NormProblem")
LIBRARY = NativeLibrary(
    "fused norm",
    Path(__file__).with_name("norm.cpp"),
    otherwise="torch's own norm, relu and dropout run instead",
)


def _call(function, x, seed, eps, dropout, **tensors) -> None:
    function(
        ctypes.byref(
            fill(
                NormProblem,
                {"x": x, **tensors},
                num_rows=x.size(0),
                channels=x.size(1),
                seed=int(seed),
                eps=eps,
                dropout=dropout,
            )
        )
    )


def allocate_outputs(x):
    """Allocate the three results of :func:`forward`."""
    return x.new_empty(x.shape), x.new_empty(x.size(0)), x.new_empty(x.size(0))


@operator("norm_relu_dropout", allocate_outputs)
def forward(
    x: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, eps: float, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``dropout(relu(layer_norm(x)))``.

    Args:
        x: [num_rows, channels], float32.
        weight: [channels], float32.
        bias: [channels], float32.
        seed: one int64; it decides which elements are dropped.
        eps: added to each row's variance.
        dropout: probability that an element is dropped; 0 drops none.

    Returns:
        The result [num_rows, channels], each row's mean [num_rows], and 1 / its standard deviation [num_rows].
    """
    out, mean, scale = allocate_outputs(x)
    _call(
        LIBRARY.get().norm_forward,
        x,
        seed,
        eps,
        dropout,
        weight=weight,
        bias=bias,
        out=out,
        mean=mean,
        scale=scale,
    )
    return out, mean, scale


def _allocate_gradients(x, weight):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape)


@operator("norm_relu_dropout_backward", _allocate_gradients)
def backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor,
    eps: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`forward` for x, weight and bias from the gradient `grad` of its result."""
    grads = _allocate_gradients(x, weight)
    names = "grad_x", "grad_weight", "grad_bias"
    _call(
        LIBRARY.get().norm_backward,
        x,
        seed,
        eps,
        dropout,
        weight=weight,
        bias=bias,
        mean=mean,
        scale=scale,
        gradient=grad,
        **dict(zip(names, grads, strict=True)),
    )
    return grads


def _setup_context(ctx, inputs, output):
    x, weight, bias, seed, ctx.eps, ctx.dropout = inputs
    _, mean, scale = output
    ctx.mark_non_differentiable(mean, scale)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, mean, scale, weight, bias, seed)


def _backward(ctx, grad, _, __):
    if grad is None:
        return (None,) * 6
    if torch.is_grad_enabled():
        return *_differentiate_twice(ctx, grad), None, None, None
    return *backward(grad, *ctx.saved_tensors, ctx.eps, ctx.dropout), None, None, None


def _differentiate_twice(ctx, grad):
    """Compute gradients that have gradients themselves, in plain torch."""
    x, _, _, weight, bias, seed = ctx.saved_tensors
    # The dropout factor of each element, which depends only on the seed.
    ones, zeros = torch.ones_like(bias), torch.zeros_like(weight)
    kept = forward(torch.zeros_like(x), zeros, ones, seed, ctx.eps, ctx.dropout)[0]
    out = torch.nn.functional.layer_norm(x, weight.shape, weight, bias, ctx.eps).relu() * kept
    return differentiate_again(ctx, range(3), out, (x, weight, bias), grad)


forward.register_autograd(_backward, setup_context=_setup_context)

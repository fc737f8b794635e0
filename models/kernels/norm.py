"""LayerNorm, ReLU and dropout of float32 rows on the CPU as one torch custom operator."""

import ctypes
from pathlib import Path
from typing import NamedTuple

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


class NormCall(NamedTuple):
    """The arguments of :func:`forward`.

    Attributes:
        x: [num_rows, channels], float32.
        weight: [channels], float32.
        bias: [channels], float32.
        seed: one int64; it decides which elements are dropped.
        eps: added to each row's variance.
        dropout: probability that an element is dropped; 0 drops none.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor
    seed: Tensor
    eps: float
    dropout: float


def _run(function, call: NormCall, **tensors) -> None:
    num_rows, channels = call.x.shape
    values = call._asdict() | tensors
    sizes = dict(num_rows=num_rows, channels=channels, seed=int(call.seed))
    function(ctypes.byref(fill(NormProblem, values, **sizes)))


def allocate_outputs(call):
    """Allocate the three results of :func:`forward`."""
    x = call.x
    return x.new_empty(x.shape), x.new_empty(x.size(0)), x.new_empty(x.size(0))


@operator("norm_relu_dropout", allocate_outputs)
def forward(call: NormCall) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``dropout(relu(layer_norm(x)))``.

    Returns:
        The result [num_rows, channels], each row's mean [num_rows], and 1 / its standard deviation [num_rows].
    """
    out, mean, scale = allocate_outputs(call)
    _run(LIBRARY.get().norm_forward, call, out=out, mean=mean, scale=scale)
    return out, mean, scale


def _allocate_gradients(call):
    return tuple(tensor.new_empty(tensor.shape) for tensor in call[:3])


@operator("norm_relu_dropout_backward", _allocate_gradients)
def backward(
    grad: Tensor, mean: Tensor, scale: Tensor, call: NormCall
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`forward` for x, weight and bias from the gradient `grad` of its result."""
    grads = _allocate_gradients(call)
    named = dict(zip(("grad_x", "grad_weight", "grad_bias"), grads, strict=True))
    _run(LIBRARY.get().norm_backward, call, gradient=grad, mean=mean, scale=scale, **named)
    return grads


def _differentiate(needed, gradients, kept, call):
    grad = gradients[0]
    if not torch.is_grad_enabled():
        return dict(zip(NormCall._fields, backward(grad, *kept, call)))
    # Gradients that have gradients themselves, in plain torch. The dropout factor of each element depends only on the
    # seed.
    x, weight, bias, _, eps, _ = call
    zeros, ones = torch.zeros_like(weight), torch.ones_like(bias)
    factor = forward(call._replace(x=torch.zeros_like(x), weight=zeros, bias=ones))[0]
    out = torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps).relu() * factor
    return differentiate_again(needed, out, call._asdict(), grad)


forward.register_autograd(_differentiate, lambda output, call: (output[1:], output[1:]))

"""Products of each row's heads with the matrices of all relations, on the CPU."""

import ctypes
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from parallel_epochs.models.kernels.layout import fill, read_structure
from parallel_epochs.models.kernels.native import NativeLibrary
from parallel_epochs.models.kernels.operator import is_transformed

NUM_CHUNKS = 32  # as in head_products.cpp


HeadProblem = read_structure(Path(__file__).with_name("head_products.cpp"), "HeadProblem")
LIBRARY = NativeLibrary(
    "head products",
    Path(__file__).with_name("head_products.cpp"),
    otherwise="torch multiplies instead",
)


def can_multiply(x: Tensor, weight: Tensor) -> bool:
    """Tell whether :func:`multiply_heads` takes these tensors here: float32 on a CPU, in eager mode."""
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not is_transformed()
        and not torch.is_autocast_enabled("cpu")
        and LIBRARY.get() is not None
    )


def multiply_heads(
    x: Float[Tensor, "num_rows channels"], weight: Float[Tensor, "relations heads width width"]
) -> Float[Tensor, "num_pairs channels"]:
    """Multiply each head of each row by the head's matrix of each relation.

    Args:
        x: [num_rows, heads * width], float32.
        weight: [relations, heads, width, width], float32.

    Returns:
        [num_rows * relations, heads * width]; row ``i * relations + r`` is that of row i and relation r.
    """
    return _MultiplyHeads.apply(x, weight)


class _MultiplyHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        x, weight = x if x.stride(1) == 1 else x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight)
        out = x.new_empty(x.size(0) * weight.size(0), x.size(1))
        _call("head_forward", x, weight, out=out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        (x, weight), gradient = ctx.saved_tensors, gradient.contiguous()
        if torch.is_grad_enabled():  # gradients of gradients
            num_relations, heads, width, _ = weight.shape
            rows, gradients = (
                x.view(-1, heads, width),
                gradient.view(-1, num_relations, heads, width),
            )
            return (
                torch.einsum("nrhj,rhkj->nhk", gradients, weight).reshape(x.shape),
                torch.einsum("nhk,nrhj->rhkj", rows, gradients),
            )
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = x.new_empty(x.shape)
            _call(
                "head_backward_x",
                x,
                weight.transpose(2, 3).contiguous(),
                gradient=gradient,
                grad_x=grad_x,
            )
        if ctx.needs_input_grad[1]:
            parts = weight.new_zeros(NUM_CHUNKS, *weight.shape)
            _call("head_backward_weight", x, weight, gradient=gradient, grad_weight=parts)
            grad_weight = parts.sum(0)
        return grad_x, grad_weight


def _call(name: str, x: Tensor, weight: Tensor, **others: Tensor) -> None:
    num_relations, heads, width, _ = weight.shape
    sizes = dict(num_rows=x.size(0), num_relations=num_relations, heads=heads, width=width)
    values = {"weight": weight, **others}
    problem = fill(HeadProblem, values, x=x.data_ptr(), x_stride=x.stride(0), **sizes)
    getattr(LIBRARY.get(), name)(ctypes.byref(problem))

"""LayerNorm, relu and dropout between two layers, in one pass over the nodes where the compiled kernel can run."""

import ctypes

import torch
from torch import Tensor
from torch.nn import functional as F

from models.aggregate import fused
from models.aggregate.cpu import LIBRARY


def norm_relu_dropout(x: Tensor, norm: torch.nn.Module, *, dropout: float = 0.0, training: bool = False,
                      kernel: str = "auto") -> Tensor:
    """``dropout(relu(norm(x)))``.

    The fused form keeps `x` and two numbers of each row for backward. Which elements it drops is a function of
    torch's random state, as with torch's dropout, but not the same one.

    Args:
        x: [num_nodes, channels]
        dropout: probability in [0, 1).
        kernel: "reference" for torch's own; otherwise fused for a LayerNorm in float32 on the CPU.
    """
    if kernel == "reference" or not _fusible(x, norm):
        return F.dropout(norm(x).relu(), dropout, training)
    dropout = dropout if training else 0.0
    seed = torch.randint(2**62, (1,)) if dropout else torch.zeros(1, dtype=torch.int64)
    # As autocast has it: norms compute and return float32.
    return forward(x.float(), norm.weight, norm.bias, seed, norm.eps, dropout)[0]


def _fusible(x: Tensor, norm: torch.nn.Module) -> bool:
    dtypes = (torch.float32, torch.bfloat16) if torch.is_autocast_enabled("cpu") else (torch.float32,)
    return (type(norm) is torch.nn.LayerNorm and norm.bias is not None and norm.weight.dtype == torch.float32
            and x.device.type == norm.weight.device.type == "cpu" and x.dtype in dtypes and x.dim() == 2
            and norm.normalized_shape == (x.size(1),) and not fused.missing("cpu"))


class Problem(ctypes.Structure):
    """Arguments of one call, field by field as in norm.h."""

    _fields_ = ([(name, ctypes.c_int64) for name in ("num_rows", "channels", "num_threads", "seed")]
                + [("eps", ctypes.c_float), ("dropout", ctypes.c_float)]
                + [(name, ctypes.c_void_p) for name in (
                    "x", "weight", "bias", "out", "mean", "scale", "gradient", "grad_x", "grad_weight", "grad_bias")])


def _call(function, x, seed, eps, dropout, **tensors) -> None:
    tensors = {"x": x, **tensors}
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    function(ctypes.byref(Problem(num_rows=x.size(0), channels=x.size(1), num_threads=torch.get_num_threads(),
                                  seed=int(seed), eps=eps, dropout=dropout,
                                  **{name: tensor.data_ptr() for name, tensor in tensors.items()})))


@torch.library.custom_op("deepgcn::norm_relu_dropout", mutates_args=(), device_types="cpu")
def forward(x: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, eps: float, dropout: float) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and each row's mean and one over its deviation."""
    out, mean, scale = _outputs(x)
    _call(LIBRARY.get().norm_forward, x, seed, eps, dropout, weight=weight, bias=bias, out=out, mean=mean, scale=scale)
    return out, mean, scale


def _outputs(x):
    return x.new_empty(x.shape), x.new_empty(x.size(0)), x.new_empty(x.size(0))


@forward.register_fake
def _(x, weight, bias, seed, eps, dropout):
    return _outputs(x)


@torch.library.custom_op("deepgcn::norm_relu_dropout_backward", mutates_args=(), device_types="cpu")
def backward(grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, eps: float,
             dropout: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for x, weight and bias."""
    grads = _gradients(x, weight)
    _call(LIBRARY.get().norm_backward, x, seed, eps, dropout, weight=weight, bias=bias, mean=mean, scale=scale, gradient=grad,
          **dict(zip(("grad_x", "grad_weight", "grad_bias"), grads)))
    return grads


def _gradients(x, weight):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape)


@backward.register_fake
def _(grad, x, mean, scale, weight, bias, seed, eps, dropout):
    return _gradients(x, weight)


def _setup_context(ctx, inputs, output):
    x, weight, bias, seed, ctx.eps, ctx.dropout = inputs
    _, mean, scale = output
    ctx.mark_non_differentiable(mean, scale)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, mean, scale, weight, bias, seed)


def _backward(ctx, grad, _, __):
    if grad is None:
        return (None,) * 6
    return *backward(grad, *ctx.saved_tensors, ctx.eps, ctx.dropout), None, None, None


forward.register_autograd(_backward, setup_context=_setup_context)

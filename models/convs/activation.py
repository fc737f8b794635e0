"""LayerNorm, ReLU and dropout between two layers. Where the compiled kernel can run, it does all three in one pass."""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from parallel_epochs.models.kernels import norm as fused
from parallel_epochs.models.kernels.operator import is_transformed
from parallel_epochs.models.plain import is_plain


def norm_relu_dropout(
    x: Float[Tensor, "num_nodes channels"],
    norm: torch.nn.Module,
    *,
    dropout: float = 0.0,
    training: bool = False,
    kernel: str = "auto",
    mask: Tensor | None = None,
) -> Float[Tensor, "num_nodes channels"]:
    """Compute ``dropout(relu(norm(x)))``.

    The fused kernel saves `x` and two numbers of each row for backward. It draws one number from torch's global random
    state and drops other elements than torch's dropout would.

    Args:
        x: [num_nodes, channels], floating point.
        norm: a module from [num_nodes, channels] to the same shape.
        dropout: probability in [0, 1).
        training: whether elements are dropped.
        kernel: "reference" for torch's own operators, "auto" or "fused" for the fused kernel where it can run: a
            LayerNorm in float32 on the CPU.
        mask: what :func:`draw_mask` returned for the same arguments. It decides which elements are dropped, in place of
            a new draw.

    Returns:
        [num_nodes, channels]
    """
    if not runs_fused(x, norm, kernel):
        out = norm(x).relu()
        return F.dropout(out, dropout, training) if mask is None else out * mask
    dropout = dropout if training else 0.0
    seed = mask
    if seed is None:
        seed = draw_seed(x) if dropout else torch.zeros(1, dtype=torch.int64, device=x.device)
    # As autocast has it: norms compute and return float32.
    own = cast(Any, norm)
    call = fused.NormCall(x.float(), own.weight, own.bias, seed, own.eps, dropout)
    return fused.forward(call)[0]


def draw_mask(
    x: Float[Tensor, "num_nodes channels"],
    norm: torch.nn.Module,
    *,
    dropout: float = 0.0,
    training: bool = False,
    kernel: str = "auto",
) -> Tensor | None:
    """Draw the elements that several calls of :func:`norm_relu_dropout` all drop.

    Returns:
        The seed of the fused kernel if that will run, otherwise the factor of each element [num_nodes, channels]; None
        if nothing is dropped.
    """
    if not (training and dropout):
        return None
    if runs_fused(x, norm, kernel):
        return draw_seed(x)
    return x.new_empty(x.shape).bernoulli_(1 - dropout).div_(1 - dropout)


def draw_seed(x: Tensor) -> Tensor:
    """Draw a seed from torch's random state of the device of `x`, from which a CUDA graph draws anew in each replay."""
    return torch.randint(2**62, (1,), device=x.device)


def runs_fused(x: Tensor, norm: torch.nn.Module, kernel: str) -> bool:
    """Tell whether the fused kernel computes :func:`norm_relu_dropout`."""
    transformed = is_transformed() and not torch.compiler.is_compiling()
    return kernel != "reference" and not transformed and _can_fuse(x, norm)


def _can_fuse(x: Tensor, norm: torch.nn.Module) -> bool:
    dtypes = (torch.float32, *((torch.bfloat16,) if torch.is_autocast_enabled("cpu") else ()))
    return (
        is_plain(norm, torch.nn.LayerNorm)
        and norm.weight is not None
        and x.device.type == norm.weight.device.type == "cpu"
        and norm.bias is not None
        and norm.weight.dtype == torch.float32
        and x.dtype in dtypes
        and x.dim() == 2
        and norm.normalized_shape == (x.size(1),)
        and _is_compiled()
    )


@torch.compiler.assume_constant_result
def _is_compiled() -> bool:
    return not fused.LIBRARY.missing()

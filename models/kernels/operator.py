"""torch custom operators whose calls in eager mode go straight to their kernels."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils import _python_dispatch

# The package's first name: the same files may be imported as `models` and as `parallel_epochs.models`.
NAMESPACE = __name__.partition(".")[0]
_PLAIN = (Tensor, Parameter)


def is_transformed() -> bool:
    """Tell whether torch.compile, torch.jit.trace, torch.func or forward-mode autograd replaces tensors by tracers."""
    return (torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()
            or forward_ad._current_level >= 0)


class Operator:
    """A torch custom operator without mutated arguments. Lists of tensors that it takes have no gradients.

    torch.compile and other programs that watch operators see `definition`. Where nothing watches, a call goes straight
    to the kernel of its device: torch's dispatcher and the Python around it take longer than the kernels of a small
    batch.

    Attributes:
        definition: the custom operator, for :func:`torch.library.opcheck` and the like.
    """

    def __init__(self, name: str, cpu_kernel: Callable):
        self.definition = torch.library.custom_op(f"{NAMESPACE}::{name}", cpu_kernel, mutates_args=(),
                                                  device_types="cpu")
        self.register_fake = self.definition.register_fake
        self._kernels = {"cpu": cpu_kernel}
        self._function: Any = None

    def register_kernel(self, device_type: str, kernel: Callable) -> None:
        """Take a function as the kernel of a type of device."""
        self.definition.register_kernel(device_type, kernel)
        self._kernels[device_type] = kernel

    def register_autograd(self, backward: Callable, *, setup_context: Callable) -> None:
        """Take derivatives as :meth:`torch.library.CustomOpDef.register_autograd` does."""
        # Where nothing watches, a list of tensors has one gradient, none; torch wants as many as there are tensors.
        self.definition.register_autograd(lambda ctx, *gradients: tuple(
            [gradient] * len(need) if isinstance(need, list) else gradient
            for gradient, need in zip(backward(ctx, *gradients), ctx.needs_input_grad, strict=True)),
            setup_context=setup_context)
        kernels = self._kernels

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *args):
                output = kernels[_device_of(args)](*args)
                setup_context(ctx, args, output)
                return output

        Function.backward = staticmethod(backward)  # type: ignore[assignment]
        Function.__name__ = self.definition._name.partition("::")[2]  # as profiles and grad_fn name it
        self._function = Function

    def __call__(self, *args):
        if is_transformed() or _python_dispatch.is_in_torch_dispatch_mode():
            return self.definition(*args)
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if any(type(tensor) not in _PLAIN for tensor in tensors) or tensors[0].device.type not in self._kernels:
            return self.definition(*args)
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            return self._kernels[tensors[0].device.type](*args)
        return (self._function.apply if self._function else self.definition)(*args)


def operator(name: str) -> Callable[[Callable], Operator]:
    """Make an :class:`Operator` of a function, its kernel on the CPU. Arguments must be given by position."""
    return lambda cpu_kernel: Operator(name, cpu_kernel)


def _device_of(args: tuple) -> str:
    return next(arg.device.type for arg in args if isinstance(arg, Tensor))

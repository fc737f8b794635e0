"""torch custom operators whose calls in eager mode go straight to their kernels."""

import inspect
from collections.abc import Callable, Sequence
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
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


class Operator:
    """A torch custom operator without mutated arguments. Lists of tensors that it takes have no gradients.

    torch.compile and other programs that watch operators see `definition`. Where nothing watches, a call goes straight
    to the kernel of its device: torch's dispatcher and the Python around it take longer than the kernels of a small
    batch.

    Attributes:
        definition: the custom operator, for :func:`torch.library.opcheck` and the like.
    """

    def __init__(self, name: str, cpu_kernel: Callable, allocate: Callable):
        self.definition = torch.library.custom_op(
            f"{NAMESPACE}::{name}", cpu_kernel, mutates_args=(), device_types="cpu"
        )
        signature, wanted = (
            inspect.signature(cpu_kernel),
            list(inspect.signature(allocate).parameters),
        )

        @self.definition.register_fake
        def fake(*args, **keywords):
            given = signature.bind(*args, **keywords).arguments
            return allocate(*(given[name] for name in wanted))

        self._kernels = {"cpu": cpu_kernel}
        self._function: Any = None

    def register_kernel(self, device_type: str, kernel: Callable) -> None:
        """Take a function as the kernel of a type of device."""
        self.definition.register_kernel(device_type, kernel)
        self._kernels[device_type] = kernel

    def register_autograd(self, backward: Callable, *, setup_context: Callable) -> None:
        """Take derivatives as :meth:`torch.library.CustomOpDef.register_autograd` does."""
        # Where nothing watches, a list of tensors has one gradient, none; torch wants as many as there are tensors.
        self.definition.register_autograd(
            lambda ctx, *gradients: tuple(
                [gradient] * len(need) if isinstance(need, list) else gradient
                for gradient, need in zip(
                    backward(ctx, *gradients), ctx.needs_input_grad, strict=True
                )
            ),
            setup_context=setup_context,
        )
        kernels = self._kernels

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *args):
                output = kernels[_device_of(args)](*args)
                setup_context(ctx, args, output)
                return output

        Function.backward = staticmethod(backward)  # type: ignore[assignment]
        Function.__name__ = self.definition._name.partition("::")[
            2
        ]  # as profiles and grad_fn name it
        self._function = Function

    def __call__(self, *args):
        if is_transformed() or _python_dispatch.is_in_torch_dispatch_mode():
            return self.definition(*args)
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if (
            any(type(tensor) not in _PLAIN for tensor in tensors)
            or tensors[0].device.type not in self._kernels
        ):
            return self.definition(*args)
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            return self._kernels[tensors[0].device.type](*args)
        return (self._function.apply if self._function else self.definition)(*args)


def operator(name: str, allocate: Callable) -> Callable[[Callable], Operator]:
    """Make an :class:`Operator` of a function, its kernel on the CPU. Arguments must be given by position.

    Args:
        allocate: returns empty tensors for the results; its arguments are some of the operator's, by their names.
    """
    return lambda cpu_kernel: Operator(name, cpu_kernel, allocate)


def differentiate_again(
    ctx, places: Sequence[int], outputs: Any, inputs: Sequence[Tensor | None], gradients: Any
) -> list[Tensor | None]:
    """Compute, in plain torch, the gradients of an operator's inputs, which have gradients themselves if that is on.

    Args:
        places: where the operator's arguments have the inputs. One that needs no gradient gets none.
        outputs, gradients: results of plain torch and their gradients, as :func:`torch.autograd.grad` takes them.
    """
    needed = [i for i, at in enumerate(places) if ctx.needs_input_grad[at]]
    grads = torch.autograd.grad(
        outputs,
        [inputs[i] for i in needed],
        gradients,  # type: ignore[misc]
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )
    found = dict(zip(needed, grads, strict=True))
    return [found.get(i) for i in range(len(inputs))]


def _device_of(args: tuple) -> str:
    return next(arg.device.type for arg in args if isinstance(arg, Tensor))

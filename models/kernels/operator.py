"""torch custom operators whose calls in eager mode go straight to their kernels."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils import _python_dispatch

# The package's first name: the same files may be imported as `models` and as `parallel_epochs.models`.
NAMESPACE = __name__.partition(".")[0]
_PLAIN = (Tensor, Parameter)
# Stands for a tensor among the arguments that are kept for backward.
_SAVED = object()


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

    A kernel takes records and single arguments. A record is a named tuple, whose fields are arguments of the operator
    itself. torch.compile and other programs that watch operators see `definition`. Where nothing watches, a call goes
    straight to the kernel of its device: torch's dispatcher and the Python around it take longer than the kernels of a
    small batch.

    Attributes:
        definition: the custom operator, for :func:`torch.library.opcheck` and the like.
    """

    def __init__(self, name: str, cpu_kernel: Callable, allocate: Callable):
        signature = inspect.signature(cpu_kernel)
        parameters = signature.parameters.values()
        self._kinds = [
            p.annotation if hasattr(p.annotation, "_fields") else None for p in parameters
        ]
        arguments: dict[str, Any] = {}
        for p, kind in zip(parameters, self._kinds, strict=True):
            arguments |= {p.name: p.annotation} if kind is None else kind.__annotations__
        self._names = list(arguments)
        wanted = inspect.signature(allocate).parameters

        def of_record(kernel: Callable) -> Callable:
            def run(*args):
                return kernel(*self._pack(args))

            run.__signature__ = signature.replace(  # type: ignore[attr-defined]
                parameters=[
                    inspect.Parameter(
                        name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation
                    )
                    for name, annotation in arguments.items()
                ]
            )
            return run

        self._of_record = of_record
        self.definition = torch.library.custom_op(
            f"{NAMESPACE}::{name}", of_record(cpu_kernel), mutates_args=(), device_types="cpu"
        )

        @self.definition.register_fake
        def fake(*args):
            given = dict(zip(signature.parameters, self._pack(args), strict=True))
            return allocate(*(given[name] for name in wanted))

        self._kernels = {"cpu": cpu_kernel}
        self._function: Any = None

    def _pack(self, args: Iterable) -> list:
        """Return the arguments of a kernel: records in place of their fields."""
        rest = iter(args)
        return [
            next(rest) if kind is None else kind(*itertools.islice(rest, len(kind._fields)))
            for kind in self._kinds
        ]

    def register_kernel(self, device_type: str, kernel: Callable) -> None:
        """Take a function as the kernel of a type of device."""
        self.definition.register_kernel(device_type, self._of_record(kernel))
        self._kernels[device_type] = kernel

    def register_autograd(self, backward: Callable, keep: Callable) -> None:
        """Register the derivatives.

        Args:
            backward: from the names of the arguments that need gradients, those of the results, what was kept, and the
                kernel's arguments, to gradients by the name of the argument. Others may be among them.
            keep: from the results and the kernel's arguments to the tensors to keep for backward beside the arguments,
                and to the results that have no gradient.
        """

        def set_up(ctx, inputs, output):
            kept, constant = keep(output, *self._pack(inputs))
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*constant)
            ctx.num_kept, ctx.args, tensors = len(kept), [], [*kept]
            for arg in inputs:
                if isinstance(arg, (list, tuple)):
                    tensors += arg
                    ctx.args.append([_SAVED] * len(arg))
                elif isinstance(arg, Tensor):
                    tensors.append(arg)
                    ctx.args.append(_SAVED)
                else:
                    ctx.args.append(arg)
            ctx.save_for_backward(*tensors)

        def differentiate(ctx, *gradients):
            needs, saved = ctx.needs_input_grad, iter(ctx.saved_tensors)
            needed = {name for name, need in zip(self._names, needs, strict=True) if need is True}
            kept = [next(saved) for _ in range(ctx.num_kept)]
            args = [
                [next(saved) for _ in arg] if isinstance(arg, list) else _take(arg, saved)
                for arg in ctx.args
            ]
            found = {}
            if any(gradient is not None for gradient in gradients):
                every = backward(needed, gradients, kept, *self._pack(args))
                found = {name: every.get(name) for name in needed}
            # torch wants a gradient of each tensor of a list.
            return tuple(
                [None] * len(need) if isinstance(need, list) else found.get(name)
                for name, need in zip(self._names, needs, strict=True)
            )

        self.definition.register_autograd(differentiate, setup_context=set_up)
        kernels = self._kernels

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *args):
                output = kernels[_device_of(args)](*self._pack(args))
                set_up(ctx, args, output)
                return output

        Function.backward = staticmethod(differentiate)  # type: ignore[assignment]
        # as profiles and grad_fn name it
        Function.__name__ = self.definition._name.partition("::")[2]
        self._function = Function

    def __call__(self, *given):
        args: list = []
        for kind, arg in zip(self._kinds, given, strict=True):
            args += [arg] if kind is None else arg
        if is_transformed() or _python_dispatch.is_in_torch_dispatch_mode():
            return self.definition(*args)
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        device = tensors[0].device.type
        if any(type(tensor) not in _PLAIN for tensor in tensors) or device not in self._kernels:
            return self.definition(*args)
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            return self._kernels[device](*given)
        return (self._function.apply if self._function else self.definition)(*args)


def operator(name: str, allocate: Callable) -> Callable[[Callable], Operator]:
    """Make an :class:`Operator` of a function, its kernel on the CPU. Arguments must be given by position.

    Args:
        allocate: returns empty tensors for the results; its arguments are some of the kernel's, by their names.
    """
    return lambda cpu_kernel: Operator(name, cpu_kernel, allocate)


def differentiate_again(
    needed: Iterable[str], outputs: Any, inputs: Mapping[str, Any], gradients: Any
) -> dict[str, Tensor | None]:
    """Compute, in plain torch, the gradients of an operator's inputs, which have gradients themselves if that is on.

    Args:
        needed: names of the inputs that need gradients.
        outputs, gradients: results of plain torch and their gradients, as :func:`torch.autograd.grad` takes them.
    """
    names = [name for name in inputs if name in needed]
    grads = torch.autograd.grad(
        outputs,
        [inputs[name] for name in names],
        gradients,  # type: ignore[misc]
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )
    return dict(zip(names, grads, strict=True))


def contiguous(record: Any) -> Any:
    """Return a record, or a tuple, whose tensors have elements in order; so have those of its tuples."""
    if isinstance(record, Tensor):
        return record.contiguous()
    if not isinstance(record, (tuple, list)):
        return record
    parts = map(contiguous, record)
    return type(record)(*parts) if hasattr(record, "_fields") else tuple(parts)


def _take(arg: Any, saved: Iterator[Tensor]) -> Any:
    return next(saved) if arg is _SAVED else arg


def _device_of(args: tuple) -> str:
    return next(arg.device.type for arg in args if isinstance(arg, Tensor))

"""The norms of layers, and the recomputation of activations in backward."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch.utils.checkpoint import checkpoint

NORMS = {"layer": torch.nn.LayerNorm, "batch": torch.nn.BatchNorm1d}

Result = TypeVar("Result")


def recompute(model: torch.nn.Module, function: Callable[..., Result], *args) -> Result:
    """Call a function without keeping its intermediate tensors; backward computes them again.

    Args:
        model: the module whose batch norms must not count the same batch again while `function` is computed again.
        function: a part of the model's forward.
        args: the function's arguments.
    """
    if torch.compiler.is_compiling():
        # A compiled graph writes buffers in forward only, and the compiler traces no `context_fn` with side effects.
        return checkpoint(function, *args, use_reentrant=False)
    return checkpoint(
        function,
        *args,
        use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), fix_statistics(model)),
    )


@contextlib.contextmanager
def fix_statistics(model: torch.nn.Module) -> Iterator[None]:
    """Keep the running statistics of a model's batch norms unchanged within a ``with`` statement."""
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm1d)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, num_batches_tracked) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, num_batches_tracked

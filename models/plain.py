"""Tells whether a module does exactly what its class does, so that a fused kernel may replace it."""

import torch
from torch.nn.modules import module as torch_module

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain(module: torch.nn.Module, *kinds: type[torch.nn.Module]) -> bool:
    """Tell whether a module is of one of these classes (not a subclass), with the class's ``forward`` and no hooks."""
    return type(module) in kinds and "forward" not in vars(module) and not has_hooks(module)


def has_hooks(module: torch.nn.Module) -> bool:
    """Tell whether a call of a module would run hooks, be they its own or global ones."""
    if any(getattr(module, name) for name in _HOOKS):
        return True
    return any(getattr(torch_module, f"_global{name}") for name in _HOOKS)

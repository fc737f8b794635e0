"""Lets the tests check the shapes that stand in the signatures of public functions: every call, arguments and result.

conftest.py calls :func:`check_packages` unless CHECK_SHAPES=0. Where torch.compile traces a call, nothing is checked.
"""

import contextlib
import functools
import importlib
import inspect
import pkgutil
import sys
import types
import typing

import jaxtyping
import torch
from beartype import BeartypeConf, beartype

_typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int will do for a float


def check_packages(*names: str) -> None:
    """Check every function and method of packages whose signature has shapes, in whatever module it was imported."""
    for name in names:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if ".gpu" not in module.name:  # Triton may be missing, and its kernels have no shapes
                importlib.import_module(module.name)
    checked = {}
    modules = [module for module in sys.modules.values() if isinstance(module, types.ModuleType)]
    for module in modules:
        if any(f"{module.__name__}.".startswith(f"{name}.") for name in names):
            classes = [value for value in vars(module).values()
                       if inspect.isclass(value) and value.__module__ == module.__name__]
            for owner in (module, *classes):
                for function in filter(inspect.isfunction, vars(owner).values()):
                    ours = function.__module__ == module.__name__
                    if ours and any(map(_has_shape, function.__annotations__.values())):
                        checked[id(function)] = _check(function)
            for owner in classes:
                _replace(owner, checked)
    for module in modules:
        _replace(module, checked)


def _replace(owner, checked: dict) -> None:
    for key, value in list(vars(owner).items()):
        if id(value) in checked:
            setattr(owner, key, checked[id(value)])


def _has_shape(annotation) -> bool:
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_has_shape, typing.get_args(annotation)))


def _check(function):
    checked = jaxtyping.jaxtyped(typechecker=_typechecker)(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        return (function if torch.compiler.is_compiling() else checked)(*args, **kwargs)

    return call


@contextlib.contextmanager
def unchecked():
    """Let calls with wrong shapes through, to see what models/ itself says of them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)

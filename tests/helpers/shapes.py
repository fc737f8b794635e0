"""Lets the tests check the shapes that stand in the signatures of public functions: every call, arguments and result.

conftest.py calls :func:`check_packages` unless CHECK_SHAPES=0. Where torch.compile traces a call, nothing is checked. A
call whose types, and whose sizes but for their values, are those of an earlier one costs no second check.
"""

import contextlib
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import types
import typing

import jaxtyping
import numpy as np
import torch
from beartype import BeartypeConf, beartype

# An int will do for a float.
_typechecked = jaxtyping.jaxtyped(typechecker=beartype(conf=BeartypeConf(is_pep484_tower=True)))


def check_packages(*names: str) -> None:
    """Check every function and method of packages whose signature has shapes, in whatever module it was imported."""
    for name in names:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if ".gpu" not in module.name:  # Triton's kernels have no shapes
                try:
                    importlib.import_module(module.name)
                except ModuleNotFoundError as error:
                    if error.name != "triton":  # which is optional
                        raise
    checked = {}
    modules = [module for module in sys.modules.values() if isinstance(module, types.ModuleType)]
    for module in modules:
        if any(f"{module.__name__}.".startswith(f"{name}.") for name in names):
            classes = [
                value
                for value in vars(module).values()
                if inspect.isclass(value) and value.__module__ == module.__name__
            ]
            for owner in (module, *classes):
                for function in filter(inspect.isfunction, vars(owner).values()):
                    ours = function.__module__ == module.__name__
                    if ours and _shapes(function.__annotations__.values()):
                        checked[id(function)] = _check(function)
            for owner in classes:
                _replace(owner, checked)
    for module in modules:
        _replace(module, checked)


def _replace(owner, checked: dict) -> None:
    for key, value in list(vars(owner).items()):
        if id(value) in checked:
            setattr(owner, key, checked[id(value)])


def _shapes(annotations) -> list[str]:
    """The shapes that stand in annotations."""
    shapes = []
    for annotation in annotations:
        is_array = inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray)
        shapes += [annotation.dim_str] if is_array else _shapes(typing.get_args(annotation))
    return shapes


def _check(function):
    """Wrap a function so that arguments and results are checked, once for each way in which their sizes are equal."""
    sizes_of = " ".join(_shapes(function.__annotations__.values())).split()
    assert all(re.fullmatch(r"\*?[a-z_]\w*|\.\.\.|2", size) for size in sizes_of), (
        f"_form cannot see {sizes_of}"
    )
    passed: dict[tuple, set] = {}  # forms of arguments, and those of the results that they gave
    checked = functools.cache(lambda: _typechecked(function))  # made with the first call

    @functools.wraps(function)
    def call(*args, **kwargs):
        if torch.compiler.is_compiling() or jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        sizes: dict[int, int] = {}
        given = _form((args, kwargs), sizes)
        if given not in passed:
            result = checked()(*args, **kwargs)
            passed[given] = {_form(result, sizes)}
            return result
        result = function(*args, **kwargs)
        if (form := _form(result, sizes)) not in passed[given]:
            _typechecked(functools.wraps(function)(lambda *_, **__: result))(*args, **kwargs)
            passed[given].add(form)
        return result

    return call


def _form(value, sizes: dict[int, int]):
    """What a check sees: types, and which sizes are equal, or less than 4; no signature computes with sizes.

    Args:
        sizes: numbers of the sizes that have been seen, in the order of their first appearance.
    """
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return (
            type(value),
            value.dtype,
            *(~size if size < 4 else sizes.setdefault(size, len(sizes)) for size in value.shape),
        )
    if isinstance(value, (tuple, list)):
        return type(value), *(_form(item, sizes) for item in value)
    if isinstance(value, dict):
        return type(value), *((key, _form(item, sizes)) for key, item in value.items())
    return value if isinstance(value, str) else type(value)


@contextlib.contextmanager
def unchecked():
    """Let calls with wrong shapes through, to see what models/ itself says of them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)

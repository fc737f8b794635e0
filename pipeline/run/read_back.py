"""Compares values that are read back from a file with the types that they were written with.

A file may be damaged, or somebody may have changed it and given it the right checksum. Then an odd value would end in a
traceback, or in an allocation without end, far from the file.
"""

from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from jaxtyping import jaxtyped
from torch import Tensor

from parallel_epochs.pipeline.run.errors import DamagedFile

Kind = TypeVar("Kind")

# No count of anything is larger: a kernel or a layer with so many rows could not be allocated.
LARGEST_COUNT = 2**48


def build(path: Path, kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """Build a dataclass of values that have the types of its fields; see :func:`check_values`."""
    check_values(path, values, get_type_hints(kind))
    try:
        return kind(**values)
    except TypeError as error:
        raise DamagedFile(f"{path} is of another version, or damaged: {error}") from None


def check_values(path: Path, values: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Refuse values of other types than they were written with. Sizes of tensors that have one name must be equal.

    Args:
        path: the file that they were read from.
        values: by their names; those without a type are not looked at.
        types: annotations. An integer is a count: not negative, and smaller than :data:`LARGEST_COUNT`.

    Raises:
        DamagedFile: names the value.
    """
    with jaxtyped("context"):
        for name, annotation in types.items():
            if name in values and not _fits(values[name], annotation):
                raise DamagedFile(
                    f"{path} is damaged, or somebody changed it: {name} is {shown(values[name])}, and it "
                    f"should be {getattr(annotation, '__name__', annotation)}"
                )


def shown(value: object) -> str:
    """Describe any value in one short line."""
    return (
        f"{value.dtype} of {list(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.80}"
    )


def _fits(value: object, annotation: Any) -> bool:
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is list:
        return isinstance(value, list) and all(_fits(one, parts[0]) for one in value)
    if origin is tuple:  # which torch.save and JSON may have made a list
        return (
            isinstance(value, (list, tuple))
            and len(value) == len(parts)
            and all(map(_fits, value, parts))
        )
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(key, parts[0]) and _fits(one, parts[1]) for key, one in value.items()
        )
    if annotation is str:
        return isinstance(value, str) and value.encode(errors="ignore").decode() == value
    if annotation is int:
        return type(value) is int and 0 <= value < LARGEST_COUNT
    if isinstance(value, Tensor) and (value.layout != torch.strided or value.is_quantized):
        return False
    # Numbers that were learned, in float64, are never NaN; features and labels may be.
    has_nan = isinstance(value, Tensor) and value.dtype == torch.float64 and value.isnan().any()
    return isinstance(value, annotation) and not has_nan

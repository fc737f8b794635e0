"""The structures that C++ functions take: read from the C++ structs themselves, and filled with numbers and tensors.

The header is the only description of a structure. A loaded library was compiled from the same text, since the key of a
library is a hash of its sources.
"""

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_TYPES: dict[str, Any] = {
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


def read_structure(
    path: Path, name: str, *, types: dict[str, Any] | None = None, **counts: int
) -> Any:
    """Make the ctypes structure of a C++ struct that has only fields: numbers, pointers, arrays and other structs.

    Args:
        path: the C++ file.
        name: name of the struct.
        types: structures of the other structs that it holds, by name.
        counts: constants that its arrays have as lengths.

    Returns:
        A class, whose `wide` names the field that says whether an index tensor is int64, by the tensor's name.

    Raises:
        ValueError: the file has no such struct, or a field has another form.
    """
    known = _TYPES | (types or {})
    body = re.search(rf"^struct {name} {{(.*?)^}};", path.read_text(), re.DOTALL | re.MULTILINE)
    if body is None:
        raise ValueError(f"{path.name} has no struct {name}")
    fields: list[tuple[str, Any]] = []
    for declaration in re.sub(r"//.*", "", body[1]).split(";")[:-1]:
        kind, declarators = re.fullmatch(
            r"\s*(?:const )?(\w+)\b\s*(.+?)\s*", declaration, re.DOTALL
        ).groups()
        for declarator in declarators.split(","):
            found = re.fullmatch(r"\s*(\*?)\s*(\w+)(?:\[(\w+)\])?", declarator)
            if (
                found is None
                or not found[1]
                and kind not in known
                or found[3]
                and found[3] not in counts
            ):
                raise ValueError(
                    f"{path.name}: the field '{declaration.strip()}' of {name} is neither a number nor a "
                    "pointer nor an array of a known length"
                )
            field = ctypes.c_void_p if found[1] else known[kind]
            fields.append((found[2], field * counts[found[3]] if found[3] else field))
    wide = {field.removesuffix("_wide"): field for field, _ in fields if field.endswith("_wide")}
    text = f"The struct {name} of {path.name}."
    return type(name, (ctypes.Structure,), {"_fields_": fields, "wide": wide, "__doc__": text})


def fill(structure: Any, values: Mapping[str, Any], **numbers) -> Any:
    """Fill a structure with numbers and with the addresses of tensors, made contiguous, which it keeps alive.

    The number of threads, and whether an index tensor is int64 (``ptr_wide`` of ``ptr``), are added where the structure
    has fields for them.

    Args:
        values: tensors, numbers and nones by name; those for which the structure has no field are left out.
        numbers: other fields. They count where `values` has the same name.
    """
    known = {name for name, _ in structure._fields_} - numbers.keys()
    given = {name: values[name] for name in known & values.keys() if values[name] is not None}
    filled = structure(num_threads=torch.get_num_threads(), **numbers)
    filled.kept = []
    for name, value in given.items():
        if isinstance(value, Tensor):
            kept = value.contiguous()
            filled.kept.append(kept)
            value = kept.data_ptr()
            if name in structure.wide:
                setattr(filled, structure.wide[name], kept.dtype == torch.int64)
        setattr(filled, name, value)
    return filled

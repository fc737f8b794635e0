"""Keys of the configuration: a default, a meaning and the values that are allowed, written once for each."""

import ast
import copy
import dataclasses
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

from omegaconf import MISSING

# In place of a number that is chosen when the run begins.
AUTO = "auto"
# What training computes in.
LARGEST_FLOAT32 = 3.4e38


@dataclass(frozen=True)
class Meaning:
    """What is known of a key beside its type and default.

    Attributes:
        text: one line for who reads ``--help``.
        choices: the allowed values, if they are few.
        minimum: the least allowed value.
        above, below: bounds that are not allowed themselves.
        changes_numbers: whether another value gives another result; a run may be resumed with other values of those
            that do not.
        shapes_graph: whether the prepared graph depends on it.
        names_files: whether it says where files lie whose content is compared instead.
        is_path: whether a tilde at its beginning stands for the home directory.
        may_be_auto: whether it is a whole number or :data:`AUTO`.
    """

    text: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    above: float | None = None
    below: float | None = None
    changes_numbers: bool = True
    shapes_graph: bool = False
    names_files: bool = False
    is_path: bool = False
    may_be_auto: bool = False


def key(default: object | EllipsisType, text: str, **meaning) -> Any:  # as dataclasses.field, for type checkers
    """Declare a key of a configuration dataclass.

    Args:
        default: its value in the default run; ``...`` if it must be given.
        text: see :class:`Meaning`, as are the others.
    """
    default = MISSING if default is ... else default
    metadata = {"meaning": Meaning(text, **meaning)}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Entry:
    """A key of a configuration and its value.

    Attributes:
        name: the key, as on the command line.
        type: its Python type, as in the schema.
    """

    name: str
    value: Any
    type: Any
    meaning: Meaning


def entries(config: Any, prefix: str = "") -> Iterator[Entry]:
    """Go through the keys of a configuration and of its parts, in the order of the schema."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from entries(value, f"{prefix}{field.name}.")
        else:
            yield Entry(f"{prefix}{field.name}", value, field.type, field.metadata["meaning"])


def check(config: Any) -> None:
    """Refuse values that are not allowed.

    Raises:
        ValueError: names the first such key.
    """
    for entry in entries(config):
        _check_entry(entry)


def _check_entry(entry: Entry) -> None:
    name, value, meaning = entry.name, entry.value, entry.meaning
    if value is None or meaning.may_be_auto and value == AUTO:
        return
    if meaning.may_be_auto and type(value) is not int:
        raise ValueError(f"{name}={value}: give a whole number, or {AUTO}")
    if meaning.is_path and value == "":
        raise ValueError(f"no value for {name}: give a path")
    if meaning.choices and value not in meaning.choices:
        raise ValueError(f"{name}={value} is unknown; choose one of {', '.join(meaning.choices)}")
    if isinstance(value, float) and not abs(value) <= LARGEST_FLOAT32:
        kind = "number of float32" if math.isfinite(value) else "finite number"
        raise ValueError(f"{name} must be a {kind}, not {value}")
    if type(value) is int and not -2**63 <= value < (meaning.below or 2**63):
        raise ValueError(f"{name} must be less than {_power_of_two(meaning.below or 2**63)}, not {value}")
    if meaning.minimum is not None and meaning.below is not None:
        if not meaning.minimum <= value < meaning.below:
            raise ValueError(f"{name} must be in [{meaning.minimum:g}, {_power_of_two(meaning.below)}), not {value}")
    elif meaning.minimum is not None and value < meaning.minimum:
        raise ValueError(f"{name} must be at least {meaning.minimum:g}, not {value}")
    if meaning.above is not None and not value > meaning.above:
        raise ValueError(f"{name} must be more than {meaning.above:g}, not {value}")


def _power_of_two(bound: float) -> str:
    return f"2^{int(math.log2(bound))}" if bound >= 2**31 else f"{bound:g}"


def replaced(config: Any, values: dict[str, Any], prefix: str = "") -> Any:
    """Return a configuration with other values of some keys; names that it does not have are left out."""
    changes = {}
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            changes[field.name] = replaced(value, values, f"{name}.")
        elif name in values:
            changes[field.name] = values[name]
    return dataclasses.replace(config, **changes)


def expand_paths(config: Any) -> Any:
    """Return a configuration in which a tilde at the beginning of a path is the home directory."""
    return replaced(config, {entry.name: os.path.expanduser(entry.value) for entry in entries(config)
                             if entry.meaning.is_path and isinstance(entry.value, str)})


def differences(saved: Any, given: Any, prefix: str = "") -> dict[str, str]:
    """Find the keys whose values differ, with a text "key: saved -> given" for each, in the order of the schema."""
    if type(saved) is not type(given):
        name = prefix.rstrip(".")
        return {name: f"{name}: {type(saved).__name__} -> {type(given).__name__}"}
    out: dict[str, str] = {}
    for field in dataclasses.fields(saved):
        a, b, name = getattr(saved, field.name), getattr(given, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(a):
            out |= differences(a, b, f"{name}.")
        elif a != b:
            out[name] = f"{name}: {a} -> {b}"
    return out


def keys_of_constructor(file: Path, class_name: str, *, leave_out: tuple[str, ...] = (),
                        sizes: dict[str, int] | None = None) -> list[tuple[str, type, dataclasses.Field]]:
    """Read keys from a constructor: names, types, defaults, and the texts of the class's docstring.

    The source is read, not imported: ``--help`` would wait for torch otherwise.

    Args:
        leave_out: keyword options that are no keys.
        sizes: the positional arguments that are keys too, with their defaults.

    Returns:
        Fields as :func:`dataclasses.make_dataclass` takes them.
    """
    tree = ast.parse(file.read_text())
    (class_,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    (init,) = (node for node in class_.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    types = {argument.arg: ast.unparse(argument.annotation)
             for argument in [*init.args.args[1:], *init.args.kwonlyargs]}
    defaults = {argument.arg: ast.literal_eval(default)
                for argument, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)}
    defaults = {**(sizes or {}), **{option: value for option, value in defaults.items() if option not in leave_out}}
    texts = _documented_arguments(ast.get_docstring(class_))
    python_types = {"int": int, "float": float, "str": str, "bool": bool, "dict | None": dict[str, Any]}
    return [(option, python_types[types[option]],
             key({} if types[option] == "dict | None" else default, texts[option]))
            for option, default in defaults.items()]


def _documented_arguments(docstring: str) -> dict[str, str]:
    """Read the entries of a docstring's Args section, each as one line."""
    out: dict[str, str] = {}
    section, name = docstring.partition("Args:\n")[2].split("\n\n")[0], ""
    for line in section.splitlines():
        if line.startswith("    ") and not line.startswith("     ") and ":" in line:
            name, _, text = line.strip().partition(": ")
            out[name] = text
        else:
            out[name] += f" {line.strip()}"
    return out

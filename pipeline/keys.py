"""Keys of the configuration: a default, a meaning and the values that are allowed, written once for each."""

import copy
import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeVar

from omegaconf import MISSING, OmegaConf

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Config = TypeVar("Config", bound="DataclassInstance")
# In place of a number that is chosen when the run begins.
AUTO = "auto"
# The type of a key that is a number or :data:`AUTO`, and a number when the run has begun.
Number = Any
# The largest number of float32, in which training computes.
LARGEST_FLOAT32 = 3.4e38


@dataclass(frozen=True)
class Meaning:
    """The meaning of a key, in addition to its type and default.

    Attributes:
        text: one line for who reads ``--help``.
        choices: the allowed values, if they are few.
        minimum: the least allowed value.
        above, below: bounds that are not allowed themselves.
        changes_numbers: whether another value gives another result; a run may be resumed with other values of those
            that do not.
        shapes_graph: whether the prepared graph depends on it.
        hashed_if_given: whether the hash of a prepared graph counts it only if it is given. So do keys of later
            versions: graphs and runs of earlier ones keep their hash.
        before: its value in runs that were saved before the key existed; none: the default.
        names_files: whether it says where files lie whose content is compared instead.
        is_text: whether A,B is no list and 007 no number, since its value is a text whatever it looks like.
        is_path: whether a tilde at its beginning stands for the home directory.
        may_be_auto: whether it may be :data:`AUTO`, which a run replaces by what it has chosen; without `choices` it
            is a number otherwise, and a whole one unless `minimum` is a float.
        when: other keys, and the values of each with which this key has an effect; one match is enough. Empty: always.
        unless: other keys, and the values of each with which this key has no effect.
    """

    text: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    above: float | None = None
    below: float | None = None
    changes_numbers: bool = True
    shapes_graph: bool = False
    hashed_if_given: bool = False
    before: Any = None
    names_files: bool = False
    is_text: bool = False
    is_path: bool = False
    may_be_auto: bool = False
    when: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    unless: Mapping[str, tuple] = dataclasses.field(default_factory=dict)

    def blockers(self, values: Mapping[str, Any]) -> list[str]:
        """Name the keys whose values keep this one from doing anything; none if it counts.

        Args:
            values: of all keys.
        """
        barred = [name for name, bars in self.unless.items() if values.get(name) in bars]
        if barred or any(values.get(name) in allowed for name, allowed in self.when.items()):
            return barred
        return list(self.when)

    @property
    def condition(self) -> str:
        """Return the values of other keys that this key needs to have an effect, as in "task=link"; "" if none."""
        fits = [
            f"{_short(name)}={'|'.join('null' if value is None else str(value).lower() for value in allowed)}"
            for name, allowed in self.when.items()
        ]
        bars = [
            f"not {_short(name)}={'|'.join(map(str, barred))}"
            for name, barred in self.unless.items()
        ]
        return ", ".join([*([" or ".join(fits)] if fits else []), *bars])


def _short(name: str) -> str:
    """Write a key as it is chosen on the command line: task.name as task."""
    part, _, last = name.rpartition(".")
    return part if last in ("name", "source", "method") else name


def key(
    default: object | EllipsisType, text: str, **meaning: Any
) -> Any:  # as dataclasses.field, for type checkers
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
    type: object
    meaning: Meaning


def entries(config: "DataclassInstance", prefix: str = "") -> Iterator[Entry]:
    """Go through the keys of a configuration and of its parts, in the order of the schema."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from entries(value, f"{prefix}{field.name}.")
        elif "meaning" in field.metadata:  # other fields follow from keys
            yield Entry(f"{prefix}{field.name}", value, field.type, field.metadata["meaning"])


def meaning_of(schema: type, name: str) -> Meaning:
    """Return what is known of a key of a dataclass."""
    return next(field for field in dataclasses.fields(schema) if field.name == name).metadata[
        "meaning"
    ]


def check(config: "DataclassInstance") -> None:
    """Refuse values that are not allowed.

    Raises:
        ValueError: names the first such key.
    """
    for entry in entries(config):
        _check_entry(entry)


def refused(config: "DataclassInstance") -> dict[str, Any]:
    """Return the keys whose values :func:`check` refuses, with the values."""
    found = {}
    for entry in entries(config):
        try:
            _check_entry(entry)
        except ValueError:
            found[entry.name] = entry.value
    return found


def _check_entry(entry: Entry) -> None:
    name, value, meaning = entry.name, entry.value, entry.meaning
    may_be_null = not meaning.may_be_auto or meaning.choices
    if value is None and may_be_null or meaning.may_be_auto and value == AUTO:
        return
    is_whole = not isinstance(meaning.minimum, float)
    if (
        meaning.may_be_auto
        and not meaning.choices
        and type(value) not in ((int,) if is_whole else (int, float))
    ):
        raise ValueError(f"{name}={as_typed(value)}: give a {'whole ' * is_whole}number, or {AUTO}")
    if meaning.is_path and value == "":
        raise ValueError(f"no value for {name}: give a path")
    if meaning.choices and value not in meaning.choices:
        raise ValueError(f"{name}={value} is unknown; choose one of {', '.join(meaning.choices)}")
    if isinstance(value, float) and not abs(value) <= LARGEST_FLOAT32:
        kind = "number of float32" if math.isfinite(value) else "finite number"
        raise ValueError(f"{name} must be a {kind}, not {value}")
    if type(value) is int and not -(2**63) <= value < (meaning.below or 2**63):
        raise ValueError(
            f"{name} must be less than {_power_of_two(meaning.below or 2**63)}, not {value}"
        )
    is_low = meaning.minimum is not None and value < meaning.minimum
    is_low |= meaning.above is not None and not value > meaning.above
    if is_low or meaning.below is not None and not value < meaning.below:
        raise ValueError(f"{name} must be {_range(meaning)}, not {value}")


def _range(meaning: Meaning) -> str:
    has_minimum = meaning.minimum is not None
    if meaning.below is not None:
        low = f"[{meaning.minimum:g}" if has_minimum else f"({meaning.above:g}"
        return f"in {low}, {_power_of_two(meaning.below)})"
    return f"at least {meaning.minimum:g}" if has_minimum else f"more than {meaning.above:g}"


def _power_of_two(bound: float) -> str:
    return f"2^{int(math.log2(bound))}" if bound >= 2**31 else f"{bound:g}"


@dataclass(frozen=True)
class Rule:
    """Keys that do not go with each other.

    Attributes:
        when: keys with the values of each to which the rule applies, all together.
        needs: a key and what it must then be: its allowed values, or a test of its value.
        why: the reason, a clause that follows "since".
        text: what the key must be, where `needs` has a test.
    """

    when: Mapping[str, tuple | Callable[[Any], bool]]
    key: str
    needs: tuple | Callable[[Any], bool]
    why: str = ""
    text: str = ""


def check_rules(config: "DataclassInstance", rules: Iterable[Rule]) -> None:
    """Refuse a configuration that breaks a rule.

    Raises:
        ValueError: "X needs Y, since ...; this run has Z."
    """
    values = {entry.name: entry.value for entry in entries(config)}

    def fits(name: str, allowed: tuple | Callable[[Any], bool]) -> bool:
        return name in values and (
            values[name] in allowed if isinstance(allowed, tuple) else allowed(values[name])
        )

    for rule in rules:
        if (
            rule.key not in values
            or not all(fits(*item) for item in rule.when.items())
            or fits(rule.key, rule.needs)
        ):
            continue
        given = " with ".join(f"{_short(name)}={as_typed(values[name])}" for name in rule.when)
        needed = rule.text or f"{_short(rule.key)}={' or '.join(map(as_typed, rule.needs))}"  # type: ignore[arg-type]
        raise ValueError(
            f"{given} needs {needed}{', since ' * bool(rule.why)}{rule.why}; this run has "
            f"{_short(rule.key)}={as_typed(values[rule.key])}"
        )


def as_typed(value: object) -> str:
    """Format a value as one would type it on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def replaced(config: Config, values: dict[str, Any], prefix: str = "") -> Config:
    """Return a configuration with other values of some keys; names that it does not have are left out."""
    changes = {}
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            changes[field.name] = replaced(value, values, f"{name}.")
        elif name in values:
            changes[field.name] = values[name]
    return dataclasses.replace(config, **changes)


def expand_paths(config: Config) -> Config:
    """Return a configuration in which a tilde at the beginning of a path is the home directory."""
    return replaced(
        config,
        {
            entry.name: os.path.expanduser(entry.value)
            for entry in entries(config)
            if entry.meaning.is_path and isinstance(entry.value, str)
        },
    )


def to_yaml(config: "DataclassInstance") -> str:
    """Write a configuration as YAML."""
    return OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(config)))


def differences(
    saved: "DataclassInstance", given: "DataclassInstance", prefix: str = ""
) -> dict[str, str]:
    """Find the keys whose values differ, with a text "key: saved -> given" for each, in the order of the schema."""
    if type(saved) is not type(given):
        name = prefix.rstrip(".")
        return {name: f"{name}: {type(saved).__name__} -> {type(given).__name__}"}
    out: dict[str, str] = {}
    for field in dataclasses.fields(saved):
        a, b, name = getattr(saved, field.name), getattr(given, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(a) and not isinstance(a, type):
            out |= differences(a, b, f"{name}.")
        elif a != b:
            out[name] = f"{name}: {a} -> {b}"
    return out

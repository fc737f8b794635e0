"""Explains what is wrong with the arguments of a command before Hydra composes them. Nothing here imports torch."""

import argparse
import collections
import difflib
import re
import shlex
import sys
from collections.abc import Iterable
from functools import partial
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException

from parallel_epochs.pipeline.run.errors import printable

# These words say what a value must be, by what OmegaConf says of another one, with that behind it.
KINDS = {
    "to Integer": "a whole number in digits",
    "to Float": "a number",
    "valid bool": "true or false",
    "not Optional": "given a value",
    "to string": "a text",
    r"Dict\[|with ListConfig \[": "a mapping, as in {A: 1}",
    "AnyNode": "a mapping with a list, as in [A,B], for each key that takes one",
    "ListConfig|subclass of str": "a list, as in [A,B]",
}


def complete(arguments: list[str], groups: Iterable[str], texts: Iterable[str] = ()) -> list[str]:
    """Put the plus before groups that are not part of every run: ``experiment=digits`` is ``+experiment=digits``.

    Args:
        groups: names of groups, those with a plus as they must be given.
        texts: names of keys whose values are put in quotes: ``pair=A,B`` would be a list, and ``node=007`` a number.
    """
    added = tuple(f"{group[1:]}=" for group in groups if group.startswith("+"))
    found = [
        f"+{argument.lstrip('+')}" if argument.lstrip("+").startswith(added) else argument
        for argument in arguments
    ]
    return [
        _quoted(argument)
        if argument.partition("=")[0] in texts and re.match(r"\w+=(?!['\"]|null$|$)", argument)
        else argument
        for argument in found
    ]


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line and an exit status of 1, as those of all our programs."""

    def error(self, message: str) -> NoReturn:
        sys.exit(printable(f"error: {message}; see {self.prog} --help"))


def positive(text: str) -> int:
    """Read a number of at least 1, for `type` of an argument."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text}")
    return int(text)


def parse(arguments: list[str], keys: Iterable[str] = ()) -> argparse.Namespace:
    """Parse the flags of Hydra's; ``overrides`` are the arguments that are none.

    Args:
        keys: names of keys, which a message suggests where a flag looks like one.

    Raises:
        ValueError: an unknown flag, or one without its value.
    """
    parser = get_args_parser()
    setattr(parser, "error", partial(_refuse, keys=sorted(keys)))  # noqa: B010 - its own prints a screen of usage
    return parser.parse_args(arguments)


def _refuse(message: str, keys: list[str]) -> NoReturn:
    found = re.match(r"unrecognized arguments: (--?([A-Za-z][\w.-]*))", message)
    if found and (near := _nearest(found[2].replace("-", "_"), keys)):
        raise ValueError(
            f"{found[1]} is not a flag. Keys have no dashes: did you mean "
            f"{' or '.join(f'{key}=VALUE' for key in near)}?"
        )
    raise ValueError(f"{message}; see --hydra-help")


def is_plain_run(options: argparse.Namespace) -> bool:
    """Tell whether the command is one run of what lies in conf/, and asks for no other service of Hydra's."""
    changed = {name for name, value in vars(options).items() if value != vars(parse([]))[name]}
    return changed <= {"overrides"} and not _is_sweep(options)


def names_run_dir(overrides: Iterable[str]) -> bool:
    """Tell whether a command names its run directory."""
    return any(
        override.lstrip("+").startswith(("hydra.run.dir=", "hydra.run={")) for override in overrides
    )


def _is_sweep(options: argparse.Namespace) -> bool:
    return options.multirun or any(
        argument.startswith(("+sweep=", "hydra.mode=")) for argument in options.overrides
    )


def check(options: argparse.Namespace, groups: dict[str, list[str]], keys: Iterable[str]) -> None:
    """Check that every argument can be parsed, and names a key or a member of a group.

    Args:
        options: as :func:`parse` returns them.
        groups: members of each group; a name that begins with a plus is not part of every run.
        keys: names of all keys.

    Raises:
        ValueError: names the argument and says how to mend it.
    """
    if (
        options.config_path
        or options.config_name
        or options.config_dir
        or any(argument.startswith("hydra.searchpath=") for argument in options.overrides)
    ):
        return  # nothing is known here of configurations that lie elsewhere
    keys = sorted(keys)
    for argument in options.overrides:
        override = _parse(argument, groups, keys)
        name = override.key_or_group
        if name.startswith("hydra"):
            continue
        if override.is_sweep_override() and not _is_sweep(options):
            raise ValueError(
                f"{argument} is a list of values. Add -m to run each of them, or quote the list: "
                f"{shlex.quote(_quoted(argument))}"
            )
        if name in {group.lstrip("+") for group in groups}:
            _check_group(override, groups)
        else:
            _check_key(override, groups, keys)


def explain(error: Exception) -> str | None:
    """Say what a message of Hydra's or OmegaConf's about an argument means; none if it says it itself."""
    text = " ".join(str(error).split())
    if error.__cause__ is not None:
        text += " " + " ".join(str(error.__cause__).split())
    if found := re.search(
        r"Error merging override (\S+?)=(.*?) (?:Value|field|Invalid|Cannot) (.*)", text
    ):
        name, value, told = found.groups()
        wanted = next(
            (kind for said, kind in KINDS.items() if re.search(said, f"{told} {value}")),
            "another kind of value",
        )
        several = (
            ". To average several runs, name the folder of their sweep, or use pe.load([A, B])"
            * (name == "run" and value.startswith("["))
        )
        return f"{name} must be {wanted}, not {value}{several}"
    return None


def _parse(argument: str, groups: dict[str, list[str]], keys: list[str]) -> Override:
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException:
        name, equals, _ = argument.partition("=")
        if equals and _is_parsable(quoted := _quoted(argument)):
            raise ValueError(
                f"{argument} cannot be parsed. Quote the value: {shlex.quote(quoted)}"
            ) from None
        if not equals:
            shown = argument if argument.strip() else repr(argument)
            raise ValueError(
                f"{shown} is not of the form key=value: write KEY=VALUE, see --help"
            ) from None
        raise ValueError(
            f"{name} is not the name of a key{_suggest(name, [*groups, *keys])}"
        ) from None


def _is_parsable(argument: str) -> bool:
    try:
        OverridesParser.create().parse_override(argument)
    except HydraException:
        return False
    return True


def quoted(value: str) -> str:
    """Return a value in quotes, as an argument may have any text."""
    # A backslash stands for itself, but in front of a quote.
    escaped = re.sub(
        r'(\\*)("|$)', lambda found: found[1] * 2 + found[2].replace('"', '\\"'), value
    )
    return f'"{escaped}"'


def _quoted(argument: str) -> str:
    name, _, value = argument.partition("=")
    return f"{name}={quoted(value)}"


def _check_group(override: Override, groups: dict[str, list[str]]) -> None:
    name = override.key_or_group
    group = name if name in groups else f"+{name}"
    members = groups[group]
    if override.is_delete():
        return  # Hydra's defaults take its place
    values = (
        override.sweep_string_iterator()
        if override.is_sweep_override()
        else [override.get_value_element_as_str()]
    )
    for value in values:
        if value.strip("'\"") not in members:
            near = difflib.get_close_matches(value, members, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            if name == "model" and "." in value:
                hint = f". A class of your own is model=custom model.path={value}"
            raise ValueError(
                f"{name}={value} is unknown; choose one of {', '.join(shorten(members))}{hint}"
            )


def shorten(members: list[str]) -> list[str]:
    """Replace the members that lie in a folder by one word for all of them."""
    counts = collections.Counter(member.rpartition("/")[0] for member in members)
    alone = [member for member in members if "/" not in member]
    return [
        *alone,
        *(f"{folder}/NAME ({count} of them)" for folder, count in counts.items() if folder),
    ]


def _check_key(override: Override, groups: dict[str, list[str]], keys: list[str]) -> None:
    name = override.key_or_group
    if not name:
        raise ValueError(f"{override.input_line} names no key: write KEY=VALUE, see --help")
    if (mapping := name.rpartition(".")[0]) in keys and mapping.endswith("kwargs"):
        return
    if name in keys:
        return
    if (
        any(key.startswith(f"{name}.") for key in keys)
        and override.value_type == ValueType.ELEMENT
        and isinstance(override.value(), dict)
    ):
        return
    hint = _suggest(name, [*groups, *keys])
    if name.startswith("model."):
        hint += f" (an argument of a class of your own is model.kwargs.{name[6:]}=VALUE)"
    raise ValueError(f"{name} is unknown{hint}")


def _suggest(name: str, names: list[str]) -> str:
    near = _nearest(name, names)
    return f"; did you mean {' or '.join(near)}?" if near else "; see --help"


def _nearest(name: str, names: list[str]) -> list[str]:
    """Find the names that are most like one; none if none is like it."""
    leaf = name.rpartition(".")[2]

    def likeness(known: str) -> tuple[float, float]:
        # "lr" is short for train.lr and for features.lr; of "trian.lr" the whole tells them apart.
        whole = difflib.SequenceMatcher(None, name, known).ratio()
        end = difflib.SequenceMatcher(None, leaf, known.rpartition(".")[2]).ratio()
        return max(whole, end), whole if leaf != name else 0

    best = max((likeness(known) for known in names), default=(0.0, 0.0))
    return [known for known in names if likeness(known) == best] if best[0] > 0.7 else []

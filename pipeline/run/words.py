"""Words that messages share: nouns beside numbers, lists, and the commands of this program."""

from collections.abc import Sequence
from pathlib import Path


def count(value: float, noun: str, plural: str = "") -> str:
    """Format a number with thousands separators, and its noun in singular or plural."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def listed(names: Sequence[str]) -> str:
    """Format some names as a list in a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def command_of(name: str) -> str:
    """Return how a command is started from here: as a module in the folder of a checkout, by its program elsewhere."""
    package, checkout = "scripts" if name == "report" else "pipeline", Path(__file__).parents[1]
    if Path("pipeline").exists() and Path("pipeline").samefile(checkout):
        return f"python -m {package}.{name}"
    return f"parallel-epochs {name}"

"""Words that messages share: nouns beside numbers, and the commands of this program."""

from pathlib import Path


def count(value: float, noun: str, plural: str = "") -> str:
    """Format a number with thousands separators, and its noun in singular or plural."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def command_of(name: str) -> str:
    """Return how a command is started from here: as a module in the folder of a checkout, by its program elsewhere."""
    package, checkout = "scripts" if name == "report" else "pipeline", Path(__file__).parents[1]
    if Path("pipeline").exists() and Path("pipeline").samefile(checkout):
        return f"python -m {package}.{name}"
    return f"parallel-epochs {name}"

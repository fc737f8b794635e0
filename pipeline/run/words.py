"""Words that stand beside numbers."""


def count(value: float, noun: str, plural: str = "") -> str:
    """Format a number with thousands separators, and its noun in singular or plural."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"

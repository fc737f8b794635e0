"""Limits of what is read from files that may be of others: a few bytes can say that there are terabytes.

Each limit is an environment variable with a default that no file of a person reaches. Nothing here imports torch.
"""

import itertools
import os
import zipfile
from pathlib import Path

import yaml

from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.memory import format_bytes, machine_memory, parse_bytes

UNPACKED, TEXT, CONFIG, LINE, COLUMNS, TABLES = (
    f"PARALLEL_EPOCHS_MAX_{name}"
    for name in ("UNPACKED", "TEXT", "CONFIG", "LINE", "COLUMNS", "TABLES")
)
DEFAULTS = {
    UNPACKED: "64GB",
    TEXT: "256MB",
    CONFIG: "1MB",
    LINE: "64MB",
    COLUMNS: "65536",
    TABLES: "4GB",
}


def limit(name: str) -> int:
    """Return a limit: a number of bytes, or of columns.

    Raises:
        ValueError: the environment variable holds none.
    """
    text = os.environ.get(name) or DEFAULTS[name]
    if name == COLUMNS:
        if not text.isdecimal() or not int(text):
            raise ValueError(
                f"{name}={text} is not a number of columns; give a whole number of at least 1"
            )
        return int(text)
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"{name}={error}") from None


def limit_in_memory() -> int:
    """Return how many bytes may be unpacked into memory: the limit, or half of the memory where that is less."""
    most = limit(UNPACKED)
    return most if os.environ.get(UNPACKED) else min(most, machine_memory() // 2)


def check_size(what: str, size: int, name: str, bound: int | None = None) -> None:
    """Refuse more bytes than a limit allows.

    Args:
        what: names the file, and says in what way it is large, as in "x.zip unpacks to".
        bound: the limit; by default the one of this name.

    Raises:
        ValueError: names the limit, and the environment variable that raises it.
    """
    bound = limit(name) if bound is None else bound
    if size > bound:
        raise ValueError(
            f"{what} more than {format_bytes(bound)}: if that is right, raise the limit {name}"
        )


def check_columns(what: str, count: int) -> None:
    """Refuse a table with more columns than the limit allows.

    Raises:
        ValueError: names the limit, and the environment variable that raises it.
    """
    if count > limit(COLUMNS):
        raise ValueError(
            f"{what} has {count:,} columns, more than {limit(COLUMNS):,}: if that is right, raise the "
            f"limit {COLUMNS}"
        )


def check_zip(path: Path) -> None:
    """Refuse a zip archive, as .npz and .pt are, that would unpack to more bytes than may go into memory.

    Anything else passes: who reads it says what is wrong with it.

    Raises:
        ValueError: names the limit, and the environment variable that raises it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            packed = sum(
                member.file_size
                for member in archive.infolist()
                if member.compress_type != zipfile.ZIP_STORED
            )
    except (OSError, EOFError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return
    check_size(f"{path} unpacks to", packed, UNPACKED, limit_in_memory())


def check_yaml(text: str, name: str) -> None:
    """Refuse YAML that is too long, or that a few aliases make so.

    Args:
        name: of the file, for messages.

    Raises:
        ValueError: names the limit, and the environment variable that raises it.
        DamagedFile: an alias stands within what it stands for.
        yaml.YAMLError: it is none.
    """
    check_size(f"{name} has", len(text), CONFIG)
    counts: dict[int, int] = {}

    def count(node: yaml.Node, above: frozenset[int] = frozenset()) -> int:
        """Count the values that a node stands for, those behind aliases as often as they are named."""
        if id(node) in above:
            raise DamagedFile(f"{name} is damaged: an alias in it stands within itself")
        if id(node) not in counts:
            parts = node.value if isinstance(node, yaml.SequenceNode) else []
            if isinstance(node, yaml.MappingNode):
                parts = itertools.chain(*node.value)
            counts[id(node)] = 1 + sum(count(part, above | {id(node)}) for part in parts)
        return counts[id(node)]

    if (root := yaml.compose(text, yaml.SafeLoader)) is not None and count(root) > limit(CONFIG):
        raise ValueError(
            f"{name} stands for more than {limit(CONFIG):,} values by its aliases: if that is right, "
            f"raise the limit {CONFIG}"
        )

"""The files of tables: a digest of them, and a check of those that are packed."""

import itertools
import json
from pathlib import Path

from parallel_epochs.pipeline.data.columns import open_unzipped
from parallel_epochs.pipeline.data.content import hash_parts, label, sample_file
from parallel_epochs.pipeline.data.tables.heads import members
from parallel_epochs.pipeline.data.tables.schema import TableSchema
from parallel_epochs.pipeline.run import limits, pulse

# Bytes that are unzipped at a time.
UNZIPPED = 1 << 20


def hash_content(tables: TableSchema) -> str:
    """Compute a digest of the files of the tables, and of the schema where there are several types of nodes."""
    if tables.is_typed:
        found = [[] if own.path is None else members(own.path) for own in tables.tables()]
        described = [json.dumps(tables.describe(), sort_keys=True)]
    else:
        (edges,), (nodes,) = tables.edges.values(), tables.nodes.values()
        found = [[] if path is None else members(path) for path in (edges.path, nodes.path)]
        described = []
    parts = (
        [*label(("".join(path.suffixes[-2:]), path) for path in paths), "|"] for paths in found
    )
    return hash_parts([*described, *itertools.chain.from_iterable(parts)], digest=sample_file)


def check_zipped(path: Path) -> None:
    """Unzip a table once, for DuckDB would fill the disk with any number of rows, and says little of one cut short.

    Raises:
        ValueError: it is damaged or cut short, or unzips to more bytes than the limit.
    """
    with open_unzipped(path, limits.limit(limits.UNPACKED)) as file:
        while file.read(UNZIPPED):
            pulse.beat(f"unzipping {path.name}", pulse.State.LONG)

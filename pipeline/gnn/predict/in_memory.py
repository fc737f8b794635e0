"""Graphs, tables and molecules in memory, written into files for as long as they are predicted."""

import contextlib
import csv
import io
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from parallel_epochs.pipeline.data.objects import (
    are_tables,
    attributes_of,
    is_schema,
    is_table,
    keep_table,
    naming,
    title_of,
    write_schema,
    write_tables,
)

# Data in memory that each value of the key `data` can predict.
GIVEN = {
    "tables": "a pair of tables (nodes, edges) or a schema of several",
    "smiles": "a list of SMILES",
    "graph_files": "a list of graphs",
    "file": "one graph",
}


@contextlib.contextmanager
def written(
    data: Any, source: Any, folder: Path, given: Mapping[str, object]
) -> Iterator[dict[str, object]]:
    """Name the files of data by keys; those in memory are written into a folder that is removed at the end.

    Args:
        data: what :func:`attributes_of` takes, a pair of tables, the schema of several, a list of SMILES or of graphs,
            or a path. None: what the keys say.
        source: the keys `data` of the run.
        folder: of the run, for messages.
        given: keys of `predict`, of which those of paths may have tables as their values.

    Raises:
        ValueError: it is nothing that the run can predict.
    """
    names: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch, naming(names):
        found = {} if data is None else _keys_of(data, source, folder, Path(scratch), names)
        yield {f"data.{name}": value for name, value in found.items()} | {
            name: keep_table(value, name, Path(scratch), names) if is_table(value) else value
            for name, value in given.items()
        }


def _keys_of(
    data: Any, source: Any, folder: Path, scratch: Path, names: dict[str, str]
) -> dict[str, str]:
    """Write data into a folder, and return the keys below `data` that name their files; see :func:`written`."""
    if isinstance(data, (str, Path)):
        names[str(data)] = str(data)
        return {"folder" if Path(data).is_dir() else "path": str(data)}
    if are_tables(data):
        _refuse_others(source, "tables", "a pair of tables", folder)
        return {
            f"{name}.path": str(path) for name, path in write_tables(data, scratch, names).items()
        }
    if is_schema(data):
        _refuse_others(source, "tables", "a schema", folder)
        return {"schema": str(write_schema(data, scratch, names))}
    if isinstance(data, (list, tuple)) and data and all(isinstance(item, str) for item in data):
        _refuse_others(source, "smiles", "a list of SMILES", folder)
        path = scratch / "molecules.csv"
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL).writerows([item] for item in ["smiles", *data])
        path.write_text(text.getvalue())
        names[str(path)] = "the list of SMILES"
        return {"path": str(path)}
    if isinstance(data, (list, tuple)):
        _refuse_others(source, "graph_files", "a list of graphs", folder)
        for number, graph in enumerate(data):
            torch.save(attributes_of(graph), path := scratch / f"{number}.pt")
            names[str(path)] = f"graph {number} of the list"
        names[str(scratch)] = "the list of graphs"
        return {"folder": str(scratch)}
    attributes = attributes_of(data)
    _refuse_others(source, "file", title_of(data), folder)
    torch.save(attributes, path := scratch / "graph.pt")
    names[str(path)] = title_of(data)
    return {"path": str(path)}


def _refuse_others(source: Any, reader: str, what: str, folder: Path) -> None:
    """Refuse data in memory of another kind than the run was trained on.

    Args:
        reader: value of `data` that stands for such data.
        what: was given.
    """
    if (
        source.other_keys and source.source != reader
    ):  # a run that takes no other data is refused later
        raise ValueError(
            f"{folder} was trained on data={source.source}, and {what} is given: give "
            f"{GIVEN[source.source]}, or a path"
        )

"""Graphs, tables and molecules in memory, written into files for as long as they are predicted."""

import contextlib
import csv
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from parallel_epochs.pipeline.data.objects import (
    are_tables,
    attributes_of,
    is_schema,
    naming,
    title_of,
    write_schema,
    write_tables,
)
from parallel_epochs.pipeline.gnn.config import NewDataConfig, NewTableConfig

# Data in memory that each value of the key `data` can predict.
GIVEN = {"tables": "a pair of tables (nodes, edges) or a schema of several", "smiles": "a list of SMILES",
         "graph_files": "a list of graphs", "file": "one graph"}


@contextlib.contextmanager
def written(data: Any, source: Any, folder: Path) -> Iterator[NewDataConfig]:
    """Name the files of data; those in memory are written into a folder that is removed at the end.

    Args:
        data: what :func:`attributes_of` takes, a pair of tables, the schema of several, a list of SMILES or of graphs,
            or a path.
        source: the keys `data` of the run.
        folder: of the run, for messages.

    Raises:
        ValueError: it is nothing that the run can predict.
    """
    names: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch, naming(names):
        if isinstance(data, (str, Path)):
            names[str(data)] = str(data)
            yield NewDataConfig(folder=str(data)) if Path(data).is_dir() else NewDataConfig(path=str(data))
        elif are_tables(data):
            _refuse_others(source, "tables", "a pair of tables", folder)
            paths = {name: str(path) for name, path in write_tables(data, Path(scratch), names).items()}
            yield NewDataConfig(nodes=NewTableConfig(paths.get("nodes")), edges=NewTableConfig(paths["edges"]))
        elif is_schema(data):
            _refuse_others(source, "tables", "a schema", folder)
            yield NewDataConfig(schema=str(write_schema(data, Path(scratch), names)))
        elif isinstance(data, (list, tuple)) and data and all(isinstance(item, str) for item in data):
            _refuse_others(source, "smiles", "a list of SMILES", folder)
            path, name = Path(scratch, "molecules.csv"), getattr(source, "smiles_column", "smiles")
            text = io.StringIO()
            csv.writer(text, quoting=csv.QUOTE_ALL).writerows([item] for item in [name, *data])
            path.write_text(text.getvalue())
            names[str(path)] = "the list of SMILES"
            yield NewDataConfig(path=str(path))
        elif isinstance(data, (list, tuple)):
            _refuse_others(source, "graph_files", "a list of graphs", folder)
            for number, graph in enumerate(data):
                torch.save(attributes_of(graph), path := Path(scratch, f"{number}.pt"))
                names[str(path)] = f"graph {number} of the list"
            names[scratch] = "the list of graphs"
            yield NewDataConfig(folder=scratch)
        else:
            attributes = attributes_of(data)
            _refuse_others(source, "file", title_of(data), folder)
            torch.save(attributes, path := Path(scratch, "graph.pt"))
            names[str(path)] = title_of(data)
            yield NewDataConfig(path=str(path))


def _refuse_others(source: Any, reader: str, what: str, folder: Path) -> None:
    """Refuse data in memory of another kind than the run was trained on.

    Args:
        reader: value of `data` that stands for such data.
        what: was given.
    """
    if source.other_keys and source.source != reader:  # a run that takes no other data is refused later
        raise ValueError(f"{folder} was trained on data={source.source}, and {what} is given: give "
                         f"{GIVEN[source.source]}, or a path")

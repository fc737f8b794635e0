"""Graphs, molecules and pairs in memory, written into files for as long as they are predicted."""

import contextlib
import csv
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
            _refuse_others(source, "edges.path", "a pair of tables", folder)
            paths = {name: str(path) for name, path in write_tables(data, Path(scratch), names).items()}
            yield NewDataConfig(nodes=NewTableConfig(paths.get("nodes")), edges=NewTableConfig(paths["edges"]))
        elif is_schema(data):
            _refuse_others(source, "schema", "a schema", folder)
            yield NewDataConfig(schema=str(write_schema(data, Path(scratch), names)))
        elif isinstance(data, (list, tuple)) and data and all(isinstance(item, str) for item in data):
            _refuse_others(source, "smiles_column", "a list of SMILES", folder)
            path, name = Path(scratch, "molecules.csv"), getattr(source, "smiles_column", "smiles")
            text = io.StringIO()
            csv.writer(text, quoting=csv.QUOTE_ALL).writerows([item] for item in [name, *data])
            path.write_text(text.getvalue())
            names[str(path)] = "the list of SMILES"
            yield NewDataConfig(path=str(path))
        elif isinstance(data, (list, tuple)):
            _refuse_others(source, "folder", "a list of graphs", folder)
            for number, graph in enumerate(data):
                torch.save(attributes_of(graph), path := Path(scratch, f"{number}.pt"))
                names[str(path)] = f"graph {number} of the list"
            names[scratch] = "the list of graphs"
            yield NewDataConfig(folder=scratch)
        else:
            attributes = attributes_of(data)
            _refuse_others(source, "path" if source.holds != "graphs" else "a list", title_of(data), folder)
            torch.save(attributes, path := Path(scratch, "graph.pt"))
            names[str(path)] = title_of(data)
            yield NewDataConfig(path=str(path))


def _refuse_others(source: Any, needed: str, what: str, folder: Path) -> None:
    """Refuse data in memory of another kind than the run was trained on.

    Args:
        needed: key below `data` that takes such data.
        what: was given.
    """
    known = (*source.other_keys, *(["smiles_column"] if hasattr(source, "smiles_column") else []))
    if source.other_keys and needed not in known:
        gives = ("a pair of tables (nodes, edges) or a schema of several" if "edges.path" in known else
                 "a list of SMILES" if "smiles_column" in known else "a list of graphs" if source.holds == "graphs" else
                 "one graph")
        raise ValueError(f"{folder} was trained on data={source.source}, and {what} is given: give {gives}, or a path")


@contextlib.contextmanager
def saved_pairs(pairs: Tensor) -> Iterator[str]:
    """Write pairs of nodes into a file that is removed at the end."""
    with tempfile.TemporaryDirectory() as scratch:
        torch.save(pairs, path := str(Path(scratch, "pairs.pt")))
        with naming({path: "pairs"}):
            yield path

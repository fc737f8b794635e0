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

from parallel_epochs.pipeline.data.objects import are_tables, attributes_of, is_schema, write_schema, write_tables
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
    if isinstance(data, (str, Path)):
        yield NewDataConfig(folder=str(data)) if Path(data).is_dir() else NewDataConfig(path=str(data))
        return
    with tempfile.TemporaryDirectory() as scratch:
        if are_tables(data):
            paths = {name: str(path) for name, path in write_tables(data, Path(scratch)).items()}
            yield NewDataConfig(nodes=NewTableConfig(paths.get("nodes")), edges=NewTableConfig(paths["edges"]))
        elif is_schema(data):
            yield NewDataConfig(schema=str(write_schema(data, Path(scratch))))
        elif isinstance(data, (list, tuple)) and data and all(isinstance(item, str) for item in data):
            path, name = Path(scratch, "molecules.csv"), getattr(source, "smiles_column", "smiles")
            text = io.StringIO()
            csv.writer(text, quoting=csv.QUOTE_ALL).writerows([item] for item in [name, *data])
            path.write_text(text.getvalue())
            yield NewDataConfig(path=str(path))
        elif isinstance(data, (list, tuple)):
            for number, graph in enumerate(data):
                torch.save(attributes_of(graph), Path(scratch, f"{number}.pt"))
            yield NewDataConfig(folder=scratch)
        elif source.holds == "graphs":
            raise ValueError(f"{folder} was trained on many graphs (data={source.source}): give a list of them, or a "
                             "path")
        else:
            torch.save(attributes_of(data), Path(scratch, "graph.pt"))
            yield NewDataConfig(path=str(Path(scratch, "graph.pt")))


@contextlib.contextmanager
def saved_pairs(pairs: Tensor) -> Iterator[str]:
    """Write pairs of nodes into a file that is removed at the end."""
    with tempfile.TemporaryDirectory() as scratch:
        torch.save(pairs, path := str(Path(scratch, "pairs.pt")))
        yield path

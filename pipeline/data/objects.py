"""Graphs that other libraries hold in memory."""

import contextlib
import hashlib
import io
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch
import yaml
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import from_networkx

from parallel_epochs.pipeline.data.config import DATA_SCHEMAS
from parallel_epochs.pipeline.data.node_names import pack_names
from parallel_epochs.pipeline.data.readers.edge_table import as_edges, as_weights, merge
from parallel_epochs.pipeline.run import checkpoint, files
from parallel_epochs.pipeline.run.errors import RankError, install_command
from parallel_epochs.pipeline.run.read_back import shown


class Naming(logging.Filter):
    """Lets messages name what a caller gave, in place of the files that it was written to and of their keys.

    Args:
        names: what to say, by path; read when a message comes.
    """

    def __init__(self, names: dict[str, str]):
        super().__init__()
        self._names = names

    def rename(self, told: str) -> str:
        """Return a message with these names."""
        for path, name in self._names.items():
            told = re.sub(
                rf"(?:(?:data[\w.]*|pairs)=)?{re.escape(path)}", name.replace("\\", r"\\"), told
            )
        return told

    def filter(self, record: logging.LogRecord) -> bool:
        """Rename what a line of the log says."""
        record.msg, record.args = self.rename(record.getMessage()), ()
        return True


@contextlib.contextmanager
def naming(names: dict[str, str]) -> Iterator[None]:
    """Let errors name what a caller gave; see :class:`Naming`."""
    try:
        yield
    except (ValueError, RankError) as error:
        if (told := Naming(names).rename(str(error))) != str(error):
            error.args = (told,)
        raise


def title_of(data: object) -> str:
    """Return how a message names a graph in memory."""
    return (
        "the SciPy matrix"
        if scipy.sparse.issparse(data)
        else "the NetworkX graph"
        if hasattr(data, "adjacency")
        else f"the {type(data).__name__}"
    )


def keys_of(data: Any, cache_dir: Path, names: dict[str, str]) -> dict[str, str]:
    """Return the keys that name a dataset; a graph in memory is kept in files of the cache.

    Args:
        data: what :func:`attributes_of` takes, what :func:`are_tables` knows, the path of a saved graph, the name of a
            dataset, or none.
        names: gets what the files stand for, see :func:`naming`.

    Raises:
        ValueError: it is nothing that can be trained on.
    """
    if data is None:
        return {}
    if isinstance(data, str) and data in DATA_SCHEMAS:
        return {"data": data}
    if isinstance(data, (str, Path)):
        if Path(data).name == data and not Path(data).suffix and not Path(data).exists():
            raise ValueError(
                f"data={data!r} is no file here, and no dataset; these are {', '.join(DATA_SCHEMAS)}"
            )
        names[str(data)] = str(data)
        return {"data": "file", "data.path": str(data)}
    folder = cache_dir.absolute() / "given"
    if are_tables(data):
        paths = write_tables(data, folder, names)
        return {
            "data": "tables",
            **{f"data.{name}.path": str(path) for name, path in paths.items()},
        }
    if is_schema(data):
        return {"data": "tables", "data.schema": str(write_schema(data, folder, names))}
    attributes = attributes_of(data)
    path = folder / f"{checkpoint.digest(_parts_of(attributes))[:24]}.pt"
    if not files.is_there(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, lambda file: torch.save(attributes, file))
    names[str(path)] = title_of(data)
    return {"data": "file", "data.path": str(path)}


def is_schema(data: object) -> bool:
    """Tell whether data are the content of data.schema, with tables in place of paths."""
    return (
        isinstance(data, Mapping)
        and "edge_index" not in data
        and isinstance(data.get("edges"), Mapping)
    )


def write_schema(data: Mapping, folder: Path, names: dict[str, str]) -> Path:
    """Write the tables of a schema as Parquet, and the schema with their paths as YAML; returns the path of the latter.

    Args:
        names: gets what the files stand for, see :func:`naming`.

    Raises:
        ValueError: a table cannot be written.
    """

    def plain(value: object, name: str) -> Any:
        if is_table(value):
            return keep_table(value, f"the table of {name}", folder, names)
        if isinstance(value, Mapping):
            return {
                str(key): plain(item, str(key) if key != "path" else name)
                for key, item in value.items()
            }
        return str(value) if isinstance(value, Path) else value

    try:
        schema = _keep(
            yaml.safe_dump(plain(data, "data"), sort_keys=False).encode(), folder, ".yaml"
        )
        names[str(schema)] = "the schema"
        return schema
    except yaml.YAMLError as error:
        raise ValueError(
            f"the schema holds what is neither a table nor a text, a number or a list: {error}"
        ) from None


def keep_table(table: object, title: str, folder: Path, names: dict[str, str]) -> str:
    """Write a table as Parquet, under a name that its content tells, and return its path.

    Args:
        names: gets the title by the path, see :func:`naming`.

    Raises:
        ValueError: it cannot be written as Parquet.
    """
    path = str(_keep(_to_parquet(table, title), folder, ".parquet"))
    names[path] = title
    return path


def _keep(content: bytes, folder: Path, ending: str) -> Path:
    """Keep content in a file whose name it tells."""
    path = folder / f"{hashlib.blake2b(content, digest_size=12).hexdigest()}{ending}"
    if not files.is_there(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, lambda file: file.write(content))
    return path


def are_tables(data: Any) -> bool:
    """Tell whether data are a pair of tables, of nodes and of edges, of pandas, Arrow or what exports to Arrow.

    The table of nodes may be None.
    """
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        return False
    nodes, edges = data
    return is_table(edges) and (nodes is None or is_table(nodes))


def is_table(data: Any) -> bool:
    """Tell whether data are a table of pandas, Arrow or what exports to Arrow."""
    return (
        isinstance(data, pd.DataFrame)
        or hasattr(data, "columns")
        and hasattr(data, "__arrow_c_stream__")
    )


def write_tables(data: Any, folder: Path, names: dict[str, str]) -> dict[str, Path]:
    """Write a pair of tables as Parquet, under names that their content tells.

    Args:
        names: gets what the files stand for, see :func:`naming`.

    Returns:
        The paths, by "nodes" and "edges"; the former is missing where there is no table of nodes.

    Raises:
        ValueError: a table cannot be written as Parquet.
    """
    return {
        name: Path(keep_table(table, f"the table of {name}", folder, names))
        for name, table in zip(("nodes", "edges"), data, strict=True)
        if table is not None
    }


def _to_parquet(table: Any, title: str) -> bytes:
    """Return a table as the content of a file; categories of pandas become their values."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"tables in memory need pyarrow: {install_command('tables')}") from None
    buffer = io.BytesIO()
    try:
        found = (
            pa.Table.from_pandas(table, preserve_index=False)
            if isinstance(table, pd.DataFrame)
            else pa.table(table)
        )
        plain = [
            kind.value_type if pa.types.is_dictionary(kind) else kind for kind in found.schema.types
        ]
        parquet.write_table(
            found.cast(pa.schema(list(zip(found.column_names, plain, strict=True)))), buffer
        )
    except (pa.ArrowException, ValueError) as error:
        told = " ".join(" ".join(map(str, error.args)).split())
        raise ValueError(f"{title} cannot be written as Parquet: {told}") from None
    return buffer.getvalue()


def _parts_of(value: object) -> Any:
    """Put the tensors that a sparse one is made of in its place, for :func:`pipeline.run.checkpoint.digest`."""
    if isinstance(value, dict):
        return {key: _parts_of(item) for key, item in value.items()}
    if isinstance(value, Tensor) and value.is_meta:  # which reading refuses
        return shown(value)
    if not isinstance(value, Tensor) or value.layout == torch.strided:
        return value
    value = value.to_sparse_coo().coalesce()
    return [value.indices(), value.values(), list(value.shape)]


def attributes_of(data: Any) -> dict[str, Any]:
    """Return the attributes of a graph: a ``Data``, a ``HeteroData``, a dict of the attributes of one of them, a SciPy
    matrix or a NetworkX graph.

    Raises:
        ValueError: it is none of these, or its weights are none.
    """
    if isinstance(data, (Data, HeteroData)):
        return {name: value for name, value in data.to_dict().items() if value is not None}
    if isinstance(data, dict) and not any(map(is_table, data.values())):
        return data
    if scipy.sparse.issparse(data):
        if hasattr(data, "check_format"):
            data.check_format(full_check=True)
        source, target, weight, names = as_edges(data, "the SciPy matrix")
        edge_index, edge_attr = merge(source, target, weight, len(names), "the SciPy matrix")
        ones = torch.ones(edge_index.size(1))
        return {
            "edge_index": edge_index,
            "edge_attr": ones if edge_attr is None else edge_attr[:, 0],
            "num_nodes": len(names),
        }
    if hasattr(data, "adjacency") and hasattr(
        data, "nodes"
    ):  # of NetworkX, which need not be installed
        return _of_networkx(data)
    raise ValueError(
        f"data is of type {type(data).__name__}; give a torch_geometric Data, a HeteroData, a dict of its "
        "attributes, a SciPy matrix, a NetworkX graph, a pair of tables (nodes, edges), where nodes may be "
        "None, several tables as data.schema names them, a path, or the name of a dataset"
    )


def _of_networkx(graph: Any) -> dict[str, Any]:
    """Return the attributes of a NetworkX graph, with the names of its nodes unless they are their numbers."""
    nodes, what = list(graph), "the NetworkX graph"
    names = [str(node) for node in nodes]
    if (again := pd.Series(names, dtype=str).duplicated()).any():
        raise ValueError(
            f"{what} has two nodes that are called {names[int(again.argmax())]!r} as text: rename one of "
            "them"
        )
    if any("weight" in edge for *_, edge in graph.edges(data=True)):
        graph = graph.copy()
        for *_, edge in graph.edges(data=True):  # what has none weighs 1, as in NetworkX
            edge.setdefault("weight", 1)
    try:
        found = attributes_of(from_networkx(graph))
    except (ValueError, IndexError) as error:
        raise ValueError(
            f"{what} cannot be read: {error or type(error).__name__}. Give all nodes the same attributes, "
            "and all edges"
        ) from None
    weight = found.pop("weight", None) if not {"edge_attr", "edge_weight"} & set(found) else None
    if weight is not None:
        weight = as_weights(
            what, pd.Series(weight.tolist() if isinstance(weight, Tensor) else weight)
        )
        found["edge_attr"] = torch.from_numpy(weight.astype(np.float32)).unsqueeze(1)
    source, target = found["edge_index"].numpy()
    own = {"edge_attr"} if weight is not None else set()  # other attributes of edges do not add up
    if graph.is_multigraph() and not set(found) - {"edge_index", *own, "num_nodes", "x", "y"}:
        edge_index, edge_attr = merge(source, target, weight, len(nodes), what)
        found |= {
            "edge_index": edge_index,
            **({} if edge_attr is None else {"edge_attr": edge_attr}),
        }
    if nodes == list(range(len(nodes))):
        return found
    return found | {"num_nodes": len(nodes), **pack_names(np.array(names))}

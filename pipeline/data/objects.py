"""Graphs that other libraries hold in memory."""

import hashlib
import io
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import scipy.sparse
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import from_networkx, from_scipy_sparse_matrix

from parallel_epochs.pipeline.data.config import DATA_SCHEMAS
from parallel_epochs.pipeline.run import checkpoint, files
from parallel_epochs.pipeline.run.errors import install_command


def keys_of(data: Any, cache_dir: Path) -> dict[str, str]:
    """Return the keys that name a dataset; a graph in memory is kept in files of the cache.

    Args:
        data: what :func:`attributes_of` takes, what :func:`are_tables` knows, the path of a saved graph, the name of a
            dataset, or none.

    Raises:
        ValueError: it is nothing that can be trained on.
    """
    if data is None:
        return {}
    if isinstance(data, str) and data in DATA_SCHEMAS:
        return {"data": data}
    if isinstance(data, (str, Path)):
        return {"data": "file", "data.path": str(data)}
    if are_tables(data):
        return {"data": "tables", **{f"data.{name}.path": str(path)
                                     for name, path in write_tables(data, cache_dir.absolute() / "given").items()}}
    attributes = attributes_of(data)
    content = {name: _parts_of(value) if isinstance(value, Tensor) else value for name, value in attributes.items()}
    path = cache_dir.absolute() / "given" / f"{checkpoint.digest(content)[:24]}.pt"
    if not files.is_there(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, lambda file: torch.save(attributes, file))
    return {"data": "file", "data.path": str(path)}


def are_tables(data: Any) -> bool:
    """Tell whether data are a pair of tables, of nodes and of edges, of pandas, Arrow or what exports to Arrow.

    The table of nodes may be None.
    """
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        return False
    nodes, edges = data
    return _is_table(edges) and (nodes is None or _is_table(nodes))


def _is_table(data: Any) -> bool:
    return isinstance(data, pd.DataFrame) or hasattr(data, "columns") and hasattr(data, "__arrow_c_stream__")


def write_tables(data: Any, folder: Path) -> dict[str, Path]:
    """Write a pair of tables as Parquet, under names that their content tells.

    Returns:
        The paths, by "nodes" and "edges"; the former is missing where there is no table of nodes.

    Raises:
        ValueError: a table cannot be written as Parquet.
    """
    found = {}
    for name, table in zip(("nodes", "edges"), data, strict=True):
        if table is None:
            continue
        content = _to_parquet(table, name)
        found[name] = path = folder / f"{hashlib.blake2b(content, digest_size=12).hexdigest()}.parquet"
        if not files.is_there(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(path, partial(_write, content))
    return found


def _write(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def _to_parquet(table: Any, name: str) -> bytes:
    """Return a table as the content of a file; categories of pandas become their values."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"tables in memory need pyarrow: {install_command('tables')}") from None
    buffer = io.BytesIO()
    try:
        found = pa.Table.from_pandas(table, preserve_index=False) if isinstance(table, pd.DataFrame) else pa.table(
            table)
        plain = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in found.schema.types]
        parquet.write_table(found.cast(pa.schema(list(zip(found.column_names, plain, strict=True)))), buffer)
    except (pa.ArrowException, ValueError) as error:
        raise ValueError(f"the table of {name} cannot be written as Parquet: {' '.join(str(error).split())}") from None
    return buffer.getvalue()


def _parts_of(tensor: Tensor) -> Any:
    """Return a tensor as it is, or the tensors that a sparse one is made of."""
    if tensor.layout == torch.strided:
        return tensor
    tensor = tensor.to_sparse_coo().coalesce()
    return [tensor.indices(), tensor.values(), list(tensor.shape)]


def attributes_of(data: Any) -> dict[str, Any]:
    """Return the attributes of a graph: a ``Data``, a dict of its attributes, a SciPy matrix or a NetworkX graph.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(data, HeteroData):
        raise ValueError("a HeteroData is not supported: give the Data that its to_homogeneous() returns")
    if isinstance(data, Data):
        return {name: value for name, value in data.to_dict().items() if value is not None}
    if isinstance(data, dict):
        return data
    if scipy.sparse.issparse(data):
        edge_index, weight = from_scipy_sparse_matrix(data)
        return {"edge_index": edge_index, "edge_attr": weight.float(), "num_nodes": data.shape[0]}
    if hasattr(data, "adjacency") and hasattr(data, "nodes"):  # of NetworkX, which need not be installed
        return attributes_of(from_networkx(data))
    if _is_table(data):
        raise ValueError("data is one table: give a pair (nodes, edges) of tables, or (None, edges)")
    raise ValueError(f"data is a {type(data).__name__}; give a torch_geometric Data, a dict of its attributes, a SciPy "
                     "matrix, a NetworkX graph, a pair of tables (nodes, edges), a path, or the name of a dataset")

"""Graphs that other libraries hold in memory."""

from pathlib import Path
from typing import Any

import scipy.sparse
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import from_networkx, from_scipy_sparse_matrix

from parallel_epochs.pipeline.data.config import DATA_SCHEMAS
from parallel_epochs.pipeline.run import checkpoint, files


def keys_of(data: Any, cache_dir: Path) -> dict[str, str]:
    """Return the keys that name a dataset; a graph in memory is kept in a file of the cache.

    Args:
        data: what :func:`attributes_of` takes, the path of a saved graph, the name of a dataset, or none.

    Raises:
        ValueError: it is nothing that can be trained on.
    """
    if data is None:
        return {}
    if isinstance(data, str) and data in DATA_SCHEMAS:
        return {"data": data}
    if isinstance(data, (str, Path)):
        return {"data": "file", "data.path": str(data)}
    attributes = attributes_of(data)
    content = {name: _parts_of(value) if isinstance(value, Tensor) else value for name, value in attributes.items()}
    path = cache_dir.absolute() / "given" / f"{checkpoint.digest(content)[:24]}.pt"
    if not files.is_there(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, lambda file: torch.save(attributes, file))
    return {"data": "file", "data.path": str(path)}


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
    raise ValueError(f"data is a {type(data).__name__}; give a torch_geometric Data, a dict of its attributes, a SciPy "
                     "matrix, a NetworkX graph, a path, or the name of a dataset")

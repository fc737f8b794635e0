"""Sparse node features: checked when they are read, and made dense a few rows at a time, in a file."""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.pipeline.data.check import check_tensor
from parallel_epochs.pipeline.names import TERMS
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.memory import format_bytes
from parallel_epochs.pipeline.run.storage import free_space, zeros_on_disk

log = logging.getLogger(__name__)

# Bytes of dense rows that are in memory at a time.
BLOCK = 1 << 26


def coalesce(key: str, value: Tensor) -> Tensor:
    """Check a sparse matrix that was read from a file, and bring it into COO form, its places in order, each once.

    Raises:
        ValueError: it is no matrix, or names a place outside of it; the message begins with `key`.
    """
    if value.dim() != 2 or value.dense_dim():
        raise ValueError(
            f"{key} is sparse in {value.dim() - value.dense_dim()} of {value.dim()} dimensions; it must "
            f"be a matrix that is sparse in both: save {key}.to_dense().to_sparse()"
        )
    try:
        with warnings.catch_warnings(), torch.sparse.check_sparse_tensor_invariants():
            warnings.simplefilter("ignore")  # that torch's CSR form may change
            if value.layout == torch.sparse_coo:
                checked = torch.sparse_coo_tensor(value._indices(), value._values(), value.shape)
            else:
                by_row = value.layout in (torch.sparse_csr, torch.sparse_bsr)
                ptr, other = (
                    (value.crow_indices(), value.col_indices())
                    if by_row
                    else (value.ccol_indices(), value.row_indices())
                )
                checked = torch.sparse_compressed_tensor(
                    ptr, other, value.values(), value.shape, layout=value.layout
                ).to_sparse_coo()
    except RuntimeError as error:
        raise ValueError(
            f"{key} is no sparse matrix that can be read: {str(error).partition(chr(10))[0]}"
        ) from None
    checked = checked.coalesce()
    check_tensor(key, checked.values())
    return checked


def with_edges(saved: dict[str, Any], name: str) -> dict[str, Any]:
    """Add ``edge_index``, and ``edge_attr`` where its values are not all 1, to attributes that have only ``adj_t``, the
    transposed adjacency matrix that PyG's ToSparseTensor makes.

    Args:
        name: of the graph or the relation, for the log.

    Raises:
        ValueError: it is no sparse matrix of torch.
    """
    if "edge_index" in saved or "adj_t" not in saved:
        return saved
    value = saved["adj_t"]
    if not isinstance(value, Tensor) or value.layout == torch.strided:
        raise ValueError(
            f"there is no edge_index, and adj_t is {type(value).__name__}, not a sparse tensor: save "
            "data.edge_index, [2, num_edges]"
        )
    adjacency = coalesce("adj_t", value.detach())
    log.info("%s: the edges are those of adj_t, from its columns to its rows", name)
    saved = {key: item for key, item in saved.items() if key != "adj_t"} | {
        "edge_index": adjacency.indices().flip(0)
    }
    if (
        "edge_attr" not in saved
        and "edge_weight" not in saved
        and bool((adjacency.values() != 1).any())
    ):
        saved["edge_attr"] = adjacency.values()
    return saved


def densify(x: Tensor, folder: Path, origin: str) -> Tensor:
    """Make a sparse matrix of float32 dense in a file without a name: memory holds some of its rows at a time.

    Args:
        x: float32, as :func:`coalesce` returns it otherwise.
        folder: of the file. It also has to hold the graph that is kept.
        origin: where the matrix comes from, for messages.

    Raises:
        ValueError: the disk has no room for the dense rows.
    """
    num_rows, num_columns = x.shape
    size, free = 4 * num_rows * num_columns, free_space(folder)
    what = f"{x.values().numel():,} numbers of {num_rows:,} nodes x {num_columns:,} columns, {format_bytes(size)} dense"
    if 2 * size > free:
        raise ValueError(
            f"{origin}: x is sparse, {what}: cache_dir needs twice as much to prepare it, and its disk "
            f"has {format_bytes(free)} free. Set cache_dir to a larger disk, or save fewer columns, for "
            "example those that scikit-learn's TruncatedSVD makes of them"
        )
    log.info("%s: x is sparse, %s: its dense rows lie in a file of cache_dir", origin, what)
    dense = zeros_on_disk(folder, num_rows, num_columns)
    (rows, columns), values = x.indices(), x.values()
    step = max(BLOCK // max(4 * num_columns, 1), 1)
    for first in range(0, num_rows, step):
        last = min(first + step, num_rows)
        begin, end = torch.searchsorted(rows, torch.tensor([first, last])).tolist()
        dense[rows[begin:end], columns[begin:end]] = values[begin:end]
        pulse.renew()
    return dense


def take_terms(data: Data, rows: Int[Tensor, " num_rows"]) -> dict[str, Tensor]:
    """Take rows of the matrix of TF-IDF that a graph holds; returns its arrays, by their names in `TERMS`."""
    pointers, terms, weights = (data[name].numpy() for name in TERMS)
    shape = len(pointers) - 1, int(terms.max(initial=0)) + 1
    found = sp.csr_array((weights, terms, pointers), shape=shape)[rows.numpy()]
    arrays = found.indptr.astype(np.int64), found.indices.astype(np.int32), found.data
    return {name: torch.from_numpy(array) for name, array in zip(TERMS, arrays, strict=True)}

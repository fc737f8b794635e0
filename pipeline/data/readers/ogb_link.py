"""The link datasets of the Open Graph Benchmark: the graph of their training links, and pairs to be linked."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.readers import ogb_node
from parallel_epochs.pipeline.names import PAIRS, SPLITS
from parallel_epochs.pipeline.run.checkpoint import UNREADABLE, check_expanded, load_safely

# Pairs by the names of their split and of what OGB calls them there.
STORED = {
    pairs: (pairs.split("_")[0], "edge_neg" if pairs.endswith("negatives") else "edge")
    for pairs in PAIRS
}
# ogbl-citation2 has these in their place: the two ends of each pair, and other targets of its source.
SOURCE, TARGET, OTHERS = "source_node", "target_node", "target_node_neg"


hash_content, download = ogb_node.hash_content, ogb_node.download


def read(directory: Path, name: str) -> Graph:
    """Read a dataset in OGB's raw CSV layout; nothing is written to the folder.

    Weights and years of edges are left alone, as the published recipe does: the edges tell who is linked to whom.

    Returns:
        A graph with ``edge_index`` of the training links, both ways round where OGB's table says so, ``x`` if there
        are node features, the ``metric`` of OGB's table, and the pairs of `PAIRS`, each [num_pairs, 2], int64. If each
        pair has negatives of its own, ``negatives_per_pair`` is their number, and they are in the order of the pairs.

    Raises:
        ValueError: a file is missing, cut short, or does not fit the others; the message names it.
    """
    data = ogb_node.read_graphs(directory, name)
    del data.ptr
    data.update(_read_pairs(ogb_node.split_files(directory, name)))
    return data


def _read_pairs(paths: list[Path]) -> dict[str, Tensor | int]:
    out: dict[str, Tensor | int] = {}
    parts = dict(zip(SPLITS, map(_load, paths)))
    if SOURCE in parts["train"]:
        return _read_lists(paths, parts)
    for key, (part, stored) in STORED.items():
        try:
            pairs = torch.as_tensor(np.asarray(parts[part][stored]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{paths[SPLITS.index(part)]} has no table of pairs '{stored}' for the {part} split"
            ) from error
        empty = torch.empty(0, 2, dtype=torch.int64)
        refused = pairs.is_floating_point() or pairs.dtype == torch.bool  # by pipeline.data.check
        kept = pairs if refused else pairs.long()
        out[key] = kept if pairs.numel() else empty
    return out


def _read_lists(paths: list[Path], parts: dict[str, dict]) -> dict[str, Tensor | int]:
    """Read pairs of which each has negatives of its own, in the manner of ogbl-citation2."""
    out, widths = dict[str, Tensor | int](), []
    for split, path in zip(SPLITS, paths, strict=True):
        dims = {SOURCE: 1, TARGET: 1} | ({} if split == "train" else {OTHERS: 2})
        part = parts.pop(split)  # it may be as large as what is made of it
        arrays = [np.asarray(part.get(name)) for name in dims]
        shapes = [
            values.shape[:1] if values.ndim == dim and values.dtype.kind in "iu" else None
            for values, dim in zip(arrays, dims.values())
        ]
        if None in shapes or len(set(shapes)) > 1 or 0 in arrays[-1].shape[1:]:
            raise ValueError(
                f"{path}: the {split} split must have whole numbers {SOURCE} and {TARGET}, [num_pairs]"
                + (f", and {OTHERS}, [num_pairs, num_negatives]" if len(dims) > 2 else "")
            )
        source, target, *others = arrays
        out[f"{split}_pairs"] = torch.from_numpy(
            np.stack([source, target], 1).astype(np.int64, copy=False)
        )
        for values in others:
            pairs = np.empty((*values.shape, 2), np.int64)
            pairs[:, :, 0], pairs[:, :, 1] = source[:, None], values
            out[f"{split}_negatives"] = torch.from_numpy(pairs.reshape(-1, 2))
            widths.append(values.shape[1])
    if len(set(widths)) > 1:
        raise ValueError(
            f"{paths[0].parent}: a validation pair has {widths[0]:,} negatives and a test pair "
            f"{widths[1]:,}: they must have as many"
        )
    return out | {"negatives_per_pair": widths[0]}


def _load(path: Path) -> dict:
    """Load what ogb saved by torch.save: a dict of tensors and numpy arrays, and no code."""
    # Torch's safe loader has to be told about numpy arrays, under the names of numpy 1 and 2.
    reconstruct = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
    kinds = (
        np.dtypes.Int64DType,
        np.dtypes.Int32DType,
        np.dtypes.Float64DType,
        np.dtypes.Float32DType,
    )
    renamed = (reconstruct, "numpy.core.multiarray._reconstruct")
    allowed: list[Any] = [np.ndarray, np.dtype, *kinds, bytes, reconstruct, renamed]
    try:
        with torch.serialization.safe_globals(allowed):
            saved = load_safely(ogb_node.require(path))
    except UNREADABLE as error:
        raise ValueError(
            f"{path} is damaged, or does not hold pairs ({type(error).__name__})"
        ) from error
    check_expanded(str(path), saved)
    if not isinstance(saved, dict):
        raise ValueError(
            f"{path} holds a {type(saved).__name__}, not a table of pairs for each of its names"
        )
    return saved

"""Graphs that users saved themselves with torch.save."""

import contextlib
import errno
import logging
import re
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import (
    AttrType,
    BaseStorage,
    EdgeStorage,
    GlobalStorage,
    NodeStorage,
)

from parallel_epochs.models.edge_index import plain_edges
from parallel_epochs.pipeline.data.check import as_float32, check_numbering, check_tensor
from parallel_epochs.pipeline.data.config import FileConfig
from parallel_epochs.pipeline.data.content import hash_file
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import NODE
from parallel_epochs.pipeline.data.node_names import check_names
from parallel_epochs.pipeline.data.readers.edge_labels import LABELS, OF_EDGES, split_edges
from parallel_epochs.pipeline.data.readers.hetero import join_hetero
from parallel_epochs.pipeline.data.sparse import coalesce, with_edges
from parallel_epochs.pipeline.data.splits import divide, has_label, shuffle
from parallel_epochs.pipeline.metrics import CLASS_METRICS, METRICS
from parallel_epochs.pipeline.names import MASKS
from parallel_epochs.pipeline.run import limits
from parallel_epochs.pipeline.run.checkpoint import (
    UNREADABLE,
    check_expanded,
    explain_content,
    load_safely,
)
from parallel_epochs.pipeline.run.read_back import shown

log = logging.getLogger(__name__)

NAMES = ("names", "names_ptr")  # see :func:`pipeline.data.node_names.pack_names`
TENSORS = ("x", "edge_index", "edge_attr", "y", "species", *MASKS)
USED = (*TENSORS, "metric", "num_nodes", *NAMES)
OTHER_NAMES = {"val_mask": "valid_mask", "edge_weight": "edge_attr"}
# Classes that a saved graph may be made of. Other classes could run code.
CLASSES = [
    AttrType,
    Data,
    DataEdgeAttr,
    DataTensorAttr,
    EdgeIndex,
    Graph,
    HeteroData,
    BaseStorage,
    EdgeStorage,
    GlobalStorage,
    NodeStorage,
    type(Path()),
]
# The words of torch about a stream of a later protocol than its loader knows.
PROTOCOL = "Unsupported operand 149"
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def hash_content(path: str) -> str:
    """Compute a digest of the file."""
    return hash_file(Path(path))


def read(config: FileConfig, needs_labels: bool = True) -> Graph:
    """Read a graph saved with torch.save: a ``Data``, a dict of its attributes, an ``InMemoryDataset`` of one graph, or
    a ``HeteroData``.

    ``valid_mask`` may be called ``val_mask``, and without ``edge_attr`` the ``edge_weight`` is the edges' feature.
    A line of the log names the attributes that are not used. ``metric``
    may be one of :mod:`pipeline.metrics`; without it, integer labels in one column mean accuracy. A file without ``y``
    and masks is a graph without labels.

    Args:
        needs_labels: whether to read labels and masks, too. Otherwise they may be wrong.

    Raises:
        ValueError: not such a file, or an attribute is missing, or is none that a graph can have.
    """
    path, loaded, reverse = Path(config.path), _load(Path(config.path)), config.reverse_relations
    if not is_hetero(loaded) and config.hide_labelled is not None:
        edges = _split_edges(_attributes(path, loaded), config, needs_labels=needs_labels)
        loaded, reverse, config = edges, False, replace(config, split=None, edge_time=None)
    elif not is_hetero(loaded) and config.edge_time is None:
        loaded = _by_relation(path, loaded)
    if not is_hetero(loaded):
        if config.label_type is not None:
            raise ValueError(f"{path} has one type of nodes: leave task.type out")
        return _read_saved(str(path), _attributes(path, loaded), config, needs_labels=needs_labels)
    if config.edge_time is not None:
        raise ValueError(
            f"data.edge_time={config.edge_time} is for a Data, and {path} holds a HeteroData: a split of "
            "links by time needs tables (data=tables data.schema=FILE). Set data.split=random"
        )
    return join_hetero(
        str(path),
        loaded,
        lambda name, saved, needs_labels: _read_saved(
            f"{path}: {name}", saved, config, needs_labels=needs_labels
        ),
        reverse_relations=reverse,
        featureless=config.featureless,
        label_type=config.label_type,
        needs_labels=needs_labels,
    )


def _by_relation(path: Path, loaded: object) -> object:
    """Make a graph whose ``edge_type`` numbers relations, as PyG's RGCNConv has it, the dict of a ``HeteroData``."""
    saved = _attributes(path, loaded)
    kinds = cast(Tensor, saved.get("edge_type"))
    index = cast(Tensor, saved.get("edge_index"))
    if not _is_of_edges(kinds, index) or kinds.dim() != 1 or kinds.is_floating_point():
        return loaded
    if len(numbers := kinds.unique()) < 2:
        return loaded
    log.info("%s: edge_type is the relation of each edge; there are %s", path, len(numbers))
    of_edges = [key for key in ("edge_attr", "edge_weight") if key in saved]
    left_out = ("edge_index", "edge_type", *of_edges)
    node = {key: value for key, value in saved.items() if key not in left_out}
    if not {"x", "y", "num_nodes"} & set(node):
        node["num_nodes"] = int(index.max()) + 1
    parts: dict = {"_global_store": {}, NODE: node}
    for number in numbers.tolist():
        chosen = kinds == number
        edges = {"edge_index": index.as_subclass(Tensor)[:, chosen]}
        parts[NODE, str(number), NODE] = edges | {key: saved[key][chosen] for key in of_edges}
    return parts


def _split_edges(saved: dict, config: FileConfig, *, needs_labels: bool) -> dict:
    """Let the edges of a ``Data`` with labels be nodes of a type."""
    path = config.path
    saved = _renamed(with_edges(saved, path))
    if needs_labels and LABELS not in saved:
        raise ValueError(
            f"{path}: task=edge needs {LABELS}, a label for each edge; it has {', '.join(saved)}. Add it, "
            "or set task=node"
        )
    times = _take_edge_times(saved, config.edge_time) if needs_labels else None
    _report_unused(path, saved, (*OF_EDGES, "x", "num_nodes", "metric", *NAMES))
    return split_edges(saved, config, times, needs_labels=needs_labels)


def is_hetero(loaded: object) -> bool:
    """Tell whether what was saved is a ``HeteroData``, or a dict of one."""
    return isinstance(loaded, HeteroData) or isinstance(loaded, dict) and "_global_store" in loaded


def _read_saved(path: str, saved: dict, config: FileConfig, *, needs_labels: bool = True) -> Graph:
    """Make a graph of its attributes; the message of an error begins with `path`."""
    try:
        saved = _renamed(with_edges(saved, path))
        times = _take_edge_times(saved, config.edge_time)
        needs_labels = needs_labels and times is None  # times divide links alone
        if needs_labels and "y" in saved and config.split is not None:
            masks = _draw_masks(path, saved, config)
            saved.update(zip(MASKS, masks, strict=True))
        elif needs_labels and "y" in saved and not any(mask in saved for mask in MASKS):
            log.info("%s: y is not read, as there are no masks and data.split is not given", path)
            needs_labels = False
        if not needs_labels:
            saved = {key: value for key, value in saved.items() if key not in ("y", *MASKS)}
        _report_unused(path, saved, USED)
        labels = ("y", *MASKS) if any(key in saved for key in ("y", *MASKS)) else ()
        missing = [key for key in ("edge_index", *labels) if key not in saved]
        if missing:
            raise ValueError(
                f"there is no {', '.join(missing)}; it has {', '.join(saved) or 'nothing'}. Add what is "
                "missing"
            )
        data = as_data(saved, config.mask_column)
        if all(isinstance(saved.get(key), Tensor) for key in NAMES):
            check_names(saved["names"], saved["names_ptr"], data.num_nodes)
            data.update({key: saved[key] for key in NAMES})
        return data if times is None else data.update({"edge_time": times})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _renamed(saved: dict) -> dict:
    """Give attributes with other names the usual ones, where these are not there."""
    others = {
        other: name for other, name in OTHER_NAMES.items() if other in saved and name not in saved
    }
    for other in others:
        check_tensor(other, saved[other])
    return {others.get(key, key): value for key, value in saved.items()}


def _report_unused(path: str, saved: dict, used: tuple[str, ...]) -> None:
    """Name the attributes that are not used in the log."""
    unused = [key for key in saved if key not in used]
    if unused:
        log.info("%s: not used: %s", path, ", ".join(unused))


def _draw_masks(path: str, saved: dict, config: FileConfig) -> list[Tensor]:
    """Divide the nodes with labels by random."""
    if there := [mask for mask in MASKS if mask in saved]:
        log.info("%s: not used with data.split=%s: %s", path, config.split, ", ".join(there))
    check_tensor("y", saved["y"])
    labelled = has_label(saved["y"])
    order = shuffle(labelled, config.graph_seed)
    return divide(order, len(labelled), config.train_fraction, config.valid_fraction)


def _take_edge_times(saved: dict, name: str | None) -> Tensor | None:
    """Take the times of the edges out of the attributes; none if no name is given."""
    if name is None:
        return None
    if name not in saved:
        raise ValueError(f"data.edge_time={name} is not in the file, which has {', '.join(saved)}")
    index, times = saved.get("edge_index"), saved.pop(name)
    check_tensor(name, times)
    if isinstance(index, Tensor) and times.numel() != index.size(1):
        raise ValueError(
            f"{name} must have a time for each of the {index.size(1):,} edges, not the shape "
            f"{list(times.shape)} (data.edge_time)"
        )
    times = times.reshape(-1).double()
    if not (known := times.isfinite()).all():
        raise ValueError(
            f"{name}: edge {int((~known).nonzero()[0])} has the time {times[~known][0]:g}; each edge "
            "needs one (data.edge_time). Leave such edges out, or set data.split=random"
        )
    return times


def _is_of_edges(value: object, edge_index: object) -> bool:
    """Tell whether an attribute has a row for each edge."""
    if not (isinstance(value, Tensor) and isinstance(edge_index, Tensor)):
        return False
    return value.dim() > 0 and value.shape[:1] == edge_index.shape[1:]


def read_attributes(path: Path) -> dict:
    """Read the attributes of a graph saved with torch.save; see :func:`read`. Those that are None are left out.

    Raises:
        ValueError: no graph, or not one alone; the message begins with the path.
    """
    return _attributes(path, _load(path))


def _load(path: Path) -> object:
    limits.check_zip(path)
    try:
        with warnings.catch_warnings(), _safe_classes():
            warnings.simplefilter("ignore")  # of what is refused below
            saved = load_safely(path)
    except UNREADABLE as error:
        if class_ := re.search(r"GLOBAL (\S+) was not an allowed global", str(error)):
            raise ValueError(f"{path} {_explain_class(class_[1])}") from None
        if PROTOCOL in str(error) and zipfile.is_zipfile(path):
            raise ValueError(
                f"{path} has another pickle protocol than 2: load it in Python, and save it again by "
                "torch.save without pickle_protocol"
            ) from None
        # A file that is cut short gives EINVAL.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise ValueError(
            f"{path} is not a saved torch_geometric Data: {explain_content(path)}; save one with "
            "torch.save"
        ) from error
    check_expanded(str(path), saved)
    for store in saved.stores if isinstance(saved, (Data, HeteroData)) else ():
        vars(store).pop("_cached_attr", None)
    return saved


@contextlib.contextmanager
def _safe_classes() -> Iterator[None]:
    """Let torch load CLASSES, and the cache in which PyG's graphs keep the kinds of their attributes as a dict.

    That cache is a ``defaultdict``. PyG calls the class safe, but torch does not fill one.
    """
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(
        [
            *(known for known in before if known is not defaultdict),
            *CLASSES,
            (_empty, "collections.defaultdict"),
        ]
    )
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _empty(factory: object = None) -> dict:
    return {}


def _explain_class(name: str) -> str:
    """Say what to do about a class that is not loaded, because that could run code."""
    for begin, kind, mend in (
        ("numpy.", "a numpy array", "torch.from_numpy(...) of it"),
        ("scipy.sparse.", "a SciPy matrix", "torch.sparse_csr_tensor(...) of its tocsr()"),
        ("torch_sparse.", "a SparseTensor", "its to_torch_sparse_csr_tensor()"),
        ("parallel_epochs.", "a graph with types", "the HeteroData that it was made of"),
    ):
        if name.startswith(begin):
            return f"holds {kind}: save {mend}"
    return f"names {name}, which is not loaded, as it could run code: save a torch_geometric Data of tensors"


def _attributes(path: Path, saved: object) -> dict:
    """Take the attributes out of what was saved; those that are None are left out."""
    if isinstance(saved, (tuple, list)) and saved and isinstance(saved[0], (Data, dict)):
        if (number := _num_graphs(saved)) > 1:
            raise ValueError(f"{path} holds {number:,} graphs: save the one to train on")
        saved = saved[0]
    if isinstance(saved, Data):
        saved = saved.to_dict()
    if not isinstance(saved, dict) or not all(isinstance(key, str) for key in saved):
        raise ValueError(
            f"{path} holds a {type(saved).__name__}, not a graph: save a torch_geometric Data, a HeteroData, or "
            "the dict of names and attributes that one of them gives by to_dict()"
        )
    return {key: value for key, value in saved.items() if value is not None}


def _num_graphs(saved: tuple | list) -> int:
    """Count the graphs of a list of them, or of (data, slices) and perhaps the class, as InMemoryDataset saves them."""
    if len(saved) == 1 or saved[1] is None:
        return 1
    if isinstance(saved[1], dict) and isinstance(saved, tuple):
        ends = [len(ends) - 1 for ends in saved[1].values() if isinstance(ends, Tensor)]
        return max(ends, default=1)
    return len(saved)


def as_data(saved: dict, mask_column: int | None = None) -> Graph:
    """Make a graph of its attributes, whose sizes are checked later.

    Raises:
        ValueError: an attribute is none that a graph can have.
    """
    tensors = {key: saved[key] for key in TENSORS if key in saved}
    for key, value in tensors.items():
        if key == "x" and isinstance(value, Tensor) and value.layout in SPARSE:
            tensors[key] = coalesce(key, value.detach())
            continue
        check_tensor(key, value)
        value = plain_edges(value).detach()
        # torch can do little with unsigned integers but convert them.
        is_unsigned = value.dtype in (torch.uint16, torch.uint32, torch.uint64)
        tensors[key] = value.long() if is_unsigned else value
        if key in ("edge_attr", "y") and value.dim() == 1:
            tensors[key] = tensors[key].unsqueeze(1)
    if "species" in tensors:
        tensors["species"] = tensors["species"].reshape(-1)
    num_nodes = _num_nodes(saved, tensors)
    if "y" not in tensors:
        return Graph(num_nodes=num_nodes, **tensors)
    y = tensors["y"]
    metric = saved.get("metric", "rocauc" if y.size(1) > 1 or y.is_floating_point() else "acc")
    if not isinstance(metric, str) or metric not in METRICS:
        raise ValueError(f"the metric is {shown(metric)}; choose one of {', '.join(METRICS)}")
    tensors |= {mask: _as_mask(mask, tensors[mask], mask_column) for mask in MASKS}
    if metric not in CLASS_METRICS:
        tensors["y"] = as_float32("y", y)
    return Graph(num_nodes=num_nodes, metric=metric, **tensors)


def _num_nodes(saved: dict, tensors: dict[str, Tensor]) -> int:
    stated = saved.get("num_nodes")
    if isinstance(stated, Tensor) and stated.numel() == 1:
        stated = stated.item()
    counted = next((key for key in ("x", "y") if key in tensors), None)
    if counted is not None:
        rows = len(tensors[counted])
    else:  # nothing else says how many there are
        edges = tensors["edge_index"]
        largest = int(edges.max()) + 1 if edges.numel() else 0
        rows = stated if type(stated) is int else largest
        check_numbering("edge_index", rows, edges.numel() // 2)
    if stated is not None and (type(stated) is not int or stated != rows):
        raise ValueError(
            f"num_nodes is {shown(stated)}, but {counted or 'y'} has {rows:,} rows: correct it, or leave it out"
        )
    return rows


def _as_mask(key: str, value: Tensor, column: int | None) -> Tensor:
    """Turn a mask of 0 and 1, or a column of several, into a mask of bool."""
    if value.dim() == 2 and value.size(1):
        last = value.size(1) - 1
        if last and (column is None or column > last):
            raise ValueError(
                f"{key} has {last + 1} columns, one for each split: choose one with data.mask_column=0 to {last}"
            )
        value = value[:, column if last else 0]
    if value.dtype != torch.bool and not bool(((value == 0) | (value == 1)).all()):
        raise ValueError(f"{key} must hold true or false for each node, not other numbers")
    return value.bool()

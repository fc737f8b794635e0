"""Graphs that users saved themselves with torch.save."""

import contextlib
import errno
import logging
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
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
from parallel_epochs.pipeline.data.content import hash_file
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import NODE
from parallel_epochs.pipeline.data.node_names import check_names
from parallel_epochs.pipeline.data.pickles import readable
from parallel_epochs.pipeline.data.readers.edge_labels import LABELS, OF_EDGES, split_edges
from parallel_epochs.pipeline.data.readers.hetero import join_hetero
from parallel_epochs.pipeline.data.sparse import coalesce, with_edges
from parallel_epochs.pipeline.data.splits import divide, shuffle
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
USED = ("x", "edge_index", "edge_attr", "y", "species", "metric", "num_nodes", *NAMES, *MASKS)
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
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def hash_content(path: str) -> str:
    """Compute a digest of the file."""
    return hash_file(Path(path))


def read(
    path: str | Path,
    mask_column: int | None = None,
    split: str | None = None,
    time_column: str | None = None,
    edge_time: str | None = None,
    train_fraction: float = 0.0,
    valid_fraction: float = 0.0,
    graph_seed: int = 0,
    reverse_relations: bool = True,
    featureless: str = "mean",
    label_type: str | None = None,
    hide_labelled: bool | None = None,
    needs_labels: bool = True,
) -> Graph:
    """Read a graph saved with torch.save: a ``Data``, a dict of its attributes, an ``InMemoryDataset`` of one graph, or
    a ``HeteroData``.

    ``valid_mask`` may be called ``val_mask``, and without ``edge_attr`` the ``edge_weight`` is the edges' feature.
    Masks may also be the numbers of their nodes. A line of the log names the attributes that are not used. ``metric``
    may be one of :mod:`pipeline.metrics`; without it, integer labels in one column mean accuracy. A file without ``y``
    and masks is a graph without labels.

    Args:
        mask_column: which column of masks that have several, one for each of several splits.
        split: how to divide the nodes with labels, in place of masks: "random", or by "time".
        time_column: of a split by time: the attribute with a time for each node.
        edge_time: the attribute with a time for each edge.
        train_fraction, valid_fraction: of the nodes with labels, for training and validation.
        graph_seed: of a random split.
        reverse_relations, featureless, label_type: of a ``HeteroData``, see
            :func:`pipeline.data.readers.hetero.join_hetero`.
        hide_labelled: read labels of edges, and whether those that are predicted send no messages; none: of nodes.
        needs_labels: whether to read labels and masks, too. Otherwise they may be wrong.

    Raises:
        ValueError: not such a file, or an attribute is missing, or is none that a graph can have.
    """
    path = Path(path)
    splitting = Splitting(
        mask_column, split, time_column, train_fraction, valid_fraction, graph_seed
    )
    loaded = _load(path)
    if hide_labelled is not None and not is_hetero(loaded):
        loaded, reverse_relations = (
            _split_edges(
                str(path),
                _attributes(path, loaded),
                splitting,
                edge_time,
                hides=hide_labelled,
                needs_labels=needs_labels,
            ),
            False,
        )
        edge_time, splitting = None, replace(splitting, split=None)
    elif edge_time is None and not is_hetero(loaded):
        loaded = _by_relation(path, loaded)
    if is_hetero(loaded):
        if edge_time is not None:
            raise ValueError(
                f"data.edge_time={edge_time} is for a Data, and {path} holds a HeteroData: a split of "
                "links by time needs tables (data=tables data.schema=FILE). Set data.split=random"
            )
        return join_hetero(
            str(path),
            loaded,
            lambda name, saved, needs_labels: _read_saved(
                f"{path}: {name}", saved, splitting, needs_labels=needs_labels
            ),
            reverse_relations=reverse_relations,
            featureless=featureless,
            label_type=label_type,
            needs_labels=needs_labels,
        )
    if label_type is not None or reverse_relations is not True or featureless != "mean":
        raise ValueError(
            "task.type, data.reverse_relations and data.featureless are for a HeteroData, with several "
            f"types of nodes, and {path} has one. Leave them out"
        )
    return _read_saved(
        str(path),
        _attributes(path, loaded),
        splitting,
        edge_time=edge_time,
        needs_labels=needs_labels,
    )


def _by_relation(path: Path, loaded: object) -> object:
    """Make a graph whose ``edge_type`` numbers relations, as PyG's RGCNConv has it, the dict of a ``HeteroData``."""
    saved = _attributes(path, loaded)
    kinds, index = saved.get("edge_type"), saved.get("edge_index")
    if index is None or not isinstance(kinds, Tensor) or kinds.dim() != 1:
        return loaded
    if not _is_of_edges(kinds, index):
        return loaded
    if kinds.is_floating_point() or len(numbers := kinds.unique()) < 2:
        return loaded
    log.info("%s: edge_type is the relation of each edge; there are %s", path, len(numbers))
    of_edges = ("edge_index", "edge_type", "edge_attr", "edge_weight")
    node = {key: value for key, value in saved.items() if key not in of_edges}
    if not {"x", "y", "num_nodes"} & set(node):
        node["num_nodes"] = int(index.max()) + 1
    parts: dict = {"_global_store": {}, NODE: node}
    for number in numbers.tolist():
        chosen = kinds == number
        parts[NODE, str(number), NODE] = {
            "edge_index": index.as_subclass(Tensor)[:, chosen],
            **{key: saved[key][chosen] for key in of_edges[2:] if key in saved},
        }
    return parts


def _split_edges(
    path: str,
    saved: dict,
    splitting: "Splitting",
    edge_time: str | None,
    *,
    hides: bool,
    needs_labels: bool,
) -> dict:
    """Let the edges of a ``Data`` with labels be nodes of a type."""
    saved = with_edges(saved, path)
    if needs_labels and LABELS not in saved:
        raise ValueError(
            f"{path}: task=edge needs {LABELS}, a label for each edge; it has {', '.join(saved)}. Add it, "
            "or set task=node"
        )
    for other, name in OTHER_NAMES.items():
        if name not in saved and other in saved:
            saved[name] = saved.pop(other)
    times = None if edge_time is None or not needs_labels else _take_edge_times(saved, edge_time)
    if unused := [
        key for key in saved if key not in (*OF_EDGES, "x", "num_nodes", "metric", *NAMES)
    ]:
        log.info("%s: not used: %s", path, ", ".join(unused))
    return split_edges(
        path,
        saved,
        split=splitting.split,
        times=times,
        seed=splitting.graph_seed,
        hides=hides,
        fractions=(splitting.train_fraction, splitting.valid_fraction),
        needs_labels=needs_labels,
    )


@dataclass(frozen=True)
class Splitting:
    """How nodes with labels are divided; the attributes are arguments of :func:`read`."""

    mask_column: int | None
    split: str | None
    time_column: str | None
    train_fraction: float
    valid_fraction: float
    graph_seed: int


def is_hetero(loaded: object) -> bool:
    """Tell whether what was saved is a ``HeteroData``, or a dict of one."""
    return isinstance(loaded, HeteroData) or isinstance(loaded, dict) and "_global_store" in loaded


def _read_saved(
    path: str,
    saved: dict,
    splitting: Splitting,
    *,
    edge_time: str | None = None,
    needs_labels: bool = True,
) -> Graph:
    """Make a graph of its attributes; the message of an error begins with `path`."""
    split, time_column = splitting.split, splitting.time_column
    try:
        saved = with_edges(saved, path)
        for other, name in OTHER_NAMES.items():
            if name not in saved and other in saved:
                check_tensor(other, saved[other])
                saved[name] = saved.pop(other)
        times = None if edge_time is None else _take_edge_times(saved, edge_time)
        if times is not None and time_column is None:  # which divides links, and nothing else
            saved = {key: value for key, value in saved.items() if key not in ("y", *MASKS)}
        elif split is not None and "y" in saved and needs_labels:
            order = _order(path, saved, split, time_column, splitting.graph_seed)
            masks = divide(
                order, len(saved["y"]), splitting.train_fraction, splitting.valid_fraction
            )
            saved.update(zip(MASKS, masks, strict=True))
        unsplit = "y" in saved and not any(mask in saved for mask in MASKS)
        if unsplit and needs_labels:
            log.info("%s: y is not read, as there are no masks and data.split is not given", path)
        if unsplit or not needs_labels:
            saved = {key: value for key, value in saved.items() if key not in ("y", *MASKS)}
        _report_unused(path, saved)
        labels = ("y", *MASKS) if any(key in saved for key in ("y", *MASKS)) else ()
        missing = [key for key in ("edge_index", *labels) if key not in saved]
        if missing:
            raise ValueError(
                f"there is no {', '.join(missing)}; it has {', '.join(saved) or 'nothing'}. Add what is "
                "missing"
            )
        data = _as_data(saved, splitting.mask_column)
        if all(isinstance(saved.get(key), Tensor) for key in NAMES):
            check_names(saved["names"], saved["names_ptr"], data.num_nodes)
            data.update({key: saved[key] for key in NAMES})
        return data if times is None else data.update({"edge_time": times})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _report_unused(path: str, saved: dict) -> None:
    """Name the attributes that are not used in the log."""
    if unused := [key for key in saved if key not in USED]:
        log.info("%s: not used: %s", path, ", ".join(unused))
    if (
        "weight" in unused
        and "edge_attr" not in saved
        and _is_of_edges(saved["weight"], saved.get("edge_index"))
    ):
        log.warning(
            "%s: weight, as from_networkx names the weights of edges, is not used; to train with them save "
            "data.edge_weight = data.weight",
            path,
        )


def _order(path: str, saved: dict, split: str, time_column: str | None, seed: int) -> np.ndarray:
    """Bring the nodes with labels into a random order, or into that of their times."""
    if there := [mask for mask in MASKS if mask in saved]:
        log.info("%s: not used with data.split=%s: %s", path, split, ", ".join(there))
    check_tensor("y", saved["y"])
    y = saved["y"].reshape(len(saved["y"]), -1)
    labelled = (~y.isnan().all(1) if y.is_floating_point() else (y >= 0).all(1)).numpy()
    if split == "random":
        return shuffle(labelled, seed)
    if time_column not in saved:
        raise ValueError(
            f"data.time_column={time_column} is not in the file, which has {', '.join(saved)}"
        )
    times = saved.pop(time_column)
    check_tensor(str(time_column), times)
    if times.numel() != len(labelled):
        raise ValueError(
            f"{time_column} must have a time for each of the {len(labelled):,} nodes, not the shape "
            f"{list(times.shape)}"
        )
    times = times.reshape(-1)
    labelled &= ~times.double().isnan().numpy()
    order = times.argsort(stable=True).numpy()
    return order[labelled[order]]


def _take_edge_times(saved: dict, name: str) -> Tensor:
    """Take the times of the edges out of the attributes."""
    if name not in saved:
        raise ValueError(f"data.edge_time={name} is not in the file, which has {', '.join(saved)}")
    times = saved.pop(name)
    check_tensor(name, times)
    num_edges = saved["edge_index"].size(1) if isinstance(saved.get("edge_index"), Tensor) else 0
    if times.numel() != num_edges:
        raise ValueError(
            f"{name} must have a time for each of the {num_edges:,} edges, not the shape "
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
    return (
        isinstance(value, Tensor)
        and value.dim() > 0
        and isinstance(edge_index, Tensor)
        and edge_index.dim() == 2
        and len(value) == edge_index.size(1)
    )


def read_attributes(path: Path) -> dict:
    """Read the attributes of a graph saved with torch.save; see :func:`read`. Those that are None are left out.

    Raises:
        ValueError: no graph, or not one alone; the message begins with the path.
    """
    return _attributes(path, _load(path))


def _load(path: Path) -> object:
    limits.check_zip(path)
    try:
        with warnings.catch_warnings(), _safe_classes(), readable(path) as file:
            warnings.simplefilter("ignore")  # of what is refused below
            saved = load_safely(file)
    except UNREADABLE as error:
        if class_ := re.search(r"GLOBAL (\S+) was not an allowed global", str(error)):
            raise ValueError(f"{path} {_explain_class(class_[1])}") from None
        if isinstance(error, OSError) and error.errno not in (
            None,
            errno.EINVAL,
        ):  # which a file cut short gives
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
        if _num_graphs(saved) > 1:
            raise ValueError(
                f"{path} holds {_num_graphs(saved):,} graphs: save the one to train on"
            )
        saved = saved[0]
    if isinstance(saved, Data):
        saved = saved.to_dict()
    if not isinstance(saved, dict):
        raise ValueError(
            f"{path} holds a {type(saved).__name__}, not a graph: save a torch_geometric Data, or a dict "
            "of its attributes"
        )
    if not all(isinstance(key, str) for key in saved):
        raise ValueError(
            f"{path} holds a dict whose keys are not all names of attributes: save a torch_geometric "
            "Data, a HeteroData, or the dict that one of them gives by to_dict()"
        )
    return {key: value for key, value in saved.items() if value is not None}


def _num_graphs(saved: tuple | list) -> int:
    """Count the graphs of a list of them, or of (data, slices) and perhaps the class, as InMemoryDataset saves them."""
    if len(saved) == 1 or saved[1] is None:
        return 1
    if isinstance(saved, tuple) and isinstance(saved[1], dict):
        return max(
            (len(ends) - 1 for ends in saved[1].values() if isinstance(ends, Tensor)), default=1
        )
    return len(saved)


def _as_data(saved: dict, mask_column: int | None) -> Graph:
    tensors = {
        key: saved[key]
        for key in USED
        if key in saved and key not in ("metric", "num_nodes", *NAMES)
    }
    for key, value in tensors.items():
        if key == "x" and isinstance(value, Tensor) and value.layout in SPARSE:
            tensors[key] = coalesce(key, value.detach())
            continue
        check_tensor(key, value)
        value = plain_edges(value).detach()
        # torch can do little with unsigned integers but convert them.
        tensors[key] = (
            value.long() if value.dtype in (torch.uint16, torch.uint32, torch.uint64) else value
        )
    if "edge_attr" in tensors and tensors["edge_attr"].dim() == 1:
        tensors["edge_attr"] = tensors["edge_attr"].unsqueeze(1)
    if "species" in tensors:
        tensors["species"] = tensors["species"].reshape(-1)
    if "y" not in tensors:
        return Graph(num_nodes=_num_nodes(saved, tensors, None), **tensors)
    y = tensors.pop("y")
    y = y.unsqueeze(1) if y.dim() == 1 else y
    metric = saved.get("metric", "rocauc" if y.size(1) > 1 or y.is_floating_point() else "acc")
    if not isinstance(metric, str) or metric not in METRICS:
        raise ValueError(f"the metric is {shown(metric)}; choose one of {', '.join(METRICS)}")
    num_nodes = _num_nodes(saved, tensors, y)
    if mask_column is not None and all(tensors[mask].dim() < 2 for mask in MASKS):
        raise ValueError(
            f"data.mask_column={mask_column}, but the masks have no columns: leave it out"
        )
    for mask in MASKS:
        tensors[mask] = _as_mask(mask, tensors[mask], num_nodes, mask_column)
    return Graph(
        y=y if metric in CLASS_METRICS else as_float32("y", y),
        num_nodes=num_nodes,
        metric=metric,
        **tensors,
    )


def _num_nodes(saved: dict, tensors: dict[str, Tensor], y: Tensor | None) -> int:
    stated = saved.get("num_nodes")
    if isinstance(stated, Tensor) and stated.numel() == 1:
        stated = stated.item()
    if "x" in tensors:
        rows = tensors["x"].size(0)
    elif y is not None:
        rows = y.size(0)
    else:  # nothing else says how many there are
        edges = tensors["edge_index"]
        rows = stated if type(stated) is int else int(edges.max()) + 1 if edges.numel() else 0
        check_numbering("edge_index", rows, edges.numel() // 2)
    stated = rows if stated is None else stated
    if isinstance(stated, bool) or not isinstance(stated, int) or stated != rows:
        raise ValueError(
            f"num_nodes is {shown(stated)}, but {'x' if 'x' in tensors else 'y'} has {rows:,} rows: "
            "correct it, or leave it out"
        )
    return rows


def _as_mask(key: str, value: Tensor, num_nodes: int, column: int | None) -> Tensor:
    """Turn a mask, a column of several or the numbers of its nodes into a mask."""
    if value.dim() == 2 and value.size(1):
        last = value.size(1) - 1
        if last and column is None:
            raise ValueError(
                f"{key} has {last + 1} columns, one for each split: choose one with data.mask_column=0 to "
                f"{last}"
            )
        if last and column is not None and column > last:
            raise ValueError(f"data.mask_column={column}: {key} has the columns 0 to {last}")
        value = value[:, column if last else 0]
    if value.dim() != 1 or value.dtype == torch.bool:  # check says what is wrong with its shape
        return value
    if value.is_floating_point():
        raise ValueError(
            f"{key} holds {str(value.dtype).removeprefix('torch.')}: save a mask of bool, or the numbers "
            "of its nodes as integers"
        )
    if value.size(0) == num_nodes and bool(((value == 0) | (value == 1)).all()):
        return value.bool()
    nodes = value.long()
    if len(wrong := nodes[(nodes < 0) | (nodes >= num_nodes)]):
        raise ValueError(
            f"{key} is out of range: it names node {int(wrong[0])}, the graph has nodes 0 to "
            f"{num_nodes - 1}"
        )
    if len(nodes.unique()) < len(nodes):
        raise ValueError(
            f"{key} names a node twice; save each node of the split once, or a mask of bool"
        )
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[nodes] = True
    return mask

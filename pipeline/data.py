"""From a dataset's configuration to a checked graph, prepared once and kept under a hash of its content."""

import hashlib
import json
import logging
import os
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.utils import add_remaining_self_loops, to_undirected

from pipeline import checkpoint, graph, synthetic
from pipeline.config import DataConfig, DigitsConfig, FileConfig, OGBConfig, SyntheticProteinsConfig

log = logging.getLogger(__name__)

# Raise it when the same configuration and files shall give another graph than before.
FORMAT = 3
MASKS = ("train_mask", "valid_mask", "test_mask")


def load(config: DataConfig, cache_dir: str | Path, *, content_hash: str | None = None) -> Data:
    """The prepared graph of a dataset, from the cache if it is there. Processes share the memory of the cache's file.

    Args:
        content_hash: of the graph as another process loaded and checked it a moment ago; it is not checked again.

    Returns:
        ``edge_index``, an int32 ``EdgeIndex`` sorted by destination; ``x`` [num_nodes, channels], float32, the last
        ``num_categories`` columns one-hot; ``edge_attr`` [num_edges, edge_dim], float32, or none; ``y``
        [num_nodes, num_tasks], float32 of 0, 1 and NaN for "rocauc", [num_nodes, 1], int64 for "acc"; ``train_mask``,
        ``valid_mask``, ``test_mask``; ``metric``; ``out_channels``, the number of classes or tasks;
        ``content_hash``.

    Raises:
        ValueError: the dataset is absent, incomplete or inconsistent.
    """
    start = time.perf_counter()
    verify = content_hash is None
    content_hash = content_hash or _content_hash(config)
    path = Path(cache_dir) / "graphs" / f"{config.source}-{content_hash}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path.parent} cannot be written to; set cache_dir")
    data = _read_cache(path, verify=verify)
    if data is None:
        data = prepare(_read(config), config)
        checkpoint.save(path, _pack(data))
        log.info("data: %s prepared in %.1f s, kept as %s", config.source, time.perf_counter() - start, path)
    else:
        log.log(logging.INFO if verify else logging.DEBUG, "data: %s read from %s in %.1f s", config.source, path,
                time.perf_counter() - start)
    data.content_hash = content_hash
    return data


def _content_hash(config: DataConfig) -> str:
    """What the prepared graph depends on: the keys that shape it, and the bytes of the files that it is read from."""
    keys = {key: value for key, value in asdict(config).items()
            if key not in ("components", "min_component_size", "root", "folder", "path")}
    if isinstance(config, OGBConfig):
        ogb_folder = _ogb()
        keys["content"] = ogb_folder.content_hash(_ogb_folder(config), config.name)
    elif isinstance(config, FileConfig):
        if not Path(config.path).is_file():
            raise ValueError(f"data.path={config.path} does not exist; save a torch_geometric Data there with torch.save")
        with open(config.path, "rb") as file:
            keys["content"] = checkpoint.file_digest(file)
    keys["format"] = FORMAT
    return hashlib.blake2b(json.dumps(keys, sort_keys=True).encode(), digest_size=12).hexdigest()


def _pack(data: Data) -> dict:
    packed = {key: value for key, value in data.to_dict().items() if key != "edge_index"}
    packed["edges"] = data.edge_index.as_tensor()
    packed["indptr"] = data.edge_index.get_csc()[0][0]
    return packed


def _read_cache(path: Path, *, verify: bool) -> Data | None:
    if not path.exists():
        return None
    try:
        packed = checkpoint.load(path, mmap=True, verify=verify)
    except ValueError as error:
        log.warning("%s; preparing the graph again", error)
        return None
    edge_index = graph.from_sorted(packed.pop("edges"), packed.pop("indptr"))
    return Data(edge_index=edge_index, **packed)


def _read(config: DataConfig) -> Data:
    if isinstance(config, SyntheticProteinsConfig):
        return synthetic.synthetic_proteins(
            num_nodes=config.num_nodes, num_edges=config.num_edges, num_species=config.num_species,
            num_groups=config.num_groups, num_tasks=config.num_tasks, seed=config.graph_seed)
    if isinstance(config, DigitsConfig):
        return digits(config.num_neighbors, config.train_fraction, config.valid_fraction, config.graph_seed)
    if isinstance(config, OGBConfig):
        return _ogb().read(_ogb_folder(config), config.name)
    return read_file(Path(config.path))


def _ogb():
    # ogb, pandas and scikit-learn take as long to import as torch; who does not need them should not wait, every rank
    # of a run least of all.
    from pipeline import ogb_folder
    return ogb_folder


def _ogb_folder(config: OGBConfig) -> Path:
    ogb_folder = _ogb()
    ogb_folder.meta(config.name)
    if config.folder is not None:
        folder = Path(config.folder)
        if not folder.is_dir():
            raise ValueError(f"data.folder={config.folder} does not exist")
        return folder
    folder = ogb_folder.folder_of(config.name, config.root)
    if not folder.is_dir():
        raise ValueError(f"{config.name} is not in {config.root}: run `python -m pipeline.prepare "
                         f"+experiment={config.name.replace('-', '_')}` on a machine with a network, or set data.folder")
    return folder


def digits(num_neighbors: int, train_fraction: float, valid_fraction: float, seed: int) -> Data:
    """scikit-learn's 1,797 digits of 8 x 8 pixels, each linked with its nearest ones, in both directions.

    Raises:
        ValueError: a fraction or a number of neighbours out of range.
    """
    from sklearn.datasets import load_digits
    from sklearn.neighbors import NearestNeighbors

    x, y = load_digits(return_X_y=True)
    if not 1 <= num_neighbors < len(x):
        raise ValueError(f"data.num_neighbors must be between 1 and {len(x) - 1}, not {num_neighbors}")
    if not (train_fraction > 0 and valid_fraction > 0 and train_fraction + valid_fraction < 1):
        raise ValueError("data.train_fraction and data.valid_fraction must be positive and leave something for the test, "
                         f"not {train_fraction} and {valid_fraction}")
    nearest = NearestNeighbors(n_neighbors=num_neighbors).fit(x).kneighbors(return_distance=False)
    dst = np.repeat(np.arange(len(x)), num_neighbors)
    edge_index = to_undirected(torch.from_numpy(np.stack([nearest.reshape(-1), dst])))
    order = np.random.default_rng(seed).permutation(len(x))
    train, valid = int(train_fraction * len(x)), int((train_fraction + valid_fraction) * len(x))
    masks = torch.zeros(3, len(x), dtype=torch.bool)
    for mask, nodes in zip(masks, np.split(order, [train, valid])):
        mask[torch.from_numpy(nodes)] = True
    return Data(x=torch.from_numpy(x / 16).float(), edge_index=edge_index, y=torch.from_numpy(y).unsqueeze(1),
                num_nodes=len(x), metric="acc", **dict(zip(MASKS, masks)))


def read_file(path: Path) -> Data:
    """A graph saved with torch.save as a ``Data``, or as a dict of its attributes.

    ``valid_mask`` may be called ``val_mask``. ``metric`` may be "rocauc" or "acc"; without it, integer labels in one
    column mean accuracy.

    Raises:
        ValueError: not such a file, or an attribute is missing.
    """
    try:
        with torch.serialization.safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage, EdgeIndex]):
            saved = torch.load(path, weights_only=True)
    except checkpoint.UNREADABLE as error:
        raise ValueError(f"{path} is no saved torch_geometric Data: it cannot be read ({type(error).__name__})") from error
    saved = saved if isinstance(saved, dict) else saved.to_dict()
    saved = {{"val_mask": "valid_mask"}.get(key, key): value for key, value in saved.items()}
    missing = [key for key in ("edge_index", "y", *MASKS) if saved.get(key) is None]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}")
    y = saved["y"]
    y = y.unsqueeze(1) if y.dim() == 1 else y
    metric = saved.get("metric", "rocauc" if y.size(1) > 1 or y.is_floating_point() else "acc")
    if metric not in ("rocauc", "acc"):
        raise ValueError(f"{path} has the metric {metric!r}; choose rocauc or acc")
    classify = metric == "acc"
    num_nodes = (saved["x"] if saved.get("x") is not None else saved["train_mask"]).size(0)
    keep = {key: saved[key] for key in ("x", "edge_attr", "species", *MASKS) if saved.get(key) is not None}
    if "edge_attr" in keep and keep["edge_attr"].dim() == 1:
        keep["edge_attr"] = keep["edge_attr"].unsqueeze(1)
    if "species" in keep:
        keep["species"] = keep["species"].reshape(-1)
    return Data(edge_index=_plain(saved["edge_index"]), y=y.long() if classify else y.float(),
                num_nodes=num_nodes, metric=metric, **keep)


def _plain(edge_index: Tensor) -> Tensor:
    return edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index


def prepare(data: Data, config: DataConfig) -> Data:
    """Check a graph, sort its edges by destination, and give every node features.

    Raises:
        ValueError: see :func:`check`.
    """
    check(data)
    num_nodes, edge_index, edge_attr = data.num_nodes, data.edge_index, data.edge_attr
    if config.to_undirected and edge_attr is None:
        edge_index = to_undirected(_plain(edge_index).long(), num_nodes=num_nodes)
    elif config.to_undirected:
        edge_index, edge_attr = to_undirected(_plain(edge_index).long(), edge_attr, num_nodes, reduce="mean")
    if config.add_self_loops:
        edge_index, edge_attr = add_remaining_self_loops(_plain(edge_index).long(), edge_attr, "mean", num_nodes)
    if not isinstance(edge_index, EdgeIndex):
        edge_index, perm = graph.sort_edges(edge_index, num_nodes)
        edge_attr = None if edge_attr is None else edge_attr.float().index_select(0, perm)
    x = data.x.float() if data.x is not None else incident_sum(edge_index, edge_attr, log=config.node_features == "log_sum")
    num_categories = 0
    if "species" in data:
        num_categories = int(data.species.max()) + 1
        x = torch.cat([x, torch.nn.functional.one_hot(data.species.long(), num_categories).float()], dim=1)
    y = data.y.clamp(min=0) if data.metric == "acc" else data.y  # -1 may stand for no label outside of the splits
    out_channels = int(y.max()) + 1 if data.metric == "acc" else y.size(1)
    return Data(x=x, edge_index=edge_index, edge_attr=edge_attr, y=y, num_nodes=num_nodes, metric=data.metric,
                num_categories=num_categories, out_channels=out_channels, **{key: data[key].bool() for key in MASKS})


def incident_sum(edge_index: EdgeIndex, edge_attr: Tensor | None, *, log: bool) -> Tensor:
    """The sum of the features of each node's edges over the whole graph, or their number if they have none.

    Args:
        edge_index: sorted by destination.
        edge_attr: [num_edges, edge_dim] or none.
        log: take log1p and bring every column to mean 0 and variance 1.

    Returns:
        [num_nodes, edge_dim], or [num_nodes, 1].
    """
    (indptr, _), _ = edge_index.get_csc()
    if edge_attr is None:
        total = indptr.diff().double().unsqueeze(1)
    else:
        total = torch.segment_reduce(edge_attr, "sum", offsets=indptr.long(), axis=0, initial=0).double()
    if log:
        total = total.clamp(min=0).log1p()
        total = (total - total.mean(0)) / total.std(0, correction=0).clamp(min=1e-6)
    return total.float()


def check(data: Data) -> None:
    """Refuse a graph that would fail later or train on nonsense.

    Raises:
        ValueError: edges or labels that do not fit the nodes, features that are not finite, no training node.
    """
    num_nodes, edge_index = data.num_nodes, data.edge_index
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.is_floating_point():
        raise ValueError(f"edge_index must be integers of shape [2, num_edges], not {edge_index.dtype} of "
                         f"{list(edge_index.shape)}")
    if edge_index.numel():
        low, high = (int(bound) for bound in torch.aminmax(_plain(edge_index)))
        if low < 0 or high >= num_nodes:
            raise ValueError(f"edge_index is out of range: it names node {low if low < 0 else high}, the graph has nodes "
                             f"0 to {num_nodes - 1}")
    for key, rows, unit, dims in (
            ("x", num_nodes, "nodes", 2), ("edge_attr", edge_index.size(1), "edges", 2), ("y", num_nodes, "nodes", 2),
            ("species", num_nodes, "nodes", 1), *((mask, num_nodes, "nodes", 1) for mask in MASKS)):
        value = data.get(key)
        if value is None:
            continue
        if value.dim() != dims:
            raise ValueError(f"{key} must have {dims} dimensions, not the shape {list(value.shape)}")
        if value.size(0) != rows:
            raise ValueError(f"{key} has {value.size(0):,} rows for {rows:,} {unit}")
        if key in ("x", "edge_attr") and not torch.isfinite(value).all():
            bad = int((~torch.isfinite(value)).any(1).nonzero()[0])
            raise ValueError(f"{key} is not finite: row {bad} holds {value[bad].tolist()[:8]}")
    masks = torch.stack([data[mask].bool() for mask in MASKS])
    if not bool(masks[0].any()):
        raise ValueError("the train split is empty: train_mask selects no node")
    if bool((masks.sum(0) > 1).any()):
        raise ValueError(f"the splits overlap: node {int((masks.sum(0) > 1).nonzero()[0])} is in more than one")
    if not bool(masks[1].any()):
        log.warning("the valid split is empty: the last epoch counts as the best one")
    if data.get("species") is not None and int(data.species.min()) < 0:
        raise ValueError(f"species holds {int(data.species.min())}; species are numbered from 0")
    if data.metric == "acc":
        if data.y.size(1) != 1:
            raise ValueError(f"y must have one column of classes for the metric acc, not {data.y.size(1)}")
        labels = data.y[masks.any(0)]
        if int(labels.min()) < 0:
            raise ValueError(f"y holds the class {int(labels.min())} in a split; classes are numbered from 0")
    else:
        known = data.y[~data.y.isnan()]
        if not bool(((known == 0) | (known == 1)).all()):
            raise ValueError("y must hold 0, 1 or NaN for the metric rocauc")
        if bool(data.y[masks[0]].isnan().all()):
            raise ValueError("y is NaN for every node of the train split: there is nothing to learn")

"""Opens a dataset: prepared once, kept under a hash of its content, shared by processes as a memory-mapped file."""

import dataclasses
import hashlib
import importlib
import inspect
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.data.config import DATASETS, DataConfig
from parallel_epochs.pipeline.data.degrees import (
    add_degrees,
    can_have_degrees,
    write_degrees,
)
from parallel_epochs.pipeline.data.graph import Graph, open_graph, write_graph
from parallel_epochs.pipeline.data.learned import Learned
from parallel_epochs.pipeline.data.links import (
    LinkSplit,
    describe_links,
    divide_links,
    name_relation,
)
from parallel_epochs.pipeline.data.prepare import prepare
from parallel_epochs.pipeline.data.readers.given_store import check_prepared
from parallel_epochs.pipeline.data.relation import refuse_relation
from parallel_epochs.pipeline.data.sparse import densify, take_terms
from parallel_epochs.pipeline.graph import store, structure
from parallel_epochs.pipeline.graph.components import write_component
from parallel_epochs.pipeline.graph.ranges import name_in
from parallel_epochs.pipeline.names import TERMS, TEXT_SCORES
from parallel_epochs.pipeline.run import pulse
from parallel_epochs.pipeline.run.errors import DamagedFile, InUse
from parallel_epochs.pipeline.run.progress import Bar

log = logging.getLogger(__name__)

# Raise it when the same configuration and files shall give another graph than before.
FORMAT = 4
# The same of the pairs that links are divided into, and of graphs with scores of texts.
LINKS_FORMAT, SCORES_FORMAT = 1, 1
# The same of graphs whose nodes have encodings of their places.
ENCODINGS_FORMAT = 2
# End of the hash of a graph with columns of degrees.
DEGREES = "-degrees"
# Keys that tell how a graph is prepared, as far as a dataset has them.
PREPARED = (
    "holds",
    "to_undirected",
    "add_self_loops",
    "node_features",
    "random_walk",
)
# Seconds between two looks at a store that another process writes.
WAITING = 0.2
# Looks between two lines of the log: five minutes.
LOOKS_PER_LINE = 1500
DAY = 24 * 3600


def load(
    config: DataConfig,
    cache_dir: str | Path,
    *,
    content_hash: str | None = None,
    check: Callable[[Graph], None] = lambda data: None,
    degrees: bool = False,
    like: Learned | None = None,
) -> Graph:
    """Open the prepared graph of a dataset, from the cache if it is there. Processes share the memory of its file.

    Args:
        degrees: whether ``x`` has columns of degrees, see :mod:`pipeline.data.degrees`; not where it is categories.
        content_hash: of the graph as another process loaded and checked it a moment ago; it is not checked again.
        check: refuses what was read, before it is prepared.
        like: what was learned of the tables of another run; these are prepared as those were.

    Returns:
        ``edge_index``, an int32 ``EdgeIndex`` sorted by destination; ``x`` [num_nodes, channels], float32, the last
        ``num_categories`` columns one-hot; ``edge_attr`` [num_edges, edge_dim], float32, or none; ``y``
        [num_nodes, num_tasks], float32 of 0, 1 and NaN for "rocauc", [num_nodes, 1], int64 for "acc"; ``train_mask``,
        ``valid_mask``, ``test_mask``; ``metric``; ``out_channels``, the number of classes or tasks;
        ``content_hash``; ``x_source``, see :func:`prepare`, if it was prepared by a version that kept it. Of a graph
        in a store also ``store``, its folder, and ``structure``, a dict of the
        fields of :class:`pipeline.graph.structure.Structure`, unless who wrote it left it out. Of a
        knowledge graph what :func:`pipeline.data.readers.triples.build_triples` returns, and ``content_hash``.

    Raises:
        ValueError: the dataset is absent, incomplete or inconsistent.
        FileError: the cache cannot be read or written.
    """
    own = content_hash and content_hash.removesuffix(DEGREES)
    verify = content_hash is None
    data = _load(config, cache_dir, content_hash=own, check=check, like=like)
    if degrees and not can_have_degrees(data):
        log.log(
            logging.INFO if verify else logging.DEBUG,
            "data.degrees=true adds no columns, since the features of the nodes are categories",
        )
    elif degrees:
        content_hash = data.content_hash + DEGREES
        path = path_of(config, cache_dir, content_hash)
        write = partial(write_degrees, data=data, num_last=config.num_last)
        data = _keep(path, write, again="making it again", verify=verify)
        data.content_hash, data.on_disk = content_hash, config.on_disk
    return data


def _load(
    config: DataConfig,
    cache_dir: str | Path,
    *,
    content_hash: str | None = None,
    check: Callable[[Graph], None] = lambda data: None,
    like: Learned | None = None,
) -> Graph:
    """Do what :func:`load` does, without columns of degrees."""
    start, verify = time.perf_counter(), content_hash is None
    content_hash = content_hash or hash_graph(config) + _name_of(like)
    path, reader = path_of(config, cache_dir, content_hash), _reader(config)

    def write(writer: store.StoreWriter) -> None:
        log.info("data: preparing %s", config.source)
        with Bar("reading", 3, "stages") as bar:
            if config.is_stored:
                reader.write_store(config, writer, bar.advance, like, begins=like is not None)
                return
            dense = partial(densify, folder=Path(cache_dir), origin=config.origin())
            data = prepare_as(config, read(config, check), on_stage=bar.advance, densify=dense)
        _write_inspected(writer, data)

    if hasattr(reader, "open_graph"):
        path = Path(config.origin())
        data = reader.open_graph(path, verify=verify)
    else:
        data = _keep(path, write, again="preparing the graph again", verify=verify)
    seconds = time.perf_counter() - start
    level = logging.INFO if verify else logging.DEBUG
    log.log(level, "data: %s opened in %.1f s, kept as %s", config.source, seconds, path)
    data.content_hash, data.on_disk = content_hash, config.on_disk
    return data


def _name_of(like: Learned | None) -> str:
    """Return the end of the hash of tables that are prepared as those of another run were."""
    if like is None:
        return ""
    parts = [
        tensor.numpy().tobytes()
        for tensor in (like.fitted, *like.label_names.values())
        if tensor is not None
    ]
    return f"-like-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}"


def load_own(config: DataConfig, cache_dir: str | Path) -> Graph:
    """Open the graph that :func:`load` opens, without columns of degrees."""
    return _load(config, cache_dir)


def load_links(
    config: DataConfig,
    cache_dir: str | Path,
    *,
    content_hash: str | None = None,
    relation: object = None,
    like: Learned | None = None,
) -> Graph:
    """Open the graph of a link task, as :func:`load` does; see :func:`pipeline.data.links.divide_links`.

    Args:
        content_hash: of what this function returned to another process a moment ago.
        relation: whose links are learned, of a graph with several types of nodes; as task.relation names it.
        like: as of :func:`load`.

    Returns:
        The message graph, with the pairs of ``PAIRS``.

    Raises:
        ValueError: the dataset is wrong, has no links to divide, not enough pairs that are not linked, or no such
            relation.
    """
    if config.links != "edges":
        refuse_relation(relation, config.origin())
        return load(
            config, cache_dir, content_hash=content_hash, degrees=config.counts_degrees, like=like
        )
    start, verify = time.perf_counter(), content_hash is None
    chosen: Any = config  # of a class that has these keys
    split = LinkSplit(
        config.link_split(),
        chosen.train_fraction,
        chosen.valid_fraction,
        chosen.graph_seed,
        config.node_features,
        config.until,
    )
    # Links that are hidden must not show in the features: degrees are counted over the edges that are left.
    degrees = [DEGREES] * config.counts_degrees
    # How features are made of edges is in the hash of the graph; caches of before have this in its place.
    chosen_split = *dataclasses.astuple(split)[:4], config.node_features == "log_sum"
    named = ["sides"] if relation is None else [{"relation": relation}]
    content_hash = content_hash or _digest(
        [hash_graph(config) + _name_of(like), chosen_split, LINKS_FORMAT, *degrees, *named]
    )

    def check_relation(data: Graph) -> None:
        name_relation(data, relation, config.origin())

    def write(writer: store.StoreWriter) -> None:
        whole = _load(config, cache_dir, check=check_relation, like=like)
        refit = getattr(_reader(config), "refit_edges", None)
        data = divide_links(
            whole,
            split,
            config.origin(),
            relation,
            None if refit is None else partial(refit, config),
        )
        if config.counts_degrees:
            add_degrees(data)
        _write_inspected(writer, data)

    path = path_of(config, cache_dir, f"{content_hash}-links")
    data = _keep(path, write, again="dividing the links again", verify=verify)
    data.content_hash = content_hash
    if verify:
        log.info(
            "links: %s, in %s, %.1f s",
            describe_links(data, split),
            path,
            time.perf_counter() - start,
        )
    return data


def prepare_as(config: DataConfig, data: Graph, **options: Any) -> Graph:
    """Prepare a dataset as it was read: see :func:`prepare`, also for the `options`."""
    chosen: dict[str, Any] = {name: getattr(config, name, None) for name in PREPARED}
    return prepare(data, origin=config.origin(), **chosen, **options)


def read(
    config: DataConfig,
    check: Callable[[Graph], None] = lambda data: None,
    *,
    needs_labels: bool = True,
) -> Graph:
    """Read a dataset, without preparing or keeping it.

    Args:
        check: refuses what was read.
        needs_labels: whether to read labels and splits, too. Readers that always do so ignore it.

    Raises:
        ValueError: the dataset is absent, incomplete or inconsistent.
    """
    config.check()
    data = _ask(config, "read", needs_labels=needs_labels)
    graph = data if isinstance(data, Graph) else Graph(**data.to_dict())
    check(graph)
    return graph


def open_other(config: DataConfig, learned: Learned, cache_dir: str | Path) -> Graph:
    """Open other tables than those of a training, prepared as these were; their store is gone when they are closed.

    Raises:
        ValueError: the tables are inconsistent, or are not like those of the training.
        FileError: there is no room for them.
    """
    Path(cache_dir).mkdir(parents=True, exist_ok=True)
    for left in Path(cache_dir).glob("other-*"):  # by processes that were killed
        if time.time() - left.stat().st_mtime > DAY:
            shutil.rmtree(left, ignore_errors=True)
    # NFS keeps files that are mapped.
    with tempfile.TemporaryDirectory(
        prefix="other-", dir=cache_dir, ignore_cleanup_errors=True
    ) as scratch:
        path = Path(scratch, "graph.store")
        with store.StoreWriter(path) as writer, Bar("reading", 3, "stages") as bar:
            _reader(config).write_store(config, writer, bar.advance, learned)
        graph = open_graph(path, verify=False)  # its files are mapped, and need no names
        graph.store = None
        return graph


def download(config: DataConfig) -> None:
    """Download a dataset if it is missing and can be downloaded.

    Raises:
        OSError: the download failed.
    """
    if config.downloads:
        _ask(config, "download")


def hash_content(config: DataConfig) -> str | None:
    """Compute a digest of the files that a dataset is read from; none if it is generated.

    Raises:
        ValueError: the dataset is absent or incomplete.
    """
    config.check()
    return _ask(config, "hash_content")


def name_graphs(config: DataConfig) -> list[str] | None:
    """Return the names of the graphs of a dataset of many, in their order; none where they have numbers."""
    return _ask(config, "name_graphs")


def path_of(config: DataConfig, cache_dir: str | Path, content_hash: str, part: str = "") -> Path:
    """Return where a prepared graph is kept, the folder of a store, or a `part` of it, a file."""
    return (
        Path(cache_dir)
        / "graphs"
        / f"{config.source}-{content_hash}{part}.{'pt' if part else 'store'}"
    )


def keep_component(
    config: DataConfig,
    cache_dir: str | Path,
    data: Graph,
    number: int,
    nodes: Tensor,
    *,
    verify: bool = True,
) -> Graph:
    """Open a component of a graph from the cache; it is kept first if it is not there.

    Args:
        data: the graph, as :func:`load` returns it.
        number: of the component.
        nodes: of the component, in ascending order.

    Raises:
        FileError: it cannot be read or written.
    """

    def check(component: Graph) -> None:
        if not torch.equal(component.n_id, nodes):
            raise DamagedFile(
                f"{name_in(path, 'n_id')} is damaged: it holds other nodes than component {number}"
            )

    path = path_of(config, cache_dir, f"{data.content_hash}-component-{number}")
    component = _keep(
        path,
        partial(write_component, data=data, nodes=nodes),
        again="selecting it again",
        verify=verify,
        check=check,
    )
    component.on_disk = data.on_disk
    component.update({key: data[key] for key in (TEXT_SCORES,) if key in data})
    if "groups" in data:
        component.groups = data.groups[nodes]
    if TERMS[0] in data:
        own = data.types.nodes_of(str(data.types.labelled))
        component.update(
            take_terms(data, nodes[(nodes >= own.start) & (nodes < own.stop)] - own.start)
        )
    if not data.types.homogeneous:
        component.types = data.types.restricted_to(nodes)
    return component


def _keep(
    path: Path,
    write: Callable[[store.StoreWriter], None],
    *,
    again: str,
    verify: bool,
    check: Callable[[Graph], None] = lambda data: None,
) -> Graph:
    """Open the store of a graph. It is written first if it is not there or damaged; another process may do that.

    Args:
        again: what the warning about a damaged store says is done next.
        verify: check what the store holds.
        check: raises a DamagedFile for a graph that cannot be what was written.

    Raises:
        FileError: it cannot be read or written.
    """
    num_looks = 0
    while True:
        is_damaged = False
        if store.is_store(path):
            try:
                data = open_graph(path, verify=verify)
                if verify:
                    check_prepared(path / store.MANIFEST, data)
                    check(data)
                return data
            except DamagedFile as error:
                log.warning("%s; %s", error, again)
                is_damaged = True
        try:
            with store.StoreWriter(path, path.name) as writer:
                # Another process may have written it since the look above.
                if store.is_store(path) and not is_damaged:
                    shutil.rmtree(writer.folder, ignore_errors=True)
                    continue
                try:
                    write(writer)
                except ValueError:
                    # Corrected files are others, so that nobody would go on with what is here.
                    shutil.rmtree(writer.folder, ignore_errors=True)
                    raise
            return open_graph(path, verify=False)
        except InUse as error:
            if num_looks % LOOKS_PER_LINE == 0:
                log.info("data: waiting, as %s", error)
            num_looks += 1
            pulse.renew()
            time.sleep(WAITING)


def _write_inspected(writer: store.StoreWriter, data: Graph) -> None:
    """Write a graph with what :func:`pipeline.graph.structure.inspect` says of its edges."""
    found = {}
    if data.edge_index is not None:
        found["structure"] = dataclasses.asdict(structure.inspect(data.edge_index))
    try:
        write_graph(writer, data, **found)
    except BaseException:  # no other process goes on with a part of it
        shutil.rmtree(writer.folder, ignore_errors=True)
        raise


def _reader(config: DataConfig) -> ModuleType:
    # Imported when used: ogb, pandas and scikit-learn take as long as torch, and every rank would wait for them.
    module, _ = DATASETS[config.source]
    return importlib.import_module(f"parallel_epochs.pipeline.data.{module}")


def _ask(config: DataConfig, name: str, **more: Any) -> Any:
    """Call a function of a reader with the configuration, keys of it, or what else is given, by its parameters' names;
    none if the reader has no such function.
    """
    function, more = getattr(_reader(config), name, None), more | {"config": config}
    if function is None:
        return None
    names = inspect.signature(function).parameters
    return function(**{key: more[key] if key in more else getattr(config, key) for key in names})


def hash_graph(config: DataConfig) -> str:
    """Hash what the prepared graph depends on: the keys that shape it, and the bytes of the files that it is read
    from.

    Raises:
        ValueError: the dataset is absent or incomplete.
    """
    usual = {entry.name: entry.value for entry in keys.entries(type(config)())}
    shaping = {
        entry.name: entry.value
        for entry in keys.entries(config)
        if entry.meaning.shapes_graph
        and not (entry.meaning.hashed_if_given and entry.value == usual[entry.name])
    }
    for name in ("label_type", "hide_labelled"):
        if (value := getattr(config, name, None)) is not None:
            shaping[name] = value
    if (content := hash_content(config)) is not None:
        shaping["content"] = content
    shaping |= config.fixed
    shaping["format"] = FORMAT
    if config.num_last:
        shaping["encodings"] = ENCODINGS_FORMAT
    if (reading := getattr(config, "reading", 1)) > 1:
        shaping["reading"] = reading
    if config.is_stored and config.may_have_text_scores:
        shaping["scores"] = [SCORES_FORMAT, "groups"]
    return _digest(shaping)


def _digest(value: object) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=12).hexdigest()

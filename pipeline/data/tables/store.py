"""Tables of nodes and edges, in files or databases, to a store of the prepared graph: DuckDB reads, joins and sorts.

Nothing of the size of the edges is in memory: what DuckDB has sorted goes to the store batch by batch. A process that
is killed leaves the stages that are complete, and the next one goes on from there.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

from torch import Tensor

from parallel_epochs.pipeline.data.columns import open_unzipped
from parallel_epochs.pipeline.data.content import hash_parts, label, sample_file
from parallel_epochs.pipeline.data.learned import FITTED, Learned
from parallel_epochs.pipeline.data.tables import edges as tables_edges, labels as tables_labels, nodes as tables_nodes
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.data.tables.fitted import Columns, Fitted, unpack
from parallel_epochs.pipeline.data.tables.heads import members, require
from parallel_epochs.pipeline.data.tables.labels import Labels
from parallel_epochs.pipeline.data.tables.scores import check_columns
from parallel_epochs.pipeline.data.tables.source import Source, open_source
from parallel_epochs.pipeline.data.tables.sql import Database
from parallel_epochs.pipeline.data.tables.text import TextFeatures
from parallel_epochs.pipeline.graph.store import StoreWriter
from parallel_epochs.pipeline.run import limits, pulse
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# Bytes that are unzipped at a time.
UNZIPPED = 1 << 20


def hash_content(tables: tuple[Path, Path | None]) -> str:
    """Compute a digest of the files of the tables."""
    found = [[] if table is None else members(table) for table in tables]
    parts = ([*label(("".join(path.suffixes[-2:]), path) for path in paths), "|"] for paths in found)
    return hash_parts(itertools.chain.from_iterable(parts), digest=sample_file)


def write_store(config: TablesConfig, writer: StoreWriter, on_stage: Callable[[str], None] = lambda stage: None,
                learned: Learned | None = None) -> None:
    """Write the prepared graph of the tables as a store, with what :func:`pipeline.data.cache.load` promises.

    Beside it ``names`` of the nodes, ``label_names`` of classes, and the value ``structure``, the fields of
    :class:`pipeline.graph.structure.Structure`. What is odd about the tables is logged before any of it is written.

    Without `learned`, also the array ``fitted``, see :class:`pipeline.data.tables.fitted.Fitted`.

    Args:
        on_stage: told of each stage when it begins.
        learned: what the preparation of other tables learned of them, for tables without labels.

    Raises:
        ValueError: a table is inconsistent; the message names the file, the column and the first bad row.
        FileError: a file cannot be read or written.
    """
    config.check()
    fitted = None if learned is None else unpack(cast(Tensor, learned.fitted))
    paths = [path for table in config.tables if table is not None for path in members(table)]
    for path in (path for path in paths if path.suffix == ".gz"):
        _check_zipped(path)
    with Database(writer.folder, config.memory_limit, config.threads, paths) as db:
        on_stage("reading nodes")
        edges = _open_edges(db, config)
        ends, values = (config.edges.source, config.edges.target), config.value_columns()
        both, add_self_loops = config.to_undirected, config.add_self_loops
        num_nodes, labels, found = _read_nodes(db, config, edges, None if fitted is None else fitted.columns)
        flagged = tables_edges.join(db, edges, ends, values, config.edges.relation, time=config.edges.time,
                                    id_column=config.nodes.id if config.nodes.path is not None else None,
                                    refuse_dangling=config.dangling == "error", empty=config.empty, fitted=fitted)
        on_stage("sorting edges")
        tables_edges.sort(db, len(values), flagged, has_times=config.edges.time is not None, both=both)
        values += [("empty", values[place][1]) for place in flagged]
        counted = tables_edges.count(db, num_nodes, both=both, add_self_loops=add_self_loops)
        if counted.num_merged:
            log.info("%s: %s merged with an edge between the same nodes", edges.name,
                     count(counted.num_merged, "edge was", "edges were"))
        on_stage("writing the store")
        has_features = config.has_features
        tables_edges.write(db, writer, counted, values, directed_relations=config.edges.directed_relations,
                           add_self_loops=add_self_loops, node_features=None if has_features else config.node_features,
                           has_times=config.edges.time is not None, moments=None if learned is None else learned.edges)
        tables_nodes.write_names(db, writer, num_nodes)
        if not writer.has(FITTED, *(["x"] if has_features else [])):
            fitted = fitted or Fitted(found, tables_edges.relations(db), flagged)
            _write_features(db, writer, num_nodes, config, labels, fitted, is_new=learned is None)
        if labels is not None:
            tables_labels.write(db, writer, labels)
    summary: dict[str, object] = {"num_nodes": num_nodes, "num_categories": 0,
                                  "structure": dataclasses.asdict(counted.structure)}
    summary["x_source"] = "data" if has_features else "edges" if writer.has("edge_attr") else "degree"
    if labels is not None:
        summary |= {"metric": labels.metric, "out_channels": labels.out_channels}
    writer.finish(summary)


def _write_features(db: Database, writer: StoreWriter, num_nodes: int, config: TablesConfig, labels: Labels | None,
                    fitted: Fitted, *, is_new: bool) -> None:
    """Write ``x`` and, of the tables of a training, what is learned of them."""
    numbers, texts, found = _numbers(config), _texts(config), fitted.columns
    if is_new:
        found = tables_nodes.fit(db, num_nodes, numbers, texts, found=found, seed=config.graph_seed,
                                 scored=labels if config.nodes.text_features == "scores" else None)
        writer.put(FITTED, dataclasses.replace(fitted, columns=found).pack())
    else:
        for text, counted in zip(texts, found.texts, strict=True):
            text.restore(*counted)
    if config.has_features:
        tables_nodes.write_features(db, writer, num_nodes, numbers, texts, found)


def _check_zipped(path: Path) -> None:
    """Unzip a table once, for DuckDB would fill the disk with any number of rows, and says little of one cut short.

    Raises:
        ValueError: it is damaged or cut short, or unzips to more bytes than the limit.
    """
    with open_unzipped(path, limits.limit(limits.UNPACKED)) as file:
        while file.read(UNZIPPED):
            pulse.beat(f"unzipping {path.name}", pulse.State.LONG)


def _open_edges(db: Database, config: TablesConfig) -> Source:
    """Open the table of edges, and refuse columns that it does not have."""
    edges = open_source(db, "data.edges", config.tables[0], config.edges.table)
    _require(edges, config.edge_columns())
    return edges


def _require(source: Source, named: list[tuple[str, str]]) -> None:
    """Refuse columns that a table does not have, or whose cells are no single values."""
    for key, column in named:
        require(key, column, source.name, source.columns)
        source.refuse_nested(key, column)


def _read_nodes(db: Database, config: TablesConfig, edges: Source,
                fitted: Columns | None) -> tuple[int, Labels | None, Columns]:
    """Read the table of nodes, or number the ids that edges name.

    Args:
        fitted: what is known of the columns of the table of a training; none: this one tells.

    Returns:
        The number of nodes, their labels, and what is known of their columns of features.
    """
    path, labels = config.tables[1], config.label_columns()
    if path is None:
        tables_edges.number_ids(db, edges, (config.edges.source, config.edges.target))
        return tables_nodes.count(db, f"{config.tables[0]} holds no ids"), None, Columns()
    nodes, kind = open_source(db, "data.nodes", path, config.nodes.table), config.split_kind()
    _require(nodes, config.node_columns())
    split_column = config.nodes.split_column if kind == "column" and labels else None
    found = tables_nodes.read(db, nodes, config.nodes.id, _numbers(config),
                              texts=[name for name, _ in config.text_columns()], categories=config.nodes.categories,
                              max_categories=config.nodes.max_categories, labels=labels, split_column=split_column,
                              time_column=config.time_column if kind == "time" and labels else None, fitted=fitted)
    num_nodes = tables_nodes.count(db, f"{path} holds no rows")
    if not labels:
        return num_nodes, None, found
    fractions = config.train_fraction, config.valid_fraction
    split: tables_labels.Split = {
        "column": partial(tables_labels.split_by_column, db=db, source=nodes, column=split_column),
        "random": partial(tables_labels.split_at_random, fractions=fractions, seed=config.graph_seed),
        "time": partial(tables_labels.split_by_time, db=db, source=nodes, column=config.time_column,
                        fractions=fractions)}[kind]
    learned = tables_labels.read(db, nodes, labels, num_nodes, config.metric, split)
    if config.nodes.text_features == "scores":
        check_columns(learned.out_channels)
    return num_nodes, learned, found


def _numbers(config: TablesConfig) -> tables_nodes.Numbers:
    return tables_nodes.Numbers(config.nodes.features, config.nodes.log1p, config.nodes.standardize, config.empty)


def _texts(config: TablesConfig) -> list[TextFeatures]:
    nodes = config.nodes
    return [TextFeatures(kind, nodes.text_channels, num_words=nodes.text_words,
                         char_lengths=(nodes.char_lengths[0], nodes.char_lengths[1]), tag_separator=nodes.tag_separator)
            for _, kind in config.text_columns()]

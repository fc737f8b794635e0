"""Tables of nodes and edges, in files or databases, to a store of the prepared graph: DuckDB reads, joins and sorts.

Nothing of the size of the edges is in memory: what DuckDB has sorted goes to the store batch by batch. A process that
is killed leaves the stages that are complete, and the next one goes on from there.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from pipeline.data import tables_edges, tables_labels, tables_nodes
from pipeline.data.tables_config import TablesConfig
from pipeline.data.tables_scores import check_columns
from pipeline.data.tables_source import Source, members, open_source
from pipeline.data.tables_sql import Database
from pipeline.graph.store import StoreWriter
from pipeline.run import files

log = logging.getLogger(__name__)

# Of larger files the size, the time of the last change and some blocks are hashed: all of them would take minutes.
HASHED_WHOLLY = 1 << 30
HASHED_BLOCK, NUM_HASHED_BLOCKS = 1 << 20, 64


def hash_content(config: TablesConfig) -> str:
    """Compute a digest of the tables' files: of all bytes; of files above 1 GiB of 64 MiB throughout them, their size
    and the time of their last change.

    Raises:
        ValueError: one of them does not exist.
    """
    config.check()
    sha = hashlib.sha256()
    for path in (config.edges.path, config.nodes.path):
        if path is not None:
            for file in members(config.resolve(path)):
                sha.update(f"{''.join(file.suffixes[-2:])}:{_digest(file)};".encode())
        sha.update(b"|")
    return sha.hexdigest()


def _digest(path: Path) -> str:
    with files.naming(path, "read"), open(path, "rb") as file:
        found = path.stat()
        if found.st_size <= HASHED_WHOLLY:
            return files.file_digest(file)
        blake = hashlib.blake2b(f"{found.st_size} {found.st_mtime_ns}".encode(), digest_size=16)
        for number in range(NUM_HASHED_BLOCKS):
            file.seek((found.st_size - HASHED_BLOCK) * number // (NUM_HASHED_BLOCKS - 1))
            blake.update(file.read(HASHED_BLOCK))
    return blake.hexdigest()


def write_store(config: TablesConfig, writer: StoreWriter,
                on_stage: Callable[[str], None] = lambda stage: None) -> None:
    """Write the prepared graph of the tables as a store, with what :func:`pipeline.data.cache.load` promises.

    Beside it ``names`` of the nodes, ``label_names`` of classes, and the value ``structure``, the fields of
    :class:`pipeline.graph.structure.Structure`. What is odd about the tables is logged before any of it is written.

    Args:
        on_stage: told of each stage when it begins.

    Raises:
        ValueError: a table is inconsistent; the message names the file, the column and the first bad row.
        FileError: a file cannot be read or written.
    """
    config.check()
    with Database(writer.folder, config.memory_limit, config.threads) as db:
        on_stage("reading nodes")
        edges = _open(db, config, "edges")
        for option in ("source", "target", "weight", "relation"):
            if (column := getattr(config.edges, option)) is not None:
                edges.require(option, column)
        for column in config.edges.features:
            edges.require("features", column)
        nodes, labels = None, None
        if config.nodes.path is None:
            tables_edges.number_ids(db, config, edges)
        else:
            nodes = _open(db, config, "nodes")
            tables_nodes.read(db, config, nodes)
        num_nodes = tables_nodes.count(db, config)
        if nodes is not None and config.label_columns():
            labels = tables_labels.read(db, config, nodes, num_nodes)
            if config.nodes.text_features == "scores":
                check_columns(labels.out_channels)
        tables_edges.join(db, config, edges)
        on_stage("sorting edges")
        tables_edges.sort(db, config)
        counted = tables_edges.count(db, config, num_nodes)
        if counted.num_merged:
            log.info("%s: %s edges are there already, and were merged with them", edges.name, f"{counted.num_merged:,}")
        on_stage("writing the store")
        has_features = tables_nodes.has_features(config)
        tables_edges.write(db, config, writer, counted, with_x=not has_features)
        tables_nodes.write_names(db, writer, num_nodes)
        if has_features:
            tables_nodes.write_features(db, config, writer, num_nodes, labels)
        if labels is not None:
            tables_labels.write(db, config, writer, labels)
    values: dict[str, object] = {"num_nodes": num_nodes, "num_categories": 0,
                                 "structure": dataclasses.asdict(counted.structure)}
    values["x_source"] = "data" if has_features else "edges" if writer.has("edge_attr") else "degree"
    if labels is not None:
        values |= {"metric": labels.metric, "out_channels": labels.out_channels}
    writer.finish(values)


def _open(db: Database, config: TablesConfig, part: str) -> Source:
    columns = getattr(config, part)
    return open_source(db, f"data.{part}", config.resolve(columns.path), columns.table)

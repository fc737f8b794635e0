"""Tables of nodes and edges, in files or databases, to a store of the prepared graph: DuckDB reads, joins and sorts.

Nothing of the size of the edges is in memory: what DuckDB has sorted goes to the store batch by batch. A process that
is killed leaves the stages that are complete, and the next one goes on from there.
"""

import dataclasses
import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import cast

from torch import Tensor

from parallel_epochs.pipeline.data.columns import open_unzipped
from parallel_epochs.pipeline.data.content import hash_parts, label, sample_file
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.learned import FITTED, Learned
from parallel_epochs.pipeline.data.summaries import Marks
from parallel_epochs.pipeline.data.tables import (
    labels as tables_labels,
    nodes as tables_nodes,
    reading,
    several_types as typed,
    sorted_edges as tables_edges,
)
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.data.tables.fitted import Fitted, unpack, unpack_several
from parallel_epochs.pipeline.data.tables.groups import LINKS, Links
from parallel_epochs.pipeline.data.tables.heads import members
from parallel_epochs.pipeline.data.tables.labels import Labels
from parallel_epochs.pipeline.data.tables.schema import TableSchema, read_schema
from parallel_epochs.pipeline.data.tables.sql import Database
from parallel_epochs.pipeline.graph.store import StoreWriter
from parallel_epochs.pipeline.names import FIRST_SOURCE, TEXT_SCORES
from parallel_epochs.pipeline.run import limits, pulse
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# Bytes that are unzipped at a time.
UNZIPPED = 1 << 20


def hash_content(tables: tuple[Path | None, Path | None], typed_tables: TableSchema | None) -> str:
    """Compute a digest of the files of the tables, and of the schema where there are several types of nodes."""
    if typed_tables is None:
        found = [[] if table is None else members(table) for table in tables]
        described = []
    else:
        found = [
            [path for table in config.all_tables() for path in members(table)]
            for config in typed_tables.tables()
        ]
        described = [json.dumps(typed_tables.describe(), sort_keys=True)]
    parts = (
        [*label(("".join(path.suffixes[-2:]), path) for path in paths), "|"] for paths in found
    )
    return hash_parts([*described, *itertools.chain.from_iterable(parts)], digest=sample_file)


def write_store(
    config: TablesConfig,
    writer: StoreWriter,
    on_stage: Callable[[str], None] = lambda stage: None,
    learned: Learned | None = None,
    *,
    begins: bool = False,
) -> None:
    """Write the prepared graph of the tables as a store, with what :func:`pipeline.data.cache.load` promises.

    Beside it ``names`` of the nodes, ``label_names`` of classes, and the value ``structure``, the fields of
    :class:`pipeline.graph.structure.Structure`. What is odd about the tables is logged before any of it is written.

    Without `learned`, also the array ``fitted``, see :class:`pipeline.data.tables.fitted.Fitted`.

    Args:
        on_stage: told of each stage when it begins.
        learned: what the preparation of other tables learned of them; labels have no splits then.
        begins: whether these are tables of a training too, which begins with the weights of the other: labels have
            splits, and may have further classes.

    Raises:
        ValueError: a table is inconsistent; the message names the file, the column and the first bad row.
        FileError: a file cannot be read or written.
    """
    config.check()
    paths = [path for table in config.all_tables() for path in members(table)]
    for path in (path for path in paths if path.suffix == ".gz"):
        _check_zipped(path)
    with Database(writer.folder, config.memory_limit, config.threads, paths) as db:
        write = _write_one_type if not config.is_typed else typed.write_store
        if learned is not None and begins:
            if not config.is_typed:
                _check_columns(config, unpack(cast(Tensor, learned.fitted)))
            writer.put(FITTED, cast(Tensor, learned.fitted))
        write(config, db, writer, on_stage, learned, begins)


def find_marks(config: TablesConfig, fitted: Tensor) -> Marks:
    """Return which columns of a prepared graph mark the empty cells of others; an empty weight counts as 0.

    Args:
        fitted: what the preparation learned of the tables.
    """
    if not config.is_typed:
        known, nodes_of, edges_of, first = [unpack(fitted)], [config], [config], 0
    else:  # the first column of edges is the number of the relation
        known, schema, first = unpack_several(fitted)[0], read_schema(config), 1
        nodes_of, edges_of = (
            list(schema.nodes.values()),
            [own.config for own in schema.edges.values()],
        )
    nodes = [
        {
            column: len(own.columns.mean) + number
            for number, place in enumerate(own.columns.flagged)
            for column in reading.values_of(table, "nodes").columns_of(place)
        }
        for own, table in zip(known[: len(nodes_of)], nodes_of, strict=True)
    ]
    edges = list[dict[int, int]]()
    for own, table in zip(known[-len(edges_of) :], edges_of, strict=True):
        values = reading.values_of(table, "edges")
        marks = {
            first + column: first + values.num_features([]) + number
            for number, place in enumerate(own.flagged)
            if values.columns[place][0] != "weight"
            for column in values.columns_of(place)
        }
        edges += [marks] * (len(own.relations) if config.is_typed else 1)
        first += values.num_features(own.flagged)
    return nodes, edges


def refit_edges(config: TablesConfig, graph: Graph, edge_attr: Tensor) -> Tensor:
    """Scale features of the edges that training sees by these edges alone.

    Args:
        graph: with all edges.
        edge_attr: of the edges that are left; it is changed in place.

    Returns:
        The array ``fitted`` that gives other tables such features.
    """
    if config.is_typed:
        return typed.refit_edges(read_schema(config), graph, edge_attr)
    fitted = unpack(graph[FITTED])
    reading.values_of(config, "edges").refit_edges(edge_attr.numpy(), fitted)
    return fitted.pack()


def _write_one_type(
    config: TablesConfig,
    db: Database,
    writer: StoreWriter,
    on_stage: Callable[[str], None],
    learned: Learned | None,
    begins: bool,
) -> None:
    """Do what :func:`write_store` does for one type of nodes, with an open database."""
    fitted = None if learned is None else unpack(cast(Tensor, learned.fitted))
    on_stage("reading nodes")
    edges = reading.open_table(db, config, "edges")
    ends, values = (config.edges.source, config.edges.target), reading.values_of(config, "edges")
    both, add_self_loops, place = (
        config.to_undirected,
        config.add_self_loops,
        config.place_of_links(),
    )
    num_nodes, labels, found = reading.read_nodes(
        db,
        config,
        [(edges, end) for end in ends],
        None if fitted is None else fitted.columns,
        typed.labels_of(learned, config, begins),
    )
    known = tables_edges.join(
        db,
        edges,
        ends,
        values,
        config.edges.relation,
        time=place,
        id_column=config.nodes.id if config.nodes.path is not None else None,
        refuse_dangling=config.dangling == "error",
        fitted=fitted,
        unknown=config.unknown,
    )
    on_stage("sorting edges")
    tables_edges.sort(db, values.of_edges(known), has_times=place is not None, both=both)
    counted = tables_edges.count(db, num_nodes, both=both, add_self_loops=add_self_loops)
    if counted.num_merged:
        log.info(
            "%s: %s merged with an edge between the same nodes",
            edges.name,
            count(counted.num_merged, "edge was", "edges were"),
        )
    on_stage("writing the store")
    has_features = config.has_features
    tables_edges.write(
        db,
        writer,
        counted,
        values,
        known,
        directed_relations=config.edges.directed_relations,
        add_self_loops=add_self_loops,
        node_features=None if has_features else config.node_features,
        has_times=place is not None,
        moments=None if learned is None else learned.edges,
    )
    tables_nodes.write_names(db, writer, {"nodes": num_nodes})
    if not writer.has(FITTED, *(["x"] if has_features else [])):
        known = dataclasses.replace(known, columns=found)
        _write_features(db, writer, num_nodes, config, labels, known, is_new=learned is None)
    if labels is not None:
        tables_labels.write(db, writer, labels)
    summary: dict[str, object] = {
        "num_nodes": num_nodes,
        "num_categories": 0,
        "structure": dataclasses.asdict(counted.structure),
    }
    summary["x_source"] = (
        "data" if has_features else "edges" if writer.has("edge_attr") else "degree"
    )
    if labels is not None:
        summary |= tables_labels.describe(labels)
    if config.nodes.text_features == "scores":
        summary[TEXT_SCORES] = tables_nodes.first_score(reading.values_of(config, "nodes"), found)
    if (first := db.execute("SELECT min(s) FROM joined WHERE t IS NOT NULL")[0][0]) is not None:
        summary[FIRST_SOURCE] = int(first)
    writer.finish(summary)


def _check_columns(config: TablesConfig, fitted: Fitted) -> None:
    """Refuse other columns of nodes and edges than those of the run that a training begins with.

    Raises:
        ValueError: says how many there are, and were.
    """
    columns, num_texts = fitted.columns, len(config.text_columns())
    # Behind the texts there may be the words of names and the ids of neighbours, in either direction.
    num_more = (
        sum(kind in ("names", "ids") for kind in columns.kinds)
        if columns.kinds
        else 2 * (num_texts != len(columns.texts) and len(columns.texts) > 1)
    )
    nodes, edges = (reading.values_of(config, what).num_features([]) for what in ("nodes", "edges"))
    for what, now, before in (
        ("numbers and dates of nodes", nodes, len(columns.mean)),
        ("categories", len(config.nodes.categories), len(columns.categories)),
        ("texts", num_texts, len(columns.texts) - num_more),
        ("numbers and dates of edges", edges, len(fitted.mean)),
    ):
        if now != before:
            raise ValueError(
                f"{config.origin()}: the keys name {count(now, 'column')} of {what}, and those of the run "
                f"that train.init names {before}. Name the same columns, or leave train.init out"
            )


def _write_features(
    db: Database,
    writer: StoreWriter,
    num_nodes: int,
    config: TablesConfig,
    labels: Labels | None,
    fitted: Fitted,
    *,
    is_new: bool,
) -> None:
    """Write ``x`` and, of the tables of a training, what is learned of them."""
    both_ends = [tables_nodes.Neighbors("joined", *ends) for ends in ("st", "ts")]
    numbers, texts, found = reading.learn_features(
        db,
        num_nodes,
        config,
        labels,
        fitted.columns,
        neighbors=both_ends,
        links=Links(LINKS.format("joined", 0, 0), num_nodes),
        is_new=is_new,
    )
    if labels is not None or not is_new:
        tables_nodes.write_terms(db, writer, num_nodes, texts)
    if is_new:
        writer.put(FITTED, dataclasses.replace(fitted, columns=found).pack())
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

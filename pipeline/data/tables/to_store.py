"""Tables of nodes and edges, in files or databases, to a store of the prepared graph: DuckDB reads, joins and sorts.

Nothing of the size of the edges is in memory: what DuckDB has sorted goes to the store batch by batch. A process that
is killed leaves the stages that are complete, and the next one goes on from there.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import SCHEMA, GraphTypes
from parallel_epochs.pipeline.data.join_types import (
    MAX_RELATIONS,
    Plan,
    check_counts,
    check_schema,
    fill_means,
    plan_means,
    with_reverse,
)
from parallel_epochs.pipeline.data.learned import FITTED, Learned
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.data.tables import (
    label_rows,
    labels as tables_labels,
    nodes as tables_nodes,
    reading,
    sorted_edges as tables_edges,
)
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.data.tables.files import check_zipped, hash_content  # noqa: F401 (the cache calls it)
from parallel_epochs.pipeline.data.tables.fitted import Columns, Fitted, pack, unpack
from parallel_epochs.pipeline.data.tables.groups import LINKS, Links
from parallel_epochs.pipeline.data.tables.heads import members
from parallel_epochs.pipeline.data.tables.label_table import TYPE
from parallel_epochs.pipeline.data.tables.labels import KnownLabels, Labels
from parallel_epochs.pipeline.data.tables.schema import (
    NodeTable,
    TableSchema,
    check_inputs,
    is_made,
)
from parallel_epochs.pipeline.data.tables.sorted_edges import Counted, ReadEdges
from parallel_epochs.pipeline.data.tables.source import Source
from parallel_epochs.pipeline.data.tables.sql import Database
from parallel_epochs.pipeline.data.tables.text import TextFeatures
from parallel_epochs.pipeline.data.tables.values import Values, values_of
from parallel_epochs.pipeline.graph.store import StoreWriter
from parallel_epochs.pipeline.names import FIRST_SOURCE, ROW_TIMES, SNAPSHOT, TEXT_SCORES
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# The part of the database with the nodes of a type, and with a table of edges, by their numbers.
NODES, EDGES = "nodes_{}", "edges_{}"


@dataclass
class ReadNodes:
    """The nodes of one type, as they stand in the database.

    Attributes:
        table: the columns of their table.
        part: of the database.
        labels: if they are those that are learned.
        columns, values, texts: what :func:`tables_nodes.feature_blocks` makes features with.
    """

    table: NodeTable
    part: str
    num_nodes: int
    labels: Labels | None
    columns: Columns
    values: Values
    texts: list[TextFeatures] = field(default_factory=list)

    @property
    def num_channels(self) -> int:
        """Columns of features that are made of the table."""
        return tables_nodes.num_channels(self.values, self.texts, self.columns)


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
    schema = config.tables
    paths = [path for own in config.all_tables() for path in members(own)]
    for path in (path for path in paths if path.suffix == ".gz"):
        check_zipped(path)
    known = None
    if learned is not None:
        known, inputs = unpack(cast(Tensor, learned.fitted))
        if inputs is not None:
            check_inputs(schema, inputs)
        elif begins:
            _check_columns(config, schema, known)
        if begins:
            writer.put(FITTED, cast(Tensor, learned.fitted))
    with Database(writer.folder, config.memory_limit, config.threads, paths) as db:
        on_stage("reading nodes")
        sources = _open_edges(db, config, schema)
        labels = labels_of(learned, config, begins)
        nodes = _read_nodes(db, config, schema, sources, known, labels)
        edges = _join_edges(db, config, schema, sources, nodes, known)
        _learn(db, config, nodes, edges, is_new=learned is None)
        types, plan = _make_types(config, schema, nodes, edges)
        on_stage("sorting edges")
        counted = _sort(db, config, schema, writer, nodes, edges, types, learned, begins=begins)
        on_stage("writing the store")
        _write(db, config, schema, writer, nodes, edges, types, plan, counted, learned)


def _open_edges(db: Database, config: TablesConfig, schema: TableSchema) -> dict[str, Source]:
    """Open all tables of edges. The edges of a label table are the last ones, and are made of the others."""
    sources = dict[str, Source]()
    for number, (name, table) in enumerate(schema.edges.items()):
        if is_made(table):
            label_rows.make(db, config, schema, sources)
        with db.part(EDGES.format(number)):
            sources[name] = reading.open_table(db, table)
    return sources


def labels_of(learned: Learned | None, config: TablesConfig, grows: bool) -> KnownLabels | None:
    """Return what labels of other tables must be like, given what was learned of a training; none of a training.

    Args:
        grows: whether these tables are those of a training too.
    """
    if learned is None:
        return None
    names = unpack_names(learned.label_names, "label_names") if learned.label_names else []
    return KnownLabels(learned.metric, names[: learned.out_channels], config.unknown, grows)


def _read_nodes(
    db: Database,
    config: TablesConfig,
    schema: TableSchema,
    sources: dict[str, Source],
    known: list[Fitted] | None,
    labels: KnownLabels | None,
) -> dict[str, ReadNodes]:
    """Read the tables of nodes; a type without a table has the ids that edges name."""
    found = dict[str, ReadNodes]()
    for number, (name, table) in enumerate(schema.nodes.items()):
        ends = [
            (sources[other], column)
            for other, own in schema.edges.items()
            for kind, column in (
                (own.source, own.columns.source),
                (own.target, own.columns.target),
            )
            if kind == name
        ]
        fitted = None if known is None else known[number].columns
        with db.part(NODES.format(number)):
            read = reading.read_nodes(db, config, table, ends, fitted, labels)
        found[name] = ReadNodes(table, NODES.format(number), *read, values_of(table))
    check_counts({name: own.num_nodes for name, own in found.items()}, config.origin())
    return found


def _join_edges(
    db: Database,
    config: TablesConfig,
    schema: TableSchema,
    sources: dict[str, Source],
    nodes: dict[str, ReadNodes],
    known: list[Fitted] | None,
) -> list[ReadEdges]:
    """Join the tables of edges with the nodes of both ends."""
    found, until = list[ReadEdges](), _last_training(db, schema, nodes)
    for number, (name, table) in enumerate(schema.edges.items()):
        part, columns, values, source = (
            EDGES.format(number),
            table.columns,
            values_of(table),
            sources[name],
        )
        ends = nodes[table.source], nodes[table.target]
        if is_made(table):
            label_rows.refuse_unknown(db, source, f"{ends[1].part}.nodes", table.target)
        with db.part(part):
            if (
                schema.is_typed
                and columns.relation is not None
                and (row := source.find_row(db, f"{source.text(columns.relation)} IS NULL"))
            ):
                raise ValueError(
                    f"{row[0]}: row {row[1]}, column {columns.relation} is empty: each edge needs a "
                    f"relation (data.schema, edges.{name}.relation)"
                )
            fitted = tables_edges.join(
                db,
                source,
                table,
                values,
                (f"{ends[0].part}.nodes", f"{ends[1].part}.nodes"),
                fitted=None if known is None else known[len(nodes) + number],
                most_relations=MAX_RELATIONS if schema.is_typed else tables_edges.MOST_ONE_HOT,
                refuses_dangling=config.dangling == "error",
                unknown="error" if schema.is_typed else config.unknown,
                until=until,
            )
            names = [name] if columns.relation is None else tables_edges.relations(db)
        num_one_hot = 0
        if columns.relation is not None and not schema.is_typed:
            num_one_hot = len(names) * (1 + columns.directed_relations)
        sends = not is_made(table)
        found.append(ReadEdges(table, part, names, values, fitted, num_one_hot, sends=sends))
    return found


def _last_training(db: Database, schema: TableSchema, nodes: dict[str, ReadNodes]) -> float | None:
    """Return the time of the last training row of a label table; none without such a table, or labels.

    A warning says how many training labels tell of the time of validation.
    """
    if schema.rows is None or (labels := nodes[TYPE].labels) is None:
        return None
    times = label_rows.read_times(db)
    train, valid = (times[mask.numpy()] for mask in labels.masks[:2])
    if num_late := int((train + schema.rows.length > valid.min(initial=np.inf)).sum()):
        log.warning(
            "the %s of %s end later than the first validation row, so that their labels tell of its time. "
            "Leave out the rows between data.train_until and the first validation row",
            schema.rows.span,
            count(num_late, "training row"),
        )
    return float(train.max(initial=times.min()))


def _starts(nodes: dict[str, ReadNodes]) -> dict[str, int]:
    """Return the number of the first node of each type."""
    ends = itertools.accumulate((own.num_nodes for own in nodes.values()), initial=0)
    return dict(zip(nodes, ends))


def _learn(
    db: Database,
    config: TablesConfig,
    nodes: dict[str, ReadNodes],
    edges: list[ReadEdges],
    *,
    is_new: bool,
) -> None:
    """Learn what the features of each type are made with, when the edges are joined."""
    first = _starts(nodes)
    joined = [
        LINKS.format(f"{own.part}.joined", first[own.table.source], first[own.table.target])
        for own in edges
    ]
    num_nodes = sum(own.num_nodes for own in nodes.values())
    for name, own in nodes.items():
        neighbors = [
            tables_nodes.Neighbors(f"{each.part}.joined", start, end, f"{nodes[other].part}.nodes")
            for each in edges
            for kind, other, start, end in (
                (each.table.source, each.table.target, "s", "t"),
                (each.table.target, each.table.source, "t", "s"),
            )
            if kind == name
        ]
        with db.part(own.part):
            own.texts, own.columns = reading.learn_features(
                db,
                own.num_nodes,
                config,
                own.table,
                own.labels,
                own.columns,
                neighbors=neighbors,
                links=Links(" UNION ALL ".join(joined), num_nodes, first[name]),
                is_new=is_new,
            )


def _make_types(
    config: TablesConfig,
    schema: TableSchema,
    nodes: dict[str, ReadNodes],
    edges: list[ReadEdges],
) -> tuple[GraphTypes, Plan]:
    """Name the types and relations, and plan the features of types without.

    Raises:
        ValueError: a relation is there twice, or has the name of a reverse one.
    """
    relations = [(own.table.source, name, own.table.target) for own in edges for name in own.names]
    check_schema(list(nodes), relations)
    numbered = with_reverse(relations) if config.reverse_relations else relations
    check_schema(list(nodes), numbered)
    widths = {name: own.num_channels for name, own in nodes.items()}
    is_mean = config.featureless == "mean" and schema.is_typed
    if is_mean and schema.rows is not None:
        is_mean = False
        log.info(
            "%s: no columns of degrees, nor of means for types without columns, which would count edges of the "
            "future (data.degrees, data.featureless)",
            config.origin(),
        )
    plan = plan_means(widths, numbered) if is_mean else Plan(widths, {})
    places, column = list[list[int]](), 1
    for own in edges:
        places += [[column if own.num_features else 0, own.num_features] for _ in own.names]
        column += own.num_features
    return GraphTypes(
        list(nodes),
        [own.num_nodes for own in nodes.values()],
        list(plan.widths.values()),
        numbered,
        schema.labelled if config.reads_labels else None,
        list(plan.sources),
        edge_columns=places,
    ), plan


def _sort(
    db: Database,
    config: TablesConfig,
    schema: TableSchema,
    writer: StoreWriter,
    nodes: dict[str, ReadNodes],
    edges: list[ReadEdges],
    types: GraphTypes,
    learned: Learned | None,
    *,
    begins: bool,
) -> Counted:
    """Sort and count the edges."""
    both = config.reverse_relations if schema.is_typed else config.to_undirected
    hides = bool(config.hide_labelled) and schema.labels_edges
    if hides:
        hides = _hide(
            db, config, nodes[str(schema.labelled)], edges, is_new=learned is None or begins
        )
    snapshots = None
    if schema.rows is not None:
        snapshots = label_rows.find_snapshots(db, schema.rows, config.snapshots)
        writer.put(SNAPSHOT, torch.from_numpy(snapshots.of_rows))
        writer.put(ROW_TIMES, torch.from_numpy(snapshots.times))
    tables_edges.sort(
        db,
        edges,
        _starts(nodes),
        is_typed=schema.is_typed,
        both=both,
        loops_of=f"{NODES.format(0)}.nodes" if config.add_self_loops else None,
        snapshots=snapshots,
    )
    has_reverse = both and not hides and snapshots is None
    return tables_edges.count(db, sum(types.counts), has_reverse=has_reverse)


def _hide(
    db: Database, config: TablesConfig, own: ReadNodes, edges: list[ReadEdges], *, is_new: bool
) -> bool:
    """Mark the rows of labelled edges that send no messages to their ends; returns whether there are some."""
    if own.labels is None:  # other tables, of which no label is known
        return False
    with db.part(own.part):
        by_time = config.split == "time"
        is_hidden = tables_labels.find_hidden(db, own.labels, by_time=by_time, is_new=is_new)
    rows = pa.record_batch({"number": is_hidden.nonzero().squeeze(1).numpy()})
    for table in edges:
        if table.table.columns.source == own.table.columns.id:
            with db.part(table.part):
                db.fill("hidden", rows.schema, iter([rows]))
            table.hides = True
    log.info(
        "%s of %s edges send no messages, as they are predicted or later (task.hide_labelled)",
        f"{len(rows):,}",
        f"{own.num_nodes:,}",
    )
    return bool(len(rows))


def _write(
    db: Database,
    config: TablesConfig,
    schema: TableSchema,
    writer: StoreWriter,
    nodes: dict[str, ReadNodes],
    edges: list[ReadEdges],
    types: GraphTypes,
    plan: Plan,
    counted: Counted,
    learned: Learned | None,
) -> None:
    """Write every array and value of the store."""
    num_features = sum(own.num_features for own in edges)
    has_times = schema.rows is not None or any(own.table.place is not None for own in edges)
    tables_edges.write(
        db,
        writer,
        counted,
        num_features,
        has_relations=schema.is_typed,
        has_times=has_times,
    )
    for name, own in nodes.items():
        if name == schema.labelled:
            with db.part(own.part):
                tables_nodes.write_terms(db, writer, own.num_nodes, own.texts)
    summary: dict[str, object] = {"num_nodes": sum(types.counts), "num_categories": 0}
    summary |= {"x_source": "data", "structure": dataclasses.asdict(counted.structure)}
    if schema.is_typed:
        summary |= {"num_categories": len(nodes), SCHEMA: types.to_value()}
    if schema.is_typed or types.widths[0]:
        _write_features(db, writer, nodes, types, plan, is_typed=schema.is_typed)
    else:
        moments = None if learned is None else learned.edges
        summary["x_source"] = "edges" if num_features else "degree"
        tables_edges.write_incident(writer, config.node_features, num_features, moments)
    counts = {f"{own.part}.nodes": own.num_nodes for own in nodes.values()}
    tables_nodes.write_names(db, writer, counts)
    if learned is None:
        known = [Fitted(own.columns) for own in nodes.values()]
        for own in edges:
            relations = own.names if schema.is_typed else own.fitted.relations
            known.append(dataclasses.replace(own.fitted, relations=relations))
        writer.put(FITTED, pack(known, schema.inputs() if schema.is_typed else None))
    for name, own in nodes.items():
        if own.labels is not None:
            first = types.nodes_of(name).start
            with db.part(own.part):
                tables_labels.write(db, writer, own.labels, first, sum(types.counts))
            summary |= tables_labels.describe(own.labels)
        if own.columns.scores is not None:
            summary[TEXT_SCORES] = tables_nodes.first_score(own.values, own.columns)
    if not schema.is_typed:
        query = f"SELECT min(s) FROM {edges[0].part}.joined WHERE t IS NOT NULL"
        if (least := db.execute(query)[0][0]) is not None:
            summary[FIRST_SOURCE] = int(least)
    writer.finish(summary)


def _write_features(
    db: Database,
    writer: StoreWriter,
    nodes: dict[str, ReadNodes],
    types: GraphTypes,
    plan: Plan,
    *,
    is_typed: bool,
) -> None:
    """Write ``x``: the features of each type, zeros behind them, and the one-hot type. The edges are written."""
    if writer.has("x"):
        return
    width = max(types.widths)
    shape = sum(types.counts), width + len(nodes) * is_typed
    with writer.write(x=(shape, torch.float32)) as opened:
        for place, (name, own) in enumerate(nodes.items()):
            begin = types.nodes_of(name).start
            with db.part(own.part):
                for first, block in tables_nodes.feature_blocks(
                    db, own.num_nodes, own.values, own.texts, own.columns
                ):
                    rows = np.zeros((len(block), shape[1]), np.float32)
                    rows[:, : block.shape[1]] = block
                    if is_typed:
                        rows[:, width + place] = 1
                    opened["x"].write((begin + first) * shape[1], rows)
        if plan.sources and writer.entry("edges")["shape"][1]:
            x = np.memmap(opened["x"].path, np.float32, "r+", shape=shape)
            edges, indptr = (tables_edges.map_array(writer, array) for array in ("edges", "indptr"))
            fill_means(plan, types, edges, indptr, x)
            x.flush()


def refit_edges(config: TablesConfig, graph: Graph, edge_attr: Tensor) -> Tensor:
    """Scale features of the edges that training sees by these edges alone.

    Args:
        graph: with all edges.
        edge_attr: of the edges that are left; it is changed in place.

    Returns:
        The array ``fitted`` that gives other tables such features.
    """
    schema = config.tables
    fitted, inputs = unpack(graph[FITTED])
    first, column = 0, 0
    for own, table in zip(fitted[len(schema.nodes) :], schema.edges.values(), strict=True):
        values, rows = values_of(table), torch.arange(len(edge_attr))
        width = values.num_features(own.flagged)
        if schema.is_typed:
            column, width = graph.types.edge_columns[first]
            relation = edge_attr[:, 0].long() % len(graph.types.edge_columns) - first
            rows = ((relation >= 0) & (relation < len(own.relations))).nonzero().squeeze(1)
        features = edge_attr[rows, column : column + width].numpy()
        values.refit_edges(features, own)
        edge_attr[rows, column : column + width] = torch.from_numpy(features)
        first += len(own.relations)
    return pack(fitted, inputs)


def _check_columns(config: TablesConfig, schema: TableSchema, known: list[Fitted]) -> None:
    """Refuse other columns of nodes and edges than those of the run that a training begins with.

    Raises:
        ValueError: says how many there are, and were.
    """
    (nodes,), (edges,), columns = schema.nodes.values(), schema.edges.values(), known[0].columns
    num_texts = len(nodes.columns.text_columns())
    # Behind the texts there may be the words of names and the ids of neighbours, in either direction.
    num_more = (
        sum(kind in ("names", "ids") for kind in columns.kinds)
        if columns.kinds
        else 2 * (num_texts != len(columns.texts) and len(columns.texts) > 1)
    )
    for what, now, before in (
        ("numbers and dates of nodes", values_of(nodes).num_features([]), len(columns.mean)),
        ("categories", len(nodes.columns.categories), len(columns.categories)),
        ("texts", num_texts, len(columns.texts) - num_more),
        ("numbers and dates of edges", values_of(edges).num_features([]), len(known[1].mean)),
    ):
        if now != before:
            raise ValueError(
                f"{config.origin()}: the keys name {count(now, 'column')} of {what}, and those of the run "
                f"that train.init names {before}. Name the same columns, or leave train.init out"
            )

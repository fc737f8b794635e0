"""Several tables of nodes and of edges to a store of one graph with types of nodes and relations.

Each table is read as that of a graph with one type, in a part of the database that is its own; see
:mod:`pipeline.data.join_types` for what becomes of them.
"""

import dataclasses
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
    label_table,
    labels as tables_labels,
    nodes as tables_nodes,
    sorted_edges as tables_edges,
)
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.data.tables.fitted import (
    Columns,
    Fitted,
    pack_several,
    unpack_several,
)
from parallel_epochs.pipeline.data.tables.groups import LINKS, Links
from parallel_epochs.pipeline.data.tables.labels import KnownLabels, Labels
from parallel_epochs.pipeline.data.tables.reading import (
    learn_features,
    open_table,
    read_nodes,
    values_of,
)
from parallel_epochs.pipeline.data.tables.schema import TableSchema, check_inputs, read_schema
from parallel_epochs.pipeline.data.tables.source import Source
from parallel_epochs.pipeline.data.tables.sql import Database, blocks
from parallel_epochs.pipeline.data.tables.text import TextFeatures
from parallel_epochs.pipeline.data.tables.values import Values
from parallel_epochs.pipeline.graph.store import StoreWriter
from parallel_epochs.pipeline.names import ROW_TIMES, SNAPSHOT, TEXT_SCORES
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# The part of the database with the nodes of a type, and with a table of edges, by their numbers.
NODES, EDGES = "nodes_{}", "edges_{}"
DST, SRC, NODE = tables_edges.DST, tables_edges.SRC, tables_edges.NODE


@dataclass
class ReadNodes:
    """The nodes of one type, as they stand in the database.

    Attributes:
        name: name of the type.
        part: of the database.
        num_nodes: their number.
        labels: if they are those that are learned.
        columns, numbers, texts: what :func:`tables_nodes.write_features` makes features with.
    """

    name: str
    part: str
    num_nodes: int
    labels: Labels | None
    columns: Columns
    numbers: Values
    texts: list[TextFeatures] = field(default_factory=list)


@dataclass
class ReadEdges:
    """A table of edges, as it stands in the database.

    Attributes:
        part: of the database.
        source, target: types of the nodes at both ends.
        names: of its relations, in the order of their numbers.
        values: columns of numbers and of dates that become features.
        fitted: what is known of them.
        has_times: whether its rows have times.
        hides: whether the edges from sources in the table ``hidden`` are left out, and their reverse is not.
        sends: whether any edge from its sources is there; their reverse is anyway.
    """

    part: str
    source: str
    target: str
    names: list[str]
    values: Values
    fitted: Fitted
    has_times: bool
    hides: bool = False
    sends: bool = True

    @property
    def num_features(self) -> int:
        """Columns of features of its edges."""
        return self.values.num_features(self.fitted.flagged)


def write_store(
    config: TablesConfig,
    db: Database,
    writer: StoreWriter,
    on_stage: Callable[[str], None],
    learned: Learned | None,
    begins: bool,
) -> None:
    """Write the prepared graph of several tables as a store; arguments are those of :func:`store.write_store`.

    Raises:
        ValueError: a table is inconsistent; the message names the file, the column and the first bad row.
    """
    tables, origin = read_schema(config), config.origin()
    known = None
    if learned is not None:
        known, inputs = unpack_several(cast(Tensor, learned.fitted))
        check_inputs(tables, inputs)
    on_stage("reading nodes")
    sources = _open_edges(db, config, tables)
    nodes = _read_types(db, tables, sources, known, labels_of(learned, config, begins))
    check_counts({name: own.num_nodes for name, own in nodes.items()}, origin)
    last_training = _last_training(db, nodes, tables)
    edges = [
        _join_edges(
            db,
            number,
            name,
            tables,
            sources[name],
            nodes,
            None if known is None else known[len(nodes) + number],
            last_training,
        )
        for number, name in enumerate(tables.edges)
    ]
    nodes = {
        name: _learn_features(db, own, tables, nodes, edges, is_new=learned is None)
        for name, own in nodes.items()
    }
    types, plan = _make_schema(config, tables, nodes, edges)
    on_stage("sorting edges")
    hides = (
        bool(config.hide_labelled)
        and config.labels_edges
        and _hide(db, config, nodes, edges, is_new=learned is None or begins)
    )
    snapshots = (
        None
        if tables.rows is None
        else label_rows.find_snapshots(db, tables.rows, config.snapshots)
    )
    _sort(db, edges, types, both=config.reverse_relations, snapshots=snapshots)
    counted = _count(db, types, both=config.reverse_relations and not hides and snapshots is None)
    on_stage("writing the store")
    _write_edges(
        db,
        writer,
        counted,
        num_features=sum(own.num_features for own in edges),
        has_times=any(own.has_times for own in edges),
        snapshots=snapshots,
    )
    if tables.labelled is not None:
        with db.part((labelled := nodes[tables.labelled]).part):
            tables_nodes.write_terms(db, writer, labelled.num_nodes, labelled.texts)
    _write_features(db, writer, nodes, types, plan)
    tables_nodes.write_names(
        db, writer, {f"{own.part}.nodes": own.num_nodes for own in nodes.values()}
    )
    if learned is None:
        writer.put(
            FITTED,
            pack_several(
                [
                    *(Fitted(own.columns) for own in nodes.values()),
                    *(dataclasses.replace(own.fitted, relations=own.names) for own in edges),
                ],
                tables.inputs(),
            ),
        )
    summary: dict[str, object] = {
        "num_nodes": sum(types.counts),
        "num_categories": len(nodes),
        "x_source": "data",
        "structure": dataclasses.asdict(counted.structure),
        SCHEMA: types.to_value(),
    }
    for own in nodes.values():
        summary |= _write_labels(db, writer, own, types)
    writer.finish(summary)


def _open_edges(db: Database, config: TablesConfig, tables: TableSchema) -> dict[str, Source]:
    """Open all tables of edges. The edges of a label table are the last ones, and are made of the others."""
    sources = dict[str, Source]()
    for number, (name, table) in enumerate(tables.edges.items()):
        if tables.rows is not None and name == label_table.RELATION:
            label_rows.make(
                db,
                config,
                tables.rows,
                tables.nodes[tables.rows.entity],
                sources,
                {own: tables.edges[own].config.edges for own in sources},
            )
        with db.part(EDGES.format(number)):
            sources[name] = open_table(db, table.config, "edges")
    return sources


def _hide(
    db: Database,
    config: TablesConfig,
    nodes: dict[str, ReadNodes],
    edges: list[ReadEdges],
    *,
    is_new: bool,
) -> bool:
    """Mark the rows of labelled edges that send no messages to their ends; returns whether there are some."""
    own = next((own for own in nodes.values() if own.labels is not None), None)
    if own is None or own.labels is None:  # other tables, of which no label is known
        return False
    with db.part(own.part):
        hidden = (
            tables_labels.find_hidden(db, own.labels, by_time=config.split == "time", is_new=is_new)
            .nonzero()
            .squeeze(1)
        )
    for table in edges:
        if table.source == own.name:
            with db.part(table.part):
                rows = pa.record_batch({"number": hidden.numpy()})
                db.fill("hidden", rows.schema, iter([rows]))
            table.hides = True
    log.info(
        "%s: %s of %s edges send no messages, as they are predicted or later (task.hide_labelled)",
        own.name,
        f"{len(hidden):,}",
        f"{own.num_nodes:,}",
    )
    return bool(len(hidden))


def refit_edges(tables: TableSchema, graph: Graph, edge_attr: Tensor) -> Tensor:
    """Do what :func:`to_store.refit_edges` does for a graph with several types of nodes."""
    fitted, inputs = unpack_several(graph[FITTED])
    relation, first = edge_attr[:, 0].long(), 0
    for own, table in zip(fitted[len(tables.nodes) :], tables.edges.values(), strict=True):
        column, width = graph.types.edge_columns[first]
        forward = len(graph.types.edge_columns)
        rows = (
            ((relation % forward >= first) & (relation % forward < first + len(own.relations)))
            .nonzero()
            .squeeze(1)
        )
        features = edge_attr[rows, column : column + width].numpy()
        values_of(table.config, "edges").refit_edges(features, own)
        edge_attr[rows, column : column + width] = torch.from_numpy(features)
        first += len(own.relations)
    return pack_several(fitted, inputs)


def _write_labels(
    db: Database, writer: StoreWriter, own: ReadNodes, types: GraphTypes
) -> dict[str, object]:
    """Write the labels of a type that has some; returns the values that tell of them and of the scores of texts."""
    found: dict[str, object] = {}
    if own.labels is not None:
        with db.part(own.part):
            tables_labels.write(
                db,
                writer,
                own.labels,
                first_node=types.nodes_of(own.name).start,
                num_nodes=sum(types.counts),
            )
        found = tables_labels.describe(own.labels)
    if own.columns.scores is not None:
        found[TEXT_SCORES] = tables_nodes.first_score(own.numbers, own.columns)
    return found


def _make_schema(
    config: TablesConfig, tables: TableSchema, nodes: dict[str, ReadNodes], edges: list[ReadEdges]
) -> tuple[GraphTypes, Plan]:
    """Name the types and relations, and plan the features of types without.

    Raises:
        ValueError: a relation is there twice, or has the name of a reverse one.
    """
    relations = [(own.source, name, own.target) for own in edges for name in own.names]
    check_schema(list(nodes), relations)
    numbered = with_reverse(relations) if config.reverse_relations else relations
    check_schema(list(nodes), numbered)
    widths = {
        name: tables_nodes.num_channels(own.numbers, own.texts, own.columns)
        for name, own in nodes.items()
    }
    if (is_mean := config.featureless == "mean") and tables.rows is not None:
        is_mean = False
        log.info(
            "%s: no columns of degrees, nor of means for types without columns, which would count edges of the "
            "future (data.degrees, data.featureless)",
            config.origin(),
        )
    plan = plan_means(widths, numbered) if is_mean else Plan(widths, {})
    return GraphTypes(
        list(nodes),
        [own.num_nodes for own in nodes.values()],
        list(plan.widths.values()),
        numbered,
        tables.labelled if config.reads_labels else None,
        list(plan.sources),
        edge_columns=_edge_columns(edges),
    ), plan


def _edge_columns(edges: list[ReadEdges]) -> list[list[int]]:
    """Return the first column and the number of columns of the features of each relation; those of a table share them."""
    found, column = [], 1
    for own in edges:
        found += [[column if own.num_features else 0, own.num_features] for _ in own.names]
        column += own.num_features
    return found


def labels_of(learned: Learned | None, config: TablesConfig, grows: bool) -> KnownLabels | None:
    """Return what labels of other tables must be like, given what was learned of a training; none of a training.

    Args:
        grows: whether these tables are those of a training too.
    """
    if learned is None:
        return None
    names = (
        unpack_names(learned.label_names, "label_names")[: learned.out_channels]
        if learned.label_names
        else []
    )
    return KnownLabels(learned.metric, names, config.unknown, grows)


def _read_types(
    db: Database,
    tables: TableSchema,
    sources: dict[str, Source],
    known: list[Fitted] | None,
    labels: KnownLabels | None,
) -> dict[str, ReadNodes]:
    """Read the tables of nodes; a type without a table has the ids that edges name."""
    found = {}
    for number, (name, config) in enumerate(tables.nodes.items()):
        ends = [
            (sources[table], column)
            for table, own in tables.edges.items()
            for kind, column in (
                (own.source, own.config.edges.source),
                (own.target, own.config.edges.target),
            )
            if kind == name
        ]
        with db.part(NODES.format(number)):
            read = read_nodes(
                db, config, ends, None if known is None else known[number].columns, labels
            )
        found[name] = ReadNodes(name, NODES.format(number), *read, values_of(config, "nodes"))
    return found


def _learn_features(
    db: Database,
    own: ReadNodes,
    tables: TableSchema,
    nodes: dict[str, ReadNodes],
    edges: list[ReadEdges],
    *,
    is_new: bool,
) -> ReadNodes:
    """Learn what the features of a type are made with, when the edges are joined."""
    neighbors = [
        tables_nodes.Neighbors(f"{table.part}.joined", start, end, f"{nodes[other].part}.nodes")
        for table in edges
        for kind, other, start, end in (
            (table.source, table.target, "s", "t"),
            (table.target, table.source, "t", "s"),
        )
        if kind == own.name
    ]
    first = dict(
        zip(nodes, np.cumsum([0, *(other.num_nodes for other in nodes.values())]).tolist())
    )
    links = Links(
        " UNION ALL ".join(
            LINKS.format(f"{table.part}.joined", first[table.source], first[table.target])
            for table in edges
        ),
        sum(other.num_nodes for other in nodes.values()),
        first[own.name],
    )
    with db.part(own.part):
        _, texts, columns = learn_features(
            db,
            own.num_nodes,
            tables.nodes[own.name],
            own.labels,
            own.columns,
            neighbors=neighbors,
            links=links,
            is_new=is_new,
        )
    return dataclasses.replace(own, texts=texts, columns=columns)


def _last_training(db: Database, nodes: dict[str, ReadNodes], tables: TableSchema) -> float | None:
    """Return the time of the last training row of a label table; none without such a table, or labels.

    A warning says how many training labels tell of the time of validation.
    """
    if tables.rows is None or (labels := nodes[label_table.TYPE].labels) is None:
        return None
    times = label_rows.read_times(db)
    train, valid = (times[mask.numpy()] for mask in labels.masks[:2])
    if num_late := int((train + tables.rows.length > valid.min(initial=np.inf)).sum()):
        log.warning(
            "the %s of %s end later than the first validation row, so that their labels tell of its time. "
            "Leave out the rows between data.train_until and the first validation row",
            tables.rows.span,
            count(num_late, "training row"),
        )
    return float(train.max(initial=times.min()))


def _join_edges(
    db: Database,
    number: int,
    name: str,
    tables: TableSchema,
    source: Source,
    nodes: dict[str, ReadNodes],
    known: Fitted | None,
    until: float | None,
) -> ReadEdges:
    """Join a table of edges with the nodes of both ends; `until` is that of :func:`tables_edges.join`."""
    own, part = tables.edges[name], EDGES.format(number)
    if name == label_table.RELATION and tables.rows is not None:
        label_rows.refuse_unknown(db, source, f"{nodes[own.target].part}.nodes", own.target)
    columns, values = own.config.edges, values_of(own.config, "edges")
    with db.part(part):
        if columns.relation is not None and (
            found := source.find_row(db, f"{source.text(columns.relation)} IS NULL")
        ):
            raise ValueError(
                f"{found[0]}: row {found[1]}, column {columns.relation} is empty: each edge needs a "
                f"relation (data.schema, edges.{name}.relation)"
            )
        fitted = tables_edges.join(
            db,
            source,
            (columns.source, columns.target),
            values,
            columns.relation,
            time=own.config.place_of_links(),
            id_column=tables.nodes[own.source].nodes.id,
            refuse_dangling=own.config.dangling == "error",
            fitted=known,
            until=until,
            nodes=(f"{nodes[own.source].part}.nodes", f"{nodes[own.target].part}.nodes"),
            limit=tables_edges.RelationLimit(
                MAX_RELATIONS,
                "are ids rather than kinds of edges",
                f"data.schema, edges.{name}.relation",
            ),
        )
        names = [name] if columns.relation is None else tables_edges.relations(db)
    return ReadEdges(
        part,
        own.source,
        own.target,
        names,
        values,
        fitted,
        own.config.place_of_links() is not None,
        sends=columns.source != label_table.ROWS,
    )


def _sort(
    db: Database,
    edges: list[ReadEdges],
    types: GraphTypes,
    *,
    both: bool,
    snapshots: label_rows.Snapshots | None,
) -> None:
    """Sort the edges by destination, source and relation; equal ones become one.

    With snapshots, the time of an edge becomes the number of the first snapshot that is later, -1 for one without a
    time. Edges of different snapshots stay apart, and those that none has are left out.

    Weights of equal edges are added, other numbers averaged, in the order of their values: that of the rows depends on
    the number of threads. Of times the earliest is kept.

    Args:
        snapshots: none without a label table.
    """
    num_features, has_times = (
        sum(own.num_features for own in edges),
        any(own.has_times for own in edges),
    )
    num_forward = sum(len(own.names) for own in edges)
    rows, added, column, relation = list[str](), set[int](), 0, 0
    for own in edges:
        rows += _rows_of(
            own,
            types,
            column,
            relation,
            num_features,
            num_forward if both else None,
            has_times=has_times,
            has_relations="r" in db.columns(f"{own.part}.joined"),
        )
        added |= {
            column + place
            for place, (option, _) in enumerate(own.values.columns)
            if option == "weight"
        }
        column, relation = column + own.num_features, relation + len(own.names)
    merged = "".join(
        f", {'sum' if place in added else 'avg'}(v{place}::DOUBLE ORDER BY v{place})::FLOAT AS v{place}"
        for place in range(num_features)
    )
    every, by = " UNION ALL ".join(rows), "k, r"
    if snapshots is not None:
        every = (
            snapshots.number_edges(every)
            if has_times
            else f"SELECT *, -1::DOUBLE AS w FROM ({every})"
        )
        by, merged = "k, r, w", merged + ", w"
    elif has_times:
        merged += ", min(w) AS w"
    db.stage(
        "sorted", f"SELECT k, r{merged} FROM ({every}) GROUP BY {by} ORDER BY {by}", "sorting edges"
    )
    ((num_rows,),) = db.execute(f"SELECT count(*) FROM ({every})")
    ((num_kept,),) = db.execute("SELECT count(*) FROM sorted")
    if num_merged := (num_rows - num_kept) // (2 if both else 1):
        log.info(
            "edges: %s merged with an edge of the same relation between the same nodes",
            count(num_merged, "row was", "rows were"),
        )


def _rows_of(
    own: ReadEdges,
    types: GraphTypes,
    column: int,
    relation: int,
    num_features: int,
    num_forward: int | None,
    *,
    has_times: bool,
    has_relations: bool,
) -> list[str]:
    """Write SQL for the rows of a table of edges among those of all tables: ``k``, ``r``, the features and ``w``.

    Args:
        column: of its first feature, among those of all tables.
        relation: number of its first relation.
        num_features: of all tables.
        num_forward: relations of all tables, behind which the reverse ones are numbered; none without those.
        has_times: whether a table has times.
        has_relations: whether the rows have numbers of relations.
    """
    features = ["0::FLOAT"] * num_features
    known = [f"{feature}::FLOAT" for feature in own.values.of_edges(own.fitted)]
    features[column : column + len(known)] = known
    chosen = "".join(f", {text} AS v{place}" for place, text in enumerate(features))
    if has_times:
        chosen += f", {'w' if own.has_times else 'CAST(NULL AS DOUBLE)'} AS w"
    source = f"(s::BIGINT + {types.nodes_of(own.source).start})"
    target = f"(t::BIGINT + {types.nodes_of(own.target).start})"
    shown = f" AND s NOT IN (SELECT number FROM {own.part}.hidden)" if own.hides else ""
    kinds = [(source, target, relation, shown)] * own.sends
    if num_forward is not None:
        kinds.append((target, source, relation + num_forward, ""))
    return [
        f"SELECT ({end} << {DST}) | ({start} << {SRC}) AS k, ({'r + ' * has_relations}{number})::INTEGER AS "
        f"r{chosen} FROM {own.part}.joined WHERE s IS NOT NULL AND t IS NOT NULL{which}"
        for start, end, number, which in kinds
    ]


def _count(db: Database, types: GraphTypes, *, both: bool) -> tables_edges.Counted:
    """Go through the sorted edges once, and count what is there."""
    tally = tables_edges.Tally(sum(types.counts))
    for batch in db.stream("SELECT k FROM sorted", "counting edges"):
        tally.add(batch["k"] >> SRC)
    return tally.finish(0 if both else tables_edges.count_without_reverse(db, parallel=True))


def _write_edges(
    db: Database,
    writer: StoreWriter,
    counted: tables_edges.Counted,
    *,
    num_features: int,
    has_times: bool,
    snapshots: label_rows.Snapshots | None,
) -> None:
    """Write edges, pointers to them, and the number of the relation of each before its features; and snapshots."""
    if snapshots is not None:
        has_times = True
        writer.put(SNAPSHOT, torch.from_numpy(snapshots.of_rows))
        writer.put(ROW_TIMES, torch.from_numpy(snapshots.times))
    times = ", coalesce(w, 'inf'::DOUBLE) AS w" if has_times else ""
    values = "".join(f", v{place}" for place in range(num_features))
    with tables_edges.open_arrays(writer, counted, 1 + num_features, has_times=has_times) as opened:
        for batch in (
            db.stream(f"SELECT k, r{values}{times} FROM sorted", "writing edges") if opened else ()
        ):
            keys = batch["k"]
            attr = np.stack(
                [batch["r"], *(batch[f"v{place}"] for place in range(num_features))], axis=1
            )
            assert opened is not None
            opened.write((keys >> SRC) & NODE, keys >> DST, attr.astype(np.float32), batch.get("w"))


def _write_features(
    db: Database, writer: StoreWriter, nodes: dict[str, ReadNodes], types: GraphTypes, plan: Plan
) -> None:
    """Write ``x``: the features of each type, zeros behind them, and the one-hot type. The edges are written."""
    if writer.has("x"):
        return
    width = max(types.widths)
    shape = sum(types.counts), width + len(nodes)
    with writer.write(x=(shape, torch.float32)) as opened:
        for place, (name, own) in enumerate(nodes.items()):
            begin = types.nodes_of(name).start
            with db.part(own.part):
                made = (
                    tables_nodes.feature_blocks(
                        db, own.num_nodes, own.numbers, own.texts, own.columns
                    )
                    if tables_nodes.num_channels(own.numbers, own.texts, own.columns)
                    else (
                        (first, np.empty((last - first, 0), np.float32))
                        for first, last in blocks(own.num_nodes, tables_nodes.BLOCK)
                    )
                )
                for first, block in made:
                    rows = np.zeros((len(block), shape[1]), np.float32)
                    rows[:, : block.shape[1]], rows[:, width + place] = block, 1
                    opened["x"].write((begin + first) * shape[1], rows)
        if plan.sources and writer.entry("edges")["shape"][1]:
            x = np.memmap(opened["x"].path, np.float32, "r+", shape=shape)
            edges, indptr = (tables_edges.map_array(writer, array) for array in ("edges", "indptr"))
            fill_means(plan, types, edges, indptr, x)
            x.flush()

"""Tables of nodes and edges, in files or databases, to a store of the prepared graph: DuckDB reads, joins and sorts.

Nothing of the size of the edges is in memory: what DuckDB has sorted goes to the store batch by batch. A process that
is killed leaves the stages that are complete, and the next one goes on from there.
"""

import dataclasses
import itertools
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.columns import open_unzipped
from parallel_epochs.pipeline.data.content import hash_parts, label, sample_file
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import SCHEMA, GraphTypes
from parallel_epochs.pipeline.data.join_types import (
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
    sorted_edges as tables_edges,
)
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.data.tables.fitted import Fitted, pack, unpack
from parallel_epochs.pipeline.data.tables.nodes import Nodes, write_names
from parallel_epochs.pipeline.data.tables.schema import TableSchema, check_inputs, is_made
from parallel_epochs.pipeline.data.tables.sorted_edges import ReadEdges
from parallel_epochs.pipeline.data.tables.source import Source
from parallel_epochs.pipeline.data.tables.sql import Database
from parallel_epochs.pipeline.data.tables.values import values_of
from parallel_epochs.pipeline.graph.store import StoreWriter
from parallel_epochs.pipeline.graph.structure import Structure
from parallel_epochs.pipeline.names import FIRST_SOURCE, ROW_TIMES, SNAPSHOT, TEXT_SCORES
from parallel_epochs.pipeline.run import limits, pulse
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# Bytes that are unzipped at a time.
UNZIPPED = 1 << 20


def hash_content(tables: TableSchema) -> str:
    """Compute a digest of the files of the tables, and of the schema where there are several types of nodes."""
    found = tables.files()
    described = [json.dumps(tables.describe(), sort_keys=True)] if tables.is_typed else []
    parts = (
        [*label(("".join(path.suffixes[-2:]), path) for path in paths), "|"]
        for paths in (found if tables.is_typed else reversed(found))
    )
    return hash_parts([*described, *itertools.chain.from_iterable(parts)], digest=sample_file)


def check_zipped(path: Path) -> None:
    """Unzip a table once, for DuckDB would fill the disk with any number of rows, and says little of one cut short.

    Raises:
        ValueError: it is damaged or cut short, or unzips to more bytes than the limit.
    """
    with open_unzipped(path, limits.limit(limits.UNPACKED)) as file:
        while file.read(UNZIPPED):
            pulse.beat(f"unzipping {path.name}", pulse.State.LONG)


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
    paths = list(itertools.chain(*schema.files()))
    for path in (path for path in paths if path.suffix == ".gz"):
        check_zipped(path)
    known = labels = None
    if learned is not None:
        packed = cast(Tensor, learned.fitted)
        known, inputs = unpack(packed)
        names = unpack_names(learned.label_names, "label_names") if learned.label_names else []
        names = names[: learned.out_channels]
        labels = tables_labels.KnownLabels(learned.metric, names, config.unknown, begins)
        if inputs is not None:
            check_inputs(schema, inputs)
        elif begins:
            _check_columns(config, schema, known)
        if begins:
            writer.put(FITTED, packed)
    with Database(writer.folder, paths) as db:
        made = _Preparation(db, config, schema, writer, learned, divides=learned is None or begins)
        on_stage("reading nodes")
        sources = made.open_edges()
        made.read_nodes(sources, known, labels)
        made.join_edges(sources, known)
        made.learn()
        types, plan = made.make_types()
        on_stage("sorting edges")
        structure, in_degree = made.sort(sum(types.counts))
        on_stage("writing the store")
        made.write(types, plan, structure, in_degree)


@dataclass
class _Preparation:
    """The tables of a graph on their way to a store.

    Attributes:
        learned: what the preparation of other tables learned of them; none: these tables tell.
        divides: whether labels have splits.
        nodes: of each type; those of a type have consecutive numbers.
        edges: of each table.
    """

    db: Database
    config: TablesConfig
    schema: TableSchema
    writer: StoreWriter
    learned: Learned | None
    divides: bool
    nodes: dict[str, Nodes] = field(default_factory=dict)
    edges: list[ReadEdges] = field(default_factory=list)

    @property
    def first(self) -> dict[str, int]:
        """The number of the first node of each type."""
        ends = itertools.accumulate((own.num_nodes for own in self.nodes.values()), initial=0)
        return dict(zip(self.nodes, ends))

    def open_edges(self) -> dict[str, Source]:
        """Open all tables of edges. The edges of a label table are the last ones, and are made of the others."""
        sources = dict[str, Source]()
        for number, (name, table) in enumerate(self.schema.edges.items()):
            if is_made(table):
                label_rows.make(self.db, self.config, self.schema, sources)
            with self.db.part(f"edges_{number}"):
                sources[name] = label_rows.open_table(self.db, table)
        return sources

    def read_nodes(
        self,
        sources: dict[str, Source],
        known: list[Fitted] | None,
        labels: tables_labels.KnownLabels | None,
    ) -> None:
        """Read the tables of nodes; a type without a table has the ids that edges name."""
        for number, (name, table) in enumerate(self.schema.nodes.items()):
            ends = [
                (sources[other], column)
                for other, own in self.schema.edges.items()
                for kind, column in zip(
                    (own.source, own.target), (own.columns.source, own.columns.target)
                )
                if kind == name
            ]
            own = self.nodes[name] = Nodes(self.db, self.config, table, f"nodes_{number}")
            with self.db.part(own.part):
                own.read(ends, None if known is None else known[number].columns, labels)
        counts = {name: own.num_nodes for name, own in self.nodes.items()}
        check_counts(counts, self.config.origin())

    def join_edges(self, sources: dict[str, Source], known: list[Fitted] | None) -> None:
        """Join the tables of edges with the nodes of both ends."""
        config, is_typed, until = self.config, self.schema.is_typed, self._last_training()
        for number, (name, table) in enumerate(self.schema.edges.items()):
            part, columns = f"edges_{number}", table.columns
            start, end = (f"{self.nodes[kind].part}.nodes" for kind in (table.source, table.target))
            if is_made(table):
                label_rows.refuse_unknown(sources[name], end, table.target)
            with self.db.part(part):
                fitted = tables_edges.join(
                    sources[name],
                    table,
                    (start, end),
                    fitted=None if known is None else known[len(self.nodes) + number],
                    is_typed=is_typed,
                    unknown=config.unknown,
                    until=until,
                )
                names = [name] if columns.relation is None else tables_edges.relations(self.db)
            num_one_hot = 0
            if columns.relation is not None and not is_typed:
                num_one_hot = len(names) * (1 + columns.directed_relations)
            own = ReadEdges(table, part, names, fitted, num_one_hot, sends=not is_made(table))
            self.edges.append(own)

    def _last_training(self) -> float | None:
        """Return the time of the last training row of a label table; none without such a table, or labels.

        A warning says how many training labels tell of the time of validation.
        """
        rows = self.schema.rows
        if rows is None or (labels := self.nodes[label_rows.TYPE].labels) is None:
            return None
        times = label_rows.read_times(self.db)
        train, valid = (times[mask.numpy()] for mask in labels.masks[:2])
        if num_late := int((train + rows.length > valid.min(initial=np.inf)).sum()):
            log.warning(
                "the %s of %s end later than the first validation row, so that their labels tell of its time. "
                "Leave out the rows between data.train_until and the first validation row",
                rows.span,
                count(num_late, "training row"),
            )
        return float(train.max(initial=times.min()))

    def learn(self) -> None:
        """Learn what the features of each type are made with, when the edges are joined."""
        num_nodes = sum(own.num_nodes for own in self.nodes.values())
        links = " UNION ALL ".join(
            f"SELECT s::BIGINT + {self.first[own.table.source]} AS s, t::BIGINT + {self.first[own.table.target]} "
            f"AS t FROM {own.part}.joined WHERE s IS NOT NULL AND t IS NOT NULL"
            for own in self.edges
        )
        for name, own in self.nodes.items():
            neighbors = [
                f"SELECT e.{start} AS number, n.id FROM {each.part}.joined AS e JOIN {self.nodes[other].part}.nodes AS n "
                f"ON e.{end} = n.number WHERE e.{start} IS NOT NULL"
                for each in self.edges
                for kind, other, start, end in (
                    (each.table.source, each.table.target, "s", "t"),
                    (each.table.target, each.table.source, "t", "s"),
                )
                if kind == name
            ]
            with self.db.part(own.part):
                own.learn(
                    neighbors, links, num_nodes, self.first[name], is_new=self.learned is None
                )

    def make_types(self) -> tuple[GraphTypes, Plan]:
        """Name the types and relations, and plan the features of types without.

        Raises:
            ValueError: a relation is there twice, or has the name of a reverse one.
        """
        config, schema, names = self.config, self.schema, list(self.nodes)
        relations = [
            (own.table.source, name, own.table.target) for own in self.edges for name in own.names
        ]
        check_schema(names, relations)
        numbered = with_reverse(relations) if config.reverse_relations else relations
        check_schema(names, numbered)
        widths = {name: own.num_channels for name, own in self.nodes.items()}
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
        for own in self.edges:
            places += [[column if own.num_features else 0, own.num_features] for _ in own.names]
            column += own.num_features
        return GraphTypes(
            names,
            [own.num_nodes for own in self.nodes.values()],
            list(plan.widths.values()),
            numbered,
            schema.labelled if config.reads_labels else None,
            list(plan.sources),
            edge_columns=places,
        ), plan

    def sort(self, num_nodes: int) -> tuple[Structure, np.ndarray]:
        """Sort and count the edges."""
        config, schema = self.config, self.schema
        both = config.reverse_relations if schema.is_typed else config.to_undirected
        hides = bool(config.hide_labelled) and schema.labels_edges and self._hide()
        snapshots = None
        if schema.rows is not None:
            snapshots, of_rows, times = label_rows.find_snapshots(self.db, schema.rows)
            self.writer.put(SNAPSHOT, torch.from_numpy(of_rows))
            self.writer.put(ROW_TIMES, torch.from_numpy(times))
        tables_edges.sort(
            self.db,
            self.edges,
            self.first,
            is_typed=schema.is_typed,
            both=both,
            snapshots=snapshots,
        )
        has_reverse = both and not hides and snapshots is None
        return tables_edges.count(self.db, num_nodes, has_reverse=has_reverse)

    def _hide(self) -> bool:
        """Mark the rows of labelled edges that send no messages to their ends; returns whether there are some."""
        own = self.nodes[str(self.schema.labelled)]
        if own.labels is None:  # other tables, of which no label is known
            return False
        with self.db.part(own.part):
            by_time = self.config.split == "time"
            is_hidden = tables_labels.find_hidden(
                self.db, own.labels, by_time=by_time, is_new=self.divides
            )
        rows = pa.table({"number": is_hidden.nonzero().squeeze(1).numpy()})
        for table in self.edges:
            if table.table.columns.source == own.table.columns.id:
                with self.db.part(table.part):
                    self.db.fill("hidden", rows)
                table.hides = True
        log.info(
            "%s of %s edges send no messages, as they are predicted or later",
            f"{len(rows):,}",
            f"{own.num_nodes:,}",
        )
        return bool(len(rows))

    def write(
        self, types: GraphTypes, plan: Plan, structure: Structure, in_degree: np.ndarray
    ) -> None:
        """Write every array and value of the store."""
        db, schema, writer = self.db, self.schema, self.writer
        num_features = sum(own.num_features for own in self.edges)
        has_times = schema.rows is not None or any(own.table.place for own in self.edges)
        tables_edges.write(
            db,
            writer,
            structure,
            in_degree,
            num_features,
            has_relations=schema.is_typed,
            has_times=has_times,
        )
        if schema.labelled is not None:
            own = self.nodes[schema.labelled]
            with db.part(own.part):
                own.write_terms(writer)
        summary: dict[str, object] = {"num_nodes": sum(types.counts), "num_categories": 0}
        summary |= {"x_source": "data", "structure": dataclasses.asdict(structure)}
        if schema.is_typed:
            summary |= {"num_categories": len(self.nodes), SCHEMA: types.to_value()}
        if schema.is_typed or types.widths[0]:
            self._write_features(types, plan)
        else:
            moments = None if self.learned is None else self.learned.edges
            summary["x_source"] = "edges" if num_features else "degree"
            tables_edges.write_incident(writer, self.config.node_features, num_features, moments)
        counts = {f"{own.part}.nodes": own.num_nodes for own in self.nodes.values()}
        write_names(db, writer, counts)
        if self.learned is None:
            known = [Fitted(own.columns) for own in self.nodes.values()]
            for edges in self.edges:
                relations = edges.names if schema.is_typed else edges.fitted.relations
                known.append(dataclasses.replace(edges.fitted, relations=relations))
            writer.put(FITTED, pack(known, schema.inputs() if schema.is_typed else None))
        for name, own in self.nodes.items():
            if own.labels is not None:
                with db.part(own.part):
                    tables_labels.write(db, writer, own.labels, self.first[name], sum(types.counts))
                summary |= {"metric": own.labels.metric, "out_channels": own.labels.out_channels}
            if own.columns.scores is not None:
                summary[TEXT_SCORES] = own.values.num_features
        if not schema.is_typed:
            query = f"SELECT min(s) FROM {self.edges[0].part}.joined WHERE t IS NOT NULL"
            if (least := db.execute(query)[0][0]) is not None:
                summary[FIRST_SOURCE] = int(least)
        writer.finish(summary)

    def _write_features(self, types: GraphTypes, plan: Plan) -> None:
        """Write ``x``: the features of each type, zeros behind them, and the one-hot type. The edges are written."""
        writer, is_typed = self.writer, self.schema.is_typed
        if writer.has("x"):
            return
        width = max(types.widths)
        shape = sum(types.counts), width + len(self.nodes) * is_typed
        with writer.write(x=(shape, torch.float32)) as opened:
            for place, (name, own) in enumerate(self.nodes.items()):
                with self.db.part(own.part):
                    for first, block in own.feature_blocks():
                        rows = np.zeros((len(block), shape[1]), np.float32)
                        rows[:, : block.shape[1]] = block
                        if is_typed:
                            rows[:, width + place] = 1
                        opened["x"].write((self.first[name] + first) * shape[1], rows)
            if plan.sources and writer.entry("edges")["shape"][1]:
                x = np.memmap(opened["x"].path, np.float32, "r+", shape=shape)
                edges, indptr = (
                    tables_edges.map_array(writer, array) for array in ("edges", "indptr")
                )
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
        width = values.num_features
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
    # Behind the texts there may be the words of names and the ids of neighbours. Earlier versions kept no kinds.
    kept = [kind for kind in columns.kinds if kind not in ("names", "ids")]
    for what, now, before in (
        ("numbers and dates of nodes", values_of(nodes).num_features, columns.mean),
        ("categories", len(nodes.columns.categories), columns.categories),
        ("texts", num_texts, kept if columns.kinds else range(num_texts)),
        ("numbers and dates of edges", values_of(edges).num_features, known[1].mean),
    ):
        if now != len(before):
            raise ValueError(
                f"{config.origin()}: the keys name {count(now, 'column')} of {what}, and those of the run "
                f"that train.init names {len(before)}. Name the same columns, or leave train.init out"
            )

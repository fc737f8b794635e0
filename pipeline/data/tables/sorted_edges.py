"""Edges of tables: ids joined with the numbers of nodes, equal edges merged and sorted, by DuckDB."""

import logging
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from parallel_epochs.models.edge_index import INT32_END, choose_dtype
from parallel_epochs.pipeline.data.incident import incident_features
from parallel_epochs.pipeline.data.join_types import MAX_RELATIONS
from parallel_epochs.pipeline.data.tables.fitted import Columns, Fitted
from parallel_epochs.pipeline.data.tables.schema import EdgeTable
from parallel_epochs.pipeline.data.tables.source import Source
from parallel_epochs.pipeline.data.tables.sql import Database, literal
from parallel_epochs.pipeline.data.tables.values import Values, values_of
from parallel_epochs.pipeline.graph.store import StoreWriter, map_file
from parallel_epochs.pipeline.graph.structure import Structure
from parallel_epochs.pipeline.run import words

log = logging.getLogger(__name__)

# A key of 63 bits sorts edges: the destination, the source, and whether it is the reverse of a row of the table.
DST, SRC = 32, 1
NODE = INT32_END - 1
# One-hot columns of relations: more of them are ids rather than kinds.
MOST_ONE_HOT = 4096


@dataclass
class ReadEdges:
    """A table of edges, as it stands in the database.

    Attributes:
        table: its columns, and the types of both ends.
        part: of the database.
        names: of its relations, in the order of their numbers.
        fitted: what is known of its columns of numbers and of dates.
        num_one_hot: one-hot columns of relations, which a graph with one type of nodes has behind the features.
        hides: whether the edges from sources in the table ``hidden`` are left out, and their reverse is not.
        sends: whether any edge from its sources is there; their reverse is anyway.
    """

    table: EdgeTable
    part: str
    names: list[str]
    fitted: Fitted
    num_one_hot: int = 0
    hides: bool = False
    sends: bool = True

    @property
    def values(self) -> Values:
        """The columns of numbers and of dates that become features."""
        return values_of(self.table)

    @property
    def num_features(self) -> int:
        """Columns of features of its edges."""
        return self.values.num_features + self.num_one_hot


def join(
    source: Source,
    table: EdgeTable,
    nodes: tuple[str, str],
    *,
    fitted: Fitted | None,
    is_typed: bool,
    unknown: str,
    until: float | None,
) -> Fitted:
    """Join a table of edges with the numbers of nodes, and refuse or report rows that are odd.

    Args:
        nodes: the tables of nodes that edges come from, and that they go to.
        fitted: what was learned of the tables of a training; none: this table tells.
        is_typed: whether kinds of edges are relations of a graph with types, and not features.
        unknown: what is done with a relation that the training did not see: "error" refuses it, "empty" takes the cell
            for empty.
        until: only edges from before this time tell how features are scaled; none: all of them do.

    Returns:
        What is known of the columns and relations of this table, or `fitted`.

    Raises:
        ValueError: names the file, the column and the first bad row.
    """
    db, values = source.db, values_of(table)
    columns = table.columns
    ends = (columns.source, columns.target)
    chosen = [f"{source.text(column)} AS {side}" for column, side in zip(ends, "st")]
    chosen += [f"{cell} AS v{place}" for place, cell in enumerate(values.cells(source))]
    kept = [
        "s.number AS s",
        "t.number AS t",
        *(f"v{place}" for place in range(len(values.columns))),
    ]
    joins = [
        f"LEFT JOIN {own} AS {side} ON e.{side} = {side}.id"
        for own, side in zip(nodes, "st", strict=True)
    ]
    if columns.relation is not None:
        known = None if fitted is None else fitted.relations
        _number_relations(source, columns.relation, known, is_typed=is_typed)
        chosen.append(f"{source.text(columns.relation)} AS r")
        joins.append("LEFT JOIN relations AS r ON e.r = r.name")
        kept += ["r.number AS r", "e.r AS kind"]
    if table.place is not None:
        divides, column = table.place
        if divides == "time":
            place = source.time(column, "data.edges.time", may_be_empty=False)
        elif divides == "column":
            place = source.split(column, "data.edges.split_column")
        else:
            place = f"dense_rank() OVER (ORDER BY {source.group(column)})"
        chosen.append(f"({place})::DOUBLE AS w")
        kept.append("w")
    db.stage(
        "joined",
        f"SELECT {', '.join(kept)} FROM (SELECT {', '.join(chosen)} FROM {source.relation}) AS e "
        f"{' '.join(joins)}",
        "joining edges with nodes",
        ordered=False,
    )
    source.warn_rounded(
        "joined",
        {f"v{place}": name for place, name in values.unscaled()},
        "Subtract a constant to keep their differences, or set data.edges.standardize=true",
    )
    _report(source, ends, values, nodes, fitted)
    if columns.relation is not None:
        ((odd,),) = db.execute(
            "SELECT min(kind) FROM joined WHERE kind IS NOT NULL AND r IS NULL AND s IS NOT NULL AND t IS NOT NULL"
        )
        if odd is not None and (is_typed or unknown == "error"):
            source.refuse(
                columns.relation,
                f"{source.text(columns.relation)} = {literal(odd)}",
                ", a relation that the training did not see",
                ". Leave such edges out, set data.unknown=empty, or train with edges of this relation",
            )
    if fitted is not None:
        return fitted
    found = Fitted(Columns(), relations(db))
    return values.fit_edges(source, found, until if table.place is not None else None)


def _number_relations(
    source: Source, column: str, known: list[str] | None, *, is_typed: bool
) -> None:
    """Make the table of relations, numbered as those of a training if they are `known`.

    Raises:
        ValueError: there are too many.
    """
    db, kind = source.db, source.text(column)
    if is_typed:
        mend = f": each edge needs a relation ({source.key}.relation)"
        source.refuse(column, f"{kind} IS NULL", mend=mend)
    if known is not None:
        db.fill_names("relations", {name: place for place, name in enumerate(known)})
        return
    db.stage(
        "relation_names",
        f"SELECT DISTINCT {kind} AS name FROM {source.relation} WHERE {kind} IS NOT NULL",
        "collecting relations",
    )
    db.stage(
        "relations",
        "SELECT (row_number() OVER (ORDER BY "
        f"{db.order_of('relation_names', 'name')}) - 1)::INTEGER AS number, name FROM relation_names",
        "numbering relations",
    )
    most = MAX_RELATIONS if is_typed else MOST_ONE_HOT
    if (found := len(relations(db))) > most:
        raise ValueError(
            f"{source.name}: column {column} holds {found:,} different relations, which are ids rather "
            f"than kinds of edges; at most {most:,} are read ({source.key}.relation)"
        )


def relations(db: Database) -> list[str]:
    """Return the relations, in the order of their numbers."""
    return (
        [row[0] for row in db.execute("SELECT name FROM relations ORDER BY number")]
        if db.has("relations")
        else []
    )


def _report(
    source: Source,
    ends: tuple[str, str],
    values: Values,
    nodes: tuple[str, str],
    fitted: Fitted | None,
) -> None:
    """Report rows that are odd."""
    counts = [f"v{place} IS NULL" for place in range(len(values.columns))]
    counts += ["r IS NULL"] if source.db.has("relations") else []
    is_loop = "s = t" if nodes[0] == nodes[1] else "false"
    more = "".join(
        f", count(*) FILTER ({each})" for each in ["s IS NULL OR t IS NULL", is_loop, *counts]
    )
    rows, dangling, loops, *missing = source.db.execute(
        f"SELECT count(*){more} FROM joined", "counting edges"
    )[0]
    notes = []
    if dangling:
        wrong = [
            f"coalesce({source.text(column)} NOT IN (SELECT id FROM {own}), true)"
            for column, own in zip(ends, nodes)
        ]
        ids = [source.text(column) for column in ends]
        row_of = source.find_row(" OR ".join(wrong), wrong[0], *ids)
        name, row, (is_source, *cells) = cast(tuple, row_of)
        column, id = (ends[0], cells[0]) if is_source else (ends[1], cells[1])
        problem = f"column {column} names {id!r}, which is not a node"
        if id is None:
            problem = f"column {column} is empty"
        notes.append(f"{dangling:,} dropped, as they name no node (row {row} of {name}: {problem})")
    notes += values.report(source, missing)
    if len(missing) > len(values.columns) and missing[-1]:
        notes.append(f"{missing[-1]:,} without a relation")
    if loops:
        notes.append(words.count(loops, "self-loop"))
    log.info("%s: %s edges%s", source.name, f"{rows:,}", "".join(f"; {note}" for note in notes))
    if not rows and fitted is None:
        raise ValueError(f"{source.name} holds no edges below its header")
    if rows and dangling == rows:
        raise ValueError(
            f"{source.name}: none of its {rows:,} rows names two nodes; are {ends[0]} and {ends[1]} ids "
            "of the tables of nodes?"
        )


def sort(
    db: Database,
    edges: list[ReadEdges],
    first: dict[str, int],
    *,
    is_typed: bool,
    both: bool,
    snapshots: list[float] | None = None,
) -> None:
    """Sort the edges by destination, source and relation, in the stage ``sorted``; equal ones become one.

    Weights of equal edges are added, other numbers averaged, in the order of their values: that of the rows depends on
    the number of threads. Of times the earliest is kept, and of one-hot relations each. In a graph with one type of
    nodes an edge and its reverse become the mean of both, as float32.

    With snapshots, edges of different times stay apart, and the time becomes the number of the first snapshot that is
    later, -1 for an edge without a time. Those that no snapshot has are left out.

    Args:
        first: number of the first node of each type.
        both: sort the reverse of each edge among them.
        snapshots: the time of each, ascending; none without a label table.
    """
    num_features = sum(own.num_features for own in edges)
    num_forward = sum(len(own.names) for own in edges) if is_typed else 0
    rows, merges, column, relation = list[str](), list[str](), 0, 0
    for own in edges:
        rows += _rows_of(own, first, column, relation, num_features, num_forward, both=both)
        firsts = zip(own.values.first_features, own.values.columns)
        added = [place for place, (option, _) in firsts if option == "weight"]
        num_values = own.num_features - own.num_one_hot
        merges += ["sum" if place in added else "avg" for place in range(num_values)]
        merges += ["max"] * own.num_one_hot
        column, relation = column + own.num_features, relation + len(own.names)
    names = [f"v{place}" for place in range(num_features)]
    merged = [
        f"{how}({name}::DOUBLE ORDER BY {name})::FLOAT AS {name}"
        for how, name in zip(merges, names)
    ]
    by, time = ("k, r", "min(w) AS w") if snapshots is None else ("k, r, w", "w")
    query = (
        f"SELECT {', '.join(['k, r', *merged, time])}, (count(*) - 1) * (1 - (k & 1)) AS num "
        f"FROM ({' UNION ALL '.join(rows)}) GROUP BY {by}"
    )
    key = "k - (k & 1)"
    if is_typed:
        query = f"SELECT * REPLACE ({key} AS k) FROM ({query})"
    else:
        means = [
            f"{f'max({name})' if how == 'max' else _mean(name)} AS {name}"
            for how, name in zip(merges, names)
        ]
        query = (
            f"SELECT {', '.join([f'{key} AS k', '0 AS r', *means, 'min(w) AS w'])}, sum(num) AS num "
            f"FROM ({query}) GROUP BY {key}"
        )
    if snapshots is not None:
        number = " + ".join(f"(w >= {start!r}::DOUBLE)::INTEGER" for start in snapshots)
        query = (
            f"SELECT * FROM (SELECT * REPLACE (coalesce({number}, -1)::DOUBLE AS w) FROM ({query})) "
            f"WHERE w < {len(snapshots)}"
        )
    # Equal edges of one snapshot are told apart by their features alone.
    order = ", ".join([by, *names]) if snapshots is not None else by
    db.stage("sorted", f"SELECT * FROM ({query}) ORDER BY {order}", "sorting edges")
    if num_merged := db.execute("SELECT sum(num) FROM sorted")[0][0]:
        log.info(
            "edges: %s merged with an edge of the same relation between the same nodes",
            words.count(int(num_merged), "row was", "rows were"),
        )


def _mean(name: str) -> str:
    """Write SQL of the mean of one or two numbers of float32, without a sum that is rounded otherwise."""
    return f"(min({name}) * 0.5::FLOAT + max({name}) * 0.5::FLOAT)::FLOAT"


def _rows_of(
    own: ReadEdges,
    first: dict[str, int],
    column: int,
    relation: int,
    num_features: int,
    num_forward: int,
    *,
    both: bool,
) -> list[str]:
    """Write SQL for the rows of a table of edges among those of all tables: ``k``, ``r``, the features and ``w``.

    Args:
        column: of its first feature, among those of all tables.
        relation: number of its first relation.
        num_features: of all tables.
        num_forward: relations of all tables, behind which the reverse ones are numbered; 0 for one type of nodes.
    """
    known, columns = own.values.of_edges(own.fitted), own.table.columns
    kind = "FLOAT" if num_forward else "DOUBLE"
    source, target = (
        f"({side}::BIGINT + {first[end]})"
        for side, end in (("s", own.table.source), ("t", own.table.target))
    )
    shown = f" AND s NOT IN (SELECT number FROM {own.part}.hidden)" if own.hides else ""
    # In a graph with one type of nodes a self-loop is its own reverse edge.
    ways = [(source, target, 0, shown)] * own.sends
    ways += [(target, source, 1, "" if num_forward else " AND s <> t")] * both
    found = []
    for start, end, is_reverse, which in ways:
        shift = own.num_one_hot // 2 * is_reverse if columns.directed_relations else 0
        features = ["0"] * num_features
        features[column : column + own.num_features] = [
            *known,
            *(f"coalesce(r + {shift} = {place}, false)" for place in range(own.num_one_hot)),
        ]
        chosen = "".join(f", ({text})::{kind} AS v{place}" for place, text in enumerate(features))
        number = str(relation + num_forward * is_reverse)
        if columns.relation is not None and num_forward:
            number += " + r"
        found.append(
            f"SELECT ({end} << {DST}) | ({start} << {SRC}) | {is_reverse} AS k, ({number})::INTEGER AS "
            f"r{chosen}, ({'NULL' if own.table.place is None else 'w'})::DOUBLE AS w "
            f"FROM {own.part}.joined WHERE s IS NOT NULL AND t IS NOT NULL{which}"
        )
    return found


def count(db: Database, num_nodes: int, *, has_reverse: bool) -> tuple[Structure, np.ndarray]:
    """Go through the sorted edges once, and count what is there.

    Args:
        has_reverse: whether the reverse of each edge is among them.

    Returns:
        What was counted, and the edges that end at each node [num_nodes], int64.
    """
    in_degree, linked = np.zeros(num_nodes, np.int64), np.zeros(num_nodes, bool)
    num_loops, num_duplicates, last = 0, 0, -1
    for batch in db.stream("SELECT k FROM sorted", "counting edges"):
        pairs = batch["k"] >> SRC
        num_duplicates += int(np.count_nonzero(np.diff(pairs, prepend=last) == 0))
        last = pairs[-1]
        dst, src = pairs >> (DST - SRC), pairs & NODE
        in_degree[dst[0] : dst[-1] + 1] += np.bincount(dst - dst[0])
        loops = src == dst
        num_loops += int(np.count_nonzero(loops))
        linked[src[~loops]] = linked[dst[~loops]] = True
    without = 0
    if not has_reverse:
        reverse = f"((((k >> {SRC}) & {NODE}) << {DST - SRC}) | (k >> {DST}))"
        without = db.execute(
            f"SELECT count(*) FROM (SELECT (k >> {SRC}) AS p FROM sorted) AS a ANTI JOIN "
            f"(SELECT DISTINCT {reverse} AS p FROM sorted) AS b USING (p)",
            "counting edges",
        )[0][0]
    num_edges, num_isolated = int(in_degree.sum()), int(np.count_nonzero(~linked))
    structure = Structure(num_nodes, num_edges, without, num_loops, num_duplicates, num_isolated)
    return structure, in_degree


def write(
    db: Database,
    writer: StoreWriter,
    structure: Structure,
    in_degree: np.ndarray,
    num_features: int,
    *,
    has_relations: bool,
    has_times: bool,
) -> None:
    """Write edges, pointers to them, their features, behind the number of the relation where there are some, and
    ``edge_time``, infinite for an edge without a time.
    """
    names = ["r"] * has_relations + [f"v{place}" for place in range(num_features)]
    num_nodes, num_edges = structure.num_nodes, structure.num_edges
    dtype = choose_dtype(num_nodes, num_edges)
    arrays: dict = {"edges": ((2, num_edges), dtype), "indptr": ((num_nodes + 1,), dtype)}
    if names:
        arrays["edge_attr"] = ((num_edges, len(names)), torch.float32)
    if has_times:
        arrays["edge_time"] = ((num_edges,), torch.float64)
    if writer.has(*arrays):
        return
    times = "coalesce(w, 'inf'::DOUBLE) AS w" if has_times else "0 AS w"
    query = f"SELECT {', '.join(['k', *names, times])} FROM sorted"
    index = torch.empty(0, dtype=dtype).numpy().dtype
    first = 0
    with writer.write(**arrays) as opened:
        for batch in db.stream(query, "writing edges"):
            keys = batch["k"]
            opened["edges"].write(first, ((keys >> SRC) & NODE).astype(index))
            opened["edges"].write(num_edges + first, (keys >> DST).astype(index))
            if names:
                attr = np.stack([batch[name] for name in names], axis=1).astype(np.float32)
                opened["edge_attr"].write(first * len(names), attr)
            if has_times:
                opened["edge_time"].write(first, batch["w"])
            first += len(keys)
        indptr = np.concatenate([[0], np.cumsum(in_degree)])
        opened["indptr"].write(0, indptr.astype(index))


def map_array(writer: StoreWriter, name: str) -> np.ndarray:
    """Map an array that is written into memory; an empty one is no file that can be mapped."""
    entry = writer.entry(name)
    shape = tuple(entry["shape"])
    return (
        np.frombuffer(
            map_file(writer.folder / f"{name}.bin", entry["size"]), entry["dtype"]
        ).reshape(shape)
        if entry["size"]
        else np.empty(shape, entry["dtype"])
    )


def write_incident(writer: StoreWriter, kind: str, edge_dim: int, moments: Tensor | None) -> None:
    """Write ``x``, made of the features of the edges, which are written."""
    indptr = torch.from_numpy(map_array(writer, "indptr"))
    edge_attr = torch.from_numpy(map_array(writer, "edge_attr")) if edge_dim else None
    x = incident_features(indptr, edge_attr, kind, moments)
    with writer.write(x=(tuple(x.shape), torch.float32)) as opened:
        opened["x"].write(0, x.numpy())

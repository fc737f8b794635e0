"""Edges of tables: nodes numbered, ids joined, sorted by DuckDB; equal edges merged in a stream."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch_geometric.utils import scatter

from parallel_epochs.models.edge_index import INT32_END, choose_dtype
from parallel_epochs.pipeline.data.incident import incident_rows, num_channels
from parallel_epochs.pipeline.data.tables.fitted import Columns, Fitted
from parallel_epochs.pipeline.data.tables.source import Source
from parallel_epochs.pipeline.data.tables.sql import Database, literal
from parallel_epochs.pipeline.data.tables.values import Values
from parallel_epochs.pipeline.graph.store import ArrayFile, StoreWriter, map_file
from parallel_epochs.pipeline.graph.structure import Structure
from parallel_epochs.pipeline.run import words

log = logging.getLogger(__name__)

# A key of 63 bits sorts edges: the destination, the source, and whether it is the reverse of a row of the table.
DST, SRC = 32, 1
NODE = INT32_END - 1
WHOLE_NUMBER = "[+-]?[0-9]{1,18}"


@dataclass(frozen=True)
class RelationLimit:
    """How many relations a column may hold.

    Attributes:
        most: at most so many.
        reason: why more are refused.
        key: that names the column.
    """

    most: int
    reason: str
    key: str


# One-hot columns of relations: more of them are ids rather than kinds.
ONE_HOT = RelationLimit(4096, "would be as many features of each edge", "data.edges.relation")


@dataclass
class Counted:
    """The sorted edges, before any is written.

    Attributes:
        in_degree: edges that end at each node [num_nodes], int64.
        num_merged: rows that were equal to another.
    """

    structure: Structure
    in_degree: np.ndarray
    num_merged: int


def order_of(db: Database, table: str, column: str) -> str:
    """Write SQL for the order of names: that of numbers where all of them are, else that of texts."""
    (others,) = db.execute(
        f"SELECT count(*) FILTER (NOT regexp_full_match({column}, '{WHOLE_NUMBER}')), "
        f"count(*) FILTER (coalesce(NOT isfinite(TRY_CAST({column} AS DOUBLE)), true)) FROM {table}"
    )
    kind = "BIGINT" if others[0] == 0 else "DOUBLE" if others[1] == 0 else "VARCHAR"
    return f"{column}::{kind}, {column}"


def number_ids(db: Database, ends: list[tuple[Source, str]]) -> None:
    """Make the table of nodes of the ids that edges name.

    Args:
        ends: tables of edges, each with a column of ids of the nodes.
    """
    db.stage(
        "ids",
        "SELECT DISTINCT id FROM ("
        + " UNION ALL ".join(
            f"SELECT {source.text(column)} AS id FROM {source.relation}" for source, column in ends
        )
        + ") WHERE id IS NOT NULL",
        "collecting ids",
        ordered=False,
    )
    db.stage(
        "nodes",
        f"SELECT (row_number() OVER (ORDER BY {order_of(db, 'ids', 'id')}) - 1)::INTEGER AS number, id "
        "FROM ids ORDER BY number",
        "numbering ids",
    )


def join(
    db: Database,
    source: Source,
    ends: tuple[str, str],
    values: Values,
    relation: str | None,
    *,
    time: tuple[str, str] | None,
    id_column: str | None,
    refuse_dangling: bool,
    fitted: Fitted | None = None,
    nodes: tuple[str, str] = ("nodes", "nodes"),
    limit: RelationLimit = ONE_HOT,
    unknown: str = "error",
    until: float | None = None,
) -> Fitted:
    """Join the table of edges with the numbers of nodes, and refuse or report rows that are odd.

    Args:
        ends: the columns of the ids that edges come from, and that they go to.
        values: the columns of numbers and of dates.
        relation: the column of the kind of edge, if there is one.
        time: how links are divided by a column and which, see :meth:`Source.place`; none: by none.
        id_column: of the table of nodes, if there is one.
        refuse_dangling: whether an edge that names no node is an error; it is left out otherwise.
        fitted: what was learned of the tables of a training; none: this table tells.
        nodes: the tables of nodes that edges come from, and that they go to.
        limit: of the relations.
        unknown: what is done with a relation that the training did not see: "error" refuses it, "empty" takes the cell
            for empty.
        until: only edges from before this time tell how features are scaled; none: all of them do.

    Returns:
        What is known of the columns and relations of this table, or `fitted`.

    Raises:
        ValueError: names the file, the column and the first bad row.
    """
    ids = [source.text(column) for column in ends]
    chosen = [f"{cell} AS v{place}" for place, cell in enumerate(values.cells(db, source))]
    joins = [
        f"LEFT JOIN {own} AS {side} ON e.{side} = {side}.id"
        for own, side in zip(nodes, ("s", "t"), strict=True)
    ]
    kept = [
        "s.number AS s",
        "t.number AS t",
        *(f"v{place}" for place in range(len(values.columns))),
    ]
    if relation is not None:
        kind = source.text(relation)
        _number_relations(
            db,
            source,
            relation,
            ids,
            None if fitted is None else fitted.relations,
            nodes,
            limit,
            unknown,
        )
        chosen.append(f"{kind} AS r")
        joins.append("LEFT JOIN relations AS r ON e.r = r.name")
        kept.append("r.number AS r")
    if time is not None:
        chosen.append(f"{source.place(db, *time)} AS w")
        kept.append("w")
    inner = ", ".join([f"{ids[0]} AS s", f"{ids[1]} AS t", *chosen])
    db.stage(
        "joined",
        f"SELECT {', '.join(kept)} FROM (SELECT {inner} FROM {source.relation}) AS e {' '.join(joins)}",
        "joining edges with nodes",
        ordered=False,
    )
    source.warn_rounded(
        db,
        "joined",
        {f"v{place}": name for place, name in values.unscaled()},
        "Subtract a constant to keep their differences, or set data.edges.standardize=true",
    )
    missing = _report(
        db,
        source,
        ends,
        values,
        id_column=id_column,
        refuse_dangling=refuse_dangling,
        nodes=nodes,
        fitted=fitted,
    )
    if fitted is not None:
        return fitted
    flagged = (
        [place for place, count in enumerate(missing) if count] if values.empty == "flag" else []
    )
    return values.fit_edges(
        db,
        source.name,
        Fitted(Columns(), relations(db), flagged),
        until if time is not None else None,
    )


def _number_relations(
    db: Database,
    source: Source,
    column: str,
    ids: list[str],
    known: list[str] | None,
    nodes: tuple[str, str],
    limit: RelationLimit,
    unknown: str,
) -> None:
    """Make the table of relations, numbered as those of a training if they are `known`.

    Args:
        ids: SQL of the ids of both ends.

    Raises:
        ValueError: there are too many, or one that is not known.
    """
    kind = source.text(column)
    if known is not None:
        schema = pa.schema([("number", pa.int32()), ("name", pa.string())])
        db.fill(
            "relations",
            schema,
            iter(
                [
                    pa.record_batch(
                        [pa.array(range(len(known)), pa.int32()), pa.array(known, pa.string())],
                        schema=schema,
                    )
                ]
            ),
        )
        joined = " AND ".join(
            f"{id} IN (SELECT id FROM {own})" for id, own in zip(ids, nodes)
        )  # others are dropped
        is_new = f"{kind} NOT IN (SELECT name FROM relations) AND {joined}"
        if unknown == "error" and (found := source.find_row(db, is_new, kind)):
            name, row, (text,) = found
            mend = "set data.unknown=empty, " if limit is ONE_HOT else ""
            raise ValueError(
                f"{name}: row {row}, column {column} holds {text!r}, a relation that the training did "
                f"not see. Leave such edges out, {mend}or train with edges of this relation"
            )
        return
    db.stage(
        "relation_names",
        f"SELECT DISTINCT {kind} AS name FROM {source.relation} WHERE {kind} IS NOT NULL",
        "collecting relations",
    )
    db.stage(
        "relations",
        "SELECT (row_number() OVER (ORDER BY "
        f"{order_of(db, 'relation_names', 'name')}) - 1)::INTEGER AS number, name FROM relation_names",
        "numbering relations",
    )
    if (found := num_relations(db)) > limit.most:
        raise ValueError(
            f"{source.name}: column {column} holds {found:,} different relations, which {limit.reason}; "
            f"at most {limit.most:,} ({limit.key})"
        )


def relations(db: Database) -> list[str]:
    """Return the relations, in the order of their numbers."""
    return (
        [row[0] for row in db.execute("SELECT name FROM relations ORDER BY number")]
        if db.has("relations")
        else []
    )


def num_relations(db: Database) -> int:
    """Return the number of relations; 0 if there is no column of them."""
    return db.execute("SELECT count(*) FROM relations")[0][0] if db.has("relations") else 0


def _report(
    db: Database,
    source: Source,
    ends: tuple[str, str],
    values: Values,
    *,
    id_column: str | None,
    refuse_dangling: bool,
    nodes: tuple[str, str],
    fitted: Fitted | None,
) -> list[int]:
    """Refuse or report rows that are odd; returns the empty cells of each column of numbers."""
    ids = [source.text(column) for column in ends]
    counts = [f"count(*) FILTER (v{place} IS NULL)" for place in range(len(values.columns))]
    more = ["count(*) FILTER (r IS NULL)"] if db.has("relations") else []
    is_loop = "s = t" if nodes[0] == nodes[1] else "false"
    rows, dangling, loops, *missing = db.execute(
        f"SELECT count(*), count(*) FILTER (s IS NULL OR t IS NULL), count(*) FILTER ({is_loop})"
        f"{''.join(f', {count}' for count in [*counts, *more])} FROM joined",
        "counting edges",
    )[0]
    notes = []
    if dangling:
        name, row, (first, second) = source.first_row(
            db,
            f"coalesce({ids[0]} NOT IN (SELECT id FROM {nodes[0]}), true) OR "
            f"coalesce({ids[1]} NOT IN (SELECT id FROM {nodes[1]}), true)",
            *ids,
        )
        known = [
            id is not None and bool(db.execute(f"SELECT 1 FROM {own} WHERE id = " + literal(id)))
            for id, own in zip((first, second), nodes)
        ]
        column, id = (ends[1], second) if known[0] else (ends[0], first)
        problem = (
            f"column {column} is empty"
            if id is None
            else f"column {column} names {id!r}, which is not a node"
        )
        if refuse_dangling:
            raise ValueError(
                f"{name}: row {row}, {problem}; {dangling:,} rows in all are affected. data.dangling=drop "
                "leaves them out"
            )
        notes.append(f"{dangling:,} dropped, as they name no node (row {row} of {name}: {problem})")
    notes += values.report(db, source, missing, None if fitted is None else fitted.flagged)
    if more and missing[-1]:
        notes.append(f"{missing[-1]:,} without a relation")
    if loops:
        notes.append(words.count(loops, "self-loop"))
    log.info("%s: %s edges%s", source.name, f"{rows:,}", "".join(f"; {note}" for note in notes))
    if dangling == rows and (rows or fitted is None):
        if not rows:
            raise ValueError(f"{source.name} holds no edges below its header")
        hint = f"; are {ends[0]} and {ends[1]} ids of the column {id_column}?"
        raise ValueError(
            f"{source.name}: none of its {rows:,} rows names two nodes{hint if id_column else ''}"
        )
    return missing[: len(values.columns)]


def sort(db: Database, features: list[str], *, has_times: bool, both: bool) -> None:
    """Sort the edges by destination, then source.

    Args:
        features: SQL of each, see :meth:`Values.of_edges`.
        has_times: whether there is a column of times.
        both: sort the reverse of each edge among them.
    """
    columns = "".join(f", {feature} AS v{place}" for place, feature in enumerate(features))
    if db.has("relations"):
        columns += ", coalesce(r, -1) AS r"
    if has_times:
        columns += ", w"
    forward = (
        f"SELECT ((t::BIGINT << {DST}) | (s::BIGINT << {SRC})) AS k{columns} FROM joined "
        "WHERE s IS NOT NULL AND t IS NOT NULL"
    )
    backward = (
        f" UNION ALL SELECT ((s::BIGINT << {DST}) | (t::BIGINT << {SRC}) | 1) AS k{columns} FROM joined "
        "WHERE s <> t"
    )
    db.stage("sorted", f"{forward}{backward if both else ''} ORDER BY k", "sorting edges")


class Tally:
    """Counts sorted edges block by block.

    Args:
        num_nodes: number of nodes.
    """

    def __init__(self, num_nodes: int):
        self.in_degree, self._linked = np.zeros(num_nodes, np.int64), np.zeros(num_nodes, bool)
        self.num_loops = self.num_duplicates = 0
        self._last = -1

    def add(self, pairs: np.ndarray, *, merged: bool = False) -> None:
        """Count the next edges.

        Args:
            pairs: the destination and source of each, in this order, as one number.
            merged: whether equal edges become one.
        """
        is_new = np.diff(pairs, prepend=self._last) != 0
        self._last = pairs[-1]
        if merged:
            pairs = pairs[is_new]
        else:
            self.num_duplicates += int(np.count_nonzero(~is_new))
        if not len(pairs):
            return
        dst, src = pairs >> (DST - SRC), pairs & NODE
        self.in_degree[dst[0] : dst[-1] + 1] += np.bincount(dst - dst[0])
        loops = src == dst
        self.num_loops += int(np.count_nonzero(loops))
        self._linked[src[~loops]] = self._linked[dst[~loops]] = True

    def finish(self, num_without_reverse: int, num_merged: int = 0) -> Counted:
        """Return what was counted."""
        return Counted(
            Structure(
                len(self.in_degree),
                int(self.in_degree.sum()),
                num_without_reverse,
                self.num_loops,
                self.num_duplicates,
                int(np.count_nonzero(~self._linked)),
            ),
            self.in_degree,
            num_merged,
        )


def count(db: Database, num_nodes: int, *, both: bool, add_self_loops: bool) -> Counted:
    """Go through the sorted edges once, and count what is there.

    Args:
        both: whether the reverse of each edge is among them.
        add_self_loops: count those that will be added.
    """
    tally, num_merged, last_forward = Tally(num_nodes), 0, -1
    for batch in db.stream("SELECT k FROM sorted", "counting edges"):
        forward = batch["k"][batch["k"] & 1 == 0]
        num_merged += int(np.count_nonzero(np.diff(forward, prepend=last_forward) == 0))
        last_forward = forward[-1] if len(forward) else last_forward
        tally.add(batch["k"] >> SRC, merged=True)
    if add_self_loops:
        tally.in_degree += 1
        tally.in_degree[_loops(db)] -= 1
        tally.num_loops = num_nodes
    return tally.finish(0 if both else count_without_reverse(db), num_merged)


def _loops(db: Database) -> np.ndarray:
    found = db.fetch(
        f"SELECT DISTINCT (k >> {DST}) AS node FROM sorted WHERE (k >> {DST}) = ((k >> {SRC}) & {NODE})"
    )
    return found["node"].to_numpy()


def count_without_reverse(db: Database, *, parallel: bool = False) -> int:
    """Count the sorted edges whose reverse is not among them.

    Args:
        parallel: count each of several edges between the same nodes.
    """
    pair, reverse = f"(k >> {SRC})", f"((((k >> {SRC}) & {NODE}) << {DST - SRC}) | (k >> {DST}))"
    chosen = "" if parallel else "DISTINCT "
    return db.execute(
        f"SELECT count(*) FROM (SELECT {chosen}{pair} AS p FROM sorted) AS a ANTI JOIN "
        f"(SELECT DISTINCT {reverse} AS p FROM sorted) AS b USING (p)",
        "counting edges",
    )[0][0]


def write(
    db: Database,
    writer: StoreWriter,
    counted: Counted,
    values: Values,
    known: Fitted,
    *,
    directed_relations: bool,
    add_self_loops: bool,
    node_features: str | None,
    has_times: bool,
    moments: Tensor | None = None,
) -> None:
    """Write edges, pointers to them and their features.

    Args:
        values: the columns of numbers and of dates: features of equal edges are averaged, a weight is added.
        known: what :func:`join` returned.
        directed_relations: whether a relation has another column on the reverse edge.
        node_features: how ``x`` is made of the features of the edges, or of their number, see
            :func:`pipeline.data.incident.incident_features`; none: it is not written.
        has_times: write ``edge_time``, the earliest of the times of equal edges.
        moments: of the edges of a training, see :func:`pipeline.data.incident.moments_of_edges`; none: of these.
    """
    num_values, relations = values.num_features(known.flagged), num_relations(db)
    num_added = sum(option == "weight" for option, _ in values.columns)
    channels = num_values + relations * (2 if directed_relations else 1)
    with open_arrays(writer, counted, channels, has_times=has_times) as opened:
        for piece in _pieces(db, counted.structure.num_nodes) if opened else ():
            src, dst, attr = _merge(
                piece, num_added, channels - num_values, directed_relations=directed_relations
            )
            if add_self_loops:
                src, dst, attr = _add_self_loops(src, dst, attr, piece)
            assert opened is not None
            opened.write(
                src, dst, attr, _merge_times(piece) if has_times else None
            )  # then no self-loops are added
    if node_features is not None and not writer.has("x"):
        _write_features(writer, node_features, channels, moments)


class EdgeArrays:
    """The arrays of the edges of a store, written in the order of the edges.

    Args:
        arrays: their files.
        num_edges: how many there are in all.
    """

    def __init__(self, arrays: dict[str, ArrayFile], num_edges: int):
        self._arrays, self._num_edges, self.first = arrays, num_edges, 0

    def write(
        self, src: np.ndarray, dst: np.ndarray, attr: np.ndarray | None, times: np.ndarray | None
    ) -> None:
        """Write the next edges."""
        edges, first = self._arrays["edges"], self.first
        dtype = torch.empty(0, dtype=edges.dtype).numpy().dtype
        edges.write(first, src.astype(dtype))
        edges.write(self._num_edges + first, dst.astype(dtype))
        if attr is not None:
            self._arrays["edge_attr"].write(first * attr.shape[1], attr)
        if times is not None:
            self._arrays["edge_time"].write(first, times)
        self.first += len(src)


@contextlib.contextmanager
def open_arrays(
    writer: StoreWriter, counted: Counted, channels: int, *, has_times: bool
) -> Iterator[EdgeArrays | None]:
    """Open the arrays of the edges for writing, with the pointers to them; none if they are complete.

    Args:
        channels: columns of the features of the edges.
    """
    num_nodes, num_edges = counted.structure.num_nodes, counted.structure.num_edges
    dtype = choose_dtype(num_nodes, num_edges)
    arrays: dict = {"edges": ((2, num_edges), dtype), "indptr": ((num_nodes + 1,), dtype)}
    if channels:
        arrays["edge_attr"] = ((num_edges, channels), torch.float32)
    if has_times:
        arrays["edge_time"] = ((num_edges,), torch.float64)
    if writer.has(*arrays):
        yield None
        return
    with writer.write(**arrays) as opened:
        edges = EdgeArrays(opened, num_edges)
        yield edges
        assert edges.first == num_edges, (edges.first, num_edges)
        indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(counted.in_degree)]))
        opened["indptr"].write(0, indptr.to(dtype).numpy())


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


def _write_features(writer: StoreWriter, kind: str, edge_dim: int, moments: Tensor | None) -> None:
    """Write ``x``, made of the features of the edges, which are written."""
    indptr = torch.from_numpy(map_array(writer, "indptr"))
    edge_attr = torch.from_numpy(map_array(writer, "edge_attr")) if edge_dim else None
    shape = len(indptr) - 1, num_channels(edge_dim, kind)
    with writer.write(x=(shape, torch.float32)) as opened:
        for first, rows in incident_rows(indptr, edge_attr, kind, moments):
            opened["x"].write(first * shape[1], rows.numpy())


@dataclass
class _Piece:
    """All sorted rows of the destinations from `first` to before `last`."""

    columns: dict[str, np.ndarray]
    first: int
    last: int


def _pieces(db: Database, num_nodes: int) -> Iterator[_Piece]:
    """Cut the sorted rows where a destination ends; together the pieces cover all nodes."""
    left: list[dict[str, np.ndarray]] = []
    first = 0
    for batch in db.stream("SELECT * FROM sorted", "writing edges"):
        last = int(batch["k"][-1] >> DST)
        cut = int(np.searchsorted(batch["k"], last << DST))
        if cut == 0 and (not left or int(left[-1]["k"][-1] >> DST) == last):
            left.append(batch)  # one destination that is longer than a batch
            continue
        rows = [*left, {name: column[:cut] for name, column in batch.items()}]
        yield _Piece(
            {name: np.concatenate([part[name] for part in rows]) for name in batch}, first, last
        )
        left, first = [{name: column[cut:] for name, column in batch.items()}], last
    if not left:  # there are no edges
        empty = db.fetch("SELECT * FROM sorted LIMIT 0")
        left = [{name: empty[name].to_numpy() for name in empty.column_names}]
    columns = {name: np.concatenate([part[name] for part in left]) for name in left[0]}
    yield _Piece(columns, first, num_nodes)


def _merge(
    piece: _Piece, num_added: int, num_relations: int, *, directed_relations: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Make rows of equal edges one; returns sources, destinations and features [num_edges, channels] or none.

    Of rows in one direction weights are added and features averaged, as float64; of both directions the mean is taken,
    as float32, which is what :func:`pipeline.data.prepare.prepare` takes.
    """
    keys = piece.columns["k"]
    pairs = keys >> SRC
    starts = _starts(pairs)
    src, dst = pairs[starts] & NODE, pairs[starts] >> (DST - SRC)
    parts = []
    if names := [name for name in piece.columns if name.startswith("v")]:
        values = np.stack([piece.columns[name] for name in names], axis=1)
        parts.append(_merge_values(keys, values, num_added))
    if num_relations:
        one_hot = np.zeros((len(starts), num_relations), np.float32)
        edge = np.zeros(len(keys), np.int64)
        edge[starts[1:]] = 1
        relation, known = piece.columns["r"].astype(np.int64), piece.columns["r"] >= 0
        if directed_relations:
            relation = relation + (keys & 1) * (num_relations // 2)
        one_hot[np.cumsum(edge)[known], relation[known]] = 1
        parts.append(one_hot)
    return src, dst, np.concatenate(parts, axis=1) if parts else None


def merge_new(
    columns: dict[str, np.ndarray],
    num_added: int,
    num_relations: int,
    *,
    directed_relations: bool,
    both: bool,
    loops_of: range,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Sort a few edges that join new nodes to a graph, and merge those that are equal, as :func:`write` does.

    Args:
        columns: the ends ``s`` and ``t``, int64, and what :func:`sort` gives the table of sorted edges.
        num_added: the number of the first columns of numbers that are added, and not averaged.
        num_relations: number of the columns of relations.
        both: add the reverse of each edge.
        loops_of: nodes behind all others that get self-loops; none of others.

    Returns:
        Sources, destinations, int64, and features, float32 [num_edges, channels] or none; sorted by destination.
    """
    src, dst = columns.pop("s"), columns.pop("t")
    keys = np.concatenate(
        [dst << DST | src << SRC, (src << DST | dst << SRC | 1)[src != dst][: len(src) * both]]
    )
    rows = np.concatenate([np.arange(len(src)), np.flatnonzero(src != dst)[: len(src) * both]])
    order = keys.argsort(kind="stable")
    piece = _Piece(
        {"k": keys[order], **{name: column[rows[order]] for name, column in columns.items()}},
        loops_of.start,
        loops_of.stop,
    )
    src, dst, attr = _merge(piece, num_added, num_relations, directed_relations=directed_relations)
    if not len(loops_of):
        return src, dst, attr
    cut = int(np.searchsorted(dst, loops_of.start))
    own = _add_self_loops(src[cut:], dst[cut:], None if attr is None else attr[cut:], piece)
    return (
        np.concatenate([src[:cut], own[0]]),
        np.concatenate([dst[:cut], own[1]]),
        None if attr is None else np.concatenate([attr[:cut], own[2]]),
    )


def _merge_times(piece: _Piece) -> np.ndarray:
    """Return the earliest time of the rows of each edge."""
    return np.minimum.reduceat(piece.columns["w"], _starts(piece.columns["k"] >> SRC))


def _merge_values(keys: np.ndarray, values: np.ndarray, num_added: int) -> np.ndarray:
    starts = _starts(keys)
    counts = np.diff(starts, append=len(keys))
    merged = values[starts]
    if (several := counts > 1).any():
        rows = np.flatnonzero(np.repeat(several, counts))
        # In the order of their values: that of the rows depends on the number of threads.
        rows = rows[np.lexsort((*values[rows].T[::-1], keys[rows]))]
        sums = np.add.reduceat(values[rows].astype(np.float64), _starts(keys[rows]), axis=0)
        sums[:, num_added:] /= counts[several, None]
        merged[several] = sums
    merged, pairs = merged.astype(np.float32), keys[starts] >> SRC
    starts = _starts(pairs)
    both = np.flatnonzero(np.diff(starts, append=len(pairs)) > 1)
    values = merged[starts]
    values[both] = (values[both] + merged[starts[both] + 1]) / np.float32(2)
    return values


def _starts(keys: np.ndarray) -> np.ndarray:
    """Return where runs of equal keys begin."""
    return np.flatnonzero(np.diff(keys, prepend=-1))


def _add_self_loops(
    src: np.ndarray, dst: np.ndarray, attr: np.ndarray | None, piece: _Piece
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Add the missing self-loops of a piece; their features are the mean of those of the edges that end at the node."""
    missing = np.ones(piece.last - piece.first, bool)
    missing[dst[src == dst] - piece.first] = False
    loops = piece.first + np.flatnonzero(missing)
    src, new_dst = np.concatenate([src, loops]), np.concatenate([dst, loops])
    order = np.lexsort((src, new_dst))
    if attr is not None:
        mean: Tensor = scatter(
            torch.from_numpy(attr),
            torch.from_numpy(dst - piece.first),
            dim_size=len(missing),
            reduce="mean",
        )
        attr = np.concatenate([attr, mean.numpy()[missing]])[order]
    return src[order], new_dst[order], attr

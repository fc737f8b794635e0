"""Rows of a label table: each asks for the label of an entity at a time, and is a node with an edge from this entity.

A row reads what happened before its time alone: summaries of the events of its entity, which are its columns, and the
graph of a snapshot, which has the edges from before the earliest time of the snapshot.
"""

import logging

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from parallel_epochs.pipeline.data.tables.columns import (
    LATEST,
    RELATION,
    ROW,
    ROWS,
    SPANS,
    TIME,
    TYPE,
    NodeColumns,
    RowTable,
    TableKeys,
)
from parallel_epochs.pipeline.data.tables.schema import (
    EdgeTable,
    NodeTable,
    TableSchema,
    is_made,
)
from parallel_epochs.pipeline.data.tables.source import Source, open_source
from parallel_epochs.pipeline.data.tables.sql import Database, quote
from parallel_epochs.pipeline.names import ROW_SEPARATOR
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# The part of the database with the rows, and the table of them with all columns.
PART, MADE = "label_rows", "label_rows.made"
# Snapshots at most, if their number is chosen here.
MOST_SNAPSHOTS = 16


def make(db: Database, config: TableKeys, schema: TableSchema, sources: dict[str, Source]) -> None:
    """Make the table :data:`MADE` of the rows: ``number``, their name, ``id`` and time, labels and summaries.

    Args:
        sources: tables of edges.

    Raises:
        ValueError: the table is inconsistent; the message names the file, the column and the first bad row.
    """
    rows = schema.rows
    assert rows is not None
    edges = {name: own.columns for name, own in schema.edges.items() if name != RELATION}
    with db.part(PART):
        if db.has("made"):
            return
        cells = {
            name: sources[name].time(own.time, "data.edges.time", may_be_empty=False)
            for name, own in edges.items()
            if own.time is not None
        }
        name, are_dates = _read_table(db, schema.nodes[TYPE], reads_labels=config.reads_labels)
        if odd := [table for table, time in cells.items() if time.startswith("epoch") != are_dates]:
            kinds = ("dates", "numbers") if are_dates else ("numbers", "dates")
            raise ValueError(
                f"{name}: its times are {kinds[0]}, and those of {sources[odd[0]].name} are {kinds[1]}. "
                "Give both as dates, or both as numbers"
            )
        rows.check_span(are_dates)
        given = db.fetch(
            f"SELECT number, id, concat(id, chr({ord(ROW_SEPARATOR)}), shown) AS {quote(ROWS)}, label, "
            f"time AS {quote(TIME)}, code FROM rows JOIN codes USING (id) ORDER BY number"
        )
        code, own, latest = given["code"].to_numpy(), given[TIME].to_numpy(), -np.inf
        spans = [times * rows.length for times in SPANS if rows.length]
        for events in rows.events:
            source, time = sources[events.table], cells[events.table]
            numbers = "".join(
                f", coalesce({source.number(option, column)}::DOUBLE, 'nan'::DOUBLE) AS v{place}"
                for place, (option, column) in enumerate(events.numbers)
            )
            entity = source.text(getattr(edges[events.table], events.end))
            table = f"(SELECT {entity} AS id, {time} AS time{numbers} FROM {source.relation})"
            first, last = db.execute(
                f"SELECT coalesce(min(time), 'inf'::DOUBLE), coalesce(max(time), '-inf'::DOUBLE) FROM {table}"
            )[0]
            own_events = db.fetch(
                f"SELECT code, e.* EXCLUDE id FROM {table} AS e JOIN codes USING (id)"
            )
            found = summarise(own_events, code, own, spans, first)
            for column, values in zip(events.columns(rows.span), found, strict=True):
                given = given.append_column(column, pa.array(values))
            latest = max(latest, last)
        ends = own[given["label"].is_valid().to_numpy()] + rows.length
        if rows.length and rows.events and (num_late := int((ends > latest).sum())):
            log.warning(
                "%s: the %s of %s with a label end later than the last event. If events are still to come, "
                "leave these rows out: their labels may be too low",
                name,
                rows.span,
                count(num_late, "row"),
            )
        db.fill("made", given)
    log.info(
        "%s: %s at %s, with %s of what was before",
        name,
        count(len(own), "row"),
        count(len(np.unique(own)), "time"),
        count(len(rows.columns()), "summary", "summaries"),
    )


def open_table(db: Database, table: NodeTable | EdgeTable) -> Source:
    """Open a table, and refuse columns that it does not have, or whose cells are no single values.

    Raises:
        ValueError: names the column.
    """
    assert table.path is not None
    if is_made(table):
        name = str(table.path)
        return Source(db, "data.rows", f"rows of {name}", MADE, [(MADE, name)], db.columns(MADE))
    source = open_source(db, table.key, table.path, table.columns.csv)
    columns = table.columns
    if ROW == (columns.id if isinstance(columns, NodeColumns) else columns.source):
        source = source.with_rows(ROW)
    for key, column in table.named:
        source.require(key, column)
        if key.endswith((".id", ".source", ".target")):
            source.refuse_rounded(key, column)
    return source


def refuse_unknown(source: Source, nodes: str, entity: str) -> None:
    """Refuse rows of entities that are not there.

    Args:
        nodes: the table of entities in the database.
        entity: their type.

    Raises:
        ValueError: names the first id.
    """
    if found := source.find_row(f"id NOT IN (SELECT id FROM {nodes})", "id"):
        name, row, (id,) = found
        raise ValueError(
            f"{name}: row {row} asks about {id!r}, which is the id of no node of the type {entity}. Leave "
            "the row out, or add the node"
        )


def read_times(db: Database) -> Float[np.ndarray, " num_rows"]:
    """Return the time of each row."""
    return db.column(f'"{TIME}"', MADE)


def find_snapshots(
    db: Database, rows: RowTable
) -> tuple[list[float], Int[np.ndarray, " num_rows"], Float[np.ndarray, "2 num_rows"]]:
    """Divide the times of the rows into snapshots, each at the earliest of its times: one for each, if they are few.

    Returns:
        The time of each snapshot, ascending; the snapshot of each row; and the time of each row, with behind them the
        times at which their labels are known, infinite if nothing tells them.
    """
    times = read_times(db)
    distinct, known = np.unique(times), times + (rows.length or np.inf)
    bins = np.array_split(distinct, min(MOST_SNAPSHOTS, len(distinct)))
    starts = [float(own[0]) for own in bins]
    log.info(
        "snapshots: %s for %s of the rows; a row reads edges from before its snapshot",
        len(starts),
        count(len(distinct), "time"),
    )
    of_rows = np.searchsorted(np.array(starts), times, side="right") - 1
    return starts, of_rows, np.stack([times, known])


def summarise(
    events: pa.Table,
    own_code: Int[np.ndarray, " num_rows"],
    own_time: Float[np.ndarray, " num_rows"],
    spans: list[float],
    start: float,
) -> list[Float[np.ndarray, " num_rows"]]:
    """Summarise for each row the events of its entity that are earlier than the row.

    No later event changes a bit of the result: each sum is that of the events in its window, in one order.

    Args:
        events: its columns are the number of the entity of each event, its time, and numbers, NaN in empty cells.
        own_code, own_time: entity and time of each row.
        spans: lengths of windows that end at the time of the row, beside that of all time.
        start: time of the first event of all entities, also of those that no row asks about.

    Returns:
        Columns in the order of :meth:`pipeline.data.tables.columns.Events.columns`. Where there is no event, sums and
        means are 0, and the time since it is that since the first event of all, or 0.
    """
    code, time, *values = (column.to_numpy() for column in events.columns)
    order = np.lexsort((*values, time, code))
    code, time, values = code[order], time[order], [column[order] for column in values]
    distinct = np.unique(time)
    keys = code * (len(distinct) + 1) + np.searchsorted(distinct, time)

    def first_since(moment: np.ndarray) -> np.ndarray:
        return np.searchsorted(
            keys, own_code * (len(distinct) + 1) + np.searchsorted(distinct, moment)
        )

    first, end = np.searchsorted(code, own_code), first_since(own_time)
    begins = [first, *(first_since(own_time - span) for span in spans)]
    found = [(end - begin).astype(np.float64) for begin in begins]
    earliest = np.minimum(start, own_time)
    padded = np.append(time, 0.0)
    for place in (np.maximum(end - 1, 0), first):
        found.append(own_time - np.where(end > first, padded[place], earliest))
    found += [found[0] / (found[-1] / span + 1) for span in spans[:1]]
    begins += [np.maximum(first, end - number) for number in LATEST]
    for column in values:
        known = ~np.isnan(column)
        filled = np.append(np.where(known, column, 0.0), 0.0)
        found.append(np.where(end > first, filled[np.maximum(end - 1, 0)], 0.0))
        for begin in begins:
            total, num = (
                _sums(filled, begin, end),
                _sums(np.append(known, False).astype(np.float64), begin, end),
            )
            found += [total, total / np.maximum(num, 1)]
    return found


def _sums(values: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Sum ``values[begin:end]`` for each pair; the last value stands for none."""
    order = np.lexsort((end, begin))  # so that what lies between two windows is short
    pairs = np.stack([begin[order], end[order]], axis=1).reshape(-1)
    out = np.empty(len(begin))
    out[order] = np.add.reduceat(values, pairs)[::2] if len(pairs) else 0
    return np.where(end > begin, out, 0.0)


def _read_table(db: Database, table: NodeTable, *, reads_labels: bool) -> tuple[str, bool]:
    """Read the label table into the stage ``rows``, and number the entities; returns its name, and whether its times
    are dates.
    """
    assert table.path is not None
    source = open_source(db, "data.label_table", table.path, {})
    for column in ("id", "time", *(["label"] if reads_labels else [])):
        source.require("data.label_table", column)
    id, shown = source.text("id"), source.text("time")
    mend = "; each row asks about a node. Correct the row, or leave it out"
    source.refuse("id", f"{id} IS NULL", mend=mend)
    time = source.time("time", "data.label_table", may_be_empty=False)
    label = source.text("label") if reads_labels else "CAST(NULL AS VARCHAR)"
    db.stage(
        "given",
        f"SELECT row_number() OVER () AS row, {id} AS id, {time} AS time, {shown} AS shown, {label} AS "
        f"label FROM {source.relation}",
        "reading labels",
    )
    ((num_given,),) = db.execute("SELECT count(*) FROM given")
    if not num_given:
        raise ValueError(f"{source.name} holds no rows below its header")
    if twice := db.execute(
        "SELECT id, min(shown), min(label), max(label) FROM given GROUP BY id, time "
        "HAVING count(DISTINCT label) > 1 ORDER BY min(row) LIMIT 1"
    ):
        id, shown, *labels = twice[0]
        raise ValueError(
            f"{source.name}: {id!r} at {shown} has two labels, {labels[0]} and {labels[1]}. Keep one of "
            "these rows"
        )
    db.stage(
        "rows",
        "SELECT row_number() OVER (ORDER BY row) - 1 AS number, id, time::DOUBLE AS time, shown, label FROM (SELECT * "
        "FROM given QUALIFY row_number() OVER (PARTITION BY id, time ORDER BY label IS NULL, row) = 1) ORDER BY number",
        "numbering rows",
    )
    db.stage(
        "codes",
        "SELECT id, row_number() OVER (ORDER BY id) - 1 AS code FROM (SELECT DISTINCT id FROM rows)",
        "numbering entities",
    )
    ((num_kept,),) = db.execute("SELECT count(*) FROM rows")
    if num_kept < num_given:
        log.info(
            "%s: %s left out, which repeat the id and the time of an earlier one",
            source.name,
            count(num_given - num_kept, "row is", "rows are"),
        )
    return source.name, time.startswith("epoch")

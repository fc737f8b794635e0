"""Nodes of tables: their ids, and their features from columns of numbers and of text."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
import torch
from jaxtyping import Float, Int

from parallel_epochs.models.edge_index import INT32_END
from parallel_epochs.pipeline.data.tables.categories import one_hot, read as read_categories
from parallel_epochs.pipeline.data.tables.fitted import Columns
from parallel_epochs.pipeline.data.tables.groups import Links, find_groups
from parallel_epochs.pipeline.data.tables.labels import Labels, read_values
from parallel_epochs.pipeline.data.tables.schema import NodeTable
from parallel_epochs.pipeline.data.tables.scores import MAX_NODES, TextScores, fit_scores
from parallel_epochs.pipeline.data.tables.source import Source
from parallel_epochs.pipeline.data.tables.sql import Database, blocks
from parallel_epochs.pipeline.data.tables.text import (
    ID_SEPARATOR,
    MOST_NUMBERS,
    NUM_HASHES,
    NUM_TERMS,
    TextFeatures,
)
from parallel_epochs.pipeline.data.tables.values import (
    LEAST,
    Values,
    describe_dates,
    fit_quantiles,
    to_normal,
)
from parallel_epochs.pipeline.graph.store import StoreWriter
from parallel_epochs.pipeline.names import TERMS
from parallel_epochs.pipeline.run import pulse, words
from parallel_epochs.pipeline.run.seeds import stream

log = logging.getLogger(__name__)

# Nodes that are in memory at a time with their features. Means are sums over such blocks: another number, other bits.
BLOCK = 1 << 14
# Groups of linked nodes, at least, that are divided into the folds of scores.
NUM_GROUPS = 20


def read(
    db: Database,
    source: Source,
    table: NodeTable,
    values: Values,
    *,
    is_divided: bool,
    fitted: Columns | None = None,
    unknown: str = "error",
    duplicates: str = "error",
) -> Columns:
    """Make the table of nodes of what their table holds, numbered in its order.

    Columns are ``number``, ``id``, ``f0``... the features, ``text0``..., ``category0``..., ``label0``..., ``split`` and
    ``time``; NULL is an empty cell, or one that is no number.

    Args:
        values: the columns of numbers and of dates.
        is_divided: whether the column that divides the labelled nodes is read.
        fitted: what is known of the columns of the table of a training; none: this one tells.
        unknown: what is done with categories that are not known, see :func:`categories.read`.
        duplicates: what is done with an id that several rows have: "error" refuses it, "first" keeps the first row.

    Returns:
        What this table tells of its columns before all of them are read, or `fitted`.

    Raises:
        ValueError: names the file, the column and the first bad row.
    """
    columns = table.columns
    chosen = ["(row_number() OVER () - 1)::INTEGER AS number", f"{source.text(columns.id)} AS id"]
    chosen += [f"{cell} AS f{place}" for place, cell in enumerate(values.cells(db, source))]
    for kind, names in (
        ("text", [name for name, _ in columns.text_columns()]),
        ("category", columns.categories),
        ("label", [name for _, name in table.labels]),
    ):
        chosen += [f"{source.text(name)} AS {kind}{place}" for place, name in enumerate(names)]
    if is_divided and table.by is not None and table.split == "time":
        time_of = source.time(db, table.by, "data.time_column", may_be_empty=True)
        chosen.append(f"{time_of} AS time")
    elif is_divided and table.by is not None:
        chosen.append(f"{source.text(table.by)} AS split")
    if table.ends is not None:
        ends = ", ".join(map(source.text, table.ends))
        chosen.append(f"[least({ends}), greatest({ends})] AS pair")
        chosen.append(f"{source.text(table.ends[0])} < {source.text(table.ends[1])} AS way")
    rows = f"SELECT {', '.join(chosen)} FROM {source.relation}"
    if duplicates == "first":
        rows = (
            "SELECT * REPLACE ((row_number() OVER (ORDER BY number) - 1)::INTEGER AS number) FROM (SELECT * FROM "
            f"({rows}) QUALIFY id IS NULL OR row_number() OVER (PARTITION BY id ORDER BY number) = 1) "
            "ORDER BY number"
        )
    db.stage("nodes", rows, "reading nodes")
    num_nodes, missing = _check(db, source, columns.id, values)
    notes = []
    if duplicates == "first":
        ((num_rows,),) = db.execute(f"SELECT count(*) FROM {source.relation}")
        left = words.count(num_rows - num_nodes, "row is", "rows are")
        notes.append(f"{left} left out, whose id an earlier row has (data.duplicates=first)")
    source.warn_rounded(
        db,
        "nodes",
        {f"f{place}": name for place, name in values.unscaled()},
        "data.nodes.standardize=true scales them before",
    )
    notes += values.report(db, source, missing, None if fitted is None else fitted.flagged)
    known, more = read_categories(
        db,
        source,
        columns.categories,
        limit=columns.max_categories,
        refuse_empty=values.empty == "error",
        known=None if fitted is None else fitted.categories,
        unknown=unknown,
    )
    said = "".join(f"; {note}" for note in [*notes, *more])
    log.info("%s: %s nodes%s", source.name, f"{num_nodes:,}", said)
    if fitted is not None:
        return fitted
    flagged = [place for place, count in enumerate(missing) if count]
    return Columns(flagged if values.empty == "flag" else [], known)


def count(db: Database, origin: str) -> int:
    """Return the number of nodes.

    Args:
        origin: what would hold them, for messages.

    Raises:
        ValueError: there are none, or more than int32 can number.
    """
    ((num_nodes,),) = db.execute("SELECT count(*) FROM nodes")
    if not num_nodes:
        raise ValueError(f"{origin}: there are no nodes")
    if num_nodes >= INT32_END:
        raise ValueError(
            f"{num_nodes:,} nodes are more than a graph can have here, {INT32_END - 1:,}"
        )
    return num_nodes


def _check(db: Database, source: Source, id_column: str, values: Values) -> tuple[int, list[int]]:
    """Refuse nodes without an id, or with that of another; returns their number, and empty cells of each feature."""
    empty = "".join(f", count(*) FILTER (f{place} IS NULL)" for place in range(len(values.columns)))
    num_nodes, no_id, *missing = db.execute(
        f"SELECT count(*), count(*) FILTER (id IS NULL){empty} FROM nodes"
    )[0]
    if no_id:
        name, row, _ = source.first_row(db, f"{source.text(id_column)} IS NULL")
        raise ValueError(
            f"{name}: row {row}, column {id_column} is empty: every node needs an id; {no_id:,} rows in "
            "all are affected"
        )
    twice = db.execute(
        "SELECT id, min(number), count(*) FROM nodes GROUP BY id HAVING count(*) > 1 ORDER BY 2 LIMIT 1",
        "looking for ids that are there twice",
    )
    if twice:
        id, first, times = twice[0]
        raise ValueError(
            f"{source.name}: the id {id!r} of row {first + 1} is there {times:,} times "
            f"(data.nodes.id={id_column}): give each node one row, or set data.duplicates=first to keep "
            "the first one"
        )
    return num_nodes, missing


def write_names(db: Database, writer: StoreWriter, counts: dict[str, int]) -> None:
    """Write the ids as ``names`` and ``names_ptr``, see :func:`pipeline.data.node_names.pack_names`.

    Args:
        counts: the number of nodes of each table of nodes, one behind the other.
    """
    if writer.has("names", "names_ptr"):
        return
    size = sum(
        db.execute(f"SELECT coalesce(sum(strlen(id)), 0)::BIGINT FROM {nodes}")[0][0]
        for nodes in counts
    )
    at = before = 0
    shapes = {
        "names": ((size,), torch.uint8),
        "names_ptr": ((sum(counts.values()) + 1,), torch.int64),
    }
    with writer.write(**shapes) as opened:
        opened["names_ptr"].write(0, np.zeros(1, np.int64))
        parts = (
            (nodes, *block) for nodes, count in counts.items() for block in blocks(count, 1 << 18)
        )
        for nodes, first, last in parts:
            table = db.fetch(
                f"SELECT id FROM {nodes} WHERE number >= {first} AND number < {last} ORDER BY number"
            )
            ids = table["id"].cast(pa.large_string()).combine_chunks()
            ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
            _, offsets, content = ids.buffers()
            ends = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
            text = np.frombuffer(content, np.uint8)[ends[0] : ends[-1]]
            opened["names"].write(at, text)
            opened["names_ptr"].write(before + 1, at + ends[1:] - ends[0])
            at, before = at + len(text), before + len(ends) - 1


@dataclass
class Neighbors:
    """Neighbours of nodes by the edges of one table in one direction.

    Attributes:
        edges: the table of edges with the numbers of their ends, in the columns ``s`` and ``t``.
        own, other: the columns of the nodes and of their neighbours.
        nodes: the table of nodes of the neighbours.
    """

    edges: str
    own: str
    other: str
    nodes: str = "nodes"


def collect_ids(db: Database, place: int, neighbors: Neighbors) -> None:
    """Make a column of text of the ids of neighbours.

    Args:
        place: place of the column among those of text.
    """
    db.stage(
        f"text{place}",
        f"SELECT e.{neighbors.own} AS number, string_agg(DISTINCT n.id, chr({ord(ID_SEPARATOR)}) "
        f"ORDER BY n.id) AS text{place} FROM {neighbors.edges} AS e JOIN {neighbors.nodes} AS n ON "
        f"e.{neighbors.other} = n.number WHERE e.{neighbors.own} IS NOT NULL GROUP BY e.{neighbors.own}",
        "collecting the ids of neighbours",
        ordered=False,
    )


def fit(
    db: Database,
    source: str,
    num_nodes: int,
    values: Values,
    texts: list[TextFeatures],
    *,
    found: Columns,
    labels: Labels | None,
    are_scored: bool,
    links: Links | None,
    seed: int,
    of_training: bool = False,
) -> Columns:
    """Learn of a table what its features are made with.

    Args:
        source: name of the table, for the log.
        texts: what computes the features of each column of text; it counts them here.
        found: what :func:`read` returned.
        labels: of the nodes, if there are some.
        are_scored: whether texts become scores.
        links: the edges, if linked nodes are to lie in one fold of the scores.
        seed: of the scores.
        of_training: whether mean and deviation are those of the training nodes alone.
    """
    latest = _latest(db, source, values, labels)
    quantiles = _quantiles(db, values)
    chosen = (
        labels.masks[0].numpy() if of_training and labels is not None else np.ones(num_nodes, bool)
    )
    mean, std = _moments(db, values, chosen, latest, quantiles)
    for text in texts:
        for first, last in blocks(num_nodes, BLOCK):
            text.count(_texts(db, text, first, last))
        _decompose(db, source, text, num_nodes, seed)
    return replace(
        found,
        latest=latest,
        mean=mean,
        std=std,
        quantiles=quantiles,
        texts=[text.counted() for text in texts],
        kinds=[text.kind for text in texts],
        vectors=[text.vectors for text in texts],
        scores=_fit_scores(db, features_of(texts), num_nodes, labels, links, seed)
        if are_scored and labels
        else None,
    )


def write_terms(
    db: Database, writer: StoreWriter, num_nodes: int, texts: list[TextFeatures]
) -> None:
    """Write TF-IDF of all texts, the sparse matrix that linear models read; see :data:`pipeline.names.TERMS`.

    It holds the most frequent terms that two texts of the training have. Long texts have no such matrix. It is written
    before the features, as a preparation that was killed is complete with these.
    """
    kept, size = frequent_terms(texts)
    if writer.has(*TERMS) or not len(kept):
        return
    if size > MOST_NUMBERS:
        log.info(
            "texts: linear models read no terms, since there are more than %s of them",
            f"{MOST_NUMBERS:,}",
        )
        return
    parts = [_terms(db, texts, first, last)[:, kept] for first, last in blocks(num_nodes, BLOCK)]
    found = sp.csr_array(sp.vstack(parts, format="csr"))
    for name, values, dtype in zip(
        TERMS, (found.indptr, found.indices, found.data), (np.int64, np.int32, np.float32)
    ):
        writer.put(name, torch.from_numpy(values.astype(dtype)))


def frequent_terms(texts: list[TextFeatures]) -> tuple[Int[np.ndarray, " num_kept"], int]:
    """Return the terms that linear models read, ascending, and how often they occur in the texts of the training."""
    frequency = (
        np.concatenate(
            [
                np.bincount(terms, counts, NUM_HASHES).astype(np.int64)
                for _, terms, counts in (text.counted() for text in texts)
            ]
        )
        if texts
        else np.empty(0)
    )
    kept = np.flatnonzero(frequency > 1)
    kept = np.sort(kept[np.argsort(-frequency[kept], kind="stable")[:NUM_TERMS]])
    return kept, int(frequency[kept].sum())


def features_of(texts: list[TextFeatures]) -> list[TextFeatures]:
    """Return the columns of text that become features."""
    return [text for text in texts if text.channels]


def num_channels(values: Values, texts: list[TextFeatures], fitted: Columns) -> int:
    """Return the number of columns of features; arguments are those of :func:`feature_blocks`."""
    return (
        first_score(values, fitted)
        + sum(map(len, fitted.categories))
        + (
            sum(text.channels for text in texts)
            if fitted.scores is None
            else len(fitted.scores.bias)
        )
    )


def first_score(values: Values, fitted: Columns) -> int:
    """Return the number of the first column of scores of texts, where there are some."""
    return values.num_features(fitted.flagged)


def feature_blocks(
    db: Database, num_nodes: int, values: Values, texts: list[TextFeatures], fitted: Columns
) -> Iterator[tuple[int, np.ndarray]]:
    """Compute the features of some nodes at a time: the number of the first, and [num, num_channels], float32.

    They are the columns of numbers, the marks of their empty cells, the columns of each column of text or the scores of
    all of them, and those of each column of categories.

    Args:
        texts: what computes the features of each column of text, when these have been counted.
        fitted: what :func:`fit` returned.
    """
    scores, sizes, seen = (
        fitted.scores,
        [len(values) for values in fitted.categories],
        features_of(texts),
    )
    for first, last in blocks(num_nodes, BLOCK):
        rows = _numbers(db, values, first, last, fitted.latest, fitted.quantiles)
        parts = (
            [scores.transform(first, _terms(db, seen, first, last))]
            if scores is not None
            else [text.transform(_texts(db, text, first, last)) for text in seen]
        )
        yield first, join_features(values, fitted, rows, [*parts, one_hot(db, sizes, first, last)])


def join_features(
    values: Values,
    fitted: Columns,
    rows: Float[np.ndarray, "num_rows num_features"],
    others: list[np.ndarray],
) -> Float[np.ndarray, "num_rows num_channels"]:
    """Join scaled numbers, the marks of empty cells, and the features of other columns, float32.

    Args:
        rows: what columns of numbers and of dates become before they are scaled, NaN where a cell is empty.
    """
    marked = [values.first_features[place] for place in fitted.flagged]
    parts = [np.nan_to_num((rows - fitted.mean) / fitted.std), np.isnan(rows[:, marked]), *others]
    return np.concatenate([part.astype(np.float32) for part in parts], axis=1)


def _decompose(db: Database, source: str, text: TextFeatures, num_nodes: int, seed: int) -> None:
    """Fit the singular vectors of a column of text to its texts, or to some at random if there are many."""
    if not len(text.terms):
        return
    rng, start, parts = (
        stream("singular vectors of texts", seed, text.place),
        time.perf_counter(),
        [],
    )
    pulse.beat("decomposing texts", pulse.State.LONG)
    chosen = np.sort(rng.permutation(num_nodes)[: text.most_texts])
    for first, last in blocks(num_nodes, BLOCK):
        own = chosen[(chosen >= first) & (chosen < last)] - first
        parts.append(text.weigh(_texts(db, text, first, last))[:, text.terms][own])
    text.fit(sp.csr_array(sp.vstack(parts)), int(rng.integers(1 << 31)))
    log.info(
        "%s: %s singular vectors of %s terms (%s), fitted to %s texts, %.0f s",
        source,
        text.channels,
        f"{len(text.terms):,}",
        text.kind,
        f"{len(chosen):,}",
        time.perf_counter() - start,
    )


def _fit_scores(
    db: Database,
    texts: list[TextFeatures],
    num_nodes: int,
    labels: Labels,
    links: Links | None,
    seed: int,
) -> TextScores:
    """Fit the scores of texts to the training nodes, or to MAX_NODES of them drawn at random if there are more."""
    rng = stream("text scores", seed)
    fitted = np.flatnonzero(labels.masks[0].numpy())
    if len(fitted) > MAX_NODES:
        fitted = np.sort(rng.choice(fitted, MAX_NODES, replace=False))
    terms, values = [], []
    for first, last in blocks(num_nodes, BLOCK):
        own = fitted[(fitted >= first) & (fitted < last)] - first
        terms.append(_terms(db, texts, first, last)[own])
        values.append(read_values(db, labels.metric, labels.columns, first, last)[own])
        if labels.is_log:
            values[-1] = np.log1p(values[-1])
    first_id = (
        next((place for place, text in enumerate(texts) if text.kind == "ids"), len(texts))
        * NUM_HASHES
    )
    found = fit_scores(
        fitted,
        sp.csr_array(sp.vstack(terms)),
        np.concatenate(values),
        labels.metric,
        rng,
        first_id=first_id,
        groups=None
        if links is None
        else find_groups(db, links, links.num_nodes // NUM_GROUPS)[links.first + fitted],
    )
    return replace(found, digests=_digests(db, texts)[fitted])


def recognise(db: Database, texts: list[TextFeatures], fitted: Columns) -> Columns:
    """Return what is known of columns of texts for other tables, in which nodes with scores of their own keep these.

    Args:
        texts: what computes the features of each column of text.
        fitted: what a training has told.
    """
    if fitted.scores is None:
        return fitted
    return replace(fitted, scores=fitted.scores.among(_digests(db, features_of(texts))))


def _digests(db: Database, texts: list[TextFeatures]) -> np.ndarray:
    """Compute a digest of the id and the texts of each node, int64 [num_nodes]; new edges leave it as it is."""
    own = [f"coalesce(text{text.place}, '')" for text in texts if text.kind != "ids"]
    cells = ", ".join([f"chr({ord(ID_SEPARATOR)})", "id", *own])
    found = db.stream(
        f"SELECT md5_number_lower(concat_ws({cells})) AS digest FROM nodes ORDER BY number"
    )
    return np.concatenate(
        [np.empty(0, np.int64), *(batch["digest"].view(np.int64) for batch in found)]
    )


def _terms(db: Database, texts: list[TextFeatures], first: int, last: int) -> sp.csr_array:
    """Weigh the terms of all columns of text of some nodes [last - first, hashes of all columns]."""
    return sp.csr_array(
        sp.hstack([text.weigh(_texts(db, text, first, last)) for text in texts], format="csr")
    )


def _latest(db: Database, source: str, values: Values, labels: Labels | None) -> np.ndarray:
    """Find the latest time of each column of dates among the training nodes, or among all where these have none."""
    latest = np.zeros(len(values.columns))
    for place, (option, column) in enumerate(values.columns):
        if option == "dates":
            found = db.stream(
                f"SELECT coalesce(f{place}, '-inf'::DOUBLE) AS time FROM nodes ORDER BY number"
            )
            times = np.concatenate([part["time"] for part in found])
            learned = times if labels is None else times[labels.masks[0].numpy()]
            latest[place] = describe_dates(
                source,
                column,
                next((max(some) for some in (learned, times) if np.isfinite(some).any()), None),
            )
    return latest


def _quantiles(db: Database, values: Values) -> list[np.ndarray]:
    """Compute the quantiles of each column of numbers whose ranks are taken; empty ones of others."""
    found = [np.zeros(0) for _ in values.columns]
    for place, (option, column) in enumerate(values.columns):
        if option == "features" and column in values.quantiles:
            parts = db.stream(f"SELECT f{place}::DOUBLE AS x FROM nodes WHERE f{place} IS NOT NULL")
            found[place] = fit_quantiles(
                np.concatenate([found[place], *(part["x"] for part in parts)])
            )
    return found


def _moments(
    db: Database,
    values: Values,
    chosen: np.ndarray,
    latest: np.ndarray,
    quantiles: list[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and standard deviation of the columns of numbers, without what is empty; 0 and 1 if not wanted.

    Sine and cosine of dates stay as they are. `chosen` are the nodes that count, bool [num_nodes].
    """
    channels = values.num_features([])
    mean, std = np.zeros(channels), np.ones(channels)
    if not values.standardize or not channels:
        return mean, std
    counts, sums, squares = np.zeros(channels), np.zeros(channels), np.zeros(channels)
    for first, last in blocks(len(chosen), BLOCK):
        rows = _numbers(db, values, first, last, latest, quantiles)[chosen[first:last]]
        counts += (~np.isnan(rows)).sum(0)
        sums += np.nansum(rows, 0)
    found = sums / np.maximum(counts, 1)
    for first, last in blocks(len(chosen), BLOCK):
        rows = _numbers(db, values, first, last, latest, quantiles)[chosen[first:last]]
        squares += np.nansum((rows - found) ** 2, 0)
    scaled = values.first_features[:-1]
    mean[scaled], std[scaled] = (
        found[scaled],
        np.maximum(np.sqrt(squares / np.maximum(counts, 1)), LEAST)[scaled],
    )
    return mean, std


def _numbers(
    db: Database,
    values: Values,
    first: int,
    last: int,
    latest: np.ndarray,
    quantiles: list[np.ndarray],
) -> np.ndarray:
    """Read what columns of numbers and of dates become, of some nodes, float64, NaN where a cell is empty.

    Args:
        latest: time of each column of dates in the training.
        quantiles: of each column whose ranks are taken; empty ones of others, or none of a run of before there were
            some.
    """
    if not values.columns:
        return np.empty((last - first, 0))
    # A run of before there were dates has no times.
    times = [*latest.tolist(), *[0.0] * (len(values.columns) - len(latest))]
    found = [
        sql for place, time in enumerate(times) for sql in values.unfitted(place, f"f{place}", time)
    ]
    chosen = ", ".join(
        f"coalesce(({sql})::DOUBLE, 'nan'::DOUBLE) AS x{place}" for place, sql in enumerate(found)
    )
    table = db.fetch(
        f"SELECT {chosen} FROM nodes WHERE number >= {first} AND number < {last} ORDER BY number"
    )
    rows = np.stack([column.to_numpy() for column in table.columns], axis=1)
    return bend(values, rows, quantiles)


def bend(
    values: Values, rows: Float[np.ndarray, "num_rows num_features"], quantiles: list[np.ndarray]
) -> Float[np.ndarray, "num_rows num_features"]:
    """Take the logarithms and the ranks of those columns of numbers that ask for them, in place."""
    for place, (option, column) in zip(values.first_features, values.columns):
        if option == "features" and column in values.log1p:
            rows[:, place] = np.log1p(rows[:, place])
    for place, (option, column), own in zip(values.first_features, values.columns, quantiles):
        if option == "features" and column in values.quantiles:
            rows[:, place] = to_normal(rows[:, place], own)
    return rows


def _texts(db: Database, text: TextFeatures, first: int, last: int) -> list[str]:
    own = f"text{text.place}"
    ids = (
        f" LEFT JOIN {own} USING (number)" if db.has(own) else ""
    )  # ids of neighbours have a table of their own
    table = db.fetch(
        f"SELECT coalesce({own}, '') AS text FROM nodes{ids} WHERE number >= {first} AND number < {last} "
        "ORDER BY number"
    )
    return table["text"].to_pylist()

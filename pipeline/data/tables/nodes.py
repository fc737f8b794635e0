"""Nodes of tables: their ids, labels, and features from columns of numbers, of categories and of text."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
import torch

from parallel_epochs.pipeline.data.tables import labels as tables_labels
from parallel_epochs.pipeline.data.tables.fitted import Columns
from parallel_epochs.pipeline.data.tables.groups import find_groups
from parallel_epochs.pipeline.data.tables.label_rows import open_table
from parallel_epochs.pipeline.data.tables.labels import KnownLabels, Labels
from parallel_epochs.pipeline.data.tables.schema import NodeTable, TableKeys, is_made
from parallel_epochs.pipeline.data.tables.scores import (
    MAX_NODES,
    TextScores,
    check_columns,
    fit_scores,
)
from parallel_epochs.pipeline.data.tables.source import Source
from parallel_epochs.pipeline.data.tables.sql import Database, blocks
from parallel_epochs.pipeline.data.tables.text import (
    ID_SEPARATOR,
    MOST_NUMBERS,
    MOST_WITH_IDS,
    NUM_HASHES,
    NUM_TERMS,
    TextFeatures,
)
from parallel_epochs.pipeline.data.tables.values import (
    LEAST,
    Values,
    describe_dates,
    values_of,
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


@dataclass
class Nodes:
    """The nodes of one type, as they stand in a part of the database, and what makes features of them.

    Attributes:
        part: of the database, in which each method is called.
        values: the columns of numbers and of dates.
        labels: if they are those that are learned.
        columns: what is known of the columns; :meth:`learn` completes it.
        texts: what computes the features of each column of text.
    """

    db: Database
    config: TableKeys
    table: NodeTable
    part: str
    num_nodes: int = 0
    labels: Labels | None = None
    columns: Columns = field(default_factory=Columns)
    texts: list[TextFeatures] = field(default_factory=list)

    @property
    def values(self) -> Values:
        """The columns of numbers and of dates."""
        return values_of(self.table)

    def read(
        self, ends: list[tuple[Source, str]], fitted: Columns | None, known: KnownLabels | None
    ) -> None:
        """Read the table of nodes, or number the ids that edges name.

        Args:
            ends: tables of edges, each with a column of ids of the nodes.
            fitted: what is known of the columns of the table of a training; none: this one tells.
            known: the same of its labels. They have splits in a training only.

        Raises:
            ValueError: names the file, the column and the first bad row.
        """
        table = self.table
        if table.path is None:
            number_ids(self.db, ends)
            self._count(f"{ends[0][0].name} holds no ids")
            return
        source = open_table(self.db, table)
        self._read_table(source, fitted, is_divided=known is None or known.grows)
        self._count(f"{table.path} holds no rows")
        if not table.labels:
            return
        self.labels = tables_labels.read(source, self.config, self.table, self.num_nodes, known)
        if table.columns.text_features == "scores":
            check_columns(self.labels.out_channels)

    def _read_table(self, source: Source, fitted: Columns | None, *, is_divided: bool) -> None:
        """Make the table of nodes of what their table holds, numbered in its order.

        Columns are ``number``, ``id``, ``f0``... the features, ``text0``..., ``category0``..., ``label0``..., ``split``
        and ``time``; NULL is an empty cell, or one that is no number.
        """
        db, config, values = self.db, self.config, self.values
        if is_divided and config.split is None and config.reading > 5:
            self.table = tables_labels.find_split(source, self.table)
        table = self.table
        columns, is_first = table.columns, config.duplicates == "first" and not table.are_edges
        chosen = [
            "(row_number() OVER () - 1)::INTEGER AS number",
            f"{source.text(columns.id)} AS id",
        ]
        chosen += [f"{cell} AS f{place}" for place, cell in enumerate(values.cells(source))]
        for kind, read, names in (
            ("text", source.text, [name for name, _ in columns.text_columns()]),
            ("category", source.text, columns.categories),
            ("label", source.plain, [name for _, name in table.labels]),
        ):
            chosen += [f"{read(name)} AS {kind}{place}" for place, name in enumerate(names)]
        if is_divided and table.by is not None and table.split == "time":
            time_of = source.time(table.by, "data.time_column", may_be_empty=True)
            chosen.append(f"{time_of} AS time")
        elif is_divided and table.by is not None:
            chosen.append(f"{source.text(table.by)} AS split")
        if table.ends is not None:
            start, end = map(source.text, table.ends)
            chosen.append(f"[least({start}, {end}), greatest({start}, {end})] AS pair")
            chosen.append(f"{start} < {end} AS way")
        rows = f"SELECT {', '.join(chosen)} FROM {source.relation}"
        if is_first:
            rows = (
                "SELECT * REPLACE ((row_number() OVER (ORDER BY number) - 1)::INTEGER AS number) FROM (SELECT * FROM "
                f"({rows}) QUALIFY id IS NULL OR row_number() OVER (PARTITION BY id ORDER BY number) = 1) "
                "ORDER BY number"
            )
        db.stage("nodes", rows, "reading nodes")
        num_nodes, missing = _check(source, columns.id, values)
        notes = []
        if is_first:
            ((num_rows,),) = db.execute(f"SELECT count(*) FROM {source.relation}")
            left = words.count(num_rows - num_nodes, "row is", "rows are")
            notes.append(f"{left} left out, whose id an earlier row has (data.duplicates=first)")
        source.warn_rounded(
            "nodes",
            {f"f{place}": name for place, name in values.unscaled()},
            "data.nodes.standardize=true scales them before",
        )
        notes += values.report(source, missing)
        known, more = tables_labels.read_categories(
            source,
            columns.categories,
            known=None if fitted is None else fitted.categories,
            unknown=config.unknown,
        )
        said = "".join(f"; {note}" for note in [*notes, *more])
        log.info("%s: %s nodes%s", source.name, f"{num_nodes:,}", said)
        self.columns = fitted or Columns(known)

    def _count(self, origin: str) -> None:
        ((self.num_nodes,),) = self.db.execute("SELECT count(*) FROM nodes")
        if not self.num_nodes:
            raise ValueError(f"{origin}: there are no nodes")

    def learn(
        self, neighbors: list[str], links: str, num_linked: int, first: int, *, is_new: bool
    ) -> None:
        """Learn what the features of nodes are made with, or go on with what other tables have told.

        Args:
            neighbors: by each table of edges, in each direction, a query of the ``number`` of a node and the ``id`` of
                a neighbour.
            links: a query of all edges, for :func:`find_groups`.
            num_linked: nodes of all types, which these edges join.
            first: number of the first node of this type among them.
            is_new: whether these tables tell.
        """
        columns, known = self.table.columns, self.columns
        num_columns = len(columns.text_columns())
        # Linear models of texts read the ids of neighbours and the words of names too. Runs of before did not.
        if is_new:
            is_small = self.num_nodes <= MOST_WITH_IDS and not self.config.on_disk
            are_terms = bool(num_columns and self.labels and is_small and self.config.reading > 3)
            are_words = are_terms and self.config.reading > 4
        else:
            are_terms, are_words = len(known.texts) > num_columns, "names" in known.kinds
        num_ids = len(neighbors) if columns.text_neighbors or are_terms else 0
        self.texts = _texts_of(self.table, are_words=are_words, num_ids=num_ids)
        for text in self.texts:
            if text.kind == "ids":
                self.db.stage(
                    f"text{text.place}",
                    f"SELECT number, string_agg(DISTINCT id, chr({ord(ID_SEPARATOR)}) ORDER BY id) AS text{text.place} "
                    f"FROM ({neighbors[text.place - num_columns]}) GROUP BY number",
                    "collecting the ids of neighbours",
                    ordered=False,
                )
        if is_new:
            self._fit()
            if self.labels is not None and columns.text_features == "scores":
                groups = find_groups(self.db, links, num_linked, num_linked // NUM_GROUPS)
                known.scores = self._fit_scores(self.labels, groups[first:])
            return
        # Earlier versions kept no vectors.
        vectors = known.vectors or [text.vectors for text in self.texts]
        for text, counted, own in zip(self.texts, known.texts, vectors, strict=True):
            text.restore(*counted, own)
        if known.scores is not None:  # nodes with scores of their own keep these
            self.columns = replace(known, scores=known.scores.among(self._digests()))

    def _fit(self) -> None:
        """Learn of this table."""
        columns = self.columns
        columns.latest = self._latest()
        columns.mean, columns.std = self._moments()
        for text in self.texts:
            for first, last in blocks(self.num_nodes, BLOCK):
                text.count(self._read_texts(text, first, last))
            self._decompose(text)
        columns.texts = [text.counted() for text in self.texts]
        columns.kinds = [text.kind for text in self.texts]
        columns.vectors = [text.vectors for text in self.texts]

    def _latest(self) -> np.ndarray:
        """Find the latest time of each column of dates among the training nodes, or among all where these have none."""
        latest = np.zeros(len(self.values.columns))
        for place, (option, column) in enumerate(self.values.columns):
            if option == "dates":
                times = self.db.column(f"coalesce(f{place}, '-inf'::DOUBLE)")
                learned = times if self.labels is None else times[self.labels.masks[0].numpy()]
                known = (max(some) for some in (learned, times) if np.isfinite(some).any())
                latest[place] = describe_dates(str(self.table.path), column, next(known, None))
        return latest

    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Compute mean and standard deviation of the columns of numbers, without what is empty; 0 and 1 if not wanted.

        Sine and cosine of dates stay as they are. Of the rows of a label table only those of the training count.
        """
        values, chosen = self.values, np.ones(self.num_nodes, bool)
        if self.labels is not None and is_made(self.table):
            chosen = self.labels.masks[0].numpy()
        channels = values.num_features
        mean, std = np.zeros(channels), np.ones(channels)
        if not values.standardize or not channels:
            return mean, std
        counts, sums, squares = np.zeros(channels), np.zeros(channels), np.zeros(channels)
        for first, last in blocks(self.num_nodes, BLOCK):
            rows = self._numbers(first, last)[chosen[first:last]]
            counts += (~np.isnan(rows)).sum(0)
            sums += np.nansum(rows, 0)
        found = sums / np.maximum(counts, 1)
        for first, last in blocks(self.num_nodes, BLOCK):
            rows = self._numbers(first, last)[chosen[first:last]]
            squares += np.nansum((rows - found) ** 2, 0)
        scaled = values.first_features[:-1]
        mean[scaled] = found[scaled]
        std[scaled] = np.maximum(np.sqrt(squares / np.maximum(counts, 1)), LEAST)[scaled]
        return mean, std

    def _numbers(self, first: int, last: int) -> np.ndarray:
        """Read what columns of numbers and of dates become, of some nodes, float64, NaN where a cell is empty."""
        values, fitted = self.values, self.columns
        if not values.columns:
            return np.empty((last - first, 0))
        # A run of before there were dates has no times.
        times = [*fitted.latest.tolist(), *[0.0] * (len(values.columns) - len(fitted.latest))]
        found = [
            sql
            for place, time in enumerate(times)
            for sql in values.unfitted(place, f"f{place}", time)
        ]
        chosen = ", ".join(
            f"coalesce(({sql})::DOUBLE, 'nan'::DOUBLE) AS x{place}"
            for place, sql in enumerate(found)
        )
        table = self._fetch(chosen, first, last)
        rows = np.stack([column.to_numpy() for column in table.columns], axis=1)
        for place, (option, column) in zip(values.first_features, values.columns):
            if option == "features" and column in values.log1p:
                rows[:, place] = np.log1p(rows[:, place])
        return rows

    def _fetch(self, chosen: str, first: int, last: int, joins: str = "") -> pa.Table:
        return self.db.fetch(
            f"SELECT {chosen} FROM nodes{joins} WHERE number >= {first} AND number < {last} ORDER BY number"
        )

    def _read_texts(self, text: TextFeatures, first: int, last: int) -> list[str]:
        own = f"text{text.place}"  # ids of neighbours have a table of their own
        joins = f" LEFT JOIN {own} USING (number)" if text.kind == "ids" else ""
        table = self._fetch(f"coalesce({own}, '') AS text", first, last, joins)
        return table["text"].to_pylist()

    def _decompose(self, text: TextFeatures) -> None:
        """Fit the singular vectors of a column of text to its texts, or to some at random if there are many."""
        if not len(text.terms):
            return
        rng = stream("singular vectors of texts", self.config.graph_seed, text.place)
        start, parts = time.perf_counter(), []
        pulse.beat("decomposing texts", pulse.State.LONG)
        chosen = np.sort(rng.permutation(self.num_nodes)[: text.most_texts])
        for first, last in blocks(self.num_nodes, BLOCK):
            own = chosen[(chosen >= first) & (chosen < last)] - first
            parts.append(text.weigh(self._read_texts(text, first, last))[:, text.terms][own])
        text.fit(sp.csr_array(sp.vstack(parts)), int(rng.integers(1 << 31)))
        log.info(
            "%s: %s singular vectors of %s terms (%s), fitted to %s texts, %.0f s",
            self.table.path,
            text.channels,
            f"{len(text.terms):,}",
            text.kind,
            f"{len(chosen):,}",
            time.perf_counter() - start,
        )

    @property
    def _seen(self) -> list[TextFeatures]:
        """The columns of text that become features."""
        return [text for text in self.texts if text.channels]

    def _terms(self, texts: list[TextFeatures], first: int, last: int) -> sp.csr_array:
        """Weigh the terms of columns of text of some nodes [last - first, hashes of all columns]."""
        parts = [text.weigh(self._read_texts(text, first, last)) for text in texts]
        return sp.csr_array(sp.hstack(parts, format="csr"))

    def _fit_scores(self, labels: Labels, groups: np.ndarray) -> TextScores:
        """Fit the scores of texts to the training nodes, or to MAX_NODES of them drawn at random if there are more."""
        rng, texts = stream("text scores", self.config.graph_seed), self._seen
        fitted = np.flatnonzero(labels.masks[0].numpy())
        if len(fitted) > MAX_NODES:
            fitted = np.sort(rng.choice(fitted, MAX_NODES, replace=False))
        terms, targets = [], []
        for first, last in blocks(self.num_nodes, BLOCK):
            own = fitted[(fitted >= first) & (fitted < last)] - first
            terms.append(self._terms(texts, first, last)[own])
            targets.append(tables_labels.read_values(self.db, labels, first, last)[own])
        num_words = sum(text.kind != "ids" for text in texts)  # ids are the last ones
        scores = fit_scores(
            fitted,
            sp.csr_array(sp.vstack(terms)),
            np.concatenate(targets),
            labels.metric,
            rng,
            first_id=num_words * NUM_HASHES,
            groups=groups[fitted],
        )
        return replace(scores, digests=self._digests()[fitted])

    def _digests(self) -> np.ndarray:
        """Compute a digest of the id and the texts of each node, int64 [num_nodes]; new edges leave it as it is."""
        own = [f"coalesce(text{text.place}, '')" for text in self._seen if text.kind != "ids"]
        cells = ", ".join([f"chr({ord(ID_SEPARATOR)})", "id", *own])
        return self.db.column(f"md5_number_lower(concat_ws({cells}))").view(np.int64)

    @property
    def num_channels(self) -> int:
        """Columns of features that are made of the table."""
        num_texts = sum(text.channels for text in self.texts)
        if self.columns.scores is not None:
            num_texts = len(self.columns.scores.bias)
        return self.values.num_features + sum(map(len, self.columns.categories)) + num_texts

    def feature_blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Compute the features of some nodes at a time: the number of the first, and [num, num_channels], float32.

        They are the columns of numbers, the columns of each column of text or the scores of all of them, and those of
        each column of categories.
        """
        fitted = self.columns
        sizes = [len(names) for names in fitted.categories]
        for first, last in blocks(self.num_nodes, BLOCK):
            rows = self._numbers(first, last)
            parts = [np.nan_to_num((rows - fitted.mean) / fitted.std)]
            if fitted.scores is not None:
                terms = self._terms(self._seen, first, last)
                parts.append(fitted.scores.transform(first, terms))
            else:
                for text in self._seen:
                    parts.append(text.transform(self._read_texts(text, first, last)))
            parts.append(tables_labels.one_hot(self.db, sizes, first, last))
            yield first, np.concatenate([part.astype(np.float32) for part in parts], axis=1)

    def write_terms(self, writer: StoreWriter) -> None:
        """Write TF-IDF of all texts, the sparse matrix that linear models read; see :data:`pipeline.names.TERMS`.

        It holds the most frequent terms that two texts of the training have. Long texts have no such matrix. It is
        written before the features, as a preparation that was killed is complete with these.
        """
        counts = [np.zeros(0, np.int64)]
        for text in self.texts:
            _, terms, frequency = text.counted()
            counts.append(np.bincount(terms, frequency, NUM_HASHES).astype(np.int64))
        frequency = np.concatenate(counts)
        kept = np.flatnonzero(frequency > 1)
        kept = np.sort(kept[np.argsort(-frequency[kept], kind="stable")[:NUM_TERMS]])
        if writer.has(*TERMS) or not len(kept):
            return
        if frequency[kept].sum() > MOST_NUMBERS:
            log.info(
                "texts: linear models read no terms, since there are more than %s of them",
                f"{MOST_NUMBERS:,}",
            )
            return
        parts = [
            self._terms(self.texts, first, last)[:, kept]
            for first, last in blocks(self.num_nodes, BLOCK)
        ]
        found = sp.csr_array(sp.vstack(parts, format="csr"))
        for name, own, dtype in zip(
            TERMS, (found.indptr, found.indices, found.data), (np.int64, np.int32, np.float32)
        ):
            writer.put(name, torch.from_numpy(own.astype(dtype)))


def number_ids(db: Database, ends: list[tuple[Source, str]]) -> None:
    """Make the table of nodes of the ids that edges name.

    Args:
        ends: tables of edges, each with a column of ids of the nodes.
    """
    parts = " UNION ALL ".join(
        f"SELECT {source.text(column)} AS id FROM {source.relation}" for source, column in ends
    )
    db.stage(
        "ids",
        f"SELECT DISTINCT id FROM ({parts}) WHERE id IS NOT NULL",
        "collecting ids",
        ordered=False,
    )
    db.stage(
        "nodes",
        f"SELECT (row_number() OVER (ORDER BY {db.order_of('ids', 'id')}) - 1)::INTEGER AS number, id "
        "FROM ids ORDER BY number",
        "numbering ids",
    )


def _texts_of(table: NodeTable, *, are_words: bool, num_ids: int) -> list[TextFeatures]:
    """Return what computes the features of each column of text.

    Args:
        are_words: whether columns of names are read by their words, too.
        num_ids: number of columns of the ids of neighbours.
    """
    columns = table.columns
    named, is_svd = columns.text_columns(), columns.text_features == "svd"
    texts = [
        TextFeatures(
            kind,
            columns.text_channels,
            place=place,
            is_decomposed=is_svd,
        )
        for place, (_, kind) in enumerate(named)
    ]
    chars = [text.place for text in texts if are_words and text.kind == "chars"]
    texts += [TextFeatures("names", 0, place=place) for place in chars]
    channels = columns.text_channels if columns.text_neighbors else 0
    return texts + [
        TextFeatures("ids", channels, place=place, is_decomposed=bool(channels) and is_svd)
        for place in range(len(named), len(named) + num_ids)
    ]


def _check(source: Source, id_column: str, values: Values) -> tuple[int, list[int]]:
    """Refuse nodes without an id, or with that of another; returns their number, and empty cells of each feature."""
    empty = "".join(f", count(*) FILTER (f{place} IS NULL)" for place in range(len(values.columns)))
    num_nodes, no_id, *missing = source.db.execute(
        f"SELECT count(*), count(*) FILTER (id IS NULL){empty} FROM nodes"
    )[0]
    if no_id:
        mend = f": every row needs an id; {no_id:,} rows in all are affected"
        source.refuse(id_column, f"{source.text(id_column)} IS NULL", mend=mend)
    twice = source.db.execute(
        "SELECT id, min(number), count(*) FROM nodes GROUP BY id HAVING count(*) > 1 ORDER BY 2 LIMIT 1",
        "looking for ids that are there twice",
    )
    if twice:
        id, first, times = twice[0]
        mend = "give each edge an id of its own, or leave data.edges.id out"
        if source.key == "data.nodes":
            mend = "give each node one row, or set data.duplicates=first to keep the first one"
        raise ValueError(
            f"{source.name}: the id {id!r} of row {first + 1} is there {times:,} times "
            f"({source.key}.id={id_column}): {mend}"
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
        for nodes, num in counts.items():
            for first, last in blocks(num, 1 << 18):
                table = db.fetch(
                    "SELECT string_agg(id, '' ORDER BY number) AS text, list(strlen(id) ORDER BY number) AS sizes "
                    f"FROM {nodes} WHERE number >= {first} AND number < {last}"
                )
                text = np.frombuffer(table["text"][0].as_py().encode(), np.uint8)
                ends = at + np.cumsum(table["sizes"][0].values.to_numpy())
                opened["names"].write(at, text)
                opened["names_ptr"].write(before + 1, ends)
                at, before = at + len(text), before + len(ends)

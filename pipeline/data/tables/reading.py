"""One table of nodes: what is in it, as a database holds it, and what makes features of it."""

from functools import partial

from parallel_epochs.pipeline.data.tables import (
    label_rows,
    labels as tables_labels,
    nodes as tables_nodes,
    sorted_edges as tables_edges,
)
from parallel_epochs.pipeline.data.tables.columns import ROW, NodeColumns
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.data.tables.fitted import Columns
from parallel_epochs.pipeline.data.tables.groups import Links
from parallel_epochs.pipeline.data.tables.heads import require
from parallel_epochs.pipeline.data.tables.labels import KnownLabels, Labels
from parallel_epochs.pipeline.data.tables.schema import EdgeTable, NodeTable, is_made
from parallel_epochs.pipeline.data.tables.scores import check_columns
from parallel_epochs.pipeline.data.tables.source import Source, open_source
from parallel_epochs.pipeline.data.tables.sql import Database
from parallel_epochs.pipeline.data.tables.text import MOST_WITH_IDS, TextFeatures
from parallel_epochs.pipeline.data.tables.values import values_of


def open_table(db: Database, table: NodeTable | EdgeTable) -> Source:
    """Open a table, and refuse columns that it does not have, or whose cells are no single values.

    Raises:
        ValueError: names the column.
    """
    assert table.path is not None
    if is_made(table):
        return label_rows.open_rows(db, str(table.path))
    source = open_source(db, table.key, table.path, table.columns.table)
    columns = table.columns
    if ROW in (columns.id if isinstance(columns, NodeColumns) else columns.source,):
        source = source.with_rows(ROW)
    for key, column in table.named:
        require(key, column, source.name, source.columns)
        source.refuse_nested(key, column)
        if key.endswith((".id", ".source", ".target")):
            source.refuse_rounded(db, key, column)
    return source


def read_nodes(
    db: Database,
    config: TablesConfig,
    table: NodeTable,
    ends: list[tuple[Source, str]],
    fitted: Columns | None,
    known: KnownLabels | None,
) -> tuple[int, Labels | None, Columns]:
    """Read the table of nodes, or number the ids that edges name.

    Args:
        ends: tables of edges, each with a column of ids of the nodes.
        fitted: what is known of the columns of the table of a training; none: this one tells.
        known: the same of its labels. They have splits in a training only.

    Returns:
        The number of nodes, their labels, and what is known of their columns of features.

    Raises:
        ValueError: names the file, the column and the first bad row.
    """
    if table.path is None:
        tables_edges.number_ids(db, ends)
        return tables_nodes.count(db, f"{ends[0][0].name} holds no ids"), None, Columns()
    source = open_table(db, table)
    kind = "none" if known and not known.grows else table.split
    found = tables_nodes.read(
        db,
        source,
        table,
        values_of(table),
        is_divided=kind != "none",
        fitted=fitted,
        unknown=config.unknown,
        duplicates=config.duplicates,
    )
    num_nodes = tables_nodes.count(db, f"{table.path} holds no rows")
    if not table.labels:
        return num_nodes, None, found
    split = partial(
        tables_labels.split,
        db=db,
        source=source,
        kind=kind,
        column=str(table.by),
        fractions=(config.train_fraction, config.valid_fraction),
        seed=config.graph_seed,
        until=config.until,
        keeps_equal=is_made(table),
        has_pairs=table.ends is not None,
    )
    is_log, metric = table.columns.log_label, table.metric
    labels = tables_labels.read(
        db, source, table.labels, num_nodes, metric, split, is_log=is_log, known=known
    )
    if table.columns.text_features == "scores":
        check_columns(labels.out_channels)
    return num_nodes, labels, found


def learn_features(
    db: Database,
    num_nodes: int,
    config: TablesConfig,
    table: NodeTable,
    labels: Labels | None,
    found: Columns,
    *,
    neighbors: list[tables_nodes.Neighbors],
    links: Links,
    is_new: bool,
) -> tuple[list[TextFeatures], Columns]:
    """Learn what the features of nodes are made with, or go on with what other tables have told.

    Args:
        found: what :func:`read_nodes` returned.
        neighbors: by each table of edges, in each direction.
        links: all edges.
        is_new: whether these tables tell.

    Returns:
        What computes the features of each column of text, and what is known of all columns.
    """
    columns, num_columns = table.columns, len(table.columns.text_columns())
    # Linear models of texts read the ids of neighbours and the words of names too. Runs of before did not.
    if is_new:
        is_small = num_nodes <= MOST_WITH_IDS and not config.on_disk
        are_terms = bool(num_columns) and labels is not None and is_small and config.reading > 3
        are_words = are_terms and config.reading > 4
    else:
        are_terms, are_words = len(found.texts) > num_columns, "names" in found.kinds
    num_ids = len(neighbors) if columns.text_neighbors or are_terms else 0
    texts = texts_of(columns, are_words=are_words, num_ids=num_ids)
    for text in texts:
        if text.kind == "ids":
            tables_nodes.collect_ids(db, text.place, neighbors[text.place - num_columns])
    if not is_new:
        known = found.vectors or [text.vectors for text in texts]  # earlier versions kept none
        for text, counted, vectors in zip(texts, found.texts, known, strict=True):
            text.restore(*counted, vectors)
        return texts, tables_nodes.recognise(db, texts, found)
    return texts, tables_nodes.fit(
        db,
        str(table.path),
        num_nodes,
        values_of(table),
        texts,
        found=found,
        seed=config.graph_seed,
        links=links if config.score_folds == "groups" else None,
        labels=labels,
        are_scored=columns.text_features == "scores",
        of_training=is_made(table),
    )


def texts_of(columns: NodeColumns, *, are_words: bool, num_ids: int) -> list[TextFeatures]:
    """Return what computes the features of each column of text.

    Args:
        are_words: whether columns of names are read by their words, too.
        num_ids: number of columns of the ids of neighbours.
    """
    named, is_svd = columns.text_columns(), columns.text_features == "svd"
    texts = [
        TextFeatures(
            kind,
            columns.text_channels,
            place=place,
            num_words=columns.text_words,
            char_lengths=(columns.char_lengths[0], columns.char_lengths[1]),
            tag_separator=columns.tag_separator,
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

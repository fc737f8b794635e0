"""Tables of nodes and of edges: what is in them, as a database holds it, and what makes features of it."""

from functools import partial
from typing import cast

from parallel_epochs.pipeline.data.tables import (
    label_rows,
    labels as tables_labels,
    nodes as tables_nodes,
    sorted_edges as tables_edges,
)
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.data.tables.fitted import Columns
from parallel_epochs.pipeline.data.tables.groups import Links
from parallel_epochs.pipeline.data.tables.heads import ROW, require
from parallel_epochs.pipeline.data.tables.label_table import ROWS
from parallel_epochs.pipeline.data.tables.labels import Labels
from parallel_epochs.pipeline.data.tables.scores import check_columns
from parallel_epochs.pipeline.data.tables.source import Source, open_source
from parallel_epochs.pipeline.data.tables.sql import Database
from parallel_epochs.pipeline.data.tables.text import MOST_WITH_IDS, TextFeatures
from parallel_epochs.pipeline.data.tables.values import Values


def open_table(db: Database, config: TablesConfig, what: str) -> Source:
    """Open a table, and refuse columns that it does not have, or whose cells are no single values.

    Args:
        what: "nodes" or "edges".

    Raises:
        ValueError: names the column.
    """
    edges, nodes = config.tables
    path, table, named = (
        (nodes, config.nodes.table, config.node_columns())
        if what == "nodes"
        else (edges, config.edges.table, config.edge_columns())
    )
    assert path is not None
    if ROWS in (config.nodes.id, config.edges.source):
        return label_rows.open_rows(db, str(path))
    source = open_source(db, config.nodes_part if what == "nodes" else "data.edges", path, table)
    if ROW in (config.nodes.id, config.edges.source):
        source = source.with_rows(ROW)
    for key, column in named:
        require(key, column, source.name, source.columns)
        source.refuse_nested(key, column)
    return source


def read_nodes(
    db: Database,
    config: TablesConfig,
    ends: list[tuple[Source, str]],
    fitted: Columns | None,
    known: tables_labels.KnownLabels | None,
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
    path, labels = config.tables[1], config.label_columns()
    if path is None:
        tables_edges.number_ids(db, ends)
        return tables_nodes.count(db, f"{ends[0][0].name} holds no ids"), None, Columns()
    nodes, kind = (
        open_table(db, config, "nodes"),
        "none" if known and not known.grows else config.split_kind(),
    )
    by = config.split_by if kind == "random" and labels else None
    split_column = config.nodes.split_column if kind == "column" and labels else by
    found = tables_nodes.read(
        db,
        nodes,
        config.nodes.id,
        values_of(config, "nodes"),
        texts=[name for name, _ in config.text_columns()],
        categories=config.nodes.categories,
        max_categories=config.nodes.max_categories,
        labels=labels,
        split_column=split_column,
        time_column=config.time_column if kind == "time" and labels else None,
        fitted=fitted,
        unknown=config.unknown,
        duplicates=config.duplicates,
    )
    num_nodes = tables_nodes.count(db, f"{path} holds no rows")
    if not labels:
        return num_nodes, None, found
    fractions = config.train_fraction, config.valid_fraction
    split: tables_labels.Split = {
        "none": partial(tables_labels.keep_together),
        "column": partial(
            tables_labels.split_by_column, db=db, source=nodes, column=cast(str, split_column)
        ),
        "random": partial(
            tables_labels.split_at_random, fractions=fractions, seed=config.graph_seed
        )
        if by is None
        else partial(
            tables_labels.split_by_group,
            db=db,
            source=nodes,
            column=by,
            fractions=fractions,
            seed=config.graph_seed,
        ),
        "time": partial(
            tables_labels.split_by_time,
            db=db,
            source=nodes,
            fractions=fractions,
            until=config.until,
            keeps_equal=config.nodes.id == ROWS,
        ),
    }[kind]
    learned = tables_labels.read(
        db,
        nodes,
        labels,
        num_nodes,
        config.metric,
        split,
        is_log=config.nodes.log_label,
        known=known,
    )
    if config.nodes.text_features == "scores":
        check_columns(learned.out_channels)
    return num_nodes, learned, found


def learn_features(
    db: Database,
    num_nodes: int,
    config: TablesConfig,
    labels: Labels | None,
    found: Columns,
    *,
    neighbors: list[tables_nodes.Neighbors],
    links: Links,
    is_new: bool,
) -> tuple[Values, list[TextFeatures], Columns]:
    """Learn what the features of nodes are made with, or go on with what other tables have told.

    Args:
        found: what :func:`read_nodes` returned.
        neighbors: by each table of edges, in each direction.
        links: all edges.
        is_new: whether these tables tell.

    Returns:
        The columns of numbers, what computes the features of each column of text, and what is known of all columns.
    """
    numbers, are_features, num_columns = (
        values_of(config, "nodes"),
        config.nodes.text_neighbors,
        len(config.text_columns()),
    )
    # Linear models of texts read the ids of neighbours and the words of names too. Runs of before did not.
    are_terms = (
        len(found.texts) > num_columns
        if not is_new
        else bool(num_columns)
        and labels is not None
        and (num_nodes <= MOST_WITH_IDS and not config.on_disk and config.reading > 3)
    )
    texts = texts_of(
        config,
        are_words=are_terms and config.reading > 4 if is_new else "names" in found.kinds,
        num_ids=len(neighbors) if are_features or are_terms else 0,
    )
    for text in texts:
        if text.kind == "ids":
            tables_nodes.collect_ids(db, text.place, neighbors[text.place - num_columns])
    if is_new:
        found = tables_nodes.fit(
            db,
            str(config.tables[1]),
            num_nodes,
            numbers,
            texts,
            found=found,
            seed=config.graph_seed,
            links=links if config.score_folds == "groups" else None,
            labels=labels,
            are_scored=config.nodes.text_features == "scores",
            of_training=config.nodes.id == ROWS,
        )
    else:
        restore(texts, found)
        found = tables_nodes.recognise(db, texts, found)
    return numbers, texts, found


def values_of(config: TablesConfig, what: str) -> Values:
    """Return the columns of numbers and of dates of the "nodes" or "edges"."""
    keys = config.nodes if what == "nodes" else config.edges
    return Values(
        config.value_columns(what),
        keys.log1p,
        keys.standardize,
        config.empty,
        config.nodes.quantiles if what == "nodes" else [],
    )


def texts_of(config: TablesConfig, *, are_words: bool, num_ids: int) -> list[TextFeatures]:
    """Return what computes the features of each column of text.

    Args:
        are_words: whether columns of names are read by their words, too.
        num_ids: number of columns of the ids of neighbours.
    """
    nodes, columns = config.nodes, config.text_columns()
    texts = [
        TextFeatures(
            kind,
            nodes.text_channels,
            place=place,
            num_words=nodes.text_words,
            char_lengths=(nodes.char_lengths[0], nodes.char_lengths[1]),
            tag_separator=nodes.tag_separator,
            is_decomposed=nodes.text_features == "svd",
        )
        for place, (_, kind) in enumerate(columns)
    ]
    texts += [
        TextFeatures("names", 0, place=text.place)
        for text in texts
        if are_words and text.kind == "chars"
    ]
    return texts + [
        TextFeatures(
            "ids",
            nodes.text_channels if nodes.text_neighbors else 0,
            place=place,
            is_decomposed=nodes.text_neighbors and nodes.text_features == "svd",
        )
        for place in range(len(columns), len(columns) + num_ids)
    ]


def restore(texts: list[TextFeatures], found: Columns) -> None:
    """Let columns of text go on as those of a training, of which `found` tells."""
    known = found.vectors or [text.vectors for text in texts]  # earlier versions kept none
    for text, counted, vectors in zip(texts, found.texts, known, strict=True):
        text.restore(*counted, vectors)

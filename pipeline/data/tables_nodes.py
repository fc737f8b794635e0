"""Nodes of tables: their ids, and their features from columns of numbers and of text."""

import logging

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
import torch

from models.edges import INT32_END
from pipeline.data.tables_config import TablesConfig
from pipeline.data.tables_labels import Labels, read_values
from pipeline.data.tables_scores import MAX_NODES, TextScores, fit_scores
from pipeline.data.tables_source import Source
from pipeline.data.tables_sql import Database, blocks
from pipeline.data.tables_text import TextFeatures
from pipeline.graph.store import StoreWriter
from pipeline.run.seeds import stream

log = logging.getLogger(__name__)

# Nodes that are in memory at a time with their features. Means are sums over such blocks: another number, other bits.
BLOCK = 1 << 14


def read(db: Database, config: TablesConfig, source: Source) -> None:
    """Make the table of nodes of what their table holds, numbered in its order.

    Columns are ``number``, ``id``, ``f0``... the features, ``text0``..., ``label0``..., ``split`` and ``time``; NULL is
    an empty cell, or one that is no number.

    Raises:
        ValueError: names the file, the column and the first bad row.
    """
    nodes = config.nodes
    split_column = nodes.split_column if config.split_kind() == "column" and config.label_columns() else None
    options = [("id", nodes.id), *(("features", name) for name in nodes.features),
               *(("text", name) for name, _ in config.text_columns()),
               *(("label" if nodes.label is not None else "labels", name) for name in config.label_columns()),
               *([("split_column", split_column)] if split_column is not None else [])]
    for option, column in options:
        source.require(option, column)
    chosen = ["(row_number() OVER () - 1)::INTEGER AS number", f"{source.text(nodes.id)} AS id"]
    chosen += [f"{source.number('features', name)} AS f{place}" for place, name in enumerate(nodes.features)]
    chosen += [f"{source.text(name)} AS text{place}" for place, (name, _) in enumerate(config.text_columns())]
    chosen += [f"{source.text(name)} AS label{place}" for place, name in enumerate(config.label_columns())]
    if split_column is not None:
        chosen.append(f"{source.text(split_column)} AS split")
    if config.split_kind() == "time":
        if config.time_column not in source.columns:
            raise ValueError(f"data.time_column={config.time_column}: {source.name} has no such column; there are "
                             f"{', '.join(source.columns)}")
        chosen.append(f"{source.text(config.time_column)} AS time")
    db.stage("nodes", f"SELECT {', '.join(chosen)} FROM {source.relation}", "reading nodes")
    _report(db, config, source)


def count(db: Database, config: TablesConfig) -> int:
    """Return the number of nodes.

    Raises:
        ValueError: there are none, or more than int32 can number.
    """
    (num_nodes,), = db.execute("SELECT count(*) FROM nodes")
    if not num_nodes:
        raise ValueError(f"{config.resolve(config.nodes.path or config.edges.path)} holds no "
                         f"{'rows' if config.nodes.path else 'ids'}: there are no nodes")
    if num_nodes >= INT32_END:
        raise ValueError(f"{num_nodes:,} nodes are more than a graph can have here, {INT32_END - 1:,}")
    return num_nodes


def _report(db: Database, config: TablesConfig, source: Source) -> None:
    nodes = config.nodes
    empty = "".join(f", count(*) FILTER (f{place} IS NULL)" for place in range(len(nodes.features)))
    num_nodes, no_id, *missing = db.execute(f"SELECT count(*), count(*) FILTER (id IS NULL){empty} FROM nodes")[0]
    if no_id:
        name, row, _ = source.first_row(db, f"{source.text(nodes.id)} IS NULL")
        raise ValueError(f"{name}: row {row}, column {nodes.id} is empty: every node needs an id; {no_id:,} rows in "
                         "all are such")
    twice = db.execute("SELECT id, min(number), count(*) FROM nodes GROUP BY id HAVING count(*) > 1 ORDER BY 2 LIMIT 1",
                       "looking for ids that are there twice")
    if twice:
        id, first, times = twice[0]
        raise ValueError(f"{source.name}: the id {id!r} of row {first + 1} is there {times:,} times (data.nodes.id="
                         f"{nodes.id}): a node is one row")
    notes = []
    for column, count in zip(nodes.features, missing):
        if count:
            notes.append(source.report_empty(db, "features", column, count, refuse=config.empty == "error",
                                             filled="the mean" if nodes.standardize else "zeros"))
    for column in nodes.log1p:
        if found := source.first_row(db, f"{source.number('features', column)} <= -1", source.text(column)):
            name, row, (text,) = found
            raise ValueError(f"{name}: row {row}, column {column} holds {text}, and there is no logarithm of "
                             "1 + it (data.nodes.log1p)")
    log.info("%s: %s nodes%s", source.name, f"{num_nodes:,}", "".join(f"; {note}" for note in notes))


def write_names(db: Database, writer: StoreWriter, num_nodes: int) -> None:
    """Write the ids as ``names`` and ``names_ptr``, see :func:`pipeline.data.node_names.pack_names`."""
    if writer.has("names", "names_ptr"):
        return
    (size,), = db.execute("SELECT coalesce(sum(strlen(id)), 0)::BIGINT FROM nodes")
    at = 0
    with writer.write(names=((size,), torch.uint8), names_ptr=((num_nodes + 1,), torch.int64)) as opened:
        opened["names_ptr"].write(0, np.zeros(1, np.int64))
        for first, last in blocks(num_nodes, 1 << 18):
            table = db.fetch(f"SELECT id FROM nodes WHERE number >= {first} AND number < {last} ORDER BY number")
            ids = table["id"].cast(pa.large_string()).combine_chunks()
            ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
            _, offsets, content = ids.buffers()
            ends = np.frombuffer(offsets, np.int64)[ids.offset:ids.offset + len(ids) + 1]
            text = np.frombuffer(content, np.uint8)[ends[0]:ends[-1]]
            opened["names"].write(at, text)
            opened["names_ptr"].write(first + 1, at + ends[1:] - ends[0])
            at += len(text)


def has_features(config: TablesConfig) -> bool:
    """Tell whether nodes have features of their own."""
    return bool(config.nodes.features or config.text_columns())


def write_features(db: Database, config: TablesConfig, writer: StoreWriter, num_nodes: int,
                   labels: Labels | None) -> None:
    """Write ``x``: the columns of numbers, then those of each column of text, or the scores of all of them.

    Args:
        labels: that scores are of.
    """
    if writer.has("x"):
        return
    nodes = config.nodes
    mean, std = _moments(db, config, num_nodes)
    texts = [TextFeatures(kind, nodes.text_channels, num_words=nodes.text_words,
                          char_lengths=(nodes.char_lengths[0], nodes.char_lengths[1]),
                          tag_separator=nodes.tag_separator) for _, kind in config.text_columns()]
    for place, text in enumerate(texts):
        for first, last in blocks(num_nodes, BLOCK):
            text.count(_texts(db, place, first, last))
    scores = _fit_scores(db, config, texts, num_nodes, labels) if nodes.text_features == "scores" and labels else None
    channels = len(nodes.features) + (sum(text.channels for text in texts) if scores is None else len(scores.bias))
    with writer.write(x=((num_nodes, channels), torch.float32)) as opened:
        for first, last in blocks(num_nodes, BLOCK):
            parts = [((_numbers(db, config, first, last) - mean) / std)] if nodes.features else []
            parts = [np.nan_to_num(part) for part in parts]
            parts += [scores.transform(first, _terms(db, texts, first, last))] if scores is not None else [
                text.transform(_texts(db, place, first, last)) for place, text in enumerate(texts)]
            block = np.concatenate([part.astype(np.float32) for part in parts], axis=1)
            opened["x"].write(first * channels, block)


def _fit_scores(db: Database, config: TablesConfig, texts: list[TextFeatures], num_nodes: int,
                labels: Labels) -> TextScores:
    """Fit the scores of texts to the nodes for training, or to as many of them as are thought of."""
    rng = stream("text scores", config.graph_seed)
    fitted = np.flatnonzero(labels.masks[0].numpy())
    if len(fitted) > MAX_NODES:
        fitted = np.sort(rng.choice(fitted, MAX_NODES, replace=False))
    terms, values = [], []
    for first, last in blocks(num_nodes, BLOCK):
        own = fitted[(fitted >= first) & (fitted < last)] - first
        terms.append(_terms(db, texts, first, last)[own])
        values.append(read_values(db, labels.metric, config.label_columns(), first, last)[own])
    return fit_scores(fitted, sp.csr_array(sp.vstack(terms)), np.concatenate(values), labels.metric, rng)


def _terms(db: Database, texts: list[TextFeatures], first: int, last: int) -> sp.csr_array:
    """Weigh the terms of all columns of text of some nodes [last - first, hashes of all columns]."""
    return sp.csr_array(sp.hstack([text.weigh(_texts(db, place, first, last)) for place, text in enumerate(texts)],
                                  format="csr"))


def _moments(db: Database, config: TablesConfig, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and standard deviation of the columns of numbers, without what is empty; 0 and 1 if not wanted."""
    channels = len(config.nodes.features)
    mean, std = np.zeros(channels), np.ones(channels)
    if not config.nodes.standardize or not channels:
        return mean, std
    counts, sums, squares = np.zeros(channels), np.zeros(channels), np.zeros(channels)
    for first, last in blocks(num_nodes, BLOCK):
        values = _numbers(db, config, first, last)
        counts += (~np.isnan(values)).sum(0)
        sums += np.nansum(values, 0)
    mean = sums / np.maximum(counts, 1)
    for first, last in blocks(num_nodes, BLOCK):
        squares += np.nansum((_numbers(db, config, first, last) - mean) ** 2, 0)
    return mean, np.maximum(np.sqrt(squares / np.maximum(counts, 1)), 1e-6)


def _numbers(db: Database, config: TablesConfig, first: int, last: int) -> np.ndarray:
    """Read the columns of numbers of some nodes, float64, NaN where a cell is empty."""
    columns = config.nodes.features
    chosen = ", ".join(f"coalesce(f{place}::DOUBLE, 'nan'::DOUBLE) AS f{place}" for place in range(len(columns)))
    table = db.fetch(f"SELECT {chosen} FROM nodes WHERE number >= {first} AND number < {last} ORDER BY number")
    values = np.stack([table[f"f{place}"].to_numpy() for place in range(len(columns))], axis=1)
    for place, column in enumerate(columns):
        if column in config.nodes.log1p:
            values[:, place] = np.log1p(values[:, place])
    return values


def _texts(db: Database, place: int, first: int, last: int) -> list[str]:
    table = db.fetch(f"SELECT coalesce(text{place}, '') AS text FROM nodes WHERE number >= {first} AND number < {last} "
                     "ORDER BY number")
    return table["text"].to_pylist()

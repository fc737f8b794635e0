"""Labels, splits and categories of the nodes of tables: both have values that are numbered."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.check import check_metric, check_splits
from parallel_epochs.pipeline.data.node_names import number_names, pack_names
from parallel_epochs.pipeline.data.splits import divide, shuffle, shuffle_groups
from parallel_epochs.pipeline.data.tables.schema import NodeTable, TableKeys, is_made
from parallel_epochs.pipeline.data.tables.source import LARGEST, Source, cast_label
from parallel_epochs.pipeline.data.tables.sql import Database, blocks, literal
from parallel_epochs.pipeline.graph.store import StoreWriter
from parallel_epochs.pipeline.metrics import CLASS_METRICS, TASK_METRICS
from parallel_epochs.pipeline.names import MASKS, SPLIT_NAMES, SPLITS
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

# Different values that a column may have, at most.
MOST_CATEGORIES = 256
# Nodes whose labels are in memory at a time.
BLOCK = 1 << 18
# Two labels of which one has a smaller share are measured by their order: "none of them" would be nearly always right.
RARE = 0.25


# Texts that programs write for no value.
NO_LABEL = ("na", "n/a", "#n/a", "nan", "none", "null", "nil", "-", "?", "unknown")


@dataclass(frozen=True)
class KnownLabels:
    """The form that labels of other tables must have.

    Attributes:
        metric: of the labels of the training.
        names: of its classes, in the order of their numbers; of other labels they are not read.
        unknown: what is done with a class that the training did not see: "error" or "empty".
        grows: whether these are tables of a training too, which adds its classes to those of the other.
    """

    metric: str
    names: list[str]
    unknown: str
    grows: bool = False


@dataclass
class Labels:
    """The labels of the nodes.

    Attributes:
        columns: of the labels.
        metric: of the labels.
        masks: nodes for training, validation and test, each bool [num_nodes]; a node without a label is in none.
        out_channels: classes or columns.
        names: of the classes or columns, as tensors.
        groups: number of each node's group [num_nodes], where groups are divided; otherwise none.
    """

    columns: list[str]
    metric: str
    masks: list[Tensor]
    out_channels: int
    names: dict[str, Tensor] = field(default_factory=dict)
    groups: np.ndarray | None = None


def read(
    source: Source,
    config: TableKeys,
    table: NodeTable,
    num_nodes: int,
    known: KnownLabels | None,
) -> Labels:
    """Look through labels and splits, and refuse or report what is odd, before anything is written.

    Args:
        table: names the columns of labels, and perhaps their metric.
        known: of a training whose model reads these tables; none: they are those of a training.

    Raises:
        ValueError: names the file, the column and the first bad row.
    """
    db = source.db
    option, columns = table.labels[0][0], [column for _, column in table.labels]
    metric = known.metric if known else _choose_metric(source, table, columns)
    if metric in CLASS_METRICS:
        names = _number_classes(source, columns[0], known)
    else:
        _check_numbers(source, option, columns, metric)
        names = pack_names(np.asarray(columns), "label_names")
    labels = Labels(columns, metric, [], len(columns), names)
    parts = list(blocks(num_nodes, BLOCK))
    labelled = np.concatenate([~np.isnan(read_values(db, labels, *part)).all(1) for part in parts])
    notes = [f"{int(labelled.sum()):,}"]
    if known is not None and not known.grows:
        none = torch.zeros(num_nodes, dtype=torch.bool)
        labels.masks = [torch.from_numpy(labelled), none, none.clone()]
    else:
        labels.masks, labels.groups = _split(labelled, source, config, table)
        check_splits(torch.stack(labels.masks), "node")
        notes = [f"{int(mask.sum()):,} for {split}" for mask, split in zip(labels.masks, SPLITS)]
    if missing := int(num_nodes - labelled.sum()):
        notes.append(f"{count(missing, 'node')} without a label, in no split")
    log.info("%s: labels of %s: %s", source.name, metric, "; ".join(notes))
    if (
        metric in CLASS_METRICS
    ):  # as parallel_epochs.pipeline.data.prepare counts them: those of the splits
        classes = np.concatenate([read_values(db, labels, *part) for part in parts])
        counted = classes[torch.stack(labels.masks).any(0).numpy()]
        num_known = len(known.names) if known and known.grows else 0
        labels.out_channels = max(num_known, int(counted.max(initial=0)) + 1)
    return labels


def _check_numbers(source: Source, option: str, columns: list[str], metric: str) -> None:
    """Refuse labels that are no numbers, or none that the metric takes."""
    source.refuse_wrong_numbers(option, columns)
    mend = "Subtract a constant from the labels to keep their differences"
    numbers = {f"TRY_CAST(label{place} AS DOUBLE)": name for place, name in enumerate(columns)}
    source.warn_rounded("nodes", numbers, mend)
    if metric in TASK_METRICS:
        source.refuse_values(
            option,
            columns,
            "NOT IN (0, 1)",
            ", which is neither 0 nor 1; set data.metric="
            f"rmse for real values, and give {source.key}.label for classes",
        )


def _number_classes(source: Source, column: str, known: KnownLabels | None) -> dict[str, Tensor]:
    """Number the classes of a column; returns their names as tensors, none where those of a training count."""
    if known and not known.grows:
        for note in use_values(source, "label0", column, "classes", known.names, known.unknown):
            log.info("%s: %s", source.name, note)
        return {}
    names = number_values(source.db, "label0", "classes", known.names if known else ())
    plain = [name.strip() for name in names]
    is_none = [name.lower() in NO_LABEL for name in plain]
    if "-1" in plain and all(name.isdecimal() or name == "-1" for name in plain):
        is_none[plain.index("-1")] = True
    for name, short, looks in zip(names, plain, is_none):
        if looks or plain.count(short) > 1:
            log.warning(
                "%s: column %s has the class %r, which looks like %s. Empty or correct such cells, unless it is one",
                source.name,
                column,
                name,
                "no label" if looks else f"{short!r} with blanks",
            )
    return pack_names(np.asarray(names, object), "label_names")


def write(
    db: Database, writer: StoreWriter, labels: Labels, first_node: int, num_nodes: int
) -> None:
    """Write ``y``, the masks and ``label_names``.

    Args:
        first_node: number of the first of the nodes that have labels, among all.
        num_nodes: of the graph; those of other types have no labels.
    """
    own, columns = len(labels.masks[0]), labels.columns
    for name, mask in zip(MASKS, labels.masks):
        whole = torch.zeros(num_nodes, dtype=torch.bool)
        whole[first_node : first_node + own] = mask
        writer.put(name, whole)
    for name, value in labels.names.items():
        writer.put(name, value)
    if labels.groups is not None:
        groups = np.full(num_nodes, -1)
        groups[first_node : first_node + own] = labels.groups
        writer.put("groups", torch.from_numpy(groups))
    if writer.has("y"):
        return
    classes = labels.metric in CLASS_METRICS
    in_split = torch.stack(labels.masks).any(0).numpy()
    with writer.write(
        y=((num_nodes, len(columns)), torch.int64 if classes else torch.float32)
    ) as opened:
        for first, last in () if classes else blocks(num_nodes, BLOCK):
            unknown = np.full((last - first, len(columns)), np.nan, np.float32)
            opened["y"].write(first * len(columns), unknown)
        for first, last in blocks(own, BLOCK):
            values = read_values(db, labels, first, last)
            if classes:  # as parallel_epochs.pipeline.data.prepare writes those that do not count
                values = np.where(in_split[first:last, None], values, 0).astype(np.int64)
            else:
                values = values.astype(np.float32)
            opened["y"].write((first_node + first) * len(columns), values)


def _choose_metric(source: Source, table: NodeTable, columns: list[str]) -> str:
    metric = table.metric
    check_metric(metric)
    if metric is not None:
        if metric in CLASS_METRICS and len(columns) > 1:
            raise ValueError(f"data.metric={metric}: classes are one column, {source.key}.label")
        return metric
    cells = " UNION ALL ".join(
        f"SELECT label{place} AS label FROM nodes" for place in range(len(columns))
    )
    number = "TRY_CAST(label AS DOUBLE)"
    binary = cast_label("label")
    texts, fractions, others, odd, mean = source.db.execute(
        f"SELECT count(*) FILTER ({number} IS NULL), count(*) FILTER ({number} <> floor({number})), "
        f"count(*) FILTER ({number} NOT IN (0, 1)), count(*) FILTER (coalesce({binary}, 2) NOT IN (0, 1)), "
        f"avg({binary}) FROM ({cells}) WHERE label IS NOT NULL"
    )[0]
    if len(columns) > 1:
        return "rmse" if fractions or others else "rocauc"
    if fractions and not texts:
        return "rmse"
    if odd or mean is None or not 0 < (share := min(mean, 1 - mean)) < RARE:
        return "acc"
    log.info(
        "%s: the rarer label of column %s has a share of %s, so the metric is rocauc. data.metric=acc counts right "
        "answers instead",
        source.name,
        columns[0],
        f"{share:.1%}",
    )
    return "rocauc"


def read_values(db: Database, labels: Labels, first: int, last: int) -> np.ndarray:
    """Read the labels of some nodes, float64 [last - first, num_columns], NaN where there is none."""
    nodes = f"(SELECT * FROM nodes WHERE number >= {first} AND number < {last})"
    places = range(len(labels.columns))
    if labels.metric in CLASS_METRICS:
        table = db.fetch(
            f"SELECT coalesce(class::DOUBLE, 'nan'::DOUBLE) AS v0 FROM {nodes} LEFT JOIN classes "
            "ON label0 = name ORDER BY number"
        )
    else:
        number = cast_label("label{0}")
        chosen = ", ".join(
            f"CASE WHEN abs({number.format(place)}) <= {LARGEST} THEN {number.format(place)} "
            f"ELSE 'nan'::DOUBLE END AS v{place}"
            for place in places
        )
        table = db.fetch(f"SELECT {chosen} FROM {nodes} ORDER BY number")
    return np.stack([table[f"v{place}"].to_numpy() for place in places], axis=1)


def find_split(source: Source, table: NodeTable) -> NodeTable:
    """Return a table with labels that is to be divided at random, so that its column `split` divides it if it can."""
    name = next((name for name in source.columns if name.lower() == "split"), None)
    if name is None or not table.labels or table.split != "random":
        return table
    cell = source.text(name)
    named = f"lower(trim({cell})) IN ({', '.join(map(literal, SPLIT_NAMES))})"
    query = f"SELECT bool_and({named}) FROM {source.relation} WHERE {cell} IS NOT NULL"
    if not source.db.execute(query)[0][0]:
        return table
    log.info("%s: divided by its column %s (otherwise set data.split=random)", source.name, name)
    return replace(table, split="column", by=name)


def find_hidden(db: Database, labels: Labels, *, by_time: bool, is_new: bool) -> Tensor:
    """Tell which edges of a table with labels send no messages: those of validation and test, bool [num_rows].

    With a split by time, neither do those without a label that are later than training, or have no time. Of other
    tables with known labels, those without one are to be predicted.

    Args:
        by_time: whether the table of nodes has the times by which it was divided.
        is_new: whether it is the table of a training.
    """
    train, valid, test = labels.masks
    hidden = valid | test if is_new else ~train
    if not (by_time and is_new):
        return hidden
    times = torch.from_numpy(db.column("coalesce(time::DOUBLE, 'inf'::DOUBLE)"))
    return hidden | ~train & (times > times[train].max())


def _split(
    labelled: np.ndarray, source: Source, config: TableKeys, table: NodeTable
) -> tuple[list[Tensor], np.ndarray | None]:
    """Divide the nodes with a label, bool [num_nodes], into masks for training, validation and test.

    Rows of a label table of one time stay in one split. So do, at random, edges with labels between the same two nodes
    that are there in both directions.

    Returns:
        The masks, and the number of each node's group, int64 [num_nodes], if the table names groups.

    Raises:
        ValueError: a cell names no split, there are too few times, or nothing is left for training or validation.
    """
    num_nodes, kind, named = len(labelled), table.split, None
    fractions = config.train_fraction, config.valid_fraction
    pairs = np.zeros(0, np.int64)
    if table.ends is not None and kind == "random":
        is_both = "min(way) OVER (PARTITION BY pair) <> max(way) OVER (PARTITION BY pair)"
        rank = "dense_rank() OVER (ORDER BY pair)"
        pairs = source.db.column(f"CASE WHEN {is_both} THEN {rank} ELSE -1 - number END::BIGINT")
        if num_both := int((pairs > 0).sum()):
            log.warning(
                "%s: %s between two nodes in both directions; the rows of such a pair stay in one split",
                source.name,
                count(num_both, "edge lies", "edges lie"),
            )
    if kind == "random" and not (pairs > 0).any():
        return divide(shuffle(labelled, config.graph_seed), num_nodes, *fractions), None
    if kind in ("random", "group"):
        groups = pairs
        if kind == "group":
            source.group(str(table.by))
            groups = named = source.db.column("dense_rank() OVER (ORDER BY split)")
        order, own = shuffle_groups(np.flatnonzero(labelled), groups[labelled], config.graph_seed)
        return divide(order, num_nodes, *fractions, groups=own), named
    if kind == "column":
        return _split_by_column(labelled, source, str(table.by)), None
    times = source.db.column("coalesce(time::DOUBLE, 'nan'::DOUBLE)")
    if left_out := int((labelled & np.isnan(times)).sum()):
        log.info(
            "%s: %s nodes with a label have no time, and are in no split",
            source.name,
            f"{left_out:,}",
        )
    kept = np.flatnonzero(labelled & ~np.isnan(times))
    kept = kept[np.argsort(times[kept], kind="stable")]
    own = times[kept]
    if not is_made(table) or config.until is not None:
        return divide(kept, num_nodes, *fractions, times=own, until=config.until), None
    if (num_times := len(np.unique(own))) < 3:
        raise ValueError(
            f"{source.name}: rows with labels have {count(num_times, 'time')}, and training, "
            "validation and test need one each. Give labels of further times"
        )
    return divide(kept, num_nodes, *fractions, groups=own), None


def _split_by_column(labelled: np.ndarray, source: Source, column: str) -> list[Tensor]:
    key = f"{source.key}.split_column"
    codes = source.db.column(f"({source.split(column, key, cell='split')})::TINYINT")
    if unlabelled := int(((codes < 3) & ~labelled).sum()):
        log.info(
            "%s: %s no label, and %s left out of it",
            source.name,
            count(unlabelled, "node of a split has", "nodes of a split have"),
            "is" if unlabelled == 1 else "are",
        )
    if not ((codes == 0) & labelled).any():
        raise ValueError(
            f"{source.name}: the train split is empty: no row with a label has train in the column "
            f"{column} ({key})"
        )
    return [torch.from_numpy((codes == number) & labelled) for number in range(3)]


def number_values(
    db: Database, cell: str, table: str, known: Sequence[str] = (), *, is_closed: bool = False
) -> list[str]:
    """Number the values of a column as :mod:`pipeline.data.node_names` does, in a table of their own.

    Beside numbers, nan is no value but stands for none, and numbers in several forms, such as 1 and 1.0, are one value;
    with leading zeros they are texts.

    Args:
        cell: the column of the table of nodes that holds the values.
        table: is made, with the columns ``name`` and ``class``.
        known: values of another run, which keep their numbers; others come behind them.
        is_closed: whether others have no number.

    Returns:
        The values, in the order of their numbers.
    """
    found = [
        row[0]
        for row in db.execute(
            f"SELECT {cell} FROM nodes WHERE {cell} IS NOT NULL GROUP BY {cell} ORDER BY min(number)"
        )
    ]
    texts: list[str] = [text for text in [*known, *found] if text.strip().lower() != "nan"]
    numbers = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce")
    if numbers.isna().any():
        texts = [*known, *found]
    has_forms = numbers.notna().all() and not any(re.match(r"[-+]?0[0-9]", text) for text in texts)
    keys = numbers.tolist() if has_forms else texts
    first = dict(zip(reversed(keys), reversed(texts)))
    names, seen = list(known), set(known)
    others = [text for text in dict.fromkeys(map(first.get, keys)) if text not in seen]
    if others and not is_closed:
        names += number_names(pd.Series(others, dtype=object))[1].tolist()
    classes = {name: place for place, name in enumerate(names)}
    for key, text in zip(keys, texts):
        if (name := first[key]) in classes:
            classes.setdefault(text, classes[name])
    db.fill_names(table, classes, "class")
    return names


def read_categories(
    source: Source,
    columns: list[str],
    *,
    known: Sequence[Sequence[str]] | None = None,
    unknown: str = "error",
) -> tuple[list[list[str]], list[str]]:
    """Number the values of columns of categories, which are ``category0``... in the table of nodes.

    Args:
        known: the values of each column of the tables of a training, in the order of their numbers; none: those of
            this table.
        unknown: what is done with a value that is not `known`: "error" refuses it, "empty" takes the cell for empty.

    Returns:
        The values of each column, in the order of their numbers, and what to report of each.

    Raises:
        ValueError: names the file, the column and what is wrong with it.
    """
    values, notes = list[list[str]](), []
    if known is not None and len(known) != len(columns):
        raise DamagedFile(
            f"what the run learned of its tables is damaged: it has {len(known)} columns of categories, not {len(columns)}"
        )
    for place, column in enumerate(columns):
        cell = f"category{place}"
        if known is not None:
            names = known[place]
            notes += use_values(source, cell, column, f"categories{place}", names, unknown)
        else:
            names = _number_column(source, cell, column, place)
        ((empty,),) = source.db.execute(
            f"SELECT count(*) - count(class) FROM nodes LEFT JOIN categories{place} ON {cell} = name"
        )
        values.append(list(names))
        notes.append(f"{column}: {count(len(names), 'category', 'categories')}")
        if empty:
            notes[-1] += f", and {count(empty, 'empty cell')} in none of them"
    return values, notes


def _number_column(source: Source, cell: str, column: str, place: int) -> list[str]:
    """Number the values of a column, and refuse too many or none."""
    ((size,),) = source.db.execute(
        f"SELECT count(DISTINCT {cell}) FROM nodes", "counting categories"
    )
    if size > MOST_CATEGORIES:
        raise ValueError(
            f"{source.name}: column {column} holds {size:,} different values, which would be as many "
            f"columns of x, and {MOST_CATEGORIES} are the most. Give the "
            "column as one of data.nodes.text_tags, which shares columns among values, or of "
            "data.nodes.features if it holds numbers"
        )
    names = number_values(source.db, cell, f"categories{place}")
    if not len(names):
        raise ValueError(
            f"{source.name}: column {column} is empty in every row. Leave it out of "
            "data.nodes.categories"
        )
    return names


def use_values(
    source: Source,
    cell: str,
    column: str,
    table: str,
    known: Sequence[str],
    unknown: str,
) -> list[str]:
    """Number the values of a column as in the training, in a table of their own. Beside numbers, nan is no value.

    Args:
        cell, column, table: as of :func:`number_values`.
        known: the values in the order of their numbers.
        unknown: what is done with other values, as of :func:`read_categories`.

    Returns:
        What to report of other values.

    Raises:
        ValueError: there is another value, and `unknown` is "error".
    """
    number_values(source.db, cell, table, known, is_closed=True)
    are_numbers = pd.to_numeric(pd.Series(known, dtype=object), errors="coerce").notna().all()
    is_value = f"lower(trim({cell})) <> 'nan'" if are_numbers else "true"
    found = source.db.execute(
        f"SELECT {cell}, count(*), sum(count(*)) OVER (), min(number) FROM nodes ANTI JOIN "
        f"{table} ON {cell} = name WHERE {cell} IS NOT NULL AND {is_value} "
        f"GROUP BY {cell} ORDER BY 4 LIMIT 1"
    )
    if found and unknown == "empty":
        return [
            f"{column}: {count(int(found[0][2]), 'cell', 'cells')} with categories that the training did not see, "
            f"such as {found[0][0]!r}, taken for empty"
        ]
    if found:
        ((value, times, _, _),) = found
        source.refuse(
            column,
            f"{source.text(column)} = {literal(value)}",
            ", a category that the training did not see",
            f"; {count(times, 'row')} in all {'has' if times == 1 else 'have'} it. Empty such cells, set "
            "data.unknown=empty, or train with rows of this category",
        )
    return []


def one_hot(db: Database, sizes: Sequence[int], first: int, last: int) -> np.ndarray:
    """Read the categories of some nodes, float32 [last - first, sum of sizes]; a cell without one is all zeros.

    Args:
        sizes: the number of values of each column.
    """
    if not sizes:
        return np.empty((last - first, 0), np.float32)
    places = range(len(sizes))
    chosen = ", ".join(f"coalesce(c{place}.class, -1) AS c{place}" for place in places)
    joins = " ".join(
        f"LEFT JOIN categories{place} AS c{place} ON category{place} = c{place}.name"
        for place in places
    )
    table = db.fetch(
        f"SELECT {chosen} FROM (SELECT * FROM nodes WHERE number >= {first} AND number < {last}) {joins} "
        "ORDER BY number"
    )
    return np.concatenate(
        [
            (table[f"c{place}"].to_numpy()[:, None] == np.arange(size)).astype(np.float32)
            for place, size in enumerate(sizes)
        ],
        axis=1,
    )

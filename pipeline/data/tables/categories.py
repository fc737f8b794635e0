"""Columns of categories: their different values are numbered, and each becomes a column of 0 and 1."""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from parallel_epochs.pipeline.data.node_names import number_names
from parallel_epochs.pipeline.data.tables.columns import NodeColumns
from parallel_epochs.pipeline.data.tables.source import Source
from parallel_epochs.pipeline.data.tables.sql import Database, literal
from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.words import count

# Different values that a column may have, at most.
MOST_CATEGORIES = 256


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


def read(
    source: Source,
    keys: NodeColumns,
    *,
    refuse_empty: bool,
    known: Sequence[Sequence[str]] | None = None,
    unknown: str = "error",
) -> tuple[list[list[str]], list[str]]:
    """Number the values of columns of categories, which are ``category0``... in the table of nodes.

    Args:
        keys: name the columns.
        refuse_empty: whether an empty cell is an error; it is in no category otherwise.
        known: the values of each column of the tables of a training, in the order of their numbers; none: those of
            this table.
        unknown: what is done with a value that is not `known`: "error" refuses it, "empty" takes the cell for empty.

    Returns:
        The values of each column, in the order of their numbers, and what to report of each.

    Raises:
        ValueError: names the file, the column and what is wrong with it.
    """
    values, notes, columns = list[list[str]](), [], keys.categories
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
        if empty and refuse_empty:
            source.refuse_empty(
                column,
                f"coalesce({source.text(column)} NOT IN "
                f"(SELECT name FROM categories{place}), true)",
                empty,
            )
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
        unknown: what is done with other values, as of :func:`read`.

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

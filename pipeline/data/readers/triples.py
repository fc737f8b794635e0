"""Knowledge graphs as people have them: training, validation and test triples in three tables of three columns."""

import logging
import re
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

import numpy as np
import pandas as pd
import torch

from parallel_epochs.pipeline.data.columns import open_unzipped, read_bytes, unzip
from parallel_epochs.pipeline.data.content import hash_parts, label
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.node_names import number_names, pack_names
from parallel_epochs.pipeline.data.sniffer import RAGGED, read_texts, sniff
from parallel_epochs.pipeline.names import SPLIT_NAMES, SPLITS
from parallel_epochs.pipeline.run.words import count

log = logging.getLogger(__name__)

ENDING = re.compile(r"\.(txt|tsv|del|csv)(\.gz)?$")
ARCHIVE = re.compile(r"\.(tar|tgz|tar\.gz)$")
THREE = "a triple is a head, a relation and a tail, separated by tabs, commas, semicolons or blanks"
COLUMNS = ("head", "relation", "tail")
# Words of a header that name a column, in lower case and without ":".
WORDS = {
    "head": "head h subject source src from start start_id x_name x_id head_id source_id s",
    "relation": "relation r predicate rel type relationship relation_type edge_type kind label p",
    "tail": "tail t object target dst to end end_id y_name y_id tail_id target_id o",
}


def hash_content(folder: str) -> str:
    """Compute a digest of the tables, or of the archive that holds them.

    Raises:
        ValueError: there are none.
    """
    source = _source(Path(folder))
    names = (
        [""]
        if not source.is_dir()
        else sorted(_find([path.name for path in source.iterdir()], source).values())
    )
    return hash_parts(label((name, source / name) for name in names))


def read(folder: str) -> Graph:
    """Read a knowledge graph. Entities and relations are numbered in the order of their names, or of their ids where
    all are numbers.

    Returns:
        See :func:`build_triples`.

    Raises:
        ValueError: a table is missing, empty or has other than three columns; the message names the file and the line.
    """
    source = _source(Path(folder))
    log.info("triples: reading %s", source)
    found = {
        split: (content, f"{source}/{name}")
        for split, (name, content) in _read_files(source).items()
    }
    quoted = all(
        b'"' not in content or is_quoted(content, name) for content, name in found.values()
    )
    tables = {
        split: parse_triples(content, name, quoted=quoted)
        for split, (content, name) in found.items()
    }
    _refuse_headers(tables, source)
    names = pd.concat(
        [table[column] for table in tables.values() for column in ("head", "tail")],
        ignore_index=True,
    )
    numbers, entities = number_names(names)
    kinds, relations = number_names(
        pd.concat([table["relation"] for table in tables.values()], ignore_index=True)
    )
    triples, place = [], 0
    for table in tables.values():
        heads, tails = np.split(numbers[2 * place : 2 * (place + len(table))], 2)
        triples.append(np.stack([heads, kinds[place : place + len(table)], tails], axis=1))
        place += len(table)
    return build_triples(triples, entities, relations)


def _name_columns(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Leave out a header, and bring the columns into the order of its names where it has known ones."""
    words = [word.lower().strip(":") for word in table.iloc[0]]
    order = [
        next((place for place, word in enumerate(words) if word in known.split()), None)
        for known in WORDS.values()
    ]
    is_named = None not in order and len(set(order)) == 3
    # Ids that are numbers follow two texts.
    ends, rest = table.iloc[0, [0, 2]], table.iloc[1:, [0, 2]]
    numbers_follow = not ends.str.isdecimal().any() and all(
        rest[column].str.isdecimal().all() for column in rest
    )
    if is_named or len(rest) and numbers_follow:
        log.info("%s: the first line is left out as a header: %s", name, " ".join(table.iloc[0]))
        table = table.iloc[1:]
    if table.empty:
        raise ValueError(f"{name} holds no triples")
    return table[order if is_named else [0, 1, 2]].set_axis(COLUMNS, axis=1)


def _refuse_headers(tables: dict[str, pd.DataFrame], source: Path) -> None:
    """Refuse tables that all begin with the same line, whose words stand nowhere else."""
    first, *others = (tuple(table.iloc[0]) for table in tables.values())
    if any(other != first for other in others):
        return
    rest = pd.concat([table.iloc[1:] for table in tables.values()])
    if not (rest["relation"] == first[1]).any() and not rest[["head", "tail"]].isin(first).any(
        axis=None
    ):
        raise ValueError(
            f"{source}: all tables begin with {' '.join(first)!r}, whose words stand nowhere else: if this is "
            "a header, call the columns head, relation and tail, or leave the line out"
        )


def build_triples(triples: list[np.ndarray], entities: np.ndarray, relations: np.ndarray) -> Graph:
    """Put a knowledge graph together.

    Args:
        triples: of training, validation and test, each [num_triples, 3]: numbers of head, relation and tail.
        entities, relations: their names.

    Returns:
        ``triples`` [num_triples, 3], int64, the splits one behind the other; ``triple_ptr`` [4], where each begins;
        ``num_nodes``, the number of entities, and ``num_relations``; ``names`` and ``relation_names``, see
        :func:`pipeline.data.node_names.pack_names`; ``metric``.
    """
    ptr = np.cumsum([0, *map(len, triples)], dtype=np.int64)
    return Graph(
        triples=torch.from_numpy(np.concatenate(triples).astype(np.int64)),
        triple_ptr=torch.from_numpy(ptr),
        num_nodes=len(entities),
        num_relations=len(relations),
        metric="mrr",
        **pack_names(entities),
        **pack_names(relations, "relation_names"),
    )


def _source(folder: Path) -> Path:
    """Return the folder of the tables, or the archive: the one that is given, or the only one in the folder."""
    if not folder.is_dir():
        return folder
    inside = sorted(path.name for path in folder.iterdir())
    archives = [name for name in inside if ARCHIVE.search(name)]
    has_tables = any(_split_of(name) for name in inside)
    return folder / archives[0] if len(archives) == 1 and not has_tables else folder


def _split_of(name: str) -> str | None:
    """Return the split that a file is of, by its name without folders."""
    stem = ENDING.sub("", name) if ENDING.search(name) else None
    return None if stem is None else SPLIT_NAMES.get(stem)


def _find(names: list[str], source: Path) -> dict[str, str]:
    """Choose the file of each split, in the order of the splits."""
    found: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name in sorted(names):
        if split := _split_of(Path(name).name):
            found[split].append(name)
    for split, members in found.items():
        if not members:
            raise ValueError(
                f"{source} has no {split}.txt (or .tsv, .del, .csv, each perhaps with .gz): save the "
                f"{split} triples there, with a head, a relation and a tail in each line"
            )
        if len(members) > 1:
            raise ValueError(
                f"{source} has {' and '.join(members)}: leave one file of {split} triples there"
            )
    return {split: members[0] for split, members in found.items()}


def _read_files(source: Path) -> dict[str, tuple[str, bytes]]:
    """Read the file of each split: its name and content."""
    if source.is_dir():
        chosen = _find([path.name for path in source.iterdir()], source)
        return {split: (name, read_bytes(source / name)) for split, name in chosen.items()}
    try:
        with open_unzipped(source) as opened, tarfile.open(fileobj=opened, mode="r:") as archive:
            chosen = _find([member.name for member in archive if member.isfile()], source)
            contents = {}
            for split, name in chosen.items():
                with unzip(cast(IO[bytes], archive.extractfile(name)), f"{source}/{name}") as file:
                    contents[split] = name, file.read()
            return contents
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{source} is not an archive that tar can read ({error}): give a folder or a .tar.gz"
        ) from None


def is_quoted(content: bytes, name: str) -> bool:
    """Tell whether a writer of CSV quoted cells of a table of triples."""
    dialect = sniff(content, name, least=2)
    return dialect is not None and dialect.quoted


def parse_triples(content: bytes, name: str, *, quoted: bool | None = None) -> pd.DataFrame:
    """Read three columns of texts, separated by tabs, commas, semicolons or blanks.

    Args:
        name: of the file, for messages.
        quoted: whether cells are quoted as CSV; None: the table tells.

    Returns:
        Columns ``head``, ``relation`` and ``tail``; the index holds the numbers of the lines, from 0.

    Raises:
        ValueError: it is empty, or a line has other than three columns; the message names it.
    """
    dialect = sniff(content, name, least=2)
    if dialect is None:
        raise ValueError(f"{name} holds no triples")
    dialect = replace(dialect, num_before=0, quoted=dialect.quoted and quoted is not False)
    try:  # with a column more than there should be: pandas would make an index of it
        table = read_texts(
            content, name, dialect, names=range(4), index_col=False, skip_blank_lines=False
        )
    except ValueError as error:
        found = RAGGED.search(str(error))
        where = f"{name}, line {found[2]}: {found[3]} columns instead of three" if found else error
        raise ValueError(f"{where}: {THREE}") from None
    table = table.fillna("")
    if dialect.quoted:
        if table.map(lambda cell: "\n" in cell).any(axis=None):
            raise ValueError(
                f"{name}: a quoted name has several lines: close or double its quotation mark"
            )
        log.info("%s: cells are quoted, as in CSV; names are without the marks", name)
    empty = (table == "").to_numpy()
    wrong = (empty[:, :3].any(1) | ~empty[:, 3]) & ~empty.all(1)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        columns = count(int((~empty[row]).sum()), "column")
        raise ValueError(f"{name}, line {row + 1}: {columns} instead of three: {THREE}")
    table = table.loc[~empty.all(1), :2]
    if table.empty:
        raise ValueError(f"{name} holds no triples")
    return _name_columns(table, name)

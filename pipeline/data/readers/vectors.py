"""Vectors as people have them: arrays, tables, images in IDX, what `predict` saved of a run; perhaps with labels."""

import io
import itertools
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from parallel_epochs.pipeline.data.check import as_float32
from parallel_epochs.pipeline.data.columns import (
    find_head,
    open_unzipped,
    read_bytes,
    read_lines,
    read_table,
)
from parallel_epochs.pipeline.data.content import hash_parts, label
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.node_names import number_names, pack_names, refuse_rounded
from parallel_epochs.pipeline.data.sniffer import BLANKS, choose_separator, is_number, read_rows
from parallel_epochs.pipeline.run import files, limits
from parallel_epochs.pipeline.run.tables import check_parquet

log = logging.getLogger(__name__)

# Headers of a first column that holds names; "" is the index that pandas writes.
NAMES = ("id", "name", "node", "word", "")
# Cells of a column of numbers that hold none.
MISSING = ["", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "null", "NULL", "None"]
# Types of the numbers of a file in IDX, by the third of its bytes.
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
IMAGES = re.compile(r"images.*idx\d")


@dataclass
class Found:
    """The content of a file.

    Attributes:
        x: vectors [num_points, channels].
        names: of the points, if it has them.
    """

    x: np.ndarray
    names: np.ndarray | None = None


def hash_content(path: str, labels: str | None) -> str:
    """Compute a digest of the files.

    Raises:
        ValueError: a folder has no files of images, or one of them has no labels.
    """
    paths = [*_members(Path(path)), *([] if labels is None else [Path(labels)])]
    return hash_parts(label((_suffix(member), member) for member in paths))


def read(path: str, labels: str | None = None) -> Graph:
    """Read vectors.

    Returns:
        ``x`` [num_nodes, channels], float32; ``y`` [num_nodes, 1], int64, -1 for none, and ``label_names``, if there
        are labels, and ``names`` if there are any, see :func:`pipeline.data.node_names.pack_names`.

    Raises:
        ValueError: a file cannot be read; the message names it.
    """
    source = Path(path)
    members = _members(source)
    found, kinds = _read_file(members[0]), None
    if source.is_dir():
        parts = [_read_idx(member) for member in members]
        if len({part.shape[1:] for part in parts[::2]}) > 1:
            raise ValueError(f"{path} has images of several sizes: give the path of one file")
        found, kinds = Found(np.concatenate(parts[::2])), np.concatenate(parts[1::2])
    if labels is not None:
        kinds = _read_labels(Path(labels), found)
    data = Graph(x=_as_vectors(found.x, source), num_nodes=len(found.x))
    if found.names is not None:
        data.update(pack_names(found.names))
    if kinds is not None:
        data.y, names = _number_labels(kinds, labels or path, data.num_nodes)
        data.update(pack_names(names, "label_names"))
    return data


def _members(path: Path) -> list[Path]:
    """List the files of a dataset: the path itself, or of a folder each file of images and that of its labels."""
    if not path.is_dir():
        return [path]
    images = sorted(member for member in path.iterdir() if IMAGES.search(member.name))
    if not images:
        raise ValueError(
            f"data.path={path} is a directory without files of images in IDX, such as "
            "train-images-idx3-ubyte.gz: give a file"
        )
    out = []
    for member in images:
        labels = member.with_name(re.sub(r"idx\d", "idx1", member.name.replace("images", "labels")))
        if not files.is_there(labels):
            raise ValueError(
                f"{member} has no labels: {labels.name} is not next to it. Add that file, or set "
                "data.path to the file of images alone"
            )
        out += [member, labels]
    return out


def _suffix(path: Path) -> str:
    """Return what the name ends with, .gz apart; "idx" for files in IDX."""
    name = path.name.removesuffix(".gz")
    return "idx" if re.search(r"idx\d", name) else Path(name).suffix


def _read_file(path: Path) -> Found:
    suffix = _suffix(path)
    if suffix not in READERS:
        raise ValueError(
            f"data.path={path}: vectors are read from files that end with one of "
            f"{', '.join(READERS)}, or in IDX, such as t10k-images-idx3-ubyte.gz"
        )
    return READERS[suffix](path)


def _read_idx(path: Path) -> np.ndarray:
    """Read an array of any shape: two zeros, type, number of sizes, sizes, and the numbers, the largest byte first."""
    content = read_bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_TYPES:
        raise ValueError(f"{path} is not a file in IDX format: it begins with {content[:4].hex()}")
    head = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:head], ">u4").astype(np.int64)
    dtype = np.dtype(IDX_TYPES[content[2]])
    if len(shape) != content[3] or len(content) - head != shape.prod() * dtype.itemsize:
        raise ValueError(
            f"{path} is damaged: it has {len(content) - head:,} bytes of numbers for the shape "
            f"{shape.tolist()}"
        )
    numbers = np.frombuffer(content, dtype, offset=head).reshape(shape)
    return numbers.astype(dtype.newbyteorder("="))


def _load_numpy(path: Path) -> np.ndarray:
    try:
        return np.lib.format.read_array(io.BytesIO(read_bytes(path)), allow_pickle=False)
    except (ValueError, OSError, EOFError, MemoryError) as error:
        # A head may ask for any number of bytes.
        raise ValueError(f"{path} is not a file that numpy.save wrote: {error}") from None


def _read_table(path: Path) -> Found:
    """Read numbers separated by commas, tabs or blanks; perhaps with a head, and names in the first column."""
    with open_unzipped(path) as file:
        head, num_before = find_head(file, str(path))
        if not head:
            raise ValueError(f"{path} holds no rows")
        separator = choose_separator([head])
        first = _split(head, separator)
        limits.check_columns(str(path), len(first))
        is_head = not any(map(is_number, first[1:] or first))
        line = b"".join(itertools.islice(file, num_before + 1, num_before + 2))
        second = _split(line.decode("utf-8", "replace"), separator)
        file.seek(0)
        # word2vec's line of sizes; if two numbers follow it is the first of points in the plane
        is_sizes = (
            _suffix(path) == ".txt"
            and len(first) == 2
            and all(cell.strip().isdecimal() for cell in first)
            and not (len(second) == 2 and is_number(second[0]))
        )
        table = read_table(
            file,
            str(path),
            separator,
            header=None,
            skiprows=num_before + (is_head or is_sizes),
            quoting=3 if separator == BLANKS else 0,
            keep_default_na=False,
            na_values={place: MISSING for place in range(1, max(len(first), len(second)))},
        )
    if is_head or is_sizes:
        log.info("%s: the first line is left out as a header: %s", path, head.strip()[:80])
    return _from_table(table, path, named=is_head and first[0].strip().strip('"').lower() in NAMES)


def _split(line: str, separator: str) -> list[str]:
    return line.split(None if separator == BLANKS else separator)


def _read_parquet(path: Path) -> Found:
    check_parquet("data.path", path)
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            num_rows, num_columns = file.metadata.num_rows, file.metadata.num_columns
        limits.check_columns(str(path), num_columns)
        size = 8 * num_rows * num_columns
        limits.check_size(f"{path} unpacks to", size, limits.UNPACKED, limits.limit_in_memory())
        table = pd.read_parquet(path)
    except (OSError, ArrowException) as error:
        raise ValueError(f"{path} is not a readable table: {error}") from None
    return _from_table(table, path, named=bool(len(table.columns)) and table.columns[0] == "id")


def _from_table(table: pd.DataFrame, path: Path, *, named: bool = False) -> Found:
    """Take the vectors of a table.

    Args:
        named: the first column holds names, even if they are numbers.
    """
    names = None
    if table.shape[1] and (named or not pd.api.types.is_numeric_dtype(table.iloc[:, 0])):
        refuse_rounded(str(path), table.iloc[:, 0])
        names, table = table.iloc[:, 0].astype(str).to_numpy(), table.iloc[:, 1:]
    texts = table.select_dtypes(exclude="number")
    wrong = ~texts.map(is_number).to_numpy(bool)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        place = table.columns.get_loc(texts.columns[column]) + 1 + (names is not None)
        raise ValueError(
            f"{path}: row {row + 1} of column {place} is {texts.iloc[row, column]!r}, which is not a "
            "number: leave the column out, or give labels as data.labels"
        )
    return Found(table.to_numpy(np.float64), names)


def _as_vectors(x: np.ndarray, path: Path) -> Tensor:
    if x.ndim < 2 or x.dtype.kind not in "fiub":
        raise ValueError(
            f"{path} holds an array of {x.dtype} of the shape {list(x.shape)}: vectors are numbers, a row "
            "each"
        )
    x = x.reshape(len(x), math.prod(x.shape[1:]))
    if x.dtype in (np.float64, np.int32, np.int64):
        return as_float32(str(path), torch.from_numpy(np.require(x, requirements=["C", "W"])))
    return torch.from_numpy(np.ascontiguousarray(x, np.float32))


def _read_labels(path: Path, found: Found) -> np.ndarray:
    """Read labels in the order of the vectors."""
    suffix = _suffix(path)
    if suffix in ("idx", ".npy"):
        return _read_idx(path) if suffix == "idx" else _load_numpy(path)
    if found.names is None:
        return np.array([line or None for line in read_lines(path)], object)
    rows = read_rows(path, set(map(str, found.names)))
    if min((len(row) for _, row in rows), default=0) < 2:
        return np.array([line or None for line in read_lines(path)], object)
    label_of = {name: label for _, (name, label, *_) in rows}
    labels = [label_of.get(str(name)) for name in found.names]
    if not any(label is not None for label in labels):
        raise ValueError(
            f"data.labels={path}: none of its ids is a name of a vector; the first is {rows[0][1][0]}"
        )
    return np.array(labels, object)


def _number_labels(labels: np.ndarray, origin: str, num_points: int) -> tuple[Tensor, np.ndarray]:
    """Number labels from 0 in their order; returns the classes [num_points, 1], -1 for none, and their names."""
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (num_points,):
        count = " x ".join(f"{size:,}" for size in labels.shape)
        raise ValueError(
            f"{origin} has {count} labels for {num_points:,} vectors: give one for each"
        )
    known = pd.notna(labels) & (labels >= 0 if labels.dtype.kind in "iu" else True)
    classes, kinds = np.full(num_points, -1, np.int64), np.array([], str)
    if known.any():
        classes[known], kinds = number_names(pd.Series(labels[known]))
    if len(kinds) > max(1000, num_points // 2):
        raise ValueError(
            f"{origin} has {len(kinds):,} different labels for {num_points:,} vectors: labels are classes"
        )
    return torch.from_numpy(classes).unsqueeze(1), kinds


READERS: dict[str, Callable[[Path], Found]] = {
    ".npy": lambda path: Found(_load_numpy(path)),
    ".csv": _read_table,
    ".tsv": _read_table,
    ".txt": _read_table,
    ".parquet": _read_parquet,
    "idx": lambda path: Found(_read_idx(path)),
}

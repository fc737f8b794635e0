"""Tables in files: CSV, TSV and Parquet, written part by part. A file has its name only when it is whole."""

import contextlib
import gzip
import io
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from parallel_epochs.pipeline.run import files
from parallel_epochs.pipeline.run.errors import install_command

# Formats by the end of a file's name; of those of text, what separates two columns.
SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
FORMATS = (".parquet", *SEPARATORS)

# Columns of some rows: texts (objects) or numbers [num_rows], or a matrix of numbers [num_rows, width].
Columns = dict[str, np.ndarray]


def format_of(key: str, path: Path | str) -> str:
    """Return the end of a file's name that says what kind of table it is.

    Raises:
        ValueError: it is none of the known ones, or the package that writes it is not installed.
    """
    for ending in FORMATS:
        if Path(path).name.endswith(ending):
            if ending == ".parquet":
                check_parquet(key, path)
            return ending
    raise ValueError(f"{key}={path}: tables are one of {', '.join(FORMATS)}")


def check_parquet(key: str, path: Path | str) -> None:
    """Check that Parquet files can be written and read.

    Raises:
        ValueError: pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ValueError(f"{key}={path} needs pyarrow: {install_command('parquet')}") from None


def write(path: Path, parts: Iterable[Columns]) -> None:
    """Write a table in the format that the name of its file ends with, in place of a file that was there.

    Args:
        parts: some rows each, with the same columns.

    Raises:
        ValueError: see :func:`format_of`.
        FileError: it cannot be written; what was there before is there still.
    """
    ending = format_of("path", path)

    def write_to(file: IO[bytes]) -> None:
        if ending == ".parquet":
            write_parquet(file, parts)
        else:
            write_text(file, parts, SEPARATORS[ending], zipped=ending.endswith(".gz"))

    files.write_atomically(path, write_to)


def write_parquet(file: IO[bytes], parts: Iterable[Columns]) -> None:
    """Write a row group for each part; a matrix becomes one column of lists of a fixed size."""
    import pyarrow
    from pyarrow import parquet

    def as_array(column: np.ndarray) -> Any:
        if column.ndim == 2:
            return pyarrow.FixedSizeListArray.from_arrays(
                pyarrow.array(column.reshape(-1)), column.shape[1]
            )
        return pyarrow.array(column, pyarrow.string() if column.dtype == object else None)

    with contextlib.ExitStack() as stack:
        writer = None
        for part in parts:
            table = pyarrow.table({name: as_array(column) for name, column in part.items()})
            writer = writer or stack.enter_context(
                parquet.ParquetWriter(_Stream(file), table.schema)
            )
            writer.write_table(table)


def write_text(
    file: IO[bytes],
    parts: Iterable[Columns],
    separator: str,
    *,
    zipped: bool = False,
) -> None:
    """Write lines, the first of which names the columns; of a matrix each column becomes one.

    Args:
        zipped: compress the lines by gzip.
    """
    with contextlib.ExitStack() as stack:
        out: Any = file
        if zipped:
            out = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
        for number, part in enumerate(parts):
            flat: Columns = {}
            for name, column in part.items():
                flat |= (
                    {name: column}
                    if column.ndim == 1
                    else {f"{name}_{place}": values for place, values in enumerate(column.T)}
                )
            out.write(
                pd.DataFrame(flat)
                .to_csv(
                    sep=separator,
                    index=False,
                    header=not number,
                    float_format="%.9g",  # which gives float32 back exactly
                    lineterminator="\n",
                )
                .encode()
            )


class _Stream(io.RawIOBase):
    """Takes what pyarrow writes; it closes this, not the file."""

    def __init__(self, file: IO[bytes]):
        super().__init__()
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(data)

"""Long sequential reads of the arrays of a store, a block ahead of who uses them."""

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import cast

import numpy as np
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import cut_into_blocks
from parallel_epochs.pipeline.run import files, pulse
from parallel_epochs.pipeline.run.memory import machine_memory

# Bytes that are read at a time, of all arrays together.
BLOCK_BYTES = 1 << 26


class Reader:
    """Reads rows of arrays of a store in long sequential reads, a block ahead of who uses them.

    Args:
        path: the store.
        arrays: by name, as they were opened: their dtype and the shape of their rows are read likewise.
    """

    def __init__(self, path: Path, arrays: Mapping[str, Tensor]):
        self._paths = [path / f"{name}.bin" for name in arrays]
        self._rows = [
            (array[:0].numpy().dtype, tuple(array.shape[1:])) for array in arrays.values()
        ]
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> "Reader":
        self._files = []
        for path in self._paths:
            with files.naming(path, "read"):
                file = cast(FileIO, self._exit.enter_context(files.open_file(path, buffering=0)))
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                self._files.append(file)
        # An array that does not fit into memory anyway need not drive out of it those that do.
        total = sum(os.fstat(file.fileno()).st_size for file in self._files)
        self._drops = total > machine_memory() // 2
        self._pool = self._exit.enter_context(ThreadPoolExecutor(1))
        return self

    def __exit__(self, *exc: object) -> None:
        self._exit.close()

    def read(
        self, spans: Sequence[tuple[int, int]], *, reuse: bool = False
    ) -> Iterator[list[np.ndarray]]:
        """Read rows [first, last) of every array, for each span in turn.

        Args:
            reuse: read into the same memory again and again: the arrays of a span are those of the next but one. New
                memory for every block costs more than the copy from the system's cache.

        Raises:
            FileError: they cannot be read.
        """
        longest = max((last - first for first, last in spans), default=0)
        memory = [
            [np.empty(longest * row_bytes(*row), np.uint8) if reuse else None for row in self._rows]
            for _ in range(2)
        ]
        ahead = self._pool.submit(self._read, spans[0], memory[0]) if spans else None
        for number in range(len(spans)):
            assert ahead is not None
            values = ahead.result()
            if number + 1 < len(spans):
                ahead = self._pool.submit(self._read, spans[number + 1], memory[(number + 1) % 2])
            pulse.renew()
            yield values

    def _read(self, span: tuple[int, int], memory: list[np.ndarray | None]) -> list[np.ndarray]:
        return [
            self._read_rows(path, file, row, *span, out)
            for path, file, row, out in zip(
                self._paths, self._files, self._rows, memory, strict=True
            )
        ]

    def _read_rows(
        self,
        path: Path,
        file: FileIO,
        row: tuple[np.dtype, tuple[int, ...]],
        first: int,
        last: int,
        out: np.ndarray | None,
    ) -> np.ndarray:
        dtype, shape = row
        with files.naming(path, "read"):
            begin = first * row_bytes(dtype, shape)
            values = files.read_at(file.fileno(), dtype, (last - first, *shape), begin, out)
            if self._drops:
                os.posix_fadvise(file.fileno(), begin, values.nbytes, os.POSIX_FADV_DONTNEED)
        return values


def row_bytes(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """Return the bytes of a row of an array."""
    return dtype.itemsize * math.prod(shape)


def edge_blocks(data: Data, block: int = BLOCK_BYTES, *, features: bool = False) -> Iterator[tuple]:
    """Read the edges of a graph once, in order, in blocks of whole destinations: from its store, if it is in one.

    Args:
        block: bytes to read at a time; a destination with more of them has a block to itself.
        features: read those of the edges too.

    Returns:
        Of each block: its first destination; where the edges of each of its destinations begin in it, int64, one more
        than it has destinations; their sources; and if they are asked for and there are any, their features. The arrays
        of a block are those of the next but one.

    Raises:
        FileError: the store cannot be read.
    """
    (indptr, _), _ = data.edge_index.get_csc()
    arrays = {"edges": data.edge_index.as_tensor()[0]}  # the first row of a matrix, and of its file
    if features and data.edge_attr is not None:
        arrays["edge_attr"] = data.edge_attr
    num_edges = max(
        block
        // sum(
            row_bytes(array[:0].numpy().dtype, tuple(array.shape[1:])) for array in arrays.values()
        ),
        1,
    )
    rows = cut_into_blocks(indptr, num_edges)
    spans = [(int(indptr[first]), int(indptr[last])) for first, last in rows]
    with contextlib.ExitStack() as stack:
        blocks = (
            ([array[begin:end].numpy() for array in arrays.values()] for begin, end in spans)
            if data.store is None
            else stack.enter_context(Reader(data.store, arrays)).read(spans, reuse=True)
        )
        for (first, last), (begin, _), values in zip(rows, spans, blocks, strict=True):
            yield first, (indptr[first : last + 1].long() - begin).numpy(), *values

"""Long sequential reads of the arrays of a store, a block ahead of who uses them."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
from torch import Tensor
from torch_geometric.data import Data

from parallel_epochs.models.edge_index import cut_into_blocks
from parallel_epochs.pipeline.run import files, pulse
from parallel_epochs.pipeline.run.memory import machine_memory

# Bytes that are read at a time, of all arrays together.
BLOCK_BYTES = 1 << 26


def read_rows(
    path: Path, arrays: Mapping[str, Tensor], spans: Sequence[tuple[int, int]]
) -> Iterator[list[np.ndarray]]:
    """Read rows [first, last) of every array, for each span in turn, a block ahead of who uses them.

    New memory for every block would cost more than the copy from the system's cache: the arrays of a span are those of
    the next but one.

    Args:
        path: the store.
        arrays: by name, as they were opened: their dtype and the shape of their rows are read likewise.

    Raises:
        FileError: they cannot be read.
    """
    longest = max((last - first for first, last in spans), default=0)
    memory = [
        [
            np.empty((longest, *array.shape[1:]), array[:0].numpy().dtype)
            for array in arrays.values()
        ]
        for _ in range(2)
    ]
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(files.open_file(path / f"{name}.bin", buffering=0))
            for name in arrays
        ]
        for file in opened:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        # An array that does not fit into memory anyway need not drive out of it those that do.
        drops = sum(os.fstat(file.fileno()).st_size for file in opened) > machine_memory() // 2
        pool = stack.enter_context(ThreadPoolExecutor(1))

        def read(number: int) -> list[np.ndarray]:
            return [
                read_span(file, values, *spans[number], drops=drops)
                for file, values in zip(opened, memory[number % 2], strict=True)
            ]

        ahead = pool.submit(read, 0) if spans else None
        for number in range(len(spans)):
            assert ahead is not None
            values = ahead.result()
            if number + 1 < len(spans):
                ahead = pool.submit(read, number + 1)
            pulse.renew()
            yield values


def read_span(
    file: BinaryIO, memory: np.ndarray, first: int, last: int, *, drops: bool
) -> np.ndarray:
    """Read rows [first, last) of an array into memory; the system forgets them if it `drops` them."""
    values, begin = memory[: last - first], first * memory.strides[0]
    with files.naming(Path(file.name), "read"):
        files.read_at(file.fileno(), values, begin)
        if drops:
            os.posix_fadvise(file.fileno(), begin, values.nbytes, os.POSIX_FADV_DONTNEED)
    return values


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
    bytes_of_edge = sum(array.stride(0) * array.element_size() for array in arrays.values())
    rows = cut_into_blocks(indptr, max(block // bytes_of_edge, 1))
    spans = [(int(indptr[first]), int(indptr[last])) for first, last in rows]
    if data.store is None:
        blocks = ([array[begin:end].numpy() for array in arrays.values()] for begin, end in spans)
    else:
        blocks = read_rows(data.store, arrays, spans)
    for (first, last), (begin, _), values in zip(rows, spans, blocks, strict=True):
        yield first, (indptr[first : last + 1].long() - begin).numpy(), *values
